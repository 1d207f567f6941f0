"""The end of real server processes: by SIGTERM, by SIGKILL, or with a lost device."""

import json
import signal
from pathlib import Path

import httpx
import pytest

from doubles.lifecycles import (
    LIMIT_S,
    Site,
    make_site,
    outlast_the_grace,
    terminate_with_calls_in_flight,
)
from doubles.processes import COMMAND, NOISY_SCRIPT, StartError, ended, server_process
from nunatak_contract.memory import MemoryReport
from nunatak_server.errors import START_AGAIN

NUM_IN_FLIGHT = 200
PREDICT = "/v1/tasks/tone/predict"


@pytest.fixture(name="made", scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def site(made: Site) -> Site:
    for fault in made.faults.iterdir():
        fault.unlink()
    return made


def test_a_signal_loses_no_request_in_flight(site: Site) -> None:
    tally, status = terminate_with_calls_in_flight(site, NUM_IN_FLIGHT)

    assert tally.statuses == {200: NUM_IN_FLIGHT}
    assert (tally.num_cut, tally.num_wrong) == (0, 0)
    assert status in {0, -signal.SIGTERM}


def test_a_request_that_outlasts_the_grace_learns_that_the_server_ends(
    site: Site, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    outlasted = outlast_the_grace(site, log=log)

    answer = outlasted.answer
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert answer.headers["connection"] == "close"
    assert "task_not_found" in outlasted.lines[0]
    assert (len(outlasted.lines), outlasted.is_cut) == (1, True)
    assert outlasted.status in {0, -signal.SIGTERM}
    events = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [it["route"] for it in events if it.get("status") == 503]
    assert sorted(ended) == ["/v1/predict", "/v1/tasks/{task}/predict"]
    assert [it for it in events if it["level"] in {"error", "critical"}] == []
    assert "Traceback" not in log.read_text()


def test_every_line_of_a_process_with_json_logs_is_json(site: Site, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with server_process(
        registry=site.registry,
        backbone=site.backbone,
        script=NOISY_SCRIPT,
        log=log,
        log_format="json",
    ) as server:
        httpx.post(server.address + PREDICT, json={"inputs": "x"}).raise_for_status()
        server.send(signal.SIGTERM)
        output = server.output.read()
        server.wait(timeout=LIMIT_S)

    assert output == ""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    said = [it["event"] for it in events]
    for part in (
        "from a library",
        "from print",
        "from standard error",
        "in failing",
        "cannot raise",
    ):
        assert sum(part in it for it in said) == 1, part
    (warning,) = (it for it in events if it["logger"] == "py.warnings")
    assert "UserWarning: from Python" in warning["event"]
    assert "left out" not in said
    assert not any("secret" in str(it) for it in events)


def test_little_of_a_servers_memory_has_no_explanation(site: Site) -> None:
    with site.server() as server:
        httpx.post(server.address + PREDICT, json={"inputs": "x"}).raise_for_status()
        report = MemoryReport.model_validate(httpx.get(f"{server.address}/v1/memory").json())

    process = report.process
    assert process.runtime_bytes
    assert process.rest_bytes is not None
    assert abs(process.rest_bytes) < process.rss_bytes / 8


def test_a_server_that_cannot_start_says_so_in_json(site: Site, tmp_path: Path) -> None:
    log = tmp_path / "log"

    with (
        pytest.raises(StartError) as ended,
        server_process(
            registry=tmp_path / "tpyo",
            backbone=site.backbone,
            script=COMMAND,
            log=log,
            log_format="json",
        ),
    ):
        pass

    assert ended.value.args == (1,)
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["level"], last["code"]) == ("error", "registry_missing")
    assert "--create" in last["event"]


def test_requests_are_answered_while_readiness_asks_for_no_more(site: Site) -> None:
    with (
        site.server(drain_delay_s=LIMIT_S) as server,
        httpx.Client(base_url=server.address, timeout=LIMIT_S) as client,
    ):
        assert client.get("/readyz").status_code == 200
        server.send(signal.SIGTERM)
        ready = client.get("/readyz")
        answer = client.post(PREDICT, json={"inputs": "x"})
        # The second signal ends the delay.
        server.send(signal.SIGTERM)
        status = server.wait(timeout=LIMIT_S)

    assert (ready.status_code, ready.json()["code"]) == (503, "draining")
    assert answer.status_code == 200
    assert status in {0, -signal.SIGTERM}


def test_a_lost_device_ends_the_process_with_its_own_status(site: Site) -> None:
    with site.server() as server:
        with httpx.Client(base_url=server.address, timeout=LIMIT_S) as client:
            assert client.post(PREDICT, json={"inputs": "x"}).status_code == 200
            site.lose()
            refused = client.post(PREDICT, json={"inputs": "y"})
        status = server.wait(timeout=LIMIT_S)

    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert status == START_AGAIN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_for_the_registry_ends_by_a_signal(
    site: Site, number: signal.Signals
) -> None:
    words = ["serve", f"--registry={site.registry}", f"--backbone={site.backbone}", "--port=0"]
    waiting = f"""
import signal
from nunatak_registry import Registry, StoreUnavailableError

def fail(_):
    signal.raise_signal({int(number)})
    raise StoreUnavailableError("the connection broke")

Registry.generation = fail
{COMMAND.replace("['serve']", repr(words))}
"""

    assert ended(waiting).status == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_though_its_registry_gives_no_answer(
    site: Site, number: signal.Signals
) -> None:
    with site.server() as server:
        site.mute()
        server.send(number)
        assert server.wait(timeout=LIMIT_S) in {0, -signal.SIGTERM}
