"""Decisions: tasks answer typed questions, as question cards bind them."""
