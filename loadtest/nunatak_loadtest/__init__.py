"""Load tests of a running server, made of Locust; they see the server through HTTP alone.

`locustfile` is the file for `locust -f`. The import of Locust changes the whole process, because
gevent replaces the sockets and threads of Python. No other module here imports Locust, and
`nunatak loadtest` runs Locust in a process of its own.
"""
