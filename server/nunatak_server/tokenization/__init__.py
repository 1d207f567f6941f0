"""Tokenization: what is asked about, and how it is read."""
