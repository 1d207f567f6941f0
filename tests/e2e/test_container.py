"""The shipped container file is built and started as in a pod, answers, and drains."""

import os
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import psutil
import pytest

from doubles.access import add_key
from doubles.containers import Images, missing_tools
from doubles.proxies import free_port
from doubles.tasks import (
    LABELS,
    TOP_LAYER,
    logits_alone,
    publish_tiny_task,
    random_parameters,
    spec_of,
)
from nunatak_model import load_backbone
from nunatak_registry import Registry

BUILD_LIMIT_S, START_LIMIT_S = 3000, 300
MAX_BYTES = 900_000_000
"""Of an image without CUDA."""
TEXT = "where is my parcel?"
USER = 10001

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_LIMIT_S),
    pytest.mark.skipif(bool(missing_tools()), reason=f"not installed: {missing_tools()}"),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Generator[Images]:
    made = Images(tmp_path_factory.mktemp("images"))
    made.build()
    yield made
    if folder := os.environ.get("NUNATAK_SAVE_IMAGE"):
        made.save(Path(folder))
    made.remove()


def test_the_image_says_how_it_runs_and_is_small(images: Images) -> None:
    described = images.described()

    assert described["Config"]["User"] == str(USER)
    assert described["Healthcheck"]["Test"][0] == "CMD"
    assert described["Size"] <= MAX_BYTES


def test_a_container_with_a_read_only_root_answers_as_its_own_user_and_drains(
    images: Images, tmp_path: Path
) -> None:
    backbone = load_backbone("minilm")
    with Registry.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, backbone, task="tone")
        registry.promote("tone", "prod", 1)
    key = add_key(tmp_path / "keys.json", "caller")
    for path in (tmp_path, *tmp_path.rglob("*")):
        # The user of the container has another number than that of the test.
        path.chmod(0o777 if path.is_dir() else 0o644 if path.suffix == ".json" else 0o666)
    spec = spec_of(backbone, TOP_LAYER, num_labels=len(LABELS))
    (expected,) = logits_alone(backbone, spec, random_parameters(spec, backbone, seed=0), [TEXT])
    port = free_port()
    body = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
    path = "/v1/tasks/tone/predict"

    with (
        images.started(
            volumes={tmp_path / "registry": "/var/lib/nunatak/registry", tmp_path: "/etc/nunatak"},
            port=port,
            api_keys_file="/etc/nunatak/keys.json",
            compute_threads=1,
            drain_delay_s=5,
        ) as name,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        wait_until(client, ready=True)
        health = images.described()["Healthcheck"]["Test"][1:]
        images.call("exec", name, *(it.replace("8080", str(port)) for it in health))
        refused = client.post(path, json=body)
        answer = client.post(path, json=body, headers=key).json()
        server = psutil.Process(int(images.call("inspect", "--format", "{{.State.Pid}}", name)))
        user = server.uids().real

        images.call("kill", "--signal", "TERM", name)
        wait_until(client, ready=False)
        last = client.post(path, json=body, headers=key)
        ended = images.call("wait", name)

    given = {it["label"]: it["score"] for it in answer["outputs"]}
    assert refused.status_code == 401
    assert given == pytest.approx(dict(zip(LABELS, expected, strict=True)), abs=1e-4)
    assert user == USER
    assert last.json()["outputs"] == answer["outputs"]
    assert ended == "0"


def wait_until(client: httpx.Client, *, ready: bool) -> None:
    """Return once the server says that it is ready, or that it is not any more."""
    ends_at = time.monotonic() + START_LIMIT_S
    while True:
        try:
            if client.get("/readyz").is_success == ready:
                return
        except httpx.TransportError:
            assert ready, "the server ended before it said that it drains"
        assert time.monotonic() < ends_at, "the server in the container is not ready"
        time.sleep(0.2)
