"""The `nunatak` command, also as `python -m nunatak_cli`."""

import os
import signal
from contextlib import suppress
from types import FrameType

from nunatak_cli import INTERRUPTED


def main() -> None:
    """Run the command. Ctrl-C shows no traceback, also while the command is imported."""
    # A shell that ignores the signal for a command in the background is obeyed.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from nunatak_cli.main import app  # noqa: PLC0415

        app()
    except KeyboardInterrupt:
        _end()


def _interrupt(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        # torch drops a KeyboardInterrupt of its imports, and the command would go on.
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _end()
        frame = frame.f_back
    raise KeyboardInterrupt


def _end() -> None:
    with suppress(OSError):
        os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(130)


if __name__ == "__main__":
    main()
