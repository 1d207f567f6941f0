"""One request without HTTP. Read in order: `types`, `service`, `prepare`, `ask`."""
