"""Processes: one server until a signal, or a local fleet of several."""
