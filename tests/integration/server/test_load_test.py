"""A load test of a real server: its tasks, its key, its texts and its processes."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.refusals import raises
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from doubles.terminals import nunatak
from nunatak_contract.enums import HeadKind, Reads
from nunatak_loadtest.process import run_locust
from nunatak_loadtest.report import LoadReport
from nunatak_registry import Registry
from nunatak_server.access.keys import Scope, change_keys


@contextmanager
def serving(folder: Path, **settings: object) -> Generator[str]:
    """Serve two tasks that read single texts, and one that cannot be asked of each other kind."""
    backbone = tiny_backbone()
    with Registry.open(folder) as registry:
        publish_tiny_task(registry, backbone, task="tone")
        publish_tiny_task(
            registry, backbone, task="names", kind=HeadKind.TOKEN_CLASSIFICATION, labels=("X", "Y")
        )
        publish_tiny_task(registry, backbone, task="answers", kind=HeadKind.QUESTION_ANSWERING)
        publish_tiny_task(registry, backbone, task="pairs", reads=Reads.PAIR)
        publish_tiny_task(registry, backbone, task="ranks", kind=HeadKind.RANKING)
        publish_tiny_task(registry, tiny_backbone(seed=1), task="elsewhere")
        registry.policies.put(make_policy(make_rule(when("tone", "calm", threshold=1.0))))
        with running_server(backbone, registry, make_settings(**settings)) as address:
            yield address


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("registry")) as url:
        yield url


def short(
    server: str, scenario: str = "smoke", *, seconds: float = 1, **options: object
) -> LoadReport:
    return run_locust(scenario, server=server, seconds=seconds, **options)  # pyrefly: ignore[bad-argument-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def fanned_out(address: str, folder: Path) -> LoadReport:
    return short(address, "fanout8", out=folder)


def test_fan_out_asks_as_many_tasks_as_read_a_single_text(
    address: str, folder: Path, fanned_out: LoadReport
) -> None:
    assert fanned_out.started.tasks == ("names", "tone")
    assert fanned_out.started.left_out == ("answers", "elsewhere", "pairs", "ranks")
    assert set(fanned_out.by_name) == {"2 tasks"}
    assert fanned_out.overall.requests > 0
    assert fanned_out.overall.failures == 0
    assert {"run-fanout8.json", "run-fanout8.html", "run-fanout8_stats.csv"} <= {
        it.name for it in folder.iterdir()
    }
    with raises("invalid_settings", match="never overwritten"):
        short(address, "fanout8", out=folder)


def test_each_policy_has_its_own_statistics_and_no_text_is_known(
    address: str, fanned_out: LoadReport
) -> None:
    asked = ("--server", address, "--duration", "1", "--json", "--task")
    ran = nunatak("loadtest", "run", "verdicts", *asked, "guard", "--users", "2")
    decided = LoadReport.model_validate(ran.json())

    nunatak("loadtest", "run", *asked, "nope").assert_refused("task_not_found")
    assert ran.exit_code == 0
    assert decided.started.scenario.steps == ((2, 1.0),)
    assert decided.memory[-1].rss_bytes
    assert set(decided.by_name) == {"guard"}
    assert fanned_out.server_ms.keys() == {"x-queue-ms", "x-tokenize-ms", "x-compute-ms"}
    assert decided.overall.failures == 0
    assert decided.overall.requests > 0
    assert [fanned_out.cache_hit_share, decided.cache_hit_share] == [0, 0]
    assert decided.started.seed != fanned_out.started.seed


@pytest.mark.slow
def test_processes_share_the_rate_and_send_their_statistics_along(address: str) -> None:
    report = short(address, rate_per_s=30.0, seconds=3, processes=2, seed=1)

    assert report.started.workers == 2
    assert 20 < report.overall.answers_per_s < 45
    # The warm-up takes one second of the four.
    assert 30 < report.overall.requests < 95
    assert report.overall.failures == 0
    assert report.server_ms


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
        short(address, tasks=["tone", task])


def test_a_key_that_predicts_and_reads_some_tasks_is_enough_and_each_task_has_its_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fanned_out: LoadReport
) -> None:
    keys, tasks = tmp_path / "keys.json", ["names", "tone"]
    change_keys(keys, lambda found: found)
    header = add_key(keys, "load", scopes=[Scope.PREDICT, Scope.READ], tasks=tasks)
    monkeypatch.setenv("NUNATAK_API_KEY", header["authorization"].removeprefix("Bearer "))
    with serving(tmp_path / "registry", api_keys_file=keys) as address:
        report = short(address)

    assert set(report.by_name) == {*tasks}
    assert report.overall.requests > 0
    assert report.overall.failures == 0
    assert report.ledger is None
    assert fanned_out.ledger is not None
