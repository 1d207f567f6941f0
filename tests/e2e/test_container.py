"""The shipped container file is built and started, and its server answers."""

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
TEXT = "where is my parcel?"
USER = 10001

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_LIMIT_S),
    pytest.mark.skipif(bool(missing_tools()), reason=f"not installed: {missing_tools()}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the base of an image is made by root"),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Generator[Images]:
    made = Images(tmp_path_factory.mktemp("images"))
    made.make_base()
    made.build()
    yield made
    made.remove()


def test_the_image_is_built_and_serves_as_its_own_user(images: Images, tmp_path: Path) -> None:
    backbone = load_backbone("minilm")
    with Registry.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, backbone, task="tone")
        registry.promote("tone", "prod", 1)
    key = add_key(tmp_path / "keys.json", "caller")
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, USER, USER)
    spec = spec_of(backbone, TOP_LAYER, num_labels=len(LABELS))
    (expected,) = logits_alone(backbone, spec, random_parameters(spec, backbone, seed=0), [TEXT])
    port = free_port()

    with (
        images.started(
            volumes={tmp_path / "registry": "/var/lib/nunatak/registry", tmp_path: "/etc/nunatak"},
            port=port,
            api_keys_file="/etc/nunatak/keys.json",
            compute_threads=1,
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        wait_until_ready(client)
        body = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
        path = "/v1/tasks/tone/predict"
        refused = client.post(path, json=body)
        answer = client.post(path, json=body, headers=key).json()
        running = psutil.Process(process.pid).children(recursive=True)
        users = {it.uids().real for it in running}

    given = {it["label"]: it["score"] for it in answer["outputs"]}
    assert refused.status_code == 401
    assert given == pytest.approx(dict(zip(LABELS, expected, strict=True)), abs=1e-4)
    assert USER in users
    assert images.configuration()["User"] == str(USER)
    assert images.configuration()["Healthcheck"]["Test"][0] == "CMD"


def wait_until_ready(client: httpx.Client) -> None:
    """Return once the server is ready."""
    ends_at = time.monotonic() + START_LIMIT_S
    while True:
        try:
            if client.get("/readyz").is_success:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < ends_at, "the server in the container is not ready"
        time.sleep(0.2)
