"""One request without HTTP. Read the files in this order: `types`, `service`, `prepare`, `ask`."""
