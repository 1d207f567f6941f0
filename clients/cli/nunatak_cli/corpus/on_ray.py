"""Scoring on a Ray cluster: the same scorer, in one actor for each GPU or, without GPUs, each node.

The process of the command reads the corpus and writes OUT, so the nodes need no shared folder for
either. The nodes open the registry and the backbone themselves. Each actor has at most two chunks,
so the memory holds few chunks. Ray starts a dead actor again and repeats its chunks.
"""
