"""What is wrong with settings from outside, in words."""

from pydantic import ValidationError


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is wrong with outside values, in one line."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}"
