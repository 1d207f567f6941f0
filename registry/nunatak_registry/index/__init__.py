"""The index: versions, aliases and candidates in a SQL database."""
