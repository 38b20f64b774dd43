"""How attention over the keys that are seen is computed."""
