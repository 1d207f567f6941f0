"""The cache folder: what training can compute again, and what it goes on from."""
