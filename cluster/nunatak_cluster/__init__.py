"""Nunatak on Ray: the same server on Ray Serve, and training and scoring as tasks of a cluster."""
