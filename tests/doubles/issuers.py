"""An issuer of OpenID Connect over real HTTP: discovery, keys that rotate, and signed tokens."""

import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from doubles.listeners import Exchange, listening

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
DISCOVERY = "/.well-known/openid-configuration"


@cache
def make_key(algorithm: str, name: str) -> PrivateKey:
    """Return the key of this name, which is made once."""
    del name
    if algorithm.startswith("ES"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk_of(key: PrivateKey, key_id: str, algorithm: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        fields = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        fields = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**fields, "kid": key_id, "alg": algorithm, "use": "sig"}


@dataclass(slots=True, kw_only=True)
class Issuer:
    """An issuer, its keys, and what was asked of it."""

    url: str = ""
    algorithm: str = "RS256"
    keys: dict[str, PrivateKey] = field(default_factory=dict[str, PrivateKey])
    documents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Answers in the place of the right ones, by path."""
    is_down: bool = False
    asked: list[str] = field(default_factory=list[str])

    def rotate(self, key_id: str) -> None:
        """Replace all keys by a new one."""
        self.keys = {key_id: make_key(self.algorithm, key_id)}

    def claims(self, **changes: object) -> dict[str, Any]:
        """Return the claims of a good token; a change to None leaves a claim out."""
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url,
            "aud": ["nunatak", "account"],
            "sub": "acme",
            "iat": now,
            "nbf": now,
            "exp": now + 600,
            "scope": "openid nunatak:predict nunatak:read",
            "nunatak_tasks": ["tone", "mine-*"],
        }
        return {name: it for name, it in (claims | changes).items() if it is not None}

    def token(
        self,
        *,
        key: str | None = None,
        header: Mapping[str, object] | None = None,
        **changes: object,
    ) -> str:
        """Return a token with the id of the newest key, signed by it or by the key of a name."""
        key_id, newest = list(self.keys.items())[-1]
        signer = newest if key is None else make_key(self.algorithm, key)
        return jwt.encode(
            self.claims(**changes),
            signer,
            self.algorithm,
            headers={"kid": key_id, **(header or {})},
        )

    def answer(self, path: str) -> bytes:
        if path in self.documents:
            return self.documents[path]
        if path == DISCOVERY:
            return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        keys = [jwk_of(key, key_id, self.algorithm) for key_id, key in self.keys.items()]
        return json.dumps({"keys": keys}).encode()


def unsigned(issuer: Issuer, algorithm: str) -> str:
    """Return a token of algorithm `none`, in some spelling."""
    return handmade({"alg": algorithm, "kid": next(iter(issuer.keys))}, issuer.claims(), b"")


def signed_with_the_public_key(issuer: Issuer) -> str:
    """Return a token of HS256 whose secret is the public key, as everybody can make it."""
    key_id, key = next(iter(issuer.keys.items()))
    secret = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(data: bytes) -> bytes:
        return hmac.digest(secret, data, hashlib.sha256)

    return handmade({"alg": "HS256", "kid": key_id}, issuer.claims(), sign)


def handmade(
    header: Mapping[str, object],
    claims: Mapping[str, object],
    signature: bytes | Callable[[bytes], bytes],
) -> str:
    """Return a token that no library would make."""
    data = b".".join(_encoded(json.dumps(it).encode()) for it in (header, claims))
    signed = signature if isinstance(signature, bytes) else signature(data)
    return b".".join((data, _encoded(signed))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@contextlib.contextmanager
def running_issuer(algorithm: str = "RS256") -> Generator[Issuer]:
    """Run an issuer with one key on a free port."""
    issuer = Issuer(algorithm=algorithm)
    issuer.rotate("first")
    with listening(partial(_Exchange, issuer)) as issuer.url:
        yield issuer


class _Exchange(Exchange):
    def __init__(self, issuer: Issuer, *args: Any) -> None:  # noqa: ANN401 - the signature of the base class
        self._issuer = issuer
        super().__init__(*args)

    def reply(self) -> None:
        self._issuer.asked.append(self.path)
        if self._issuer.is_down:
            self.answer(500, b"away")
        else:
            self.answer(200, self._issuer.answer(self.path))
