"""What all packages say: names, methods, heads, manifests, and what travels over HTTP.

Import from the modules. `enums`, `errors` and `plain_text` need the standard library alone. The
other modules need pydantic. Nothing here needs torch, a web framework or SQL.
"""
