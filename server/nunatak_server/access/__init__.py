"""Who may ask for what: keys, the callers they stand for, and the file that holds them."""
