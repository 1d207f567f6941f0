"""The modules of transformers' BERT and RoBERTa classes, as peft's configurations name them.

A module's name is its path in the adapted model, `bert.encoder.layer.3.attention.self.query`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nunatak_artifact.interchange.peft_config import TaskType
from nunatak_model import BackboneConfig, Lora, LoraTarget

ENCODERS: Mapping[str, str] = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
}
"""`model_type` -> what the classes with a head call their encoder."""

TARGETS: Mapping[LoraTarget, str] = {
    LoraTarget.QUERY: "attention.self.query",
    LoraTarget.KEY: "attention.self.key",
    LoraTarget.VALUE: "attention.self.value",
    LoraTarget.ATTENTION_OUTPUT: "attention.output.dense",
    LoraTarget.FEEDFORWARD_IN: "intermediate.dense",
    LoraTarget.FEEDFORWARD_OUT: "output.dense",
}
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A linear map that can carry a low-rank update."""

    name: str
    out: int
    into: int
    layer: int | None
    """None for the pooler, which to us is part of the head."""
    target: LoraTarget | None


def has_pooler(encoder: str, task_type: TaskType) -> bool:
    """Whether the adapted model reads the encoder's pooler: only BERT for sequences does."""
    return encoder == "bert" and task_type is TaskType.SEQUENCE_CLASSIFICATION


def modules_of(encoder: str, task_type: TaskType, config: BackboneConfig) -> tuple[Module, ...]:
    """Every module of the adapted model that we can update."""
    shapes = Lora(rank=1, targets=tuple(TARGETS)).parameter_shapes(config)
    modules = [
        Module(
            name=f"{encoder}.encoder.layer.{layer}.{path}",
            out=shapes[f"layers.{layer}.lora.{target}.up"][0],
            into=shapes[f"layers.{layer}.lora.{target}.down"][1],
            layer=layer,
            target=target,
        )
        for layer in range(config.num_layers)
        for target, path in TARGETS.items()
    ]
    if has_pooler(encoder, task_type):
        width = config.hidden_width
        name = f"{encoder}.pooler.dense"
        modules.append(Module(name=name, out=width, into=width, layer=None, target=None))
    return tuple(modules)


def embeddings_of(encoder: str) -> tuple[str, ...]:
    """Names of the embedding tables, over which we have no updates."""
    return tuple(f"{encoder}.embeddings.{table}" for table in EMBEDDINGS)
