"""A real server gets thousands of bad requests: none harms the server, and none is accepted."""

import asyncio
import itertools
import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from doubles.backbones import tiny_backbone, tiny_tokenizer
from doubles.events import catch_from
from doubles.names import HOSTILE_NAMES
from doubles.raw_request import (
    CANARY,
    END,
    GOOD_BODY,
    PREDICT,
    PREDICT_MANY,
    RawRequest,
    num_open_files,
    post,
    send_all,
)
from doubles.serving import make_settings, serving_tone
from doubles.tasks import publish_tiny_task
from nunatak_server.settings import ServerSettings

publish = publish_tiny_task
LIMIT_S = 15.0
NUM_MUTATIONS = 50 * int(os.environ.get("ABUSE", "1"))
"""`make abuse` sends many more."""
IN_PATHS = (
    *("tone%00", "tone%0a", "tone%0d%0aset-cookie:x", "%ff%fe", "%c0%ae", "tone%20", "t\u00f6ne"),
    *("tone@", "tone@@prod", "tone@prod@x", "tone@PROD", "@prod", "tone;drop", "tone'--"),
)
"""Names that only an address can have, most of them next to the name of a task."""


def corpus(*, seed: int, num_mutations: int) -> list[RawRequest]:
    """Return every written request, and a number of random changes of good requests.

    Equal seeds give equal corpora.
    """
    written = (
        bad_json(),
        bad_text(),
        bad_numbers(),
        bad_framing(),
        bad_heads(),
        odd_hosts(),
        bad_paths(),
        big_bodies(),
    )
    return [*itertools.chain(*written), *mutations(seed=seed, count=num_mutations)]


def parts(line: str) -> list[str]:
    """Return what stands between bars."""
    return line.split("|")


def bad_json() -> Iterator[RawRequest]:
    """Fragments that are not strict JSON, as a whole body and as a value in a body."""
    fragments = [
        *parts(
            "| |{|}|[|]|{}|[]|{]|[}|{{}}|nul|nulll|NaN|tru|Infinity|-Infinity|undefined|"
            'None|True|\'x\'|"x|x"|"\\x"|"\\u12"|"\\ud800"|"\\udc00\\ud800"|'
            '"\\ud800\\u0041"|//x|/*x*/1|1 2|1,2|:|,|{"a"}|{"a":}|{"a":1,}|{a:1}|{\'a\':1}|'
            '{"a" 1}|{1:1}|[1,]|[,1]|[1 2]|{"a":1 "b":2}|{"a":1}}|[1]]|"a\nb"|"a\tb"|'
            '"a\x00b"|\xa0|\ufeff|\x00'
        ),
        "{" * 500,
        "[" * 500,
        '{"a":' * 500,
        "[[" * 600 + "]]" * 600,
        "\x1b[31m",
        "<a/>",
        "a: b",
    ]
    twice = (
        '{"inputs": "x", "inputs": "y"}',
        '{"inputs": "x", "\\u0069nputs": "y"}',
        '{"inputs": {"text": "x", "text": "y"}}',
        '{"inputs": [{"text": "x"}, {"text": "x", "text": "y"}]}',
        '{"inputs": "x", "parameters": {"top_k": 1, "top_k": 2}}',
        '{"inputs": "x", "tasks": ["tone"], "tasks": ["tone"]}',
        '{"inputs": "x", "parameters": {}, "parameters": {}}',
    )
    places = ("%s", '{"inputs": %s}', '{"inputs": [%s]}')
    for path in (PREDICT, PREDICT_MANY):
        for number, fragment in enumerate(fragments):
            for place, template in enumerate(places):
                body = template.replace("%s", fragment).encode()
                yield RawRequest(name=f"json-{number}-{place}-{path}", data=post(body, path=path))
        for number, body in enumerate(twice):
            yield RawRequest(name=f"twice-{number}-{path}", data=post(body.encode(), path=path))


def bad_text() -> Iterator[RawRequest]:
    """Bytes that are no UTF-8, other encodings, and characters that no text may hold."""
    sequences = [
        *(bytes([byte]) for byte in range(0x80, 0x100)),
        *(bytes([byte, 0x80]) for byte in (0xC0, 0xC1, 0xE0, 0xF0, 0xF5, 0xFF)),
        *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80"),
        *(b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xe2\x82", b"\xf0\x9f\x98"),
    ]
    for sequence in sequences:
        for body in (b'{"inputs": "%s"}' % sequence, b'{"inputs": "x", "%s": 1}' % sequence):
            yield RawRequest(name=f"utf8-{sequence.hex()}-{len(body)}", data=post(body))
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-7", "cp037"):
        body = '{"inputs": "tsch\u00fc\u00df +"}'.encode(encoding)
        yield RawRequest(name=f"as-{encoding}", data=post(body), may_pass=encoding == "utf-7")
    for code in (0, 1, 8, 0x1F, 0x7F, 0xAD, 0x200B, 0x202E, 0xFEFF, 0xFFFE, 0xFFFF, 0x10FFFF):
        body = json.dumps({"inputs": f"{CANARY}{chr(code)}"}).encode()
        yield RawRequest(name=f"character-{code:x}", data=post(body), may_pass=code != 0)
        lone = json.dumps({"inputs": chr(code)}).encode()
        yield RawRequest(name=f"alone-{code:x}", data=post(lone), may_pass=True)


def bad_numbers() -> Iterator[RawRequest]:
    """Numbers that are wrong for their field, and values that are not numbers."""
    values = [
        *parts(
            "-1|0|1.5|1e999|-1e999|1e-999|NaN|Infinity|-Infinity|+1|01|1.|.5|1e|0x10|1_000|"
            "--1|-|1e+|1e5|2147483648"
        ),
        "1" * 20,
        "9" * 5000,
        "-" + "9" * 5000,
        "0." + "0" * 5000 + "1",
        *parts('"1"|true|[]|{}|[1]'),
    ]
    fields = ("top_k", "stride", "doc_stride", "max_answer_len")
    for field, value in itertools.product(fields, values):
        body = f'{{"inputs": "x", "parameters": {{"{field}": {value}}}}}'.encode()
        # A stride may be 0, and any number of labels may be requested.
        allowed = {"0"} if "stride" in field else {"2147483648", "1" * 20}
        may_pass = value in allowed and field != "max_answer_len"
        yield RawRequest(name=f"{field}-{value[:12]}", data=post(body), may_pass=may_pass)
    for value in values:
        deadline = (f"x-deadline-ms: {value}".encode(),)
        yield RawRequest(
            name=f"deadline-{value[:12]}", data=post(GOOD_BODY, headers=deadline), may_pass=True
        )
        path = f"{PREDICT}?version={value[:200]}".replace(" ", "%20")
        yield RawRequest(name=f"version-{value[:12]}", data=post(GOOD_BODY, path=path))
        body = f'{{"version": {value}}}'.encode()
        put = post(body, path="/v1/tasks/tone/aliases/prod").replace(b"POST", b"PUT", 1)
        yield RawRequest(name=f"alias-{value[:12]}", data=put)


def big_bodies() -> Iterator[RawRequest]:
    """Bodies that are long, deep or wide, declared, in chunks, or not sent."""
    size = 200_000
    values = {
        "long-text": json.dumps(CANARY * (size // 9)),
        "spaces": '"x"' + " " * size,
        "deep-lists": "[" * 900 + "]" * 900,
        "deep-objects": '{"a":' * 900 + "1" + "}" * 900,
        "deepest": "[" * (size // 2) + "]" * (size // 2),
        "many-items": "[" + ",".join(["7"] * (size // 2)) + "]",
        "many-texts": "[" + ",".join(['""'] * (size // 3)) + "]",
        "many-fields": "{" + ",".join(f'"k{i}":1' for i in range(size // 10)) + "}",
        "long-number": "1" * size,
        "long-name": json.dumps({CANARY * 20_000: 1}),
        "escapes": '"' + "\\u0041" * (size // 6) + '"',
        "accents": json.dumps("e" + "\u0301" * 16_000),
    }
    for (name, value), path in itertools.product(values.items(), (PREDICT, PREDICT_MANY)):
        body = b'{"inputs": %s}' % value.encode()
        may_pass = name in {"accents", "spaces"}
        yield RawRequest(name=f"{name}-{path}", data=post(body, path=path), may_pass=may_pass)
    for length in (10**6 + 1, 10**9, 10**18):
        data = post(b"", headers=()).replace(b"length: 0", b"length: %d" % length)
        yield RawRequest(name=f"declared-{length}", data=data + b"x" * 1000)


def mutations(*, seed: int, count: int) -> Iterator[RawRequest]:
    """Good requests with a few bytes changed, left out, doubled or cut off."""
    rng = random.Random(seed)
    many = json.dumps({"inputs": ["a text", {"text": "b"}], "tasks": ["tone", "nope"]}).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD_BODY), GOOD_BODY)
    good = [
        post(GOOD_BODY),
        post(many, path=PREDICT_MANY),
        post(chunked).replace(b"content-length: %d" % len(chunked), b"transfer-encoding: chunked"),
        post(b'{"version": 1, "expected_version": 9}', path="/v1/tasks/tone/aliases/x"),
        b"GET /v1/tasks/tone?version=1 HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n",
    ]
    for number in range(count):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            _mutate(data, rng)
        yield RawRequest(name=f"mutation-{seed}-{number}", data=bytes(data), may_pass=True)


def _mutate(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    match rng.randrange(6):
        case 0:
            data[place] = rng.randrange(256)
        case 1:
            data[place] ^= 1 << rng.randrange(8)
        case 2:
            del data[place : place + rng.randint(1, 8)]
            data += b"" if data else b"\0"  # never empty, because a position in it is drawn next
        case 3:
            data[place:place] = bytes(data[place : place + rng.randint(1, 40)])
        case 4:
            data[place:place] = rng.choice(
                [END, b"\0", b"\xff", b'"', b"{", b"[", b"\\", b":", b"\n", b"9" * 40, b"%00"]
            )
        case _:
            # Rare, because a cut request is only refused when its time is over.
            if rng.random() < 0.2:
                del data[max(place, 1) :]


def bad_framing() -> Iterator[RawRequest]:
    """Lengths that contradict each other, and invalid chunks, as in request smuggling."""
    head = f"POST {PREDICT} HTTP/1.1".encode() + END + b"host: test" + END
    head += b"content-type: application/json" + END
    lengths = [
        *(b"-1|+5|0x5|5 5|5,5|5, 6|| |abc|1e3|5.0|\xb2").split(b"|"),
        b"9" * 30,
        *(b"18446744073709551616|18446744073709551657|5\x0b|5;|\x005").split(b"|"),
    ]
    for length in lengths:
        data = head + b"content-length: " + length + END + END + GOOD_BODY
        yield RawRequest(name=f"length-{length[:12]!r}", data=data)
    encodings = [
        *(
            b"chunked|Chunked| chunked|chunked |\tchunked|\x0bchunked|xchunked|identity|"
            b"gzip|gzip, chunked|chunked, chunked|chunked, identity||cow"
        ).split(b"|")
    ]
    for encoding, name in itertools.product(
        encodings, (b"transfer-encoding: ", b"Transfer-Encoding : ", b" transfer-encoding: ")
    ):
        fields = name + encoding + END + b"content-length: 5" + END
        smuggled = b"0" + END + END + b"GET /v1/tasks HTTP/1.1" + END + b"host: x" + END + END
        yield RawRequest(
            name=f"both-{name!r}-{encoding!r}", data=head + fields + END + smuggled, may_pass=True
        )
    for first, second in ((5, 6), (0, 30), (30, 0)):
        fields = b"content-length: %d\r\ncontent-length: %d\r\n" % (first, second)
        yield RawRequest(name=f"two-lengths-{first}", data=head + fields + END + GOOD_BODY)
    chunks = [
        *(
            b"g\r\n|-1\r\n|0x5\r\n|5\r\nhello|5\r\nhello!\r\n0\r\n\r\n|5\nhello\n0\n\n|\r\n|"
            b" 5\r\nhello\r\n0\r\n\r\n"
        ).split(b"|"),
        b"f" * 17 + b"\r\n",
        b"7fffffffffffffff\r\n{",
        b"5\r\nhel",
        b"5;" + b"x" * 70_000 + b"\r\nhello\r\n0\r\n\r\n",
        b"5;a=\x00\r\nhello\r\n0\r\n\r\n",
        b"0\r\n",
        b"0\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
        b"0\r\n" + b"x: y\r\n" * 200 + b"\r\n",
        b"\xff\r\n",
        b"1\r\n{\r\n" * 5000 + b"0\r\n\r\n",
        b"00000000000000005\r\nhello\r\n0\r\n\r\n",
        b"5\rhello\r\n",
    ]
    for number, chunk in enumerate(chunks):
        chunked = head + b"transfer-encoding: chunked" + END + END + chunk
        yield RawRequest(name=f"chunk-{number}", data=chunked)


def bad_heads() -> Iterator[RawRequest]:
    """Request lines and header fields that are invalid, too long or too many."""
    body = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(GOOD_BODY) + GOOD_BODY
    lines = [
        *(
            b"| |GET|GET |GET /nowhere|GET /nowhere HTTP|GET /nowhere HTTP/|"
            b"GET /nowhere HTTP/1|/|GET /nowhere HTTP/1.|GET /nowhere HTTP/9.9|"
            b"GET /nowhere HTTP/2.0|GET /nowhere HTTP/0.9|GET /nowhere http/1.1|"
            b"GET  /nowhere HTTP/1.1|GET /nowhere  HTTP/1.1| GET /nowhere HTTP/1.1|"
            b"GET\t/nowhere\tHTTP/1.1|get /nowhere HTTP/1.1|PRI * HTTP/2.0|"
            b"\x16\x03\x01\x02\x00|\x05\x01\x00|SSH-2.0-x|GET \x00 HTTP/1.1|"
            b"G\xffT / HTTP/1.1|GET /\xff HTTP/1.1|GET /a b HTTP/1.1|"
            b"POST /nowhere HTTP/1.1 x"
        ).split(b"|"),
        b"\0" * 64,
        b"G" * 70_000,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
        b"GET /nowhere?" + b"a" * 70_000 + b" HTTP/1.1",
        *(
            b"GET http://test:x/ HTTP/1.1|GET http:// HTTP/1.1|GET //x HTTP/1.1|"
            b"GET ? HTTP/1.1|GET # HTTP/1.1|OPTIONS * HTTP/1.1|CONNECT test:80 HTTP/1.1|"
            b"GET * HTTP/1.1|FOO / HTTP/1.1"
        ).split(b"|"),
        b"A" * 40 + b" / HTTP/1.1",
        b"GET http://[::1/ HTTP/1.1",
        b"GET @ HTTP/1.1",
    ]
    for number, line in enumerate(lines):
        data = line + END + b"host: test" + END + body
        yield RawRequest(name=f"line-{number}-{line[:16]!r}", data=data)
    fields = [
        *(
            b"no colon|: no name|na me: x|name : x|n\x00me: x|name: x\x00y|n\xffme: x|"
            b"\xff: x|name: \x01| folded|\tfolded|name: x\ry|name: x\ny: z|(x): y"
        ).split(b"|"),
        b"x: " + b"y" * 70_000,
        b"x" * 70_000 + b": y",
        b"x: y\r\n" * 150 + b"z: y",
        b"x: y\r\n" * 5000,
        b"expect: 200-ok",
        b"upgrade: h2c\r\nconnection: upgrade",
        b"upgrade: websocket\r\nconnection: upgrade",
        b"range: bytes=" + b"0-," * 5000 + b"0-",
        b"accept-encoding: " + b"x," * 9000,
        b"te: trailers",
        b"x-request-id: a\xffb",
        b"x-request-id: " + b"a" * 9000,
        b"cookie: " + b"a=b; " * 9000,
        *(
            b"content-type: text/plain|content-type: \xff|"
            b"content-type: application/json; charset=utf-16|authorization: Bearer \xff|"
            b"authorization: Basic Og==|x-forwarded-for: \xff, \x00|"
            b"x-http-method-override: DELETE|x-forwarded-host: evil|content-encoding: gzip"
        ).split(b"|"),
    ]
    for number, field in enumerate(fields):
        head = f"POST {PREDICT} HTTP/1.1".encode() + END + b"host: test" + END + field + END
        yield RawRequest(
            name=f"field-{number}-{field[:16]!r}",
            data=head + b"content-type: application/json" + END + body,
            may_pass=True,
        )


def odd_hosts() -> Iterator[RawRequest]:
    """Hosts that are invalid or look like a path. Such hosts must have no effect."""
    hosts = [
        *(
            b"| |/|/livez|x/livez?|x#|x?y|x@y|a b|[|[::1|::1|x:99999|x:abc|x:-1|\xff|\xe2\x80\xae"
        ).split(b"|"),
        b"a" * 5000,
        *(b"..|x\\y|%2e|*").split(b"|"),
    ]
    targets = ("/v1/nope", "/v1/tasks/nope", "/v1/tasks/tone/", "/v1/tasks//predict")
    for host, target in itertools.product(hosts, targets):
        head = f"GET {target} HTTP/1.1".encode() + END + b"host: " + host + END
        yield RawRequest(
            name=f"host-{host[:12]!r}-{target}", data=head + b"connection: close" + END + END
        )


def bad_paths() -> Iterator[RawRequest]:
    """Invalid names, in every place where an address has a name."""
    routes = [
        ("POST", "/v1/tasks/{}/predict", GOOD_BODY),
        ("POST", "/v1/tasks/tone/{}/predict", GOOD_BODY),
        ("GET", "/v1/tasks/{}", b""),
        ("PUT", "/v1/tasks/{}/aliases/prod", b'{"version": 1}'),
        ("PUT", "/v1/tasks/tone/aliases/{}", b'{"version": 1}'),
        ("POST", "/v1/tasks/{}/aliases/prod/rollback", b"{}"),
        ("POST", "/v1/tasks/{}/preload", b""),
        ("POST", "/v1/tasks/{}/pin", b""),
        ("POST", "/v1/tasks/{}/evict", b""),
    ]
    for (method, template, body), name in itertools.product(routes, (*HOSTILE_NAMES, *IN_PATHS)):
        # These three characters end the path or the line, so a valid name would be left.
        path = template.format(name.translate({32: "%20", 35: "%23", 63: "%3f"}))
        data = post(body, path=path).replace(b"POST", method.encode(), 1)
        yield RawRequest(name=f"{method} {path[:60]}", data=data)


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    return make_settings(receive_timeout_s=1, keep_alive_s=1)


def told_by(address: str) -> object:
    """The server's answer to a good request, and its account of the task and its aliases."""
    headers = {"content-type": "application/json"}
    answer = httpx.post(address + PREDICT, content=GOOD_BODY, headers=headers).json()
    task = httpx.get(f"{address}/v1/tasks/tone").json()
    return answer, task["aliases"], task["candidates"]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_bad_request_harms_the_server(
    address: str, step: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each fault is there by six requests in turn: in three places of a body, and by two routes.
    requests = corpus(seed=0, num_mutations=NUM_MUTATIONS)[::step]
    assert len(requests) >= 1900 // step
    before, files_before = told_by(address), num_open_files()
    catch_from(("uvicorn.error",), caplog, monkeypatch)

    received = asyncio.run(send_all(address, requests, limit_s=LIMIT_S))

    faults = [f"{it.fault}: {it.request.name}: {it.data[:200]!r}" for it in received if it.fault]
    if faults:
        pytest.fail("\n".join(faults))
    assert told_by(address) == before
    assert httpx.get(f"{address}/readyz").status_code == 200
    assert num_open_files() <= files_before + 5
    assert [it.message for it in caplog.records if it.levelno >= logging.ERROR] == []
    assert CANARY not in caplog.text


@pytest.mark.parametrize("length", [60, 2000])
def test_a_text_that_the_tokenizer_gives_up_on_is_refused(tmp_path: Path, length: int) -> None:
    library = tiny_tokenizer("bert")
    library.pre_tokenizer = Split(Regex("(a+)+$"), behavior="isolated")
    with serving_tone(tmp_path, backbone=tiny_backbone(tokenizer=library)) as address:
        refused = httpx.post(address + PREDICT, json={"inputs": ["hi", "a" * length + "!"]})
        answered = httpx.post(address + PREDICT, json={"inputs": "hi"})

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_text")
    assert refused.json()["detail"].startswith("input 1: the text contains a run of characters")
    assert refused.json()["position"] == 1
    assert answered.status_code == 200
