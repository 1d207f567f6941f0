"""Laws of the options of `nunatak serve`; serving itself is tried end to end."""

import pytest

from doubles.terminals import nunatak


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--port", "65536"), id="port"),
        pytest.param(("--dtype", "int4"), id="dtype"),
        pytest.param(("--max-inputs", "0"), id="limit"),
        pytest.param(("--trunk-cache-bytes", "-1"), id="budget"),
    ],
)
def test_option_out_of_range_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert nunatak("serve", *arguments).exit_code == 2


def test_setting_that_the_server_refuses_is_one_line() -> None:
    ran = nunatak("serve", "--default-deadline-ms", "99999999")

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [invalid_option]: default_deadline_ms: ")
    assert ran.stderr.count("\n") == 1
