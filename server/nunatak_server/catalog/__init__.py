"""The registry: its threads, what this process knows of it, and how this process follows it."""
