"""The TypeScript client, built and tested by npm against a real server."""

import json
import shutil
from pathlib import Path

import pytest

from doubles.access import add_key
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from doubles.terminals import ran
from nunatak_contract.enums import HeadKind
from nunatak_model import Backbone
from nunatak_registry import Registry

ROOT = Path(__file__).parents[2]
NPM = shutil.which("npm")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(NPM is None, reason="no `npm` on the path (Node 20 or newer)")
def test_the_typescript_client_builds_and_passes_its_tests(
    tmp_path: Path, backbone: Backbone, registry: Registry
) -> None:
    package = tmp_path / "clients" / "typescript"
    made = shutil.ignore_patterns("node_modules", "dist", "openapi.ts", "LICENSE")
    shutil.copytree(ROOT / "clients" / "typescript", package, ignore=made)
    (tmp_path / "docs").mkdir()
    shutil.copyfile(ROOT / "docs" / "openapi.json", tmp_path / "docs" / "openapi.json")
    shutil.copyfile(ROOT / "LICENSE", tmp_path / "LICENSE")
    key = add_key(tmp_path / "keys.json", "typescript")["authorization"].removeprefix("Bearer ")
    publish_tiny_task(registry, backbone)
    publish_tiny_task(
        registry, backbone, task="names", kind=HeadKind.TOKEN_CLASSIFICATION, labels=("O", "I-X")
    )
    registry.promote("tone", "prod", 1)
    registry.policies.put(make_policy(make_rule(when("tone", "urgent"))))
    never = make_rule(when("tone", "urgent", threshold=1.0))
    registry.policies.put(make_policy(never, name="open"))
    settings = make_settings(api_keys_file=tmp_path / "keys.json")

    with running_server(backbone, registry, settings) as url:
        for command in ("ci", "run build", "run check", "test"):
            own = {"NUNATAK_TEST_URL": url, "NUNATAK_API_KEY": key}
            ran(str(NPM), *command.split(), folder=package, **own)
    packed = ran(str(NPM), "pack", "--dry-run", "--json", folder=package)
    files = {it["path"] for it in json.loads(packed[packed.index("[\n") :])[0]["files"]}
    assert {"LICENSE", "README.md", "dist/index.js", "dist/index.d.ts"} <= files
