"""Sweeps: many runs from one file, resumable, with tables and plots from their results."""
