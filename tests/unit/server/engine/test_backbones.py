"""Laws of loading backbones to be served."""

import logging
from dataclasses import replace

import pytest
import torch

from doubles.backbones import tiny_backbone
from nunatak_model import Backbone, quantize_backbone
from nunatak_server.engine.backbones import tell_speeds

SERVED = {
    "float32": tiny_backbone(),
    "bfloat16": tiny_backbone(dtype=torch.bfloat16),
    "int8": quantize_backbone(tiny_backbone()),
}


def told(backbone: Backbone, caplog: pytest.LogCaptureFixture, **speeds: float) -> list[str]:
    caplog.set_level(logging.INFO, "nunatak_server")
    tell_speeds(replace(backbone, speeds={"float32": 1.0, **speeds}))
    return [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]


@pytest.mark.parametrize("used", SERVED)
def test_a_number_format_slower_than_float32_is_told_with_the_figure(
    used: str, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = told(SERVED[used], caplog, bfloat16=0.56, int8=0.7)

    assert "the fastest is float32" in caplog.text
    if used == "float32":
        assert warnings == []
    else:
        (warning,) = warnings
        assert f"multiplies in {used}, at {0.56 if used == 'bfloat16' else 0.70:.2f}" in warning


@pytest.mark.parametrize("used", SERVED)
def test_a_fast_number_format_is_told_without_a_warning(
    used: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(SERVED[used], caplog, bfloat16=1.6, int8=3.1) == []
    assert "float32 1.00, bfloat16 1.60, int8 3.10; the fastest is int8" in caplog.text
