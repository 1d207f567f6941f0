"""Laws of the measured speeds of number formats."""

from collections.abc import Callable, Iterator
from itertools import accumulate, cycle

import pytest

from doubles.backbones import tiny_backbone
from nunatak_model import Backbone, number_format, pack_backbone, quantize_backbone, with_speeds

FORMS: dict[str, Callable[[Backbone], Backbone]] = {
    "plain": lambda it: it,
    "packed": pack_backbone,
    "quantized": quantize_backbone,
    "quantized and packed": lambda it: pack_backbone(quantize_backbone(it)),
}


def ticks() -> Iterator[float]:
    """A clock on which products take 4, 2 and 8 seconds in turn."""
    return accumulate(cycle((1.0, 4.0, 1.0, 2.0, 1.0, 8.0)))


@pytest.mark.parametrize("form", FORMS)
def test_a_speed_is_the_time_of_float32_over_the_formats_own(form: str) -> None:
    clock = ticks()

    found = with_speeds(FORMS[form](tiny_backbone()), clock=lambda: next(clock))

    assert found.speeds == {"float32": 1.0, "bfloat16": 2.0, "int8": 0.5}
    assert number_format(found) == ("int8" if found.is_quantized else "float32")
