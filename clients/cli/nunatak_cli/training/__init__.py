"""Commands that train tasks, and score or question their examples."""
