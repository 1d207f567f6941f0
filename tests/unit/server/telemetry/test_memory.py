from collections import Counter

import pytest

from doubles.backbones import tiny_backbone
from doubles.tasks import random_branch
from doubles.watching import watched
from nunatak_contract.methods import QUERY_AND_VALUE, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, Branch, model_size
from nunatak_server.telemetry.memory import saved_by_formula


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone()


def branch_of(backbone: Backbone, method: Method) -> Branch:
    return random_branch(backbone, method, num_labels=3)


def test_full_copies_save_nothing(backbone: Backbone) -> None:
    branch = branch_of(backbone, Full())

    assert saved_by_formula((backbone.config, [branch] * 3)) == pytest.approx(0)


def test_one_task_that_adds_to_all_layers_costs_more_than_its_own_model(backbone: Backbone) -> None:
    branch = branch_of(backbone, Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE))

    assert saved_by_formula((backbone.config, [branch])) < 0
    assert saved_by_formula((backbone.config, [branch] * 10)) > 0.5


def test_the_deepest_reader_decides_what_is_shared(backbone: Backbone) -> None:
    top = branch_of(backbone, TopK(num_layers=4))
    head = branch_of(backbone, HeadOnly())
    size = model_size(backbone.config, head.spec.head)

    own = sum(it.branch_parameters + it.head_parameters for it in (top, head))
    shared = size.embedding + size.num_layers * size.per_layer
    assert saved_by_formula((backbone.config, [top, head])) == pytest.approx(
        1 - (shared + own) / (2 * size.total)
    )


def test_a_version_more_costs_the_formula_one_look_at_the_backbone(backbone: Backbone) -> None:
    branch = branch_of(backbone, Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE))

    def looks(num_branches: int) -> int:
        counted = Counter[str]()
        saved_by_formula((watched(backbone.config, counted), [branch] * num_branches))
        return counted.total()

    assert looks(50) - looks(1) == 49
