"""Callers, API keys, and the file that holds the keys."""
