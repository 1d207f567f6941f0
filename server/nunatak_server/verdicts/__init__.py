"""Verdicts: the answers of several tasks become one decision, by the rules of a policy."""
