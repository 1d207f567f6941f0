"""Export of a task version, or of an encoder as a backbone, as a folder of transformers.

Each export raises `unsupported_export` for what the format cannot express, `folder_in_use` for a
folder that holds something, and `UnsupportedBackboneError` for a quantized backbone.

The modules are the encoder, its pooling and the linear layers of the head. They express heads that
no class of transformers has: over the mean of the token vectors, or over the first one without a
dense layer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from pydantic import JsonValue
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor

from nunatak_contract.enums import Activation, HeadKind, Pooling
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import HeadRecord
from nunatak_exchange import transformers_layout as layout
from nunatak_exchange.checkpoint import CONFIG, new_folder, write_json
from nunatak_exchange.checks import check_exact
from nunatak_exchange.transformers_import import activation_fields
from nunatak_model import Backbone, BackboneConfig, Branch
from nunatak_model.architectures import ARCHITECTURES, architecture_of, decoder, encoder_shapes
from nunatak_model.branch import HEAD_PREFIX
from nunatak_model.checkpoint import WEIGHTS
from nunatak_model.config import QKV
from nunatak_model.layer import BottleneckLayer, ChangedMaps
from nunatak_model.sentence_folder import (
    EMBEDDER,
    ENCODER_CONFIGS,
    FLAGS,
    MODULES,
    POOLINGS,
    SENTENCE_CONFIG,
)
from nunatak_model.tokenizer_folder import TOKENIZER, TOKENIZER_CONFIG
from nunatak_model.weights import Linear
from nunatak_versions.versions import LoadedTask

MASKS: Final = ("[MASK]", "<mask>")
KEEP_IT = "with --format hub, which keeps every method and head"


def export_backbone(parameters: Mapping[str, Tensor], base: Backbone, folder: Path) -> None:
    """Write weights in float32 as a folder for `load_backbone` and `AutoModel` of transformers.

    The tokenizer, the pooling and the initial dense layer of heads come from `base`.
    """
    check_exportable(base)
    own = {name: parameters[name].detach().float() for name in encoder_shapes(base.config)}
    weights = layout.bare_to_stored(own, base.config)
    if base.pooler is not None:
        weights |= _linear(architecture_of(base.config).head_sources["head.dense"], base.pooler)
    config = _bare_config(base)
    if base.pooling is Pooling.MEAN:
        config[layout.POOLING] = "mean"
    with new_folder(folder) as made:
        write_meaning(made, config, base, max_length=base.config.max_tokens)
        write_weights(made, weights)


def _bare_config(backbone: Backbone) -> dict[str, JsonValue]:
    return {
        "architectures": [f"{layout.FAMILIES[backbone.config.model_type].class_prefix}Model"],
        **layout.config_fields(backbone, backbone.pooling),
        "dtype": "float32",
    }


def check_exportable(base: Backbone) -> None:
    """Raise `unsupported_export` unless backbones of this architecture can be written."""
    check_exact(base)
    # A norm in the heads would be lost, because only the dense layer is written.
    # Transformers' decoders have no field for the pooling, so the pooling would be lost, too.
    written = [
        name
        for name in layout.FAMILIES
        if name not in decoder.MODEL_TYPES and "head.norm" not in ARCHITECTURES[name].head_sources
    ]
    if base.config.model_type not in written:
        raise NunatakError(
            "unsupported_export",
            reference=base.name,
            part=f"it is a {base.config.model_type}",
            advice=f"start from one of {', '.join(written)}",
        )


def _linear(name: str, linear: Linear) -> dict[str, Tensor]:
    parts = {"weight": linear.weight, "bias": linear.bias}
    return {
        f"{name}.{part}": tensor.to(torch.float32)
        for part, tensor in parts.items()
        if tensor is not None
    }


def export_transformers(task: LoadedTask, folder: Path, backbone: Backbone) -> None:
    """Write the folder that `AutoModelFor...` and `AutoTokenizer` of transformers load.

    The weights are the backbone's and the task's own, in float32; changes of maps are merged
    into them. Ranking becomes sequence classification with one output, as cross-encoders are
    stored.
    """
    check_merges(task, backbone, "no class of transformers")
    check_head(task, backbone, f"write it with --format sentence-transformers, or {KEEP_IT}")
    head, names = task.manifest.head, layout.ClassLayout(backbone.config, task.manifest.head.kind)
    weights = names.to_stored(merged_weights(task.branch, backbone), task.branch.spec.head)
    config: dict[str, JsonValue] = {
        "architectures": [names.class_name],
        **layout.config_fields(backbone, head.pooling),
        "dtype": "float32",
        **meaning_fields(head),
    }
    with new_folder(folder) as made:
        write_meaning(made, config, backbone, max_length=task.manifest.max_length)
        write_weights(made, weights)


def export_refusal(task: LoadedTask, part: str, advice: str) -> NunatakError:
    return NunatakError(
        "unsupported_export", reference=task.manifest.reference, part=part, advice=advice
    )


def check_merges(task: LoadedTask, backbone: Backbone, nothing: str) -> None:
    """Raise an error if weights cannot hold the task: on integers, or with bottleneck adapters.

    `nothing` there has such adapters.
    """
    check_exact(backbone)
    if any(isinstance(layer, BottleneckLayer) for layer in task.branch.layers.values()):
        raise export_refusal(task, f"{nothing} has bottleneck adapters", f"write it {KEEP_IT}")


def check_head(task: LoadedTask, backbone: Backbone, advice: str) -> None:
    """Raise `unsupported_export` unless a class of transformers computes the task's head."""
    head = task.branch.spec.head
    if not layout.has_class(head, backbone.config):
        dense, bias = ("a" if it else "no" for it in (head.dense, head.bias))
        found = f"{head.pooling} pooling, {dense} dense layer and {bias} bias"
        raise export_refusal(task, f"no class of transformers has a head with {found}", advice)


def merged_weights(branch: Branch, backbone: Backbone) -> dict[str, Tensor]:
    """Return all weights of a task's full model, under our names, in float32."""
    own = {
        name: it
        for name, it in branch.parameters.items()
        if name in backbone.parameters or name.startswith(HEAD_PREFIX)
    }
    weights = {name: it.to(torch.float32) for name, it in {**backbone.parameters, **own}.items()}
    for index, layer in branch.layers.items():
        if isinstance(layer, ChangedMaps):
            weights |= _changed(layer, f"layers.{index}", weights, backbone.config)
    return weights


def _changed(
    layer: ChangedMaps, prefix: str, weights: Mapping[str, Tensor], config: BackboneConfig
) -> dict[str, Tensor]:
    # In float64, so that only the result is rounded.
    merged = dict[str, Tensor]()
    for target, change in (*layer.outputs.items(), *layer.inputs.items()):
        part = "qkv" if target in QKV else target.value
        for kind in ("weight", "bias"):
            name = f"{prefix}.{part}.{kind}"
            if name in weights and name not in merged:
                merged[name] = weights[name].double()
        weight, bias = merged[f"{prefix}.{part}.weight"], merged.get(f"{prefix}.{part}.bias")
        if target in QKV:
            widths, own = list(config.qkv_widths), QKV.index(target)
            weight = torch.split(weight, widths)[own]
            bias = None if bias is None else torch.split(bias, widths)[own]
        change.merge(weight, bias)
    return {name: tensor.float() for name, tensor in merged.items()}


def meaning_fields(head: HeadRecord) -> dict[str, JsonValue]:
    """The fields of `config.json` that say what the logits of a head mean."""
    labels = head.labels or tuple(f"LABEL_{index}" for index in range(head.num_outputs))
    fields: dict[str, JsonValue] = {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    if head.pooling is Pooling.LAST:
        fields["pad_token_id"] = head.padding_id
    if head.problem_type is not None:
        fields["problem_type"] = head.problem_type.value
    if head.kind is HeadKind.RANKING:
        fields |= activation_fields(head.score)
    return fields


def write_meaning(
    folder: Path, config: Mapping[str, JsonValue], backbone: Backbone, *, max_length: int
) -> None:
    """Write what gives weights their meaning: the configuration, and the tokenizer."""
    write_json(folder, CONFIG, config)
    (folder / TOKENIZER).write_text(backbone.tokenizer.definition, encoding="utf-8")
    tokenizer = _tokenizer_config(backbone, config.get("pad_token_id"), max_length)
    write_json(folder, TOKENIZER_CONFIG, tokenizer)


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    # Written by Python, whose error of a full disk has a number.
    own = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    (folder / WEIGHTS).write_bytes(save(own, metadata={"format": "pt"}))


def _tokenizer_config(
    backbone: Backbone, padding_id: JsonValue, max_length: int
) -> dict[str, JsonValue]:
    tokenizer = Tokenizer.from_str(backbone.tokenizer.definition)
    inputs: list[JsonValue] = ["input_ids", "attention_mask"]
    if backbone.tokenizer.tells_texts_apart:
        inputs.append("token_type_ids")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": inputs,
        **_special_tokens(tokenizer, backbone, padding_id),
    }


def _special_tokens(
    tokenizer: Tokenizer, backbone: Backbone, padding_id: JsonValue
) -> dict[str, JsonValue]:
    """The special tokens by transformers' names.

    The pipelines of transformers spell an unknown token as the text does, so its name is needed.
    Other tokens are named only if `tokenizer.json` has them, because a name adds a token to the
    vocabulary.
    """
    tokenizer.no_truncation()
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    names = dict[str, str | None]()
    if len(ends := tokenizer.encode("").tokens) == 2:
        first, last = ends
        names |= {"cls_token": first, "sep_token": last, "bos_token": first, "eos_token": last}
    names["mask_token"] = next((mask for mask in MASKS if mask in added), None)
    unknown = backbone.tokenizer.unknown_id
    return {
        **({"pad_token": tokenizer.id_to_token(padding_id)} if isinstance(padding_id, int) else {}),
        **({} if unknown is None else {"unk_token": tokenizer.id_to_token(unknown)}),
        **{name: token for name, token in names.items() if token in added},
    }


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
    check_merges(task, backbone, "no module of sentence-transformers")
    head = task.branch.head
    if head.pooling not in WRITTEN or head.norm is not None or head.activation not in ACTIVATIONS:
        part = "sentence-transformers has no modules for this pooling, activation or norm of a head"
        raise export_refusal(task, part, f"write it with --format transformers, or {KEEP_IT}")
    parameters = merged_weights(task.branch, backbone)
    own = {name: parameters[name] for name in encoder_shapes(backbone.config)}
    config = {**_bare_config(backbone), **meaning_fields(task.manifest.head)}
    length = task.manifest.max_length
    flags = {flag: POOLINGS.get(name) is head.pooling for flag, name in FLAGS.items()}
    layers = [(head.dense, ACTIVATIONS[head.activation]), (head.output, IDENTITY)]
    with new_folder(folder) as made:
        write_meaning(made, config, backbone, max_length=length)
        write_weights(made, layout.bare_to_stored(own, backbone.config))
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
    write_weights(folder, _linear("linear", linear))
