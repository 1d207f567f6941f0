from collections.abc import Callable, Iterator
from itertools import accumulate, cycle
from math import prod

import pytest

from doubles.backbones import FAMILIES, Family, tiny_backbone
from doubles.tasks import spec_of
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import HeadOnly
from nunatak_model import (
    Backbone,
    HeadSpec,
    ModelSize,
    model_size,
    number_format,
    pack_backbone,
    parameter_shapes,
    parameters_saved,
    quantize_backbone,
    with_speeds,
)
from nunatak_model.architectures import config_from

# Table 1 of "What Would Elsa Do?" (2020): parameters in millions.
PAPER = {
    "base": ModelSize(embedding=39.0, per_layer=7.1, output=0.6, num_layers=12),
    "large": ModelSize(embedding=52.0, per_layer=12.6, output=1.0, num_layers=24),
}
FORMS: dict[str, Callable[[Backbone], Backbone]] = {
    "plain": lambda it: it,
    "packed": pack_backbone,
    "quantized": quantize_backbone,
    "quantized and packed": lambda it: pack_backbone(quantize_backbone(it)),
}
SAVED_CELLS = [
    pytest.param("base", 8, 12, 0.87, id="mt-roberta-base-12-of-12"),
    pytest.param("base", 8, 9, 0.72, id="mt-roberta-base-9-of-12"),
    pytest.param("large", 5, 24, 0.80, id="mt-roberta-large-24-of-24"),
    pytest.param("large", 5, 17, 0.60, id="mt-roberta-large-17-of-24"),
    pytest.param("base", 4, 12, 0.75, id="xlm-r-base-12-of-12"),
    pytest.param("base", 4, 8, 0.58, id="xlm-r-base-8-of-12"),
    pytest.param("large", 4, 24, 0.75, id="xlm-r-large-24-of-24"),
    pytest.param("large", 4, 19, 0.61, id="xlm-r-large-19-of-24"),
]


def roberta(shape: str) -> ModelSize:
    """The size of RoBERTa from the shapes of its modules; no weights."""
    width, num_layers = {"base": (768, 12), "large": (1024, 24)}[shape]
    config = config_from(
        {
            "model_type": "roberta",
            "hidden_size": width,
            "num_hidden_layers": num_layers,
            "num_attention_heads": width // 64,
            "intermediate_size": 4 * width,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        }
    )
    return model_size(config, HeadSpec(num_labels=2, pooling=Pooling.FIRST, dense=True))


def ticks() -> Iterator[float]:
    """A clock on which products take 4, 2 and 8 seconds in turn."""
    return accumulate(cycle((1.0, 4.0, 1.0, 2.0, 1.0, 8.0)))


@pytest.mark.parametrize(("shape", "num_tasks", "num_frozen", "saved"), SAVED_CELLS)
def test_sizes_of_the_paper_and_of_modules_give_every_saved_cell_of_the_paper(
    shape: str, num_tasks: int, num_frozen: int, saved: float
) -> None:
    for size in (PAPER[shape], roberta(shape)):
        share = parameters_saved(size, num_tasks=num_tasks, num_frozen=num_frozen)
        assert round(share, 2) == saved


@pytest.mark.parametrize("shape", ["base", "large"])
def test_module_shapes_give_the_sizes_of_the_papers_table(shape: str) -> None:
    ours, paper = roberta(shape), PAPER[shape]

    assert ours.embedding / 1e6 == pytest.approx(paper.embedding, abs=0.11)
    assert ours.per_layer / 1e6 == pytest.approx(paper.per_layer, abs=0.05)
    assert ours.output / 1e6 == pytest.approx(paper.output, abs=0.06)
    assert ours.total / 1e6 == pytest.approx(paper.total, rel=0.002)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_by_part_add_up_to_the_dedicated_model(family: Family) -> None:
    backbone = tiny_backbone(family=family)
    spec = spec_of(backbone, HeadOnly(), num_labels=3)

    own = sum(map(prod, parameter_shapes(spec, backbone.config).values()))
    size = model_size(backbone.config, spec.head)
    assert size.total == pytest.approx(backbone.num_parameters + own)


@pytest.mark.parametrize(("num_tasks", "num_frozen"), [(0, 3), (2, -1), (2, 13)])
def test_numbers_outside_the_model_are_refused(num_tasks: int, num_frozen: int) -> None:
    with pytest.raises(ValueError, match="expected at least one task"):
        parameters_saved(PAPER["base"], num_tasks=num_tasks, num_frozen=num_frozen)


@pytest.mark.parametrize("form", FORMS)
def test_a_speed_is_the_time_of_float32_over_the_formats_own(form: str) -> None:
    clock = ticks()

    found = with_speeds(FORMS[form](tiny_backbone()), clock=lambda: next(clock))

    assert found.speeds == {"float32": 1.0, "bfloat16": 2.0, "int8": 0.5}
    assert number_format(found) == ("int8" if found.is_quantized else "float32")
