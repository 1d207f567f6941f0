"""Versions in traffic: which version of an alias answers, and which one runs along unseen."""
