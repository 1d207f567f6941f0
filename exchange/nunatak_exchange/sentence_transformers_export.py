"""Export of a task version as a folder of sentence-transformers whose vector is the logits.

The modules are the encoder, its pooling and the linear layers of the head. They express heads that
no class of transformers has: over the mean of the token vectors, or over the first one without a
dense layer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from nunatak_contract.enums import Activation, Pooling
from nunatak_exchange import transformers_layout as layout
from nunatak_exchange.checkpoint import CONFIG, new_folder, write_json
from nunatak_exchange.checks import check_exact
from nunatak_exchange.transformers_export import (
    KEEP_IT,
    check_no_bottleneck,
    export_refusal,
    meaning_fields,
    merged_weights,
    write_model,
    write_weights,
)
from nunatak_model import Backbone
from nunatak_model.architectures import encoder_shapes
from nunatak_model.sentence_folder import (
    EMBEDDER,
    ENCODER_CONFIGS,
    FLAGS,
    MODULES,
    POOLINGS,
    SENTENCE_CONFIG,
)
from nunatak_model.weights import Linear
from nunatak_versions.loading import LoadedTask

WRITTEN: Final = (Pooling.MEAN, Pooling.FIRST)
ACTIVATIONS: Final[Mapping[Activation, str]] = {
    Activation.TANH: "torch.nn.modules.activation.Tanh",
    Activation.RELU: "torch.nn.modules.activation.ReLU",
    Activation.GELU: "torch.nn.modules.activation.GELU",
}
IDENTITY: Final = "torch.nn.modules.linear.Identity"


def export_sentence_transformers(task: LoadedTask, folder: Path, backbone: Backbone) -> None:
    """Write the folder whose `SentenceTransformer(folder).encode(text)` gives the task's logits.

    The weights are the backbone's and the task's own, in float32; changes of maps are merged into
    them. `id2label` in `config.json` names the logits.
    """
    check_exact(backbone)
    check_no_bottleneck(task, "no module of sentence-transformers", f"write it {KEEP_IT}")
    head = task.branch.head
    if head.pooling not in WRITTEN or head.norm is not None:
        part = "sentence-transformers has no modules for a head with a norm or this pooling"
        raise export_refusal(task, part, f"write it with --format transformers, or {KEEP_IT}")
    parameters = merged_weights(task.branch, backbone)
    own = {name: parameters[name] for name in encoder_shapes(backbone.config)}
    config: dict[str, JsonValue] = {
        "architectures": [f"{layout.FAMILIES[backbone.config.model_type].class_prefix}Model"],
        **layout.config_fields(backbone, backbone.pooling),
        "dtype": "float32",
        **meaning_fields(task.manifest.head),
    }
    length = task.manifest.max_length
    flags = {flag: POOLINGS.get(name) is head.pooling for flag, name in FLAGS.items()}
    layers = [(head.dense, ACTIVATIONS[head.activation]), (head.output, IDENTITY)]
    with new_folder(folder) as made:
        weights = layout.bare_to_stored(own, backbone.config)
        write_model(made, config, weights, backbone, max_length=length)
        write_json(made, SENTENCE_CONFIG, {"model_type": EMBEDDER})
        write_json(made, ENCODER_CONFIGS[0], {"max_seq_length": length, "do_lower_case": False})
        modules = [_module("Transformer", ""), _module("Pooling", "1_Pooling")]
        (made / modules[-1]["path"]).mkdir()
        width = {"word_embedding_dimension": backbone.config.hidden_width}
        write_json(made / modules[-1]["path"], CONFIG, width | flags)
        for linear, activation in layers:
            if linear is not None:
                modules.append(_module("Dense", f"{len(modules)}_Dense"))
                _write_dense(made / modules[-1]["path"], linear, activation)
        listed = [{"idx": index, "name": str(index), **it} for index, it in enumerate(modules)]
        write_json(made, MODULES, listed)


def _module(kind: str, path: str) -> dict[str, str]:
    # The names that releases 2 to 6 read.
    return {"type": f"sentence_transformers.models.{kind}", "path": path}


def _write_dense(folder: Path, linear: Linear, activation: str) -> None:
    folder.mkdir()
    out, into = linear.weight.shape
    sizes = {"in_features": into, "out_features": out, "bias": linear.bias is not None}
    write_json(folder, CONFIG, {**sizes, "activation_function": activation})
    parts = {"linear.weight": linear.weight, "linear.bias": linear.bias}
    write_weights(folder, {name: it.float() for name, it in parts.items() if it is not None})
