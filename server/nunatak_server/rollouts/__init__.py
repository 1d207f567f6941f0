"""Canaries and shadows: which version answers, and how a shadow compares with it."""
