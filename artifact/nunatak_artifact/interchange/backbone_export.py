"""From encoder weights to a folder that is a backbone of its own."""

from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_artifact.errors import UnsupportedExportError
from nunatak_artifact.interchange.compatibility import check_exact
from nunatak_artifact.interchange.model_folder import write_model
from nunatak_artifact.interchange.new_folder import new_folder
from nunatak_artifact.interchange.transformers_layout import FAMILIES, config_fields
from nunatak_model import Backbone, Pooling
from nunatak_model.architectures import architecture_of, encoder_shapes
from nunatak_model.weights import Linear


def export_backbone(parameters: Mapping[str, Tensor], base: Backbone, folder: Path) -> None:
    """Write the folder that `load_backbone`, and `AutoModel` of transformers, load.

    Tokenizer, pooling and the dense layer that heads start from are those of `base`.

    Args:
        parameters: all weights of the encoder under our names; written in float32.
        base: the backbone whose shape they have.
        folder: to write to; new or empty.

    Raises:
        UnsupportedExportError: the architecture cannot be written.
        FolderInUseError: the folder holds something already.
        UnsupportedBackboneError: `base` is quantized.
    """
    check_exportable(base)
    architecture = architecture_of(base.config)
    weights = dict[str, Tensor]()
    for name in encoder_shapes(base.config):
        sources = architecture.source_names(name)
        parts = parameters[name].detach().to(torch.float32).chunk(len(sources))
        weights |= dict(zip(sources, parts, strict=True))
    if base.pooler is not None:
        weights |= _linear(architecture.HEAD_SOURCES["head.dense"], base.pooler)
    config: dict[str, JsonValue] = {
        "architectures": [f"{FAMILIES[base.config.model_type].class_prefix}Model"],
        **config_fields(base.config),
        "dtype": "float32",
    }
    if base.pooling is Pooling.MEAN:
        config["classifier_pooling"] = "mean"
    with new_folder(folder) as made:
        write_model(made, config, weights, base, max_length=base.config.max_tokens)


def check_exportable(base: Backbone) -> None:
    """Raise `UnsupportedExportError` unless backbones of this architecture can be written."""
    check_exact(base)
    if base.config.model_type not in FAMILIES:
        raise UnsupportedExportError(
            base.name,
            f"it is a {base.config.model_type}",
            f"start from one of {', '.join(FAMILIES)}",
        )


def _linear(name: str, linear: Linear) -> dict[str, Tensor]:
    parts = {"weight": linear.weight, "bias": linear.bias}
    return {
        f"{name}.{part}": tensor.to(torch.float32)
        for part, tensor in parts.items()
        if tensor is not None
    }
