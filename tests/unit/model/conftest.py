"""Tests that compare two ways through the same code need no second check of its shapes."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked() -> None:
    """Check no annotations of shapes, which takes half of a test: another test does, on this code.

    The check of each family is in `test_backbone`, of each method in `test_forward_grouped`.
    """
    jaxtyping.config.update("jaxtyping_disable", value=True)
