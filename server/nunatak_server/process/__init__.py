"""The process: its settings, its start, whether it is ready, and its end."""
