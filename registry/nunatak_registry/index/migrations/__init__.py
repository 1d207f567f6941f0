"""The revisions of Alembic, one from each layout of the index to the next.

A revision names its tables itself, because `schema` describes only the newest layout.
"""
