"""Settings: the values that they accept, and the sources that they come from."""

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from doubles.refusals import raises
from nunatak_contract.names import API_KEY_VARIABLE, CACHE_VARIABLE
from nunatak_server.configuration import Origin, as_toml, configure, unread_variables
from nunatak_server.settings import ServerSettings

UNSAFE: list[object] = [
    *("http://issuer.example", "http://localhost.example/", "http://localhost:1@issuer.example/"),
    *("http://127.0.0.1.example", "ftp://issuer.example", "//issuer.example"),
    *("https://", "https://a b/"),
]
"""Addresses of an issuer whose keys somebody on the way could change."""
SAFE = ("https://issuer.example:8443/realms/one", "http://127.0.0.1:9000", "")
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("host", it) for it in ("", "::", "fe80::1%eth0", "127.0.0.2", "my_host-1.example")),
        *((name, it) for it in SAFE for name in ("oidc_issuer", "oidc_jwks_url")),
        ("oidc_algorithms", "PS512,EdDSA,ES384"),
    ],
)
def test_values_of_other_forms_are_accepted(name: str, value: str) -> None:
    assert getattr(ServerSettings.model_validate({name: value}), name) == value


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


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUNATAK_CONFIG", raising=False)
    monkeypatch.delenv("NUNATAK_REGISTRY", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nunatak.toml"
    path.write_text("port = 1\nmax_inputs = 2\nmax_batch_rows = 3\n")
    return path


def test_flags_beat_the_environment_and_it_beats_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_MAX_INPUTS", "20")
    monkeypatch.setenv("NUNATAK_PORT", "10")

    found = configure({"port": 100}, file=file)

    assert (found.settings.port, found.origins["port"]) == (100, Origin.FLAG)
    assert (found.settings.max_inputs, found.origins["max_inputs"]) == (20, Origin.ENVIRONMENT)
    assert (found.settings.max_batch_rows, found.origins["max_batch_rows"]) == (3, Origin.FILE)
    assert found.origins["host"] is Origin.DEFAULT


def test_the_environment_names_the_file_and_a_flag_another(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.toml"
    other.write_text("port = 7\n")
    monkeypatch.setenv("NUNATAK_CONFIG", str(file))

    assert configure({}).settings.port == 1
    assert configure({}, file=other).settings.port == 7


def test_what_is_printed_is_a_file_that_gives_the_same_settings(tmp_path: Path) -> None:
    given = {"registry": 'a "quoted"\\ fôlder\n', "access_log": False, "log_format": "json"}
    first = configure(given)

    path = tmp_path / "printed.toml"
    path.write_text(as_toml(first), encoding="utf-8")

    assert configure({}, file=path).settings == first.settings
    assert tomllib.loads(as_toml(first)).keys() <= ServerSettings.model_fields.keys()
    assert "port = 8080  # default\n" in as_toml(first)
    assert "# task_memory_bytes is not set  # default\n" in as_toml(first)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://me:s3cret@db:5432/tasks", "postgresql+psycopg://***@db:5432/tasks"),
        ("postgresql://me:s3cr@t@db/tasks?sslpassword=s3cret", "postgresql://***@db/tasks?***"),
        ("sqlite:////var/lib/tasks.db", "sqlite:////var/lib/tasks.db"),
        ("/var/lib/tasks", "/var/lib/tasks"),
    ],
)
def test_secrets_of_a_url_are_not_printed(url: str, shown: str) -> None:
    configuration = configure({"registry": url})

    assert configuration.settings.registry == url
    assert ("registry", shown, Origin.FLAG) in list(configuration.shown())
    assert "s3cr" not in as_toml(configuration)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("prot = 1", r"prot: there is no such setting; .*\(from: file, ", id="name"),
        pytest.param("[server]\nport = 1", "server: there is no such setting", id="section"),
        pytest.param("Port = 1", "Port: there is no such setting", id="case"),
        pytest.param("port = 99999", r"port: .*\(from: file, ", id="value"),
        *(
            pytest.param(f"{name} = true", f"{name}: expected a.*got a text", id=name)
            for name, it in ServerSettings.model_fields.items()
            if type(it.default) in {int, float}
        ),
        pytest.param("port: 1", "cannot be read", id="no-toml"),
        pytest.param("\x00", "cannot be read", id="binary"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "nunatak.toml"
    path.write_text(text)

    with raises("invalid_settings", match=message):
        configure({}, file=path)


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with raises("invalid_settings", match="No such file"):
        configure({}, file=tmp_path / "absent.toml")


def test_a_bad_variable_is_named_and_its_value_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUNATAK_PORT", "tcp://10.0.0.1:80")

    with raises("invalid_settings", match=r"from: environment, NUNATAK_PORT") as caught:
        configure({})

    assert "10.0.0.1" not in str(caught.value)


def test_variables_that_set_nothing_are_found() -> None:
    environment = {"NUNATAK_MAX_INPUT": "3", "NUNATAK_MAX_INPUTS": "3", "NUNATAK_CONFIG": "x"}

    assert unread_variables(environment | {"PATH": "/bin"}) == ["NUNATAK_MAX_INPUT"]


def test_a_variable_of_another_command_is_no_typing_error() -> None:
    assert unread_variables({API_KEY_VARIABLE: "x", CACHE_VARIABLE: "y"}) == []


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        ("oidc_issuer", "http://issuer.example", "with https"),
        ("oidc_algorithms", "HS256", "`RS`, `PS` or `ES`"),
    ],
)
def test_a_value_of_a_wrong_form_is_answered_by_the_form(name: str, value: str, form: str) -> None:
    with raises("invalid_settings", match=f"{name}: expected this form: .*{form}"):
        configure({name: value})
