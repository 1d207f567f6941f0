"""The content of `/metrics`, its documents and dashboard, and its secrets."""

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from torch.overrides import TorchFunctionMode

from doubles.backbones import tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import ProblemType
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_contract.questions import QuestionCard
from nunatak_model import Backbone
from nunatak_registry import Registry

ROOT = Path(__file__).parents[3]
PREDICT = "/v1/tasks/tone/predict"
CANARY = "canary-7c1e"
UNSURE = {"type": "noul", "instructions": "Is it so?"}
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
METHODS: Mapping[str, Method] = {
    "topk": TopK(num_layers=1),
    "lora": Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
}


def parsed(text: str) -> dict[str, Metric]:
    """Metrics by the name in queries, without the times of creation."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        if not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = family
    return found


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Metric]:
    """The metrics of a server after answers, refusals, an eviction and a move of an alias."""
    backbone = tiny_backbone()

    async def scenario(registry: Registry) -> str:
        nobody = make_settings(decisions_upstream="http://127.0.0.1:9/v1/systemone")
        async with running_client(backbone, registry, nobody) as client:
            for version in (1, 2, 1):
                moved = await client.put("/v1/tasks/tone/aliases/prod", json={"version": version})
                assert moved.status_code == 200
                answer = await client.post(PREDICT, json={"inputs": ["a", "a longer text"]})
                assert answer.json()["version"] == version
            await client.post("/v1/predict", json={"inputs": "a", "tasks": ["tone", "tone/2"]})
            assert (await client.post("/v1/verdicts/guard", json={"inputs": "a"})).is_success
            for question, status in (
                ({"type": "noul", "instructions": "Who?"}, 404),
                (UNSURE, 200),
            ):
                body = {"model": "nunatak", "state": "a", "questions": {"q": question}}
                assert (await client.post("/v1/systemone", json=body)).status_code == status
            for role in ("canary", "shadow"):
                body = {"version": 2, "share": 1.0 if role == "shadow" else 0.01}
                path = f"/v1/tasks/intent/aliases/prod/{role}"
                assert (await client.put(path, json=body)).status_code == 200
            await _compare(client)
            await client.post(f"/v1/tasks/{CANARY}/predict", json={"inputs": CANARY})
            for verb in ("preload", "evict"):
                assert (await client.post(f"/v1/tasks/gone/{verb}")).status_code == 200
            await client.get(f"/{CANARY}?q={CANARY}")
            await client.request(CANARY.upper(), "/livez")
            return (await client.get("/metrics")).text

    with Registry.open(tmp_path_factory.mktemp("registry")) as registry:
        for seed in (1, 2):
            publish_tiny_task(registry, backbone, seed=seed)
            publish_tiny_task(registry, backbone, task="intent", seed=seed)
        registry.promote("intent", "prod", 1)
        publish_tiny_task(registry, backbone, task="gone", seed=3)
        label, *others = registry.resolve("tone").head.labels
        meanings = {label: True, **dict.fromkeys(others, False)}
        card = {"name": "unsure", "task": "tone", "question": UNSURE, "labels": meanings}
        unsure = QuestionCard.model_validate({**card, "ask_upstream_below": 1.0})
        registry.questions.put(unsure)
        registry.policies.put(make_policy(make_rule(when("tone", label, *others)), name="guard"))
        text = asyncio.run(scenario(registry))
    assert CANARY not in text.lower()
    return parsed(text)


async def _compare(client: httpx.AsyncClient) -> None:
    """Ask until the shadow was compared. No answer waits for the comparison."""
    while not (await client.get("/v1/tasks/intent/shadow")).json()["compared"]:
        await client.post("/v1/tasks/intent/predict", json={"inputs": "a"})


def value_of(families: Mapping[str, Metric], name: str, **labels: str) -> float:
    (found,) = (
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )
    return found


def by_task(families: Mapping[str, Metric], name: str, **labels: str) -> dict[str, float]:
    """The samples of a metric with these labels, by task."""
    return {
        sample.labels["task"]: sample.value
        for sample in families[name].samples
        if labels.items() <= sample.labels.items()
    }


def names_of(families: Mapping[str, Metric]) -> set[str]:
    """All names that can be queried."""
    return {
        family.name + suffix for family in families.values() for suffix in SUFFIXES[family.type]
    }


def documented() -> dict[str, tuple[str, set[str]]]:
    """Type and labels by metric, as the table says."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|(.*?)\| .+ \|$", text, flags=re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


class TensorLooks(TorchFunctionMode):
    """Counts the operations on any tensor of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - a method may return any type
        self.count += 1
        return func(*args, **(kwargs or {}))


async def looks_at_tensors(client: httpx.AsyncClient, path: str) -> int:
    with TensorLooks() as looks:
        assert (await client.get(path)).status_code == 200
    return looks.count


def test_the_table_of_metrics_is_what_a_server_shows(families: dict[str, Metric]) -> None:
    shown = {
        name: (family.type, set(itertools.chain(*(s.labels for s in family.samples))) - {"le"})
        for name, family in families.items()
    }

    assert documented() == shown


def test_every_metric_is_in_base_units(families: dict[str, Metric]) -> None:
    assert not [name for name in families if re.search(r"_(ms|us|mb|kb|mib|percent)(_|$)", name)]


def test_an_alias_move_is_counted_when_it_is_met(families: dict[str, Metric]) -> None:
    assert by_task(families, "nunatak_alias_moves_total") == {"tone": 2, "intent": 0, "gone": 0}


def test_what_came_and_went_by_task_adds_up_to_what_is_held(families: dict[str, Metric]) -> None:
    loads = by_task(families, "nunatak_loads_total", outcome="ok")
    evictions = by_task(families, "nunatak_evictions_total")
    held = by_task(families, "nunatak_task_resident_bytes")

    assert loads == {"tone": 2, "intent": 2, "gone": 1}
    assert evictions == {"tone": 0, "intent": 0, "gone": 1}
    assert sum(loads.values()) == value_of(families, "nunatak_load_seconds_count")
    resident = sum(loads.values()) - sum(evictions.values())
    assert resident == value_of(families, "nunatak_resident_tasks")
    assert held.keys() == {"tone", "intent"}
    assert sum(held.values()) == value_of(families, "nunatak_tier_bytes", tier="device")


def test_work_is_counted_by_task(families: dict[str, Metric]) -> None:
    # Three requests with two texts each, one for two versions, one for a policy, one for a card.
    assert value_of(families, "nunatak_task_rows_total", task="tone") == 10
    assert value_of(families, "nunatak_task_tokens_total", task="tone") > 9
    assert value_of(families, "nunatak_padding_saved_tokens_total") > 0


async def test_each_answered_text_counts_once_by_the_label_of_its_answer(
    backbone: Backbone, copied: Registry
) -> None:
    texts = ["a", "where is my parcel?", "ann met bob in oslo", "a longer text", "why?"]
    publish_tiny_task(copied, backbone)
    kind = ProblemType.MULTI_LABEL
    publish_tiny_task(copied, backbone, task="tags", problem_type=kind, seed=4)
    copied.policies.put(make_policy(make_rule(when("tone", "calm")), name="guard"))
    found = Counter[tuple[str, str]]()
    async with running_client(backbone, copied) as client:
        for asked in (texts, texts[:2]):
            body = {"inputs": asked, "tasks": ["tone", "tags"]}
            for result in (await client.post("/v1/predict", json=body)).json()["results"]:
                said = chain(*([it] if isinstance(it, str) else it for it in result["predicted"]))
                found.update((result["task"], label) for label in said)
        assert (await client.post("/v1/verdicts/guard", json={"inputs": texts})).is_success
        families = parsed((await client.get("/metrics")).text)

    samples = families["nunatak_predicted_labels_total"].samples
    assert {(it.labels["task"], it.labels["label"]): it.value for it in samples} == found
    assert sum(it for (task, _), it in found.items() if task == "tone") == 7
    assert {task for task, _ in found} == {"tone", "tags"}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("requests", {"task": "unknown", "outcome": "task_not_found"}),
        ("http_requests", {"route": "none", "method": "GET", "status": "404"}),
    ],
)
def test_what_is_no_task_and_no_route_becomes_no_label(
    families: dict[str, Metric], name: str, labels: dict[str, str]
) -> None:
    assert value_of(families, f"nunatak_{name}_total", **labels) == 1


def expressions(value: object) -> list[str]:
    """All queries of a dashboard or of rules."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        own = [it for key, it in items if key == "expr"]
        return own + [found for _, it in items for found in expressions(it)]
    if isinstance(value, list):
        return [found for it in cast("list[Any]", value) for found in expressions(it)]
    return []


def dashboard() -> dict[str, Any]:
    return json.loads((ROOT / "deploy" / "grafana" / "nunatak.json").read_text(encoding="utf-8"))


def alerts() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8"))


@pytest.mark.parametrize("source", [dashboard, alerts])
def test_every_metric_that_is_queried_exists(families: dict[str, Metric], source: Any) -> None:  # noqa: ANN401 - the hook of the JSON decoder
    queries = expressions(source())
    wanted = {name for query in queries for name in re.findall(r"(?:nunatak|process)_\w+", query)}

    assert queries
    assert wanted - names_of(families) == set()


@pytest.mark.parametrize("kind", ["caller", "split", "shadow"])
def test_the_dashboard_shows_callers_canaries_and_shadows(
    families: dict[str, Metric], kind: str
) -> None:
    queries = " ".join(expressions(dashboard()))
    wanted = [name for name in families if name.startswith(f"nunatak_{kind}_")]

    assert wanted
    assert [name for name in wanted if name not in queries] == []


def test_work_is_counted_by_caller(families: dict[str, Metric]) -> None:
    # A server without keys has one caller.
    tokens = value_of(families, "nunatak_caller_tokens_total", caller="anonymous")

    assert tokens == sum(by_task(families, "nunatak_task_tokens_total").values())


def test_queries_name_only_labels_that_exist() -> None:
    known = set(itertools.chain(*(labels for _, labels in documented().values())))
    queries = expressions(dashboard()) + expressions(alerts())
    by = {
        label.strip()
        for query in queries
        for labels in re.findall(r"by \(([^)]*)\)", query)
        for label in labels.split(",")
    }

    assert by - known <= {"le", "instance"}


def test_panels_of_the_dashboard_lie_next_to_each_other() -> None:
    panels = dashboard()["panels"]
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert all(panel["title"] and panel["type"] for panel in panels)


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = [rule for group in alerts()["groups"] for rule in group["rules"]]

    assert rules
    for rule in rules:
        assert rule["alert"].startswith("Nunatak")
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description"}


def publish(opened: Registry, backbone: Backbone) -> None:
    for name, method in METHODS.items():
        publish_tiny_task(opened, backbone, task=name, method=method)


async def test_what_is_in_memory_is_not_weighed_again(backbone: Backbone, copied: Registry) -> None:
    async with running_client(backbone, copied) as client:
        paths = ("/v1/memory", "/metrics", "/v1/tasks")
        without = [await looks_at_tensors(client, path) for path in paths]
        for name in METHODS:
            assert (await client.post(f"/v1/tasks/{name}/preload")).status_code == 200
        beside_tasks = [await looks_at_tensors(client, path) for path in paths]

    assert beside_tasks == without
    # The size of the backbone is computed on the same thread, so the counter certainly works.
    assert [number > 0 for number in without] == [True, True, False]
