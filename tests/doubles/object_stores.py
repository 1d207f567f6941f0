"""A private S3 server for tests: moto's, as a process of its own on a free port."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import boto3
from s3fs import S3FileSystem

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "nunatak",
    "AWS_SECRET_ACCESS_KEY": "nunatak",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """A running server."""

    process: "subprocess.Popen[str]"
    address: str
    numbers: "count[int]" = field(default_factory=count)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that a client process needs to reach the server."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.address}

    def client(self) -> Any:  # noqa: ANN401 - boto3 creates its classes at run time
        """Return a client that sees the objects as they are."""
        return boto3.client(
            "s3",
            endpoint_url=self.address,
            aws_access_key_id="nunatak",
            aws_secret_access_key="nunatak",  # noqa: S106 - the server accepts any type
            region_name="us-east-1",
        )

    def create_bucket(self) -> str:
        name = f"registry{next(self.numbers)}"
        self.client().create_bucket(Bucket=name)
        return name


@contextlib.contextmanager
def object_store() -> Generator[ObjectStore]:
    """Start a server; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        env=os.environ | CREDENTIALS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            store = ObjectStore(process=process, address=_address(process))
            # The server logs every request, and would block on a pipe without a reader.
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            yield store
        finally:
            process.kill()
            # fsspec keeps its clients, which would ask this server in place of the next one.
            S3FileSystem.clear_instance_cache()


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", line)
        if found is not None:
            return found[1]
    raise AssertionError("the object store ended before it was ready")


def _drain(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    with contextlib.suppress(ValueError):
        for _ in process.stderr:
            pass
