"""The mixed forward on the device against transformers' and peft's own models."""

import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubles.backbones import Family, random_text
from doubles.fake_cuda import always
from doubles.gpu import DEVICE, Question, Served, error, plainly_served, random_questions, served
from doubles.published import Twin
from nunatak_model import TrunkCache, forward
from nunatak_model.ops.grouped import GROUPED_CAPABILITIES, kernel_groups, padded_groups

FP32_TOLERANCE = 1e-4
BF16_TOLERANCE = 0.1
"""Tolerance. Tiny random layers have larger rounding errors than trained layers."""
NEARLY = 1.3
"""Largest ratio of the error to the error of torch's own kernels in bfloat16."""


@pytest.fixture(scope="module", params=["bert", "roberta", "modernbert", "llama", "qwen3"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


def expected_answers(twins: list[Twin], questions: list[Question]) -> list[Tensor]:
    return [twins[it.task].expected(it.encoding) for it in questions]


def test_float32_answers_match_the_published_models(folder: Path, twins: list[Twin]) -> None:
    on_device = served(folder, [twin.branch for twin in twins], dtype=torch.float32)
    questions = random_questions(0, len(twins))

    answers = on_device.answers(questions)

    assert error(answers, expected_answers(twins, questions)) <= FP32_TOLERANCE


@pytest.mark.parametrize("seed", range(4))
def test_bfloat16_answers_are_as_near_as_in_torchs_own_kernels(
    seed: int, folder: Path, twins: list[Twin], fast: Served
) -> None:
    questions = random_questions(seed, len(twins))
    plain = plainly_served(folder, [twin.branch for twin in twins], dtype=torch.bfloat16)
    expected = expected_answers(twins, questions)

    found, usual = (error(it.answers(questions), expected) for it in (fast, plain))

    assert found <= min(BF16_TOLERANCE, NEARLY * usual)


def test_each_task_alone_answers_as_in_company(twins: list[Twin], fast: Served) -> None:
    questions = random_questions(5, len(twins))

    together = fast.answers(questions)
    alone = [fast.answers([question])[0] for question in questions]

    assert error(alone, together) <= BF16_TOLERANCE


def test_no_bit_of_a_row_depends_on_what_the_others_ask(twins: list[Twin], fast: Served) -> None:
    """Fixed shapes: other texts of the same lengths, for the same tasks."""
    chance = random.Random(1)
    kept = Question(task=6, encoding=random_text(chance, 20))
    lengths = [chance.randint(4, 40) for _ in twins]
    one, other = (
        [Question(task=task, encoding=random_text(chance, n)) for task, n in enumerate(lengths)]
        for _ in range(2)
    )

    first, second = fast.answers([kept, *one])[0], fast.answers([kept, *other])[0]

    assert torch.equal(first, second)


def test_a_batch_never_waits_for_the_device(twins: list[Twin], fast: Served) -> None:
    rows = fast.rows(random_questions(3, len(twins)))
    trunk = TrunkCache(max_bytes=2**24)
    for _ in range(2):
        with torch.inference_mode(), no_waiting():
            logits = forward(fast.backbone, rows, trunk=trunk)
        assert all(bool(it.isfinite().all()) for it in logits)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_operations_of_older_devices_answer_here_as_well(
    capability: tuple[int, int],
    dtype: torch.dtype,
    folder: Path,
    twins: list[Twin],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", always(capability))
    older = served(folder, [twin.branch for twin in twins], dtype=dtype)
    questions = random_questions(1, len(twins))

    if DEVICE.type == "cuda":
        assert older.backbone.ops.groups is padded_groups
    assert error(older.answers(questions), expected_answers(twins, questions)) <= BF16_TOLERANCE


@contextmanager
def no_waiting() -> Generator[None]:
    """Let torch raise wherever the host would wait for the device."""
    if DEVICE.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_device_serves_with_its_own_kernels(fast: Served) -> None:
    """Guards the tests above, which must not compare torch's own kernels with themselves."""
    if DEVICE.type != "cuda":
        pytest.skip("a CPU has none")
    if torch.cuda.get_device_capability(DEVICE) not in GROUPED_CAPABILITIES:
        pytest.skip("this device has no grouped kernel")

    assert fast.backbone.ops.groups is kernel_groups
    assert any(branch.slots is not None for branch in fast.branches)
