import pytest
from pydantic import ValidationError

from doubles.refusals import raises
from nunatak_server.settings import ServerSettings

UNSAFE: list[object] = [
    *("http://issuer.example", "http://localhost.example/", "http://localhost:1@issuer.example/"),
    *("http://127.0.0.1.example", "ftp://issuer.example", "//issuer.example"),
    *("https://", "https://a b/"),
]
"""Addresses of an issuer whose keys somebody on the way could change."""
WRONG: dict[str, tuple[str, list[object]]] = {
    "max_inputs": ("greater than", [0]),
    "port": ("less than", [70_000]),
    "host": ("host", ["[::1]", "127.0.0.1:80", "http://127.0.0.1", "127.0.0.1 "]),
    "dtype": ("dtype", ["int4"]),
    "default_deadline_ms": ("greater than", [-1]),
    "decisions_temperature": ("greater than", [1e-4]),
    "trunk_cache_bytes": ("greater than", [-1]),
    "cors_origins": (
        "no wildcard",
        [
            *("*", "null", "app.example", "https://app.example/", "https://App.example"),
            *("https://app.example:443", "http://app.example:80", "https://*.example"),
            *("https://ann@app.example", "https://good.example, *"),
        ],
    ),
    "oidc_issuer": ("oidc_issuer", UNSAFE),
    "oidc_jwks_url": ("oidc_jwks_url", UNSAFE),
    "oidc_algorithms": (
        "oidc_algorithms",
        ["none", "HS256", "RS256,HS256", "RS256,", "", "RS2567"],
    ),
}
"""A word of the refusal, and values that are refused: impossible ones, origins that no browser
sends, issuers whose keys others can change, and signatures that the server could make itself."""


@pytest.mark.parametrize(
    ("name", "value"), [(name, it) for name, (_, values) in WRONG.items() for it in values]
)
def test_values_that_are_impossible_or_unsafe_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=WRONG[name][0]):
        ServerSettings.model_validate({name: value})


@pytest.mark.parametrize("host", ["", "::", "fe80::1%eth0", "127.0.0.2", "my_host-1.example"])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert ServerSettings(host=host).host == host


def test_a_batch_has_room_for_trunk_and_branch_of_the_longest_text() -> None:
    settings = ServerSettings(max_batch_tokens=1024, max_batch_rows=3)

    limits = settings.batch_limits(longest_row_tokens=512)

    assert (limits.max_tokens, limits.max_rows) == (1024, 3)


def test_a_device_has_its_own_defaults_and_the_operator_the_last_word() -> None:
    on_cpu, on_cuda = (ServerSettings().for_device(it) for it in ("cpu", "cuda"))
    chosen = ServerSettings(max_batch_rows=7, trunk_cache_bytes=9).for_device("cuda")

    assert on_cpu == ServerSettings()
    assert on_cuda.max_batch_rows > on_cpu.max_batch_rows
    assert (on_cuda.trunk_cache_bytes, on_cuda.port) == (0, on_cpu.port)
    assert (chosen.max_batch_rows, chosen.trunk_cache_bytes) == (7, 9)


def test_a_text_that_could_never_be_served_is_found_at_start() -> None:
    with raises("invalid_settings", match="NUNATAK_MAX_BATCH_TOKENS"):
        ServerSettings(max_batch_tokens=1023).batch_limits(longest_row_tokens=512)


def test_origins_are_listed_with_commas() -> None:
    settings = ServerSettings(cors_origins="https://app.example, http://localhost:3000,")

    assert settings.allowed_origins() == {"https://app.example", "http://localhost:3000"}
    assert ServerSettings(cors_origins="http://[::1]:3000").allowed_origins()
    assert ServerSettings().allowed_origins() == frozenset()


@pytest.mark.parametrize("name", ["oidc_issuer", "oidc_jwks_url"])
@pytest.mark.parametrize(
    "url", ["https://issuer.example:8443/realms/one", "http://127.0.0.1:9000", ""]
)
def test_keys_come_from_where_nobody_can_change_them(name: str, url: str) -> None:
    assert getattr(ServerSettings.model_validate({name: url}), name) == url


def test_every_signature_with_a_public_key_may_be_allowed() -> None:
    assert ServerSettings(oidc_algorithms="PS512,EdDSA,ES384").oidc_algorithms
