"""Residency: which task versions are in memory, who uses them, and how they get in and out."""
