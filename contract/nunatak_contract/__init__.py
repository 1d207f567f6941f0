"""The words of all packages: names, methods, heads, manifests, and the messages over HTTP.

Import from the modules. `enums`, `errors` and `plain_text` need the standard library alone. The
other modules need pydantic. Nothing here needs torch, a web framework or SQL.
"""
