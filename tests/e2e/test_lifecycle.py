"""The end of real server processes: by SIGTERM, by SIGKILL, or with a lost device."""

import json
import signal
from pathlib import Path

import httpx
import pytest

from doubles.lifecycles import (
    LIMIT_S,
    Site,
    kill_under_load,
    make_site,
    outlast_the_grace,
    terminate_with_calls_in_flight,
)
from nunatak_server.serving import START_AGAIN

NUM_IN_FLIGHT = 200
NUM_KILLS = 2
PREDICT = "/v1/tasks/tone/predict"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path)


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
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    ended = [it["route"] for it in events if it.get("status") == 503]
    assert sorted(ended) == ["/v1/predict", "/v1/tasks/{task}/predict"]
    assert [it for it in events if it["level"] in {"error", "critical"}] == []
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
def test_a_killed_server_gave_no_wrong_answer_and_neither_does_the_next(site: Site) -> None:
    for _ in range(NUM_KILLS):
        tally = kill_under_load(site, calls_before=100)

        assert tally.statuses.keys() == {200}
        assert tally.num_wrong == 0


def test_requests_are_answered_while_readiness_asks_for_no_more(site: Site) -> None:
    with (
        site.server(drain_delay_s=LIMIT_S) as server,
        httpx.Client(base_url=server.address, timeout=LIMIT_S) as client,
    ):
        assert client.get("/readyz").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        ready = client.get("/readyz")
        answer = client.post(PREDICT, json={"inputs": "x"})
        # The second signal ends the delay.
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(timeout=LIMIT_S)

    assert (ready.status_code, ready.json()["code"]) == (503, "draining")
    assert answer.status_code == 200
    assert status in {0, -signal.SIGTERM}


def test_a_lost_device_ends_the_process_with_its_own_status(site: Site) -> None:
    with site.server() as server:
        with httpx.Client(base_url=server.address, timeout=LIMIT_S) as client:
            assert client.post(PREDICT, json={"inputs": "x"}).status_code == 200
            site.lose()
            refused = client.post(PREDICT, json={"inputs": "y"})
        status = server.process.wait(timeout=LIMIT_S)

    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert status == START_AGAIN
