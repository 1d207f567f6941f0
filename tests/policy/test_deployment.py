"""The files in deploy/ name only settings, paths and routes that exist."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from doubles.access import access_by_route
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
DEFAULTS = ServerSettings.model_construct()


def manifests() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes" / "nunatak.yaml").read_text(encoding="utf-8")
    return {found["kind"]: found for found in yaml.safe_load_all(text)}


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # pyrefly: ignore[bad-assignment, method-assign] - as its manual says
    parser.read(DEPLOY / "systemd" / "nunatak@.service", encoding="utf-8")
    return parser


def environment_file() -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "nunatak.env").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def pod() -> dict[str, Any]:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


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
    packages = re.findall(r'^  "(\w+)[/\w]*/nunatak_\w+",$', _pyproject(), flags=re.MULTILINE)
    assert set(packages) <= set(copied)
    hooks = re.findall(r'^path = "(\w+)/\w+\.py"$', _pyproject(), flags=re.MULTILINE)
    assert len(hooks) == 1
    assert set(hooks) <= set(copied)


def test_the_image_takes_extras_that_exist() -> None:
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE)

    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", _pyproject(), flags=re.MULTILINE), extra


def test_the_unit_gives_a_server_the_time_to_end() -> None:
    settings = environment_file()
    needed_s = int(settings["NUNATAK_DRAIN_DELAY_S"]) + int(settings["NUNATAK_GRACE_S"])

    assert int(unit()["Service"]["TimeoutStopSec"]) > needed_s


def test_the_units_values_are_settings_that_a_server_takes() -> None:
    given = {
        name.removeprefix("NUNATAK_").lower(): value
        for name, value in environment_file().items()
        if name.startswith("NUNATAK_")
    }

    ServerSettings.model_validate(given)


def test_kubernetes_gives_a_server_the_time_to_end() -> None:
    (container,) = pod()["containers"]
    settings = {it["name"]: it["value"] for it in container["env"] if "value" in it}
    needed_s = int(settings["NUNATAK_DRAIN_DELAY_S"]) + int(settings["NUNATAK_GRACE_S"])
    probe = container["readinessProbe"]

    assert pod()["terminationGracePeriodSeconds"] > needed_s
    assert int(settings["NUNATAK_DRAIN_DELAY_S"]) > probe["periodSeconds"] * (
        probe["failureThreshold"] + 1
    )


def test_probes_ask_routes_that_need_no_key() -> None:
    (container,) = pod()["containers"]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert access_by_route()["GET", container[name]["httpGet"]["path"]] is None


def test_the_service_finds_the_pods_and_leaves_the_environment_alone() -> None:
    labels = manifests()["Deployment"]["spec"]["template"]["metadata"]["labels"]

    assert manifests()["Service"]["spec"]["selector"].items() <= labels.items()
    assert pod()["enableServiceLinks"] is False


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


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")
