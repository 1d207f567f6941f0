"""One request without HTTP, to be read in this order: `types`, `service`, `prepare`, `ask`."""
