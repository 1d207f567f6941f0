"""A running application with a task of every kind."""

from collections.abc import AsyncGenerator, Generator

import httpx
import pytest

from doubles.backbones import tiny_backbone
from doubles.compat import TASKS
from doubles.questions import EMBEDDING, publish_all
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import Pooling
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(pooling=Pooling.MEAN)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        for name, (kind, method, labels, problem) in TASKS.items():
            publish_tiny_task(
                opened,
                backbone,
                task=name,
                method=method,
                labels=labels,
                kind=kind,
                problem_type=problem,
            )
        publish_tiny_task(opened, backbone, task="topic", labels=("calm", "urgent"), seed=1)
        yield opened


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    return make_settings(max_inputs=8, max_call_texts=64)


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Generator[Registry]:
    """A registry with a card for each question, and their tasks."""
    with Registry.open(tmp_path_factory.mktemp("cards")) as opened:
        publish_all(opened, backbone)
        yield opened


@pytest.fixture(scope="module")
async def bound(backbone: Backbone, cards: Registry) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of an application with cards."""
    async with running_client(backbone, cards, make_settings()) as opened:
        yield opened


@pytest.fixture(scope="module")
async def asking(backbone: Backbone, cards: Registry) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of an application with cards that also answers unknown questions."""
    async with running_client(backbone, cards, make_settings(**EMBEDDING)) as opened:
        yield opened
