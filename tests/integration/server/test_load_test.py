"""A load test of a real server: its tasks, its key, and its texts."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind, Reads
from nunatak_loadtest import Scenario, make_job, run
from nunatak_loadtest.scenario import Poisson, WarmUp
from nunatak_registry import Registry
from nunatak_server.access.files import change_keys
from nunatak_server.access.keys import Scope

SCENARIO = Scenario(
    name="short",
    arrivals=Poisson(rate_per_s=40),
    duration_s=0.5,
    warm_up=WarmUp(window_s=0.1, longest_s=0.1),
)


@contextmanager
def serving(folder: Path, **settings: object) -> Generator[str]:
    """Serve two tasks that read single texts, and one task of each other kind."""
    backbone = tiny_backbone()
    with Registry.open(folder) as registry:
        publish_tiny_task(registry, backbone, task="tone")
        publish_tiny_task(
            registry, backbone, task="names", kind=HeadKind.TOKEN_CLASSIFICATION, labels=("X", "Y")
        )
        publish_tiny_task(registry, backbone, task="answers", kind=HeadKind.QUESTION_ANSWERING)
        publish_tiny_task(registry, backbone, task="pairs", reads=Reads.PAIR)
        publish_tiny_task(registry, backbone, task="ranks", kind=HeadKind.RANKING)
        with running_server(backbone, registry, make_settings(**settings)) as address:
            yield address


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("registry")) as url:
        yield url


def test_only_tasks_that_read_a_single_text_take_part(address: str) -> None:
    job = make_job(SCENARIO, server=address, tasks=None)

    assert job.tasks == ("names", "tone")
    assert job.left_out == ("answers", "pairs", "ranks")
    report, _ = run(job)
    assert report.overall.requests > 0
    assert report.overall.failures == 0


@pytest.mark.parametrize(
    ("task", "reads"),
    [
        ("answers", "a question with its context"),
        ("pairs", "two texts"),
        ("ranks", "a query with its documents"),
    ],
)
def test_a_task_that_reads_no_single_text_is_refused(address: str, task: str, reads: str) -> None:
    with raises("invalid_settings", match=f"task '{task}' reads {reads}"):
        make_job(SCENARIO, server=address, tasks=["tone", task])


def test_no_text_of_a_run_is_known_from_an_earlier_run(address: str) -> None:
    hits = list[float | None]()
    for _ in range(2):
        report, _ = run(make_job(SCENARIO, server=address, tasks=["tone"]))
        hits.append(report.asked.cache_hit_share)

    assert hits == [0, 0]


def test_a_run_with_a_seed_can_be_repeated(address: str) -> None:
    seeded = SCENARIO.model_copy(update={"seed": 7})

    assert {make_job(seeded, server=address, tasks=["tone"]).seed for _ in range(2)} == {7}


@pytest.mark.parametrize(
    ("tasks", "has_memory"), [(["*"], True), (["tone"], False)], ids=["all-tasks", "one-task"]
)
def test_a_key_that_predicts_and_reads_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tasks: list[str], has_memory: bool
) -> None:
    keys = tmp_path / "keys.json"
    change_keys(keys, lambda found: found)
    header = add_key(keys, "load", scopes=[Scope.PREDICT, Scope.READ], tasks=tasks)
    monkeypatch.setenv("NUNATAK_API_KEY", header["authorization"].removeprefix("Bearer "))
    with serving(tmp_path / "registry", api_keys_file=keys) as address:
        report, _ = run(make_job(SCENARIO, server=address, tasks=["tone"]))

    assert report.overall.failures == 0
    assert (report.memory is not None) == has_memory
