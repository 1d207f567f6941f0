"""The HTTP face of the server: parsing, limits, replies and the table of statuses."""
