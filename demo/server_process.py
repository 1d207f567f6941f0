"""A private `nunatak serve` for a block of code: of the demo, the benchmarks and the tests."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

READY = "Nunatak is ready on "
STOP_TIMEOUT_S = 40


class ServerProcess:
    """Runs `nunatak serve` with `options`, on a free port without `port`; logs to a file or stderr.

    `under` is a program that starts the server, with its arguments.
    """

    def __init__(
        self,
        registry: str | Path,
        *,
        port: int = 0,
        options: tuple[str, ...] = (),
        log: Path | None = None,
        under: Sequence[str] = (),
    ) -> None:
        serve = (sys.executable, "-m", "nunatak_cli", "serve", "--registry", str(registry))
        self._command = [*under, *serve, "--port", str(port), *options]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        """Start the server and wait until it accepts requests."""
        log = None if self._log is None else self._log.open("w", encoding="utf-8")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter; no shell
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        finally:
            if log is not None:
                log.close()
        for line in self._process.stdout or ():
            if line.startswith(READY):
                self.url = line.removeprefix(READY).strip()
                return
        where = "the messages above say" if self._log is None else f"{self._log.name} says"
        code = self._process.wait()
        raise RuntimeError(f"the server ended with code {code} before it was ready; {where} why")

    def stop(self) -> None:
        """Let the server answer the requests in flight, and end it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        # Closes the pipe and waits for the end.
        with process:
            pass

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
