"""A private server process during a block of code."""

import subprocess
import sys
from pathlib import Path
from typing import Self

from nunatak_contract.errors import NunatakError

READY = "Nunatak is ready on "
STOP_TIMEOUT_S = 40


class ServerProcess:
    """Runs `nunatak serve` with `options` on a free port; logs to a file or standard error."""

    def __init__(
        self, registry: str | Path, *, options: tuple[str, ...] = (), log: Path | None = None
    ) -> None:
        self._command = [
            sys.executable,
            *("-m", "nunatak_cli", "serve"),
            *("--registry", str(registry)),
            *("--port", "0"),
            *options,
        ]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("a ServerProcess has a process only between start and stop")
        return self._process.pid

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
        where = (
            "its messages above give the reason"
            if self._log is None
            else f"{self._log.name} says why"
        )
        raise NunatakError("server_start_failed", exit_code=self._process.wait(), where=where)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
