"""A replica on Ray Serve answers as the server does, and `cluster` starts, shows and stops it."""

from pathlib import Path

import httpx
import pytest

from doubles.lifecycles import TEXTS, make_site
from doubles.proxies import free_port
from doubles.terminals import nunatak

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("nodes"),
    # Ray's own settings use old ways of pydantic.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]
TOLERANCE = 1e-4


def test_replicas_of_ray_serve_answer_like_the_server(tmp_path: Path) -> None:
    site, port = make_site(tmp_path), free_port()
    options = ("--registry", str(site.registry), "--backbone", str(site.backbone))
    up = ("cluster", "up", *options, "--port", str(port), "--set", "compute_threads=1")

    ran = nunatak(*up)

    assert ran.exit_code == 0, ran.stderr
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        assert client.get("/readyz").status_code == 200
        for text in TEXTS:
            body = {"inputs": text, "parameters": {"function_to_apply": "none", "on_long": "cut"}}
            answer = client.post("/v1/tasks/tone/predict", json=body)
            assert answer.status_code == 200, answer.text
            found = {it["label"]: it["score"] for it in answer.json()["outputs"]}
            assert found == pytest.approx(dict(site.oracle["tone", text]), abs=TOLERANCE)
            assert answer.headers["x-replica-id"]
        too_large = client.post(
            "/v1/predict", content=b"x" * 2**21, headers={"content-type": "application/json"}
        )
        assert too_large.json()["code"] == "body_too_large"

    shown = nunatak("cluster", "status", "--json")
    assert shown.exit_code == 0
    assert "RUNNING" in str(shown.json())
    elsewhere = nunatak(*up, "--port", str(port + 1))
    assert "already" in elsewhere.stderr
    assert "stopped: nunatak-backbone" in nunatak("cluster", "down").stdout
    assert nunatak("cluster", "status").exit_code == 1


def test_a_replica_makes_no_registry_from_a_typing_error(tmp_path: Path) -> None:
    ran = nunatak("cluster", "up", "--registry", str(tmp_path / "tpyo"), "--port", str(free_port()))

    assert ran.exit_code == 1
    assert "there is no registry at" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_keys_is_not_opened_to_other_machines() -> None:
    ran = nunatak("cluster", "up", "--host", "0.0.0.0")  # noqa: S104 - what must be refused

    assert ran.exit_code != 0
    assert "API keys" in ran.stderr
