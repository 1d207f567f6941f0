"""The `nunatak` command: a thin face on the other packages, each imported when its command runs."""

INTERRUPTED = "interrupted: the command did not end; repeat it"
