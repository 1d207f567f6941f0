"""The catalog: the registry as this server sees it, and what it tells the registry."""
