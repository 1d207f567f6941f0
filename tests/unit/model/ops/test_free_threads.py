"""Laws of the number of threads that compute."""

from pathlib import Path

import pytest

from nunatak_model.ops.device import CpuShare, chosen_threads, cpu_quota


def share(
    *, num_cpus: int = 8, num_allowed: int = 8, quota: float | None = None, load: float = 0.0
) -> CpuShare:
    return CpuShare(num_cpus=num_cpus, num_allowed=num_allowed, quota=quota, load=load)


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
