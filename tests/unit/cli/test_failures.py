"""Laws of errors: one line, a stable code, what to do."""

import re

import pytest

from nunatak_cli.errors import MissingExtraError
from nunatak_cli.failures import error_code, needs_extra, print_failure
from nunatak_client import NotFoundError
from nunatak_registry import TaskNotFoundError


class ForeignError(Exception):
    """Has a code too, but is none of ours."""

    code = "foreign"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(TaskNotFoundError("tone"), "task_not_found", id="registry"),
        pytest.param(
            NotFoundError(code="task_not_found", status=404, detail="no"),
            "task_not_found",
            id="client",
        ),
        pytest.param(MissingExtraError("server", "torch"), "missing_extra", id="cli"),
        pytest.param(ForeignError(), None, id="foreign"),
        pytest.param(ValueError("x"), None, id="builtin"),
    ],
)
def test_only_our_own_errors_have_a_code(error: Exception, code: str | None) -> None:
    assert error_code(error) == code


def test_failure_is_one_line_whatever_the_message_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_failure("some_code", "first [bold]line\nsecond line " + "x" * 300)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error [some_code]: first [bold]line second line {'x' * 300}\n"


def test_missing_module_names_the_extra_to_install() -> None:
    with (
        pytest.raises(MissingExtraError, match=re.escape("pip install 'nunatak[server]'")),
        needs_extra("server"),
    ):
        raise ModuleNotFoundError("No module named 'fastapi.responses'", name="fastapi.responses")


def test_missing_module_of_our_own_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("server"):
        raise ModuleNotFoundError("No module named 'nunatak_server.x'", name="nunatak_server.x")
