"""A request as bytes, and the shape of a good one; every request is for the task `tone`."""

import json
from dataclasses import dataclass

CANARY = "swordfish"
GOOD_BODY = json.dumps({"inputs": "where is my parcel?"}).encode()
PREDICT = "/v1/tasks/tone/predict"
PREDICT_MANY = "/v1/predict"
END = b"\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """What one connection sends; `may_pass` where some of it might be right after all."""

    name: str
    data: bytes
    may_pass: bool = False


def post(body: bytes, *, path: str = PREDICT, headers: tuple[bytes, ...] = ()) -> bytes:
    """Return a well-framed request that ends its connection."""
    head = [
        f"POST {path} HTTP/1.1".encode(),
        b"host: test",
        b"content-type: application/json",
        b"connection: close",
        b"content-length: %d" % len(body),
        *headers,
    ]
    return END.join(head) + END + END + body
