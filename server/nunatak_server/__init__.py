"""The server: one process that answers for many tasks from one frozen backbone."""
