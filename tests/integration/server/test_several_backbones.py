"""A server with several backbones: each task runs on its own, and backbones share nothing."""

from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from doubles.backbones import save_tiny_backbone, tiny_backbone
from doubles.compat import native, post
from doubles.policies import make_policy, make_rule, when
from doubles.processes import server_process
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
        yield opened


async def scores(client: httpx.AsyncClient, tasks: list[str]) -> dict[str, object]:
    body = {"inputs": TEXTS, "tasks": tasks, "parameters": OPTIONS}
    answer = await client.post("/v1/predict", json=body)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    return {task: it["outputs"] for task, it in zip(tasks, results, strict=True)}


async def test_each_task_has_the_bits_of_a_server_with_its_backbone_alone(
    first: Backbone, second: Backbone, registry: Registry
) -> None:
    expected = dict[str, object]()
    for backbone, tasks in ((first, TASKS["first"]), (second, TASKS["second"])):
        async with running_client(backbone, registry) as client:
            expected |= await scores(client, tasks)

    async with running_client(first, registry, others=[second]) as client:
        mixed = [name for pair in zip(*TASKS.values(), strict=True) for name in pair]
        # The second round reads the trunk cache, whose states must stay apart as well.
        found = [await scores(client, mixed) for _ in range(2)]

    assert found == [expected, expected]
    assert expected["one_top"] != expected["two_top"]


async def test_embeddings_come_from_the_named_backbone(
    first: Backbone, second: Backbone, registry: Registry
) -> None:
    async def vectors(client: httpx.AsyncClient, model: str) -> object:
        answer = await client.post("/v1/embeddings", json={"model": model, "input": TEXTS})
        assert answer.status_code == 200, answer.text
        return [it["embedding"] for it in answer.json()["data"]]

    alone = list[object]()
    for backbone in (first, second):
        async with running_client(backbone, registry) as client:
            alone.append(await vectors(client, backbone.name))

    async with running_client(first, registry, others=[second]) as client:
        assert [await vectors(client, it.name) for it in (first, second)] == alone
        assert alone[0] != alone[1]
        unnamed = await client.post("/tei/backbone/embed", json={"inputs": TEXTS})
        assert unnamed.json() == alone[0]
        wrong = await client.post("/v1/embeddings", json={"model": "third", "input": TEXTS})
        assert wrong.status_code == 404
        assert first.name in wrong.text
        assert second.name in wrong.text


async def test_the_server_shows_all_its_backbones(
    first: Backbone, second: Backbone, registry: Registry
) -> None:
    async with running_client(first, registry, others=[second]) as client:
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
    first: Backbone, second: Backbone, tmp_path: Path
) -> None:
    with Registry.open(tmp_path) as registry:
        for task, backbone in (("tone", first), ("topic", second)):
            publish_tiny_task(registry, backbone, task=task, labels=("calm", "urgent"))
        async with running_client(first, registry, others=[second]) as client:
            outputs = await native(client, "topic", TEXTS[0])
            score = next(it["score"] for it in outputs if it["label"] == "urgent")
            for margin, action in ((-1e-6, "block"), (1e-6, "allow")):
                rule = make_rule(
                    when("tone", "urgent", threshold=1e-9),
                    when("topic", "urgent", threshold=score + margin),
                    combine=Combine.ALL,
                )
                registry.policies.put(make_policy(rule, name=f"guard-{action}"))
                found = await post(client, f"/v1/verdicts/guard-{action}", {"inputs": TEXTS[0]})

                assert (found["action"], found["failures"]) == (action, [])
                assert sorted(found["tasks"]) == ["tone/1", "topic/1"]


async def test_a_task_of_a_backbone_that_is_not_here_is_refused(
    first: Backbone, second: Backbone, tmp_path: Path
) -> None:
    with Registry.open(tmp_path) as registry:
        publish_tiny_task(registry, tiny_backbone(num_layers=4, seed=3), task="third")
        async with running_client(first, registry, others=[second]) as client:
            answer = await client.post("/v1/tasks/third/predict", json={"inputs": TEXTS})

    assert (answer.status_code, answer.json()["code"]) == (409, "backbone_mismatch")
    assert all(it.name in answer.json()["detail"] for it in (first, second))


@pytest.mark.parametrize("path", ["/v2/models/third/ready", "/tei/tasks/third/health"])
async def test_no_protocol_calls_a_task_ready_whose_backbone_is_not_here(
    first: Backbone, tmp_path: Path, path: str
) -> None:
    with Registry.open(tmp_path) as registry:
        publish_tiny_task(registry, tiny_backbone(num_layers=4, seed=3), task="third")
        async with running_client(first, registry) as client:
            answer = await client.get(path)
            cards = (await client.get("/srun/v1/models")).json()["data"]

    assert answer.status_code == 409, answer.text
    assert [it["id"] for it in cards] == [first.name]


async def test_a_canary_may_run_on_another_backbone(
    first: Backbone, second: Backbone, tmp_path: Path
) -> None:
    with Registry.open(tmp_path) as registry:
        publish_tiny_task(registry, first, task="tone")
        publish_tiny_task(registry, second, task="tone")
        registry.promote("tone", "prod", 1)
        async with running_client(first, registry, others=[second]) as client:
            expected = await scores(client, ["tone/2"])
            canary = Candidate(
                task="tone", alias="prod", role=CandidateRole.CANARY, version=2, share=1.0
            )
            registry.rollouts.set(canary)
            found = await scores(client, ["tone"])

    assert list(found.values()) == list(expected.values())


COMMAND = """
from nunatak_cli.main import app

app(["serve", "--port", "0", "--backbone", {first!r}, "--backbone", {second!r}])
"""


def test_the_command_serves_the_backbones_of_its_options(tmp_path: Path) -> None:
    folders = [save_tiny_backbone(tmp_path / name, seed=it) for it, name in enumerate("ab")]
    with Registry.open(tmp_path / "registry") as registry:
        for task, folder in zip(("tone", "topic"), folders, strict=True):
            publish_tiny_task(registry, load_backbone(folder), task=task)
    script = COMMAND.format(first=str(folders[0]), second=str(folders[1]))

    with (
        server_process(
            registry=tmp_path / "registry", backbone=folders[0], script=script
        ) as server,
        httpx.Client(base_url=server.address, timeout=60) as client,
    ):
        answer = client.post("/v1/predict", json={"inputs": TEXTS, "tasks": ["tone", "topic"]})

    assert answer.status_code == 200
    assert [it["task"] for it in answer.json()["results"]] == ["tone", "topic"]


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
    first: Backbone, second: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object, **__: object) -> None:
        """Check nothing, as older releases did."""

    monkeypatch.setattr("nunatak_registry.rollouts.check_candidate", accept)
    with Registry.open(tmp_path) as registry:
        for backbone in (first, second):
            publish_tiny_task(registry, backbone, task="tone")
        registry.promote("tone", "prod", 1)
        shadow = Candidate(
            task="tone", alias="prod", role=CandidateRole.SHADOW, version=2, share=1.0
        )
        registry.rollouts.set(shadow)
        async with running_client(first, registry) as client:
            expected = await scores(client, ["tone/1"])
            found = await scores(client, ["tone"])
            metrics = (await client.get("/metrics")).text

    assert list(found.values()) == list(expected.values())
    assert f'nunatak_shadow_inputs_total{{outcome="dropped",task="tone"}} {len(TEXTS)}.0' in metrics


def test_backbones_of_the_settings_are_loaded_in_their_order(tmp_path: Path) -> None:
    folders = [save_tiny_backbone(tmp_path / name, seed=it) for it, name in enumerate("ab")]
    settings = make_settings(backbone=str(folders[0]), other_backbones=str(folders[1]))

    loaded = load_serving_backbones(settings)

    assert [it.digest for it in loaded] == [load_backbone(it).digest for it in folders]
    with raises("invalid_settings", match="backbone_layers"):
        load_serving_backbones(settings.model_copy(update={"backbone_layers": 2}))
