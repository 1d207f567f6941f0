"""Logits become the answers for callers, by the kind of the head."""
