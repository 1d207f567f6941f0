"""Parameters that sharing saves (Lee et al. 2019/2020, "What Would Elsa Do?", sec. 3, 4.3)."""

import math
from dataclasses import dataclass

from nunatak_model.architectures import encoder_shapes
from nunatak_model.config import BackboneConfig
from nunatak_model.heads import HeadSpec, head_shapes
from nunatak_model.weights import Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Parameters of one full model by part, as in the paper's table 1."""

    embedding: float
    per_layer: float
    output: float
    num_layers: int

    @property
    def total(self) -> float:
        return self.embedding + self.num_layers * self.per_layer + self.output


def parameters_saved(size: ModelSize, *, num_tasks: int, num_frozen: int) -> float:
    """Share of parameters saved by `num_tasks` tasks that share their lowest `num_frozen` layers.

    `1 - (embedding + N * per_layer + T * ((L - N) * per_layer + output)) / (T * total)`
    """
    if num_tasks < 1 or not 0 <= num_frozen <= size.num_layers:
        raise ValueError(
            f"expected at least one task and 0 to {size.num_layers} frozen layers, "
            f"got {num_tasks} tasks and {num_frozen} layers"
        )
    shared = size.embedding + num_frozen * size.per_layer
    own = (size.num_layers - num_frozen) * size.per_layer + size.output
    return 1.0 - (shared + num_tasks * own) / (num_tasks * size.total)


def encoder_parameters(config: BackboneConfig) -> int:
    return _count(encoder_shapes(config))


def dedicated_parameters(config: BackboneConfig, head: HeadSpec) -> int:
    """Parameters of a dedicated full model with this head."""
    return encoder_parameters(config) + _count(head_shapes(head, config))


def model_size(config: BackboneConfig, head: HeadSpec) -> ModelSize:
    """Size of a full model by part, from the shapes of its modules alone."""
    encoder = encoder_shapes(config)
    embedding = _count({n: s for n, s in encoder.items() if n.startswith("embeddings.")})
    return ModelSize(
        embedding=embedding,
        per_layer=(_count(encoder) - embedding) / config.num_layers,
        output=_count(head_shapes(head, config)),
        num_layers=config.num_layers,
    )


def _count(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))
