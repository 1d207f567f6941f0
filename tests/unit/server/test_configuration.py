import tomllib
from pathlib import Path

import pytest

from doubles.refusals import raises
from nunatak_contract.names import API_KEY_VARIABLE, CACHE_VARIABLE
from nunatak_server.configuration import Origin, as_toml, configure, unread_variables
from nunatak_server.settings import ServerSettings


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
