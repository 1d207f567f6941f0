"""Answers of a server, printed one by one as they come."""

from collections.abc import Sequence

from nunatak_cli.asking import stream_server
from nunatak_cli.output import console, print_json_line
from nunatak_cli.views.answers import answer_json, answer_line
from nunatak_client import Input, Parameters


def print_stream(
    server: str, source: Input, tasks: Sequence[str], *, parameters: Parameters, as_json: bool
) -> bool:
    """Print every answer when it is there; return whether no task failed."""
    failed = 0
    for answer in stream_server(server, source, tasks, parameters=parameters):
        failed += answer.error_code is not None
        if as_json:
            print_json_line(answer_json(answer))
        else:
            console().print(answer_line(answer), soft_wrap=True)
    return not failed
