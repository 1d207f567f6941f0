"""Bad requests as bytes, before the body: framing, heads, hosts, paths."""

import itertools
from collections.abc import Iterator

from doubles.names import HOSTILE_NAMES
from doubles.raw_request import END, GOOD_BODY, PREDICT, RawRequest, post

IN_PATHS = (
    *("tone%00", "tone%0a", "tone%0d%0aset-cookie:x", "%ff%fe", "%c0%ae", "tone%20", "t\u00f6ne"),
    *("tone@", "tone@@prod", "tone@prod@x", "tone@PROD", "@prod", "tone;drop", "tone'--"),
)
"""Names that only an address can have, most of them next to the name of a task."""


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
