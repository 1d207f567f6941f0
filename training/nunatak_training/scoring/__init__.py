"""Scores of predictions, and their confidence intervals."""
