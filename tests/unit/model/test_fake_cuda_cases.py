"""Every capability, architecture, method and number format, by tensors without numbers.

Each pair of values is tested in some case. Most families, and all combinations, are slow cases.
"""

from collections.abc import Mapping
from itertools import combinations, product

import pytest
import torch

from doubles.backbones import FAMILIES, Family
from doubles.fake_cuda import Count
from doubles.fake_cuda_cases import (
    HALF,
    METHODS,
    OTHER_HALF,
    WHOLE,
    WITH_PAIR_TERMS,
    Case,
    check_logits,
    run,
    serving_unproven,
    tasks_of_one_form,
    text,
)
from nunatak_contract.methods import Full, Method
from nunatak_model import Row

CAPABILITIES = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
FORMATS = (HALF, OTHER_HALF, WHOLE)
DEVICES = [
    (capability, FORMATS[(index + turn) % len(FORMATS)])
    for turn in range(len(FORMATS))
    for index, capability in enumerate(CAPABILITIES)
]
"""Every capability with every format; any six in a row have all of both."""
TEXTS = [text(length, seed=seed) for seed, length in enumerate((1, 9, 9, 30))]
NUM_TASKS = 2
LAUNCHES: Mapping[Family, tuple[int, ...]] = {
    "bert": (50, 63, 70, 61, 56, 90, 81),
    "roberta": (49, 63, 62, 86, 56, 90, 72),
    "distilbert": (39, 70, 52, 71, 63, 88, 75),
    "electra": (42, 64, 71, 88, 65, 91, 74),
    "deberta-v2": (94, 144, 188, 165, 180, 190, 190),
    "mpnet": (50, 74, 80, 83, 78, 104, 102),
    "modernbert": (107, 149, 112, 150, 115, 128, 123),
    "llama": (106, 135, 121, 140, 121, 144, 167),
    "qwen3": (126, 161, 161, 175, 164, 155, 237),
    "eurobert": (110, 140, 131, 159, 125, 139, 157),
    "nomic_bert": (77, 115, 106, 125, 95, 134, 104),
    "gte": (80, 127, 101, 125, 92, 121, 104),
}
"""Most launches of 2 tasks with 4 texts on 2 layers, by method, on the device of the case."""
TRIED: tuple[Family, ...] = ("bert", "deberta-v2", "modernbert", "qwen3")
"""Families of the short form; the cases of all others are slow."""
MOST_COPIES = 7
"""Most copies of the same batches to the device."""


def device_of(family: Family, method: Method) -> tuple[tuple[int, int], torch.dtype]:
    """The device and the format of the case of this family and method: the cases take turns."""
    turn = len(METHODS) * FAMILIES.index(family) + METHODS.index(method)
    return DEVICES[turn % len(DEVICES)]


def test_each_pair_of_values_is_in_some_case() -> None:
    axes = (CAPABILITIES, FORMATS, FAMILIES, METHODS)
    covered = {
        pair
        for family, method in product(FAMILIES, METHODS)
        for pair in combinations(enumerate((*device_of(family, method), family, method)), 2)
    }

    for (one, lefts), (other, rights) in combinations(enumerate(axes), 2):
        for left, right in product(lefts, rights):
            assert ((one, left), (other, right)) in covered


def run_case(
    family: Family, method: Method, device: tuple[tuple[int, int], torch.dtype]
) -> tuple[Count, Count]:
    """Run 2 tasks, and 4 tasks, with 4 texts each; return the work of both batches."""
    capability, dtype = device
    case = Case(capability=capability, family=family, dtype=dtype)
    with serving_unproven(case) as backbone:
        assert backbone.fast_kernels == case.fast_kernels
        tasks = tasks_of_one_form(backbone, method, 2 * NUM_TASKS)
        found = list[Count]()
        for some in (tasks[:NUM_TASKS], tasks):
            rows = [Row(encoding=each, branch=task) for task in some for each in TEXTS]
            logits, count = run(backbone, rows)
            check_logits(rows, logits)
            found.append(count)
    of_two, of_four = found
    if family not in WITH_PAIR_TERMS and not isinstance(method, Full):
        # Tasks of one form share each launch and each copy.
        assert of_four.launches <= of_two.launches, of_four.operators - of_two.operators
        assert of_four.copies <= of_two.copies, of_four.operators - of_two.operators
    return of_two, of_four


@pytest.mark.parametrize("method", METHODS, ids=lambda it: str(it.kind))
@pytest.mark.parametrize(
    "family", [pytest.param(it, marks=[pytest.mark.slow] * (it not in TRIED)) for it in FAMILIES]
)
def test_a_case_of_each_pair_runs_without_waiting_for_the_device(
    family: Family, method: Method
) -> None:
    count, _ = run_case(family, method, device_of(family, method))

    assert count.launches <= LAUNCHES[family][METHODS.index(method)], count.operators
    assert count.copies <= MOST_COPIES, count.operators


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda it: str(it.kind))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_runs_without_waiting_for_the_device(family: Family, method: Method) -> None:
    for device in DEVICES:
        run_case(family, method, device)
