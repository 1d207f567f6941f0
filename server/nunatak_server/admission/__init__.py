"""Admission: how much may be queued at once, and what is queued of whom."""
