"""The schema is true: schemathesis tries requests that the schema allows or forbids."""

from collections.abc import Generator
from itertools import cycle
from typing import Any

import pytest
from schemathesis import Case

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.schema_cases import TRIALS, Target, Trial
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_registry import Registry

NUM_EXAMPLES = 4
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[Target]]:
    """An open server, and a server with keys that gets a key with all scopes."""
    backbone, folder = tiny_backbone(), tmp_path_factory.mktemp("server")
    keys = folder / "keys.json"
    headers = add_key(keys, "operator")
    with Registry.open(folder / "registry") as registry:
        publish_tiny_task(registry, backbone)
        registry.policies.put(make_policy(make_rule(when("tone", "urgent"))))
        with (
            running_server(backbone, registry, make_settings()) as anyone,
            running_server(backbone, registry, make_settings(api_keys_file=keys)) as keyed,
        ):
            yield [Target(address=anyone), Target(address=keyed, headers=headers)]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_the_server_does_what_its_schema_says(targets: list[Target], trial: Trial) -> None:
    in_turn = cycle(targets)

    def try_one(case: Case[Any]) -> None:
        next(in_turn).check(case, limit_s=LIMIT_S)

    trial.each(try_one, num_examples=NUM_EXAMPLES)
