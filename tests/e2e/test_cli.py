"""The whole way by the command line: train, look, promote, serve, predict, load, verify."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue

from demo.server_process import ServerProcess
from doubles.backbones import save_tiny_backbone
from doubles.examples import toy_examples, write_jsonl
from nunatak_contract.memory import MemoryReport
from nunatak_loadtest.report import LoadReport

# One fixture runs three trainings, each in its own process.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A registry with tasks `early` (versions 1, 2) and `late`, and the backbone below them."""

    registry: Path
    backbone: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "NUNATAK_REGISTRY": str(self.registry), "COLUMNS": "200"}

    def nunatak(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "nunatak_cli", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=self.environment,
        )

    def json(self, *arguments: str) -> dict[str, JsonValue]:
        done = self.nunatak(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder = tmp_path_factory.mktemp("desk")
    made = Desk(
        registry=folder / "registry", backbone=save_tiny_backbone(folder / "tiny", num_layers=2)
    )
    data = write_jsonl(
        folder / "toy.jsonl",
        [{"text": example.text, "label": example.label} for example in toy_examples(60)],
    )
    runs: dict[tuple[str, str], tuple[str, ...]] = {
        ("early", "topk"): ("--layers", "1", "--promote", "prod"),
        ("late", "head"): (),
    }
    for (task, method), options in runs.items():
        trained = made.nunatak(
            *("train", "--task", task, "--data", str(data), "--method", method),
            *("--backbone", str(made.backbone), "--max-length", "32", "--epochs", "2", "--create"),
            *options,
        )
        assert trained.returncode == 0, trained.stderr
        assert f"published {task}/1" in trained.stdout
    again = made.json(
        *("train", "--task", "early", "--data", str(data), "--method", "lora"),
        *("--backbone", str(made.backbone), "--max-length", "32", "--epochs", "1"),
        *("--rank", "2"),
    )
    assert again["reference"] == "early/2"
    assert isinstance(again["epochs"], list)
    assert len(again["epochs"]) == 1
    return made


@pytest.fixture(scope="module")
def server(desk: Desk) -> Iterator[str]:
    options = ("--backbone", str(desk.backbone))
    with ServerProcess(desk.registry, options=options) as process:
        yield process.url


def test_stored_versions_pass_their_probe(desk: Desk) -> None:
    done = desk.nunatak("task", "verify", "--probe", "--backbone", str(desk.backbone))

    assert done.returncode == 0, done.stdout
    assert done.stdout == "every version is whole\n"


def test_little_of_a_servers_memory_has_no_explanation(desk: Desk, server: str) -> None:
    desk.nunatak("predict", "a b a b", "--task", "early", "--server", server)

    report = MemoryReport.model_validate(desk.json("memory", "show", "--server", server))

    process = report.process
    assert process.runtime_bytes
    assert process.rest_bytes is not None
    assert abs(process.rest_bytes) < process.rss_bytes / 8


def test_load_test_reports_requests_and_memory(desk: Desk, server: str) -> None:
    done = desk.nunatak(
        *("loadtest", "run", "--server", server, "--task", "early", "--task", "late/1"),
        *("--users", "2", "--duration", "3", "--json"),
    )

    assert done.returncode == 0, done.stderr
    report = LoadReport.model_validate_json(done.stdout)
    assert report.overall.requests > 0
    assert report.overall.failures == 0
    assert set(report.by_name) == {"early", "late/1"}
    assert report.server_ms["x-compute-ms"] > 0
    assert report.ledger is not None
    assert report.ledger.shared_bytes < report.ledger.dedicated_bytes
    assert len(report.memory) >= 2
    assert report.memory[-1].rss_bytes


def test_load_test_of_a_missing_task_measures_nothing(desk: Desk, server: str) -> None:
    done = desk.nunatak("loadtest", "run", "--server", server, "--task", "nope", "--json")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error [task_not_found]: ")
