"""A server with several backbones: each task runs on its own, and backbones share nothing."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx
import pytest

from doubles.backbones import save_tiny_backbone, tiny_backbone
from doubles.compat import native, post
from doubles.policies import make_policy, make_rule, when
from doubles.refusals import raises
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import Combine
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Candidate, CandidateRole, Registry
from nunatak_server.engine.backbones import Backbones, load_serving_backbones

TEXTS = ["where is my parcel?", "thank you"]
TASKS = {"first": ["one_top", "one_head"], "second": ["two_top", "two_head"]}
OPTIONS = {"function_to_apply": "none"}
MOVED = ("canaried", "shadowed")
"""Tasks whose version 2 runs on the second backbone."""


@pytest.fixture(scope="module")
def first() -> Backbone:
    return tiny_backbone(num_layers=4, seed=1)


@pytest.fixture(scope="module")
def second() -> Backbone:
    """Return a backbone whose tokens equal those of the first one."""
    return tiny_backbone(num_layers=4, seed=2)


@pytest.fixture(scope="module")
def registry(
    tmp_path_factory: pytest.TempPathFactory, first: Backbone, second: Backbone
) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        for prefix, backbone in (("one", first), ("two", second)):
            publish_tiny_task(opened, backbone, task=f"{prefix}_top", method=TopK(num_layers=1))
            publish_tiny_task(opened, backbone, task=f"{prefix}_head", method=HeadOnly())
            for task in MOVED:
                publish_tiny_task(opened, backbone, task=task)
        for task in MOVED:
            opened.promote(task, "prod", 1)
        publish_tiny_task(opened, tiny_backbone(num_layers=4, seed=3), task="third")
        yield opened


@pytest.fixture(scope="module")
async def alone(
    first: Backbone, second: Backbone, registry: Registry
) -> AsyncGenerator[list[httpx.AsyncClient]]:
    """Clients of two servers with one backbone each."""
    async with running_client(first, registry) as one, running_client(second, registry) as two:
        yield [one, two]


@pytest.fixture(scope="module")
async def client(
    first: Backbone, second: Backbone, registry: Registry
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a server with both backbones."""
    async with running_client(first, registry, others=[second]) as opened:
        yield opened


async def scores(client: httpx.AsyncClient, tasks: list[str]) -> dict[str, object]:
    body = {"inputs": TEXTS, "tasks": tasks, "parameters": OPTIONS}
    answer = await client.post("/v1/predict", json=body)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    return {task: it["outputs"] for task, it in zip(tasks, results, strict=True)}


async def test_each_task_has_the_bits_of_a_server_with_its_backbone_alone(
    client: httpx.AsyncClient, alone: list[httpx.AsyncClient]
) -> None:
    expected = dict[str, object]()
    for server, tasks in zip(alone, TASKS.values(), strict=True):
        expected |= await scores(server, tasks)

    mixed = [name for pair in zip(*TASKS.values(), strict=True) for name in pair]
    # The second round reads the trunk cache, whose states must stay apart as well.
    found = [await scores(client, mixed) for _ in range(2)]

    assert found == [expected, expected]
    assert expected["one_top"] != expected["two_top"]


async def test_embeddings_come_from_the_named_backbone(
    client: httpx.AsyncClient, alone: list[httpx.AsyncClient], first: Backbone, second: Backbone
) -> None:
    async def vectors(client: httpx.AsyncClient, model: str) -> object:
        answer = await client.post("/v1/embeddings", json={"model": model, "input": TEXTS})
        assert answer.status_code == 200, answer.text
        return [it["embedding"] for it in answer.json()["data"]]

    names = (first.name, second.name)
    expected = [await vectors(*each) for each in zip(alone, names, strict=True)]

    assert [await vectors(client, name) for name in names] == expected
    assert expected[0] != expected[1]
    unnamed = await client.post("/tei/backbone/embed", json={"inputs": TEXTS})
    assert unnamed.json() == expected[0]
    wrong = await client.post("/v1/embeddings", json={"model": "third", "input": TEXTS})
    assert wrong.status_code == 404
    assert first.name in wrong.text
    assert second.name in wrong.text


async def test_the_server_shows_all_its_backbones(
    client: httpx.AsyncClient, first: Backbone, second: Backbone
) -> None:
    await scores(client, ["one_top", "two_top"])
    info, memory = (await client.get("/info")).json(), (await client.get("/v1/memory")).json()
    models = (await client.get("/v1/models")).json()["data"]
    metrics = (await client.get("/metrics")).text

    for shown in (info, memory):
        digests = [shown["backbone"]["digest"], *(it["digest"] for it in shown["other_backbones"])]
        assert digests == [first.digest, second.digest]
    held = sum(it["bytes"] for it in (memory["backbone"], *memory["other_backbones"]))
    own = sum(it["bytes"] for it in memory["tasks"])
    assert memory["shared_bytes"] == held + own
    assert [it["id"] for it in models] == [first.name, second.name]
    assert f'backbone="{first.name},{second.name}"' in metrics


async def test_a_verdict_may_ask_tasks_of_several_backbones(
    client: httpx.AsyncClient, registry: Registry
) -> None:
    outputs = await native(client, "two_top", TEXTS[0])
    score = next(it["score"] for it in outputs if it["label"] == "urgent")
    for margin, action in ((-1e-6, "block"), (1e-6, "allow")):
        rule = make_rule(
            when("one_top", "urgent", threshold=1e-9),
            when("two_top", "urgent", threshold=score + margin),
            combine=Combine.ALL,
        )
        registry.policies.put(make_policy(rule, name=f"guard-{action}"))
        found = await post(client, f"/v1/verdicts/guard-{action}", {"inputs": TEXTS[0]})

        assert (found["action"], found["failures"]) == (action, [])
        assert sorted(found["tasks"]) == ["one_top/1", "two_top/1"]


async def test_a_task_of_a_backbone_that_is_not_here_is_refused(
    client: httpx.AsyncClient, first: Backbone, second: Backbone
) -> None:
    refused = await post(client, "/v1/tasks/third/predict", {"inputs": TEXTS}, 409)

    assert refused["code"] == "backbone_mismatch"
    assert all(it.name in refused["detail"] for it in (first, second))


async def test_a_server_says_that_no_task_of_its_registry_can_answer_here(
    first: Backbone, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for backbone in (first, tiny_backbone(num_layers=4, seed=4)):
        async with running_client(backbone, registry):
            said.append(caplog.text.count("no task answers here: they all run on "))

    assert said == [0, 1]
    assert first.name in caplog.text


@pytest.mark.parametrize("path", ["/v2/models/third/ready", "/tei/tasks/third/health"])
async def test_no_protocol_calls_a_task_ready_whose_backbone_is_not_here(
    alone: list[httpx.AsyncClient], first: Backbone, path: str
) -> None:
    answer = await alone[0].get(path)
    cards = (await alone[0].get("/srun/v1/models")).json()["data"]

    assert answer.status_code == 409, answer.text
    assert {it["id"] for it in cards} == {first.name, *TASKS["first"], *MOVED}


async def test_a_canary_may_run_on_another_backbone(
    client: httpx.AsyncClient, registry: Registry
) -> None:
    expected = await scores(client, ["canaried/2"])
    canary = Candidate(
        task="canaried", alias="prod", role=CandidateRole.CANARY, version=2, share=1.0
    )
    registry.rollouts.set(canary)
    found = await scores(client, ["canaried"])

    assert list(found.values()) == list(expected.values())


def test_a_server_loads_the_backbones_of_its_settings_in_their_order(tmp_path: Path) -> None:
    folders = [save_tiny_backbone(tmp_path / name, seed=it) for it, name in enumerate("ab")]
    first, second = map(str, folders)

    found = load_serving_backbones(make_settings(backbone=first, other_backbones=second))

    assert [it.digest for it in found] == [load_backbone(it).digest for it in folders]


def test_backbones_that_tasks_cannot_tell_apart_are_refused(first: Backbone) -> None:
    with raises("invalid_settings", match="its own"):
        Backbones(first, [first])


@pytest.mark.parametrize("layers", [(1, 4), (4, 1)])
def test_no_token_costs_more_than_one_of_the_largest_backbone(layers: tuple[int, int]) -> None:
    first, second = (tiny_backbone(num_layers=count, seed=count) for count in layers)
    small, large = sorted((first, second), key=lambda it: it.config.num_layers)

    known = Backbones(first, [second]).for_rows()

    assert known[large.digest].token_cost == 1
    assert known[small.digest].token_cost == pytest.approx(1 / 4)


async def test_an_older_registrys_shadow_on_another_backbone_disturbs_no_request(
    alone: list[httpx.AsyncClient], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object, **__: object) -> None:
        """Check nothing, as older releases did."""

    monkeypatch.setattr("nunatak_registry.store.check_candidate", accept)
    shadow = Candidate(
        task="shadowed", alias="prod", role=CandidateRole.SHADOW, version=2, share=1.0
    )
    registry.rollouts.set(shadow)
    expected = await scores(alone[0], ["shadowed/1"])
    found = await scores(alone[0], ["shadowed"])
    metrics = (await alone[0].get("/metrics")).text

    assert list(found.values()) == list(expected.values())
    dropped = 'nunatak_shadow_inputs_total{outcome="dropped",task="shadowed"}'
    assert f"{dropped} {len(TEXTS)}.0" in metrics


def test_layers_are_cut_from_no_two_backbones() -> None:
    settings = make_settings(backbone="one", other_backbones="two", backbone_layers=2)
    with raises("invalid_settings", match="backbone_layers"):
        load_serving_backbones(settings)
