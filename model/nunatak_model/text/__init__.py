"""Texts: from characters to what the encoder reads, and back to characters."""
