"""Neighbours' protocols: thin translators to the one service, so that their clients work here.

Each speaks its own words for requests, answers and errors; statuses come from the one table. What
a neighbour's request may say and this server does not do is refused, never left unread.
"""
