"""The files in deploy/ name only what exists, and Kubernetes, KEDA and llm-d accept theirs."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from doubles.access import access_by_route
from nunatak_server.errors import WRONG_SETTINGS
from nunatak_server.http.access import PREDICT, Access
from nunatak_server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "container" / "Dockerfile").read_text(encoding="utf-8")
NGINX = (DEPLOY / "nginx" / "nunatak.conf").read_text(encoding="utf-8")
HAPROXY = (DEPLOY / "haproxy" / "nunatak.cfg").read_text(encoding="utf-8")
ENVOY = (DEPLOY / "envoy" / "nunatak.yaml").read_text(encoding="utf-8")
FILES = [path for path in DEPLOY.rglob("*") if path.is_file()]
VARIABLES = {f"NUNATAK_{name.upper()}" for name in ServerSettings.model_fields}
KUBERNETES = DEPLOY / "kubernetes"
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
DEFAULTS = ServerSettings.model_construct()
RELEASES = ("1.29", "1.37")
"""The oldest and the newest release of Kubernetes that the files are for."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")))


OWN = [it for name in ("nunatak.yaml", "hpa.yaml") for it in documents(name)]
MANIFESTS: dict[str, Any] = {it["kind"]: it for it in OWN}
DEPLOYMENT = MANIFESTS["Deployment"]
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
STORES = documents("../helm/trial.yaml")
(SCALED,) = documents("keda.yaml")
(PICKER,) = documents("llm-d.yaml")


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # pyrefly: ignore[bad-assignment, method-assign] - as its manual says
    parser.read(DEPLOY / "systemd" / "nunatak@.service", encoding="utf-8")
    return parser


def environment_file() -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "nunatak.env").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_is_a_setting(path: Path) -> None:
    named = re.findall(r"NUNATAK_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))

    assert set(named) <= VARIABLES


def test_the_image_is_made_of_folders_that_exist() -> None:
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE)
        for name in line.split()
    ]
    ignored = DEPLOY / "container" / "Dockerfile.dockerignore"
    kept = re.findall(r"^!(.*)$", ignored.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert all((ROOT / name).exists() for name in copied)
    assert set(copied) == set(kept)
    packages = re.findall(r'^  "(\w+)[/\w]*/nunatak_\w+",$', PYPROJECT, flags=re.MULTILINE)
    assert set(packages) <= set(copied)
    hooks = re.findall(r'^path = "(\w+)/\w+\.py"$', PYPROJECT, flags=re.MULTILINE)
    assert len(hooks) == 1
    assert set(hooks) <= set(copied)


def test_the_image_takes_extras_that_exist() -> None:
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE)

    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", PYPROJECT, flags=re.MULTILINE), extra


def test_the_unit_gives_a_server_the_time_to_end_and_knows_its_status() -> None:
    settings = environment_file()
    needed_s = int(settings["NUNATAK_DRAIN_DELAY_S"]) + int(settings["NUNATAK_GRACE_S"])

    assert int(unit()["Service"]["TimeoutStopSec"]) > needed_s
    assert int(unit()["Service"]["RestartPreventExitStatus"]) == WRONG_SETTINGS


def test_the_units_values_are_settings_that_a_server_takes() -> None:
    given = {
        name.removeprefix("NUNATAK_").lower(): value
        for name, value in environment_file().items()
        if name.startswith("NUNATAK_")
    }

    ServerSettings.model_validate(given)


def test_kubernetes_gives_a_server_the_time_to_end() -> None:
    settings = {it["name"]: it["value"] for it in CONTAINER["env"] if "value" in it}
    needed_s = int(settings["NUNATAK_DRAIN_DELAY_S"]) + int(settings["NUNATAK_GRACE_S"])
    probe = CONTAINER["readinessProbe"]

    assert POD["terminationGracePeriodSeconds"] > needed_s
    assert int(settings["NUNATAK_DRAIN_DELAY_S"]) > probe["periodSeconds"] * (
        probe["failureThreshold"] + 1
    )


def test_probes_ask_routes_that_need_no_key() -> None:
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert access_by_route()["GET", CONTAINER[name]["httpGet"]["path"]] is None


def test_the_service_finds_the_pods_and_leaves_the_environment_alone() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]

    assert MANIFESTS["Service"]["spec"]["selector"].items() <= labels.items()
    assert POD["enableServiceLinks"] is False


def test_the_proxy_keeps_connections_for_less_time_than_the_server() -> None:
    (kept_s,) = re.findall(r"keepalive_timeout (\d+)s;", NGINX)

    assert int(kept_s) < DEFAULTS.keep_alive_s


def test_a_proxy_passes_the_bodies_that_the_server_takes() -> None:
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", NGINX)
    (in_haproxy,) = re.findall(r"req.body_size gt (\d+)", HAPROXY)
    (in_envoy,) = re.findall(r"max_request_bytes: (\d+)", ENVOY)

    sizes = {int(megabytes) * 1024**2, int(in_haproxy), int(in_envoy)}
    assert sizes == {DEFAULTS.max_body_bytes}


def retried(path: str) -> list[bool]:
    """Whether nginx, HAProxy, and Envoy repeat a request to a path that a process refused."""
    (in_nginx,) = re.findall(r'location ~ "(.+)"', NGINX)
    (in_haproxy,) = re.findall(r"acl asks path_reg (.+)", HAPROXY)
    in_envoy = "|".join(re.findall(r'safe_regex: {regex: "(.+?)"}', ENVOY))
    return [re.search(pattern, path) is not None for pattern in (in_nginx, in_haproxy, in_envoy)]


@pytest.mark.parametrize(("route", "needed"), sorted(access_by_route().items(), key=str))
def test_a_proxy_repeats_predictions_and_no_change(
    route: tuple[str, str], needed: Access | None
) -> None:
    verb, template = route
    # Names that look like the end of a prediction.
    path = re.sub(r"{(\w+)}", "predict", template)
    # A proxy passes a stream on while it arrives, and keeps nothing to repeat.
    if needed == PREDICT and not template.endswith("/stream"):
        assert retried(re.sub("{version}", "3", template).replace("{task}", "tone")) == [True] * 3
    elif verb != "GET":
        assert retried(path) == [False] * 3


def test_haproxy_routes_each_task_by_its_name_alone() -> None:
    (of_tasks,) = re.findall(r"acl names_a_task path_reg (.+)", HAPROXY)
    for _, template in access_by_route():
        if "{task}" in template and all(retried(template.replace("{version}", "3"))):
            assert re.search(of_tasks, template), template
            assert template.split("/")[3].partition(":")[0] == "{task}"


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
    for scaler in (SCALED, MANIFESTS["HorizontalPodAutoscaler"]):
        target = scaler["spec"]["scaleTargetRef"]
        assert target["name"] == DEPLOYMENT["metadata"]["name"]
        assert target.get("kind", "Deployment") == DEPLOYMENT["kind"]


def test_every_queried_metric_exists() -> None:
    texts = (path.read_text(encoding="utf-8") for path in KUBERNETES.iterdir())
    named = {it for text in texts for it in re.findall(r"\bnunatak_[a-z_]+", text)}
    # The rule of prometheus-adapter gives this name to a rate.
    named -= {"nunatak_queued_seconds_per_second"}

    assert "nunatak_queue_seconds_sum" in named
    assert named <= shown_metrics()


def test_the_budget_lets_a_drain_of_nodes_go_on() -> None:
    budget = MANIFESTS["PodDisruptionBudget"]

    assert budget["spec"]["maxUnavailable"] < DEPLOYMENT["spec"]["replicas"]
    assert budget["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]


def test_the_registry_of_the_example_is_a_location_that_a_server_takes() -> None:
    text = (KUBERNETES / "nunatak.yaml").read_text(encoding="utf-8")
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
