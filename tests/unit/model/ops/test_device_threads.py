import threading
from collections.abc import Callable, Generator

import pytest
import torch

from nunatak_model import compute_without_helpers, on_own_thread


@pytest.fixture(autouse=True)
def _three_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def on_a_new_thread(*steps: Callable[[], object]) -> list[object]:
    results = list[object]()
    thread = threading.Thread(target=lambda: results.extend(step() for step in steps))
    thread.start()
    thread.join()
    return results


def test_a_thread_without_helpers_stays_alone() -> None:
    assert on_a_new_thread(compute_without_helpers, torch.get_num_threads) == [None, 1]


def test_a_thread_that_has_computed_can_do_without_helpers() -> None:
    steps = (torch.get_num_threads, compute_without_helpers, torch.get_num_threads)

    assert on_a_new_thread(*steps) == [3, None, 1]


def test_other_threads_keep_their_helpers() -> None:
    has_computed, go_on = threading.Event(), threading.Event()
    found = list[int]()

    def compute_twice() -> None:
        found.append(torch.get_num_threads())
        has_computed.set()
        go_on.wait(10)
        found.append(torch.get_num_threads())

    older = threading.Thread(target=compute_twice)
    older.start()
    has_computed.wait(10)
    on_a_new_thread(compute_without_helpers)
    go_on.set()
    older.join()

    assert found == [3, 3]
    assert torch.get_num_threads() == 3
    assert on_a_new_thread(torch.get_num_threads) == [3]


def test_a_thread_may_give_up_its_helpers_twice() -> None:
    steps = (compute_without_helpers, compute_without_helpers, torch.get_num_threads)
    assert on_a_new_thread(*steps) == [None, None, 1]
    assert on_a_new_thread(torch.get_num_threads) == [3]


def test_the_thread_of_a_call_has_ended_when_the_call_returns() -> None:
    thread = on_own_thread(threading.current_thread)

    assert thread is not threading.current_thread()
    assert not thread.is_alive()
