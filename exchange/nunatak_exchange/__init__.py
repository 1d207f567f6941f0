"""Exchange with other programs: import of their folders, export of tasks, added backbones."""
