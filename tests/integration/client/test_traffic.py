"""The clients and the command against a real server: streams, canaries, shadows."""

import json
from collections.abc import Generator

import pytest

from doubles.backbones import tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.serving import running_server
from doubles.tasks import publish_tiny_task
from doubles.terminals import nunatak
from nunatak_client import AsyncClient, CandidateRole, Client, ConflictError, InvalidRequestError
from nunatak_registry import Registry

TASKS = ["tone", "nope", "intent"]
POLICY = make_policy(make_rule(when("tone", "urgent")))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    backbone = tiny_backbone()
    with Registry.open(tmp_path_factory.mktemp("registry")) as registry:
        for seed in (1, 2, 3):
            publish_tiny_task(registry, backbone, seed=seed)
        publish_tiny_task(registry, backbone, task="intent", seed=4)
        registry.promote("tone", "prod", 1)
        registry.policies.put(POLICY)
        with running_server(backbone, registry) as found:
            yield found


def test_a_stream_holds_what_the_whole_answer_holds(address: str) -> None:
    with Client(address) as client:
        whole = client.predict_many(["one", "two"], TASKS)
        streamed = {result.reference: result for result in client.stream(["one", "two"], TASKS)}

    assert sorted(streamed) == sorted(TASKS)
    assert streamed["nope"].error is not None
    for name in ("tone", "intent"):
        assert streamed[name].version == whole[name].version
        assert streamed[name].require().head is whole[name].require().head
        assert streamed[name].timings.batch_size is not None
        outputs = streamed[name].outputs
        assert outputs is not None
        assert len(outputs) == 2


async def test_the_asyncio_client_streams_alike_and_may_leave_early(address: str) -> None:
    async with AsyncClient(address) as client:
        found = [result.reference async for result in client.stream("one", TASKS)]
        assert sorted(found) == sorted(TASKS)
        results = client.stream("one", TASKS)
        await anext(results)
        await results.aclose()
        assert (await client.predict("tone", "one")).version == 1


def test_a_stream_that_is_refused_raises_the_servers_reason(address: str) -> None:
    with Client(address) as client, pytest.raises(InvalidRequestError) as refused:
        next(client.stream(" ", TASKS))

    assert refused.value.code == "empty_text"


def test_the_command_prints_answers_as_they_come(address: str) -> None:
    tasks = [part for name in TASKS for part in ("--task", name)]

    ran = nunatak("predict", "hello", *tasks, "--server", address, "--stream", "--json")
    plain = nunatak("predict", "hello", "--task", "tone", "--server", address, "--stream")
    alone = nunatak("predict", "hello", "--task", "tone", "--stream")

    found = {line["reference"]: line for line in map(json.loads, ran.stdout.splitlines())}
    assert (ran.exit_code, sorted(found)) == (1, sorted(TASKS))
    assert found["nope"]["error"]["code"] == "task_not_found"
    assert (plain.exit_code, plain.stdout.startswith("tone (version 1): ")) == (0, True)
    assert (alone.exit_code, "invalid_option" in alone.stderr) == (1, True)


def test_a_rollout_goes_from_shadow_to_canary_to_the_end(address: str) -> None:
    with Client(address) as client:
        client.set_shadow("tone", 2)
        client.predict("tone", ["one", "two"])
        report = client.shadow_report("tone")
        assert (report.version, report.shadow_version, report.share) == (1, 2, 1.0)
        shown = nunatak("task", "shadow", "tone", "--report", "--server", address)
        assert "version 2 on 100.00% of requests" in shown.stdout
        client.end_candidate("tone", CandidateRole.SHADOW)

        client.set_canary("tone", 2, 0.5, expected_version=0)
        with pytest.raises(ConflictError):
            client.set_canary("tone", 3, 0.5, expected_version=0)
        (running,) = client.task("tone").candidates
        assert (running.role, running.version, running.share) == ("canary", 2, 0.5)
        answers = {
            key: {client.predict("tone", "one", routing_key=key).version for _ in range(3)}
            for key in map(str, range(20))
        }
        assert set(map(len, answers.values())) == {1}
        assert {version for versions in answers.values() for version in versions} == {1, 2}
        ended = client.end_candidate("tone", CandidateRole.CANARY)
        assert (ended.version, ended.active) == (2, False)
        history = client.history("tone")
        assert [it.version for it in history.events] == [1]
        assert [(it.role, it.version) for it in history.candidates] == [
            (role, 2) for role in ("shadow", "shadow", "canary", "canary")
        ]


def test_policies_and_replicas_are_listed(address: str) -> None:
    with Client(address) as client:
        (listed,) = client.policies()
        (replica,) = client.replicas().replicas

    assert (listed.version, listed.policy) == (1, POLICY)
    assert replica.load.ready
