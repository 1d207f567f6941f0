"""The Helm chart: its objects are those of deploy/kubernetes, and the schemas accept them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from nunatak_server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
PLAIN = ROOT / "deploy" / "kubernetes"
HELM = shutil.which("helm")
RELEASES = ("1.29", "1.37")
S3 = "registry.s3.endpoint"
ALL = {
    "autoscaling.enabled": "true",
    "networkPolicy.enabled": "true",
    "networkPolicy.from[0].podSelector.matchLabels.app": "gateway",
    "service.type": "LoadBalancer",
    "serviceAccount": "nunatak",
    "registry.s3.endpoint": "https://minio.example:9000",
    "registry.s3.region": "eu-north-1",
    "env.NUNATAK_PINS": "tone@prod",
    "oidc.issuer": "https://login.example:8443/realms/shop",
    "oidc.audience": "nunatak",
    "oidc.jwksUrl": "https://login.example:8443/keys",
    "oidc.algorithms": "RS256",
    "oidc.scopesClaim": "realm_access.roles",
    "oidc.tenantClaim": "azp",
    "oidc.tasksClaim": "tasks",
    "quotas.requestsPerMinute": "600",
    "quotas.requestsPerDay": "100000",
    "quotas.tokensPerMinute": "60000",
    "quotas.tokensPerDay": "50000000",
    "audit.claim": "acts",
    "nodeSelector.disk": "fast",
}

pytestmark = pytest.mark.skipif(HELM is None, reason="no `helm` on the path")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own arguments; no shell
        [str(HELM), *arguments], capture_output=True, text=True, check=False
    )


def rendered(**values: str) -> dict[str, dict[str, Any]]:
    """The objects of a release called `nunatak`, by kind."""
    given = [it for name, value in values.items() for it in ("--set", f"{name}={value}")]
    made = helm("template", "nunatak", str(CHART), *given)
    assert made.returncode == 0, made.stderr
    return {it["kind"]: it for it in yaml.safe_load_all(made.stdout) if it}


def plain(name: str) -> dict[str, dict[str, Any]]:
    text = (PLAIN / name).read_text(encoding="utf-8")
    return {it["kind"]: it for it in yaml.safe_load_all(text)}


def environment(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {it["name"]: it.get("value", "") for it in container["env"]}


def test_the_chart_has_no_fault() -> None:
    checked = helm("lint", "--strict", str(CHART))

    assert checked.returncode == 0, checked.stdout


def test_the_default_objects_are_those_of_the_plain_files() -> None:
    found, wanted = rendered(), plain("nunatak.yaml")
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]

    assert container.pop("imagePullPolicy") == "IfNotPresent"
    assert found["Service"]["spec"].pop("type") == "ClusterIP"
    # The plain file has the registry in its secret, and the default backbone.
    own = {"NUNATAK_REGISTRY", "NUNATAK_BACKBONE"}
    container["env"] = [it for it in container["env"] if it["name"] not in own]
    assert found == wanted


def test_the_autoscaler_is_that_of_the_plain_file_and_sets_the_number_of_pods_alone() -> None:
    found = rendered(**{"autoscaling.enabled": "true"})

    assert found["HorizontalPodAutoscaler"] == plain("hpa.yaml")["HorizontalPodAutoscaler"]
    assert "replicas" not in found["Deployment"]["spec"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
def test_kubernetes_accepts_each_object(values: dict[str, str], release: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs its schemas")
    objects = rendered(**values)

    assert len(objects) == (5 if values else 3)
    for found in objects.values():
        kubernetes_validate.validate(found, release, strict=True)


def test_the_registry_is_a_database_with_its_blobs_in_s3() -> None:
    set_by = environment(rendered(**ALL)["Deployment"])
    address = make_url(set_by["NUNATAK_REGISTRY"])

    assert (address.drivername, address.port) == ("postgresql+psycopg", 5432)
    assert address.query == {"blobs": "s3://bucket/tasks"}
    assert address.password is None
    assert set_by["AWS_ENDPOINT_URL"] == ALL["registry.s3.endpoint"]
    assert set_by["NUNATAK_PINS"] == "tone@prod"
    assert set_by["NUNATAK_TASK_MEMORY_BYTES"] == "2147483648"


def test_every_variable_is_a_setting_that_a_server_takes() -> None:
    deployment = rendered(**ALL)["Deployment"]
    given = {
        name.removeprefix("NUNATAK_").lower(): value
        for name, value in environment(deployment).items()
        if name.startswith("NUNATAK_")
    }
    spec = deployment["spec"]["template"]["spec"]
    (place,) = (it for it in spec["containers"][0]["volumeMounts"] if it["name"] == "audit")
    (volume,) = (it for it in spec["volumes"] if it["name"] == "audit")

    assert given.keys() <= ServerSettings.model_fields.keys()
    settings = ServerSettings.model_validate(given)
    assert settings.oidc_issuer == ALL["oidc.issuer"]
    assert settings.oidc_jwks_url == ALL["oidc.jwksUrl"]
    assert settings.oidc_scopes_claim == "realm_access.roles"
    assert settings.max_requests_per_minute == 600
    assert settings.max_tokens_per_day == 50_000_000
    # A file for each pod, in a volume that outlives the pod.
    assert given["audit_log"] == f"{place['mountPath']}/$(NUNATAK_REPLICA_ID).jsonl"
    assert volume["persistentVolumeClaim"] == {"claimName": "acts"}


def test_numbers_of_a_file_arrive_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("env: {A: 134217728, B: 0.05, C: true, D: '1e3'}")

    made = helm("template", "nunatak", str(CHART), "--values", str(file))

    objects = {it["kind"]: it for it in yaml.safe_load_all(made.stdout) if it}
    given = environment(objects["Deployment"])
    assert [given[it] for it in "ABCD"] == ["134217728", "0.05", "true", "1e3"]


@pytest.mark.parametrize(
    ("name", "address", "ports"),
    [
        (S3, "", [443]),
        (S3, "https://minio.example", [443]),
        (S3, "http://minio.example", [80]),
        (S3, "https://minio.example:9000", [9000]),
        (S3, "http://minio.example:9000/", [9000]),
        (S3, "http://[::1]:9000", [9000]),
        ("oidc.issuer", "https://other.example:8443/x", [443, 8443]),
        ("env.NUNATAK_DECISIONS_UPSTREAM", "https://other.example:8443/x", [443, 8443]),
    ],
)
def test_a_pod_may_reach_the_index_the_blobs_the_issuer_and_the_upstream(
    name: str, address: str, ports: list[int]
) -> None:
    values = {"networkPolicy.enabled": "true", name: address}

    (egress,) = rendered(**values)["NetworkPolicy"]["spec"]["egress"]

    assert [it["port"] for it in egress["ports"]] == [53, 53, 5432, *ports]


def test_a_pod_has_the_time_to_end() -> None:
    spec = rendered(drainDelayS="20", graceS="60")["Deployment"]["spec"]["template"]["spec"]

    assert spec["terminationGracePeriodSeconds"] > 80


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("replica", "3"),
        ("replicas", "0"),
        ("registry.postgresql.user", "a@b"),
        ("registry.s3.prefix", "a&b"),
        ("registry.secret", ""),
        ("drainDelayS", "1"),
        ("service.type", "Ingress"),
        ("memory", "4"),
        ("oidc.issuer", "http://login.example"),
        ("oidc.audience", "nunatak"),
        ("oidc.isuer", "https://login.example"),
        ("quotas.requestsPerMinute", "0"),
        ("quotas.requestPerMinute", "600"),
        ("audit.claim", "Acts"),
        ("audit.file", "acts"),
    ],
)
def test_the_schema_refuses_values_that_no_server_can_use(value: str, text: str) -> None:
    refused = helm("template", "nunatak", str(CHART), "--set", f"{value}={text}")

    assert refused.returncode != 0
    assert "schema" in refused.stderr
