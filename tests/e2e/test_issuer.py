"""Tokens of a real issuer: npm's `oidc-provider`, a certified implementation of OpenID Connect."""

import asyncio
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from doubles.proxies import free_port
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access import tokens

PROGRAM = Path(__file__).parents[1] / "doubles" / "issuer.mjs"
PACKAGE = "oidc-provider@9.13.3"
NPM = shutil.which("npm")
PREDICT = "/v1/tasks/tone/predict"


@pytest.fixture
def issuer(tmp_path: Path) -> Generator[httpx.Client]:
    shutil.copyfile(PROGRAM, tmp_path / "issuer.mjs")
    command = (str(NPM), "install", "--silent", "--no-audit", "--no-fund", PACKAGE)
    if subprocess.run(command, cwd=tmp_path, check=False).returncode:  # noqa: S603 - npm
        pytest.skip(f"npm cannot install {PACKAGE}")
    port = free_port()
    program = ("node", "issuer.mjs", str(port))
    with subprocess.Popen(  # noqa: S603 - our own program
        program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert any(line == "ready\n" for line in process.stdout)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                yield client
        finally:
            process.terminate()


def token_of(
    issuer: httpx.Client, *scopes: str, client: str = "acme", audience: str = "nunatak"
) -> dict[str, str]:
    asked = {
        "grant_type": "client_credentials",
        "resource": f"urn:{audience}",
        "scope": " ".join(f"nunatak:{it}" for it in scopes),
    }
    answer = issuer.post("/token", data=asked, auth=(client, client * 9)).raise_for_status()
    return {"authorization": f"Bearer {answer.json()['access_token']}"}


def rotate(issuer: httpx.Client, algorithm: str, name: str, *, ttl: int = 600) -> None:
    asked: dict[str, str | int] = {"alg": algorithm, "kid": name, "ttl": ttl}
    issuer.get("/rotate", params=asked).raise_for_status()


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.skipif(NPM is None, reason="no `npm` on the path (Node 20 or newer)")
async def test_tokens_of_a_real_issuer_open_what_their_claims_say_and_nothing_else(
    issuer: httpx.Client, backbone: Backbone, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "PAUSE_S", 0.0)
    monkeypatch.setattr(tokens, "LEEWAY_S", 0.0)
    for task in ("tone", "hidden"):
        publish_tiny_task(registry, backbone, task=task)
    settings = make_settings(oidc_issuer=str(issuer.base_url).rstrip("/"))

    async with running_client(backbone, registry, settings) as client:

        async def outcome(headers: dict[str, str], path: str = PREDICT) -> tuple[int, str | None]:
            answer = await client.post(path, json={"inputs": "hello"}, headers=headers)
            return answer.status_code, answer.json().get("detail") if answer.is_error else None

        predicts = token_of(issuer, "predict")
        assert await outcome(predicts) == (200, None)
        assert (await outcome(predicts, "/v1/tasks/hidden/predict"))[0] == 404
        assert (await client.get("/v1/tasks", headers=predicts)).status_code == 403
        assert (await outcome(token_of(issuer, "read")))[0] == 403
        for problem, headers in {
            "another audience": token_of(issuer, "predict", audience="billing"),
            "tasks must list": token_of(issuer, "predict", client="without-tasks"),
        }.items():
            status, detail = await outcome(headers)
            assert (status, problem in str(detail)) == (401, True)
        for algorithm, name in (("ES256", "second"), ("RS256", "third")):
            rotate(issuer, algorithm, name)
            assert await outcome(token_of(issuer, "predict")) == (200, None)
            status, detail = await outcome(predicts)
            assert (status, "no such key" in str(detail)) == (401, True)
        rotate(issuer, "ES256", "fourth", ttl=1)
        brief = token_of(issuer, "predict")
        await asyncio.sleep(2)
        status, detail = await outcome(brief)
        assert (status, "expired" in str(detail)) == (401, True)
