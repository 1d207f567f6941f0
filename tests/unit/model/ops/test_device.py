import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from doubles.fake_cuda import Launches, fake_cuda
from nunatak_model import SideStream, compute_without_helpers, on_own_thread
from nunatak_model.ops.device import (
    CpuShare,
    chosen_threads,
    cpu_quota,
    to_device,
    to_device_at_once,
    write_on_device,
)

CPU = torch.device("cpu")


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


def share(
    *, num_cpus: int = 8, num_allowed: int = 8, quota: float | None = None, load: float = 0.0
) -> CpuShare:
    return CpuShare(num_cpus=num_cpus, num_allowed=num_allowed, quota=quota, load=load)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lists_that_are_sent_at_once_arrive_as_they_would_one_by_one(dtype: torch.dtype) -> None:
    lists = [[3, 1, 2], [], [7]]

    for found, numbers in zip(to_device_at_once(lists, CPU, dtype=dtype), lists, strict=True):
        assert found.dtype is dtype
        assert found.tolist() == to_device(numbers, CPU, dtype=dtype).tolist() == numbers


def test_lists_that_are_sent_at_once_take_one_copy() -> None:
    lists, gpu = [[3, 1, 2], [4], [7]], torch.device("cuda:0")

    with fake_cuda((9, 0)), Launches() as at_once:
        sent = to_device_at_once(lists, gpu, dtype=torch.int32)
    with fake_cuda((9, 0)), Launches() as one_by_one:
        _ = [to_device(numbers, gpu, dtype=torch.int32) for numbers in lists]

    assert [(len(it), it.dtype, it.device) for it in sent] == [
        (len(numbers), torch.int32, gpu) for numbers in lists
    ]
    assert (at_once.count.copies, one_by_one.count.copies) == (1, 3)


def test_a_tensor_is_written_over_another_in_place() -> None:
    target = torch.zeros(2, 3)
    where = target.data_ptr()

    write_on_device(torch.ones(3, 2).t(), target)

    assert target.data_ptr() == where
    assert bool((target == 1).all())


def test_a_failure_next_to_the_batches_is_its_callers() -> None:
    side_stream = SideStream(CPU)

    with pytest.raises(KeyError), side_stream.work():
        raise KeyError
    with side_stream.work():
        pass


@pytest.mark.parametrize("before", [(), (torch.get_num_threads,), (compute_without_helpers,)])
def test_a_thread_without_helpers_stays_alone_also_if_it_has_computed_or_gives_them_up_twice(
    before: tuple[Callable[[], object], ...],
) -> None:
    found = on_a_new_thread(*before, compute_without_helpers, torch.get_num_threads)

    assert found[-2:] == [None, 1]
    assert on_a_new_thread(torch.get_num_threads) == [3]


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


def test_the_thread_of_a_call_has_ended_when_the_call_returns() -> None:
    thread = on_own_thread(threading.current_thread)

    assert thread is not threading.current_thread()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        pytest.param(share(), 8, id="quiet"),
        pytest.param(share(load=0.3), 8, id="a-little-load-takes-nothing"),
        pytest.param(share(load=3.0), 5, id="load-takes-its-cpus"),
        pytest.param(share(load=40.0), 1, id="overloaded"),
        pytest.param(share(num_cpus=2, num_allowed=2, load=1.0), 1, id="two-cpus-one-busy"),
        pytest.param(share(num_allowed=3), 3, id="affinity"),
        pytest.param(share(quota=2.5), 2, id="quota"),
        pytest.param(share(quota=0.5), 1, id="half-a-cpu"),
        pytest.param(
            share(num_cpus=64, num_allowed=64, quota=4.0, load=40.0), 4, id="load-of-others"
        ),
    ],
)
def test_as_many_threads_compute_as_find_a_free_cpu(machine: CpuShare, expected: int) -> None:
    assert machine.free_threads(8) == expected


def test_no_more_threads_compute_than_torch_wants() -> None:
    assert share().free_threads(2) == 2


def test_a_number_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("nunatak_model.ops.device.torch.get_num_threads", lambda: 7)

    assert chosen_threads() == 7


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a/b": "150000 100000"}, 1.5),
        ({"a": "200000 100000", "a/b": "max 100000"}, 2.0),
        ({"a": "100000 100000", "a/b": "300000 100000"}, 1.0),
        ({"other": "100000 100000"}, None),
        ({}, None),
    ],
)
def test_the_lowest_limit_of_the_groups_of_a_process_is_its_quota(
    tmp_path: Path, limits: dict[str, str], expected: float | None
) -> None:
    membership, root = tmp_path / "cgroup", tmp_path / "fs"
    membership.write_text("0::/a/b\n")
    for group, limit in limits.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "cpu.max").write_text(f"{limit}\n")

    assert cpu_quota(root, membership) == expected


def test_a_system_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "absent") is None
