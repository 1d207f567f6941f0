"""The files in deploy/kubernetes are accepted by the schemas of Kubernetes, KEDA and llm-d."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
RELEASES = ("1.29", "1.37")
"""The oldest and the newest release of Kubernetes that the files are for."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


OWN = [it for name in ("nunatak.yaml", "hpa.yaml") for it in documents(name)]
DEPLOYMENT = OWN[0]
STORES = documents("../helm/trial.yaml")
(SCALED,) = documents("keda.yaml")
(PICKER,) = documents("llm-d.yaml")


def check_scaled(document: dict[str, Any]) -> None:
    """Raise unless KEDA's definition knows every field; a field that it ignores gets lost here."""
    keda = pytest.importorskip("cloudcoil.models.keda.v1alpha1", reason="needs KEDA's schemas")
    kept = keda.ScaledObject.model_validate(document)
    assert kept.model_dump(by_alias=True, exclude_unset=True, mode="json") == document


def shown_metrics() -> set[str]:
    """The metrics in the table of the guide, which another test compares with a server."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^\| `(nunatak_\w+)` \| (\w+) \|", text, flags=re.MULTILINE)
    return {f"{name}_sum" if kind == "histogram" else name for name, kind in kinds}


class Strict(BaseModel):
    """The part of a configuration of llm-d that its documents describe; nothing else is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class Engine(Strict):
    name: str
    queued: str = Field(alias="queuedRequestsSpec")
    running: str = Field(alias="runningRequestsSpec")


class Extractor(Strict):
    default_engine: str = Field(alias="defaultEngine")
    engine_configs: list[Engine] = Field(alias="engineConfigs")


class Source(Strict):
    interval: str
    families: list[str]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("document", [*OWN, *STORES], ids=lambda it: it["kind"])
def test_kubernetes_accepts_each_object(document: dict[str, Any], release: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs its schemas")
    kubernetes_validate.validate(document, release, strict=True)


def test_keda_accepts_the_scaled_object() -> None:
    check_scaled(SCALED)


def test_the_trigger_has_what_keda_needs_of_prometheus() -> None:
    (trigger,) = SCALED["spec"]["triggers"]

    assert trigger["type"] == "prometheus"
    assert {"serverAddress", "query", "threshold"} <= trigger["metadata"].keys()


def test_every_scaler_scales_the_deployment() -> None:
    (autoscaler,) = documents("hpa.yaml")
    for target in (SCALED["spec"]["scaleTargetRef"], autoscaler["spec"]["scaleTargetRef"]):
        assert target["name"] == DEPLOYMENT["metadata"]["name"]
        assert target.get("kind", "Deployment") == DEPLOYMENT["kind"]


def test_every_queried_metric_exists() -> None:
    texts = (path.read_text(encoding="utf-8") for path in FOLDER.iterdir())
    named = {it for text in texts for it in re.findall(r"\bnunatak_[a-z_]+", text)}
    # The rule of prometheus-adapter gives this name to a rate.
    named -= {"nunatak_queued_seconds_per_second"}

    assert "nunatak_queue_seconds_sum" in named
    assert named <= shown_metrics()


def test_the_budget_lets_a_drain_of_nodes_go_on() -> None:
    (budget,) = [it for it in OWN if it["kind"] == "PodDisruptionBudget"]

    assert budget["spec"]["maxUnavailable"] < DEPLOYMENT["spec"]["replicas"]
    assert budget["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]


def test_the_registry_of_the_example_is_a_location_that_a_server_takes() -> None:
    text = (FOLDER / "nunatak.yaml").read_text(encoding="utf-8")
    (location,) = re.findall(r"NUNATAK_REGISTRY='(.+?)'", text)

    assert location.startswith("postgresql+psycopg://")
    assert "blobs=s3://" in location


def test_the_picker_reads_the_gauges_of_waiting_and_running_requests() -> None:
    plugins = {it["type"]: it.get("parameters", {}) for it in PICKER["plugins"]}
    extractor = Extractor.model_validate(plugins["core-metrics-extractor"])
    source = Source.model_validate(plugins["metrics-data-source"])
    (engine,) = extractor.engine_configs

    assert engine.name == extractor.default_engine
    assert {engine.queued, engine.running} == set(source.families)


def test_every_plugin_that_the_picker_names_is_declared() -> None:
    declared = {it["type"] for it in PICKER["plugins"]}
    (profile,) = PICKER["schedulingProfiles"]
    (source,) = PICKER["dataLayer"]["sources"]
    named = [*profile["plugins"], source, *source["extractors"]]

    assert {it["pluginRef"] for it in named} == declared
