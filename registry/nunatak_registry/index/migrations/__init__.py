"""The steps from each layout of the index to the next, by Alembic's operations.

A step names its tables itself, because `schema` describes only the newest layout.
"""
