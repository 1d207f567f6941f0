"""Texts: from characters to the encoder's input, and back to characters."""
