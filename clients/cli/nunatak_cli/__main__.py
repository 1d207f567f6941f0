"""`python -m nunatak_cli` is the `nunatak` command."""

from nunatak_cli.main import app

app()
