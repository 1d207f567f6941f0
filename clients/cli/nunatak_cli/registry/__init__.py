"""Commands of a registry: its tasks, policies and copies, and the backbones beside it."""
