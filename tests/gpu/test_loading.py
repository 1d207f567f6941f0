"""Versions that come and go on the device while batches run."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from doubles.gpu import DEVICE, Served, random_questions
from doubles.published import Twin
from nunatak_model import SideStream, convert_branch

NUM_BATCHES = 40


def test_loads_next_to_the_batches_change_no_bit_of_an_answer(
    twins: list[Twin], fast: Served
) -> None:
    questions = random_questions(0, len(twins))
    expected = fast.answers(questions)
    side_stream = SideStream(DEVICE)

    def come_and_go(twin: Twin) -> None:
        for _ in range(NUM_BATCHES):
            with side_stream.work():
                convert_branch(twin.branch, fast.backbone)

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(come_and_go, twin) for twin in twins[:8]]
        for _ in range(NUM_BATCHES):
            for one, other in zip(fast.answers(questions), expected, strict=True):
                assert torch.equal(one, other)
        for load in loads:
            load.result()


def test_a_version_loaded_next_to_the_batches_is_complete_when_its_load_returns(
    twins: list[Twin], fast: Served
) -> None:
    """Again and again, versions load into slots that other versions have just left."""
    side_stream = SideStream(DEVICE)
    questions = random_questions(1, len(twins))
    expected = fast.answers(questions)

    with ThreadPoolExecutor(1) as pool:

        def loaded() -> Served:
            with side_stream.work():
                branches = [convert_branch(twin.branch, fast.backbone) for twin in twins]
            return Served(backbone=fast.backbone, branches=tuple(branches))

        for _ in range(5):
            fresh = pool.submit(loaded).result()
            for one, other in zip(fresh.answers(questions), expected, strict=True):
                torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="nothing counts the memory of a CPU")
def test_memory_of_versions_that_are_gone_is_used_again(twins: list[Twin], fast: Served) -> None:
    side_stream = SideStream(DEVICE)

    def load_all() -> None:
        with side_stream.work():
            for twin in twins:
                convert_branch(twin.branch, fast.backbone)

    load_all()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved(DEVICE)
    for _ in range(20):
        load_all()

    assert torch.cuda.memory_reserved(DEVICE) <= before
