"""Import of the bottleneck folders of AdapterHub (the `adapters` package).

Heads first. A head of `adapters`' own classes is a chain of dropout, linear maps and
non-linearities; the names of its tensors are positions in this chain. Such a head may read the
pooler of the base model in place of the first token. Folders of transformers' classes hold the
class's own head, as peft's folders do.

Adapters next. Houlsby's adapters (`double_seq_bn`) adapt both blocks before the residual addition.
Pfeiffer's (`seq_bn`) adapt the feed-forward block and read the norm of its residual sum. Both
kinds leave the norms frozen. `Bottleneck` has one size and adapts every layer from its first, so
smaller adapters and skipped layers are padded with zeros, which change no result. The scaling is
multiplied into `up`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_artifact.checkpoint import Checkpoint
from nunatak_artifact.interchange import adapterhub_config as files
from nunatak_artifact.interchange import checks
from nunatak_artifact.interchange import transformers_layout as layout
from nunatak_contract.enums import (
    AdaptedBlocks,
    AdapterInput,
    HeadKind,
    Norms,
    Pooling,
    ProblemType,
)
from nunatak_contract.methods import Bottleneck, HeadOnly
from nunatak_model import Backbone, BackboneConfig, BranchSpec, HeadSpec, maths_of
from nunatak_model.architectures import bert
from nunatak_model.heads import head_shapes
from nunatak_model.weights import Linear

HEAD_TYPES = {
    "classification": HeadKind.SEQUENCE_CLASSIFICATION,
    "multilabel_classification": HeadKind.SEQUENCE_CLASSIFICATION,
    "tagging": HeadKind.TOKEN_CLASSIFICATION,
    "question_answering": HeadKind.QUESTION_ANSWERING,
}
OUTPUT, DENSE = "head.output", "head.dense"
FIRST_LINEAR, SECOND_LINEAR = "1", "4"
"""Positions in the chain: dropout, linear, tanh, dropout, linear."""
HEAD_ADVICE = (
    "expected a head for classification, tagging or question answering, of one linear map or, for "
    "classification, two with tanh between them"
)
PICKLE_ADVICE = "save it again with save_adapter(..., use_safetensors=True)"
PLACES = {"attention_adapter": "attention.output", "feedforward_adapter": "output"}
"""Our names of the adapted blocks -> theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedHead:
    """A head as `HeadSpec`, with the labels that the folder names."""

    spec: HeadSpec
    parameters: Mapping[str, Tensor]
    problem_type: ProblemType | None
    id2label: Mapping[str, JsonValue] | None


def flexible_head(
    checkpoint: Checkpoint,
    head: files.FlexibleHead,
    name: str,
    tensors: Mapping[str, Tensor],
    backbone: Backbone,
) -> ImportedHead:
    """Read the head of a model class of `adapters`."""
    spec = _spec(checkpoint, head)
    positions = {OUTPUT: FIRST_LINEAR}
    if head.layers == 2:
        positions = {OUTPUT: SECOND_LINEAR, DENSE: FIRST_LINEAR}
    names = {
        f"{ours}.{part}": f"heads.{name}.{position}.{part}"
        for ours, position in positions.items()
        for part in ("weight", "bias")
    }
    parameters = _head_parameters(checkpoint, spec, names, tensors, backbone)
    return ImportedHead(
        spec=spec,
        parameters=parameters,
        problem_type=_problem_type(head, spec),
        id2label=_inverted(head.label2id),
    )


def class_head(
    checkpoint: Checkpoint,
    file: files.HeadFile,
    family: layout.Family,
    tensors: Mapping[str, Tensor],
    backbone: Backbone,
) -> ImportedHead:
    """Read the head of a model class of transformers."""
    kind = layout.kind_of_class(file.model_class)
    if kind is None:
        raise checkpoint.refuse(f"its head belongs to {file.model_class[:80]!r}", HEAD_ADVICE)
    if file.num_labels is None:
        raise checkpoint.invalid("its head_config.json has no num_labels")
    spec = layout.head_spec(kind, backbone.config, num_outputs=file.num_labels)
    of_base = f"{family.encoder}."
    names = {
        ours: theirs
        for ours, theirs in layout.head_names(family, kind).items()
        if not theirs.startswith(of_base)
    }
    parameters = _head_parameters(checkpoint, spec, names, tensors, backbone)
    return ImportedHead(
        spec=spec,
        parameters=parameters,
        problem_type=checks.problem_type_of(checkpoint, spec, None),
        id2label=_inverted(file.label2id),
    )


def _head_parameters(
    checkpoint: Checkpoint,
    spec: HeadSpec,
    names: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    backbone: Backbone,
) -> dict[str, Tensor]:
    """The stored tensors of a head. A dense layer without a name is the backbone's pooler."""
    shapes = head_shapes(spec, backbone.config)
    checkpoint.check_tensors(tensors, {names[it]: shapes[it] for it in shapes if it in names})
    pooler = {} if shapes.keys() <= names.keys() else _pooler_parameters(checkpoint, backbone)
    return {it: tensors[names[it]] if it in names else pooler[it] for it in shapes}


def _pooler_parameters(checkpoint: Checkpoint, backbone: Backbone) -> dict[str, Tensor]:
    pooler = backbone.pooler
    if pooler is None or pooler.bias is None:
        difference = "the head reads the pooler of its base, and this backbone has none"
        raise checkpoint.foreign(backbone, difference)
    return {
        f"{DENSE}.weight": pooler.weight.to("cpu", torch.float32, copy=True),
        f"{DENSE}.bias": pooler.bias.to("cpu", torch.float32, copy=True),
    }


def _spec(checkpoint: Checkpoint, head: files.FlexibleHead) -> HeadSpec:
    kind = HEAD_TYPES.get(head.head_type)
    if kind is None:
        raise checkpoint.refuse(f"its head is of type {head.head_type[:80]!r}", HEAD_ADVICE)
    most = 2 if kind is HeadKind.SEQUENCE_CLASSIFICATION else 1
    if not 1 <= head.layers + head.use_pooler <= most or head.layers < 1:
        pooler = " over the pooler" if head.use_pooler else ""
        raise checkpoint.refuse(
            f"its {head.head_type} head has {head.layers} layers{pooler}", HEAD_ADVICE
        )
    if head.layers == 2 and head.activation_function != "tanh":
        raise checkpoint.refuse(f"its head activates by {head.activation_function!r}", HEAD_ADVICE)
    if not head.bias:
        raise checkpoint.refuse("its head has no offset (bias)", HEAD_ADVICE)
    if kind.fixed_outputs not in {None, head.num_labels}:
        raise checkpoint.refuse(
            f"its {head.head_type} head has {head.num_labels} outputs", HEAD_ADVICE
        )
    if kind.reads_tokens:
        return HeadSpec(kind=kind, num_labels=head.num_labels)
    dense = head.layers == 2 or head.use_pooler
    return HeadSpec(kind=kind, num_labels=head.num_labels, pooling=Pooling.FIRST, dense=dense)


def _inverted(label2id: Mapping[str, int] | None) -> dict[str, JsonValue] | None:
    return None if label2id is None else {str(number): label for label, number in label2id.items()}


def _problem_type(head: files.FlexibleHead, spec: HeadSpec) -> ProblemType | None:
    if spec.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        return None
    if head.head_type == "multilabel_classification":
        return ProblemType.MULTI_LABEL
    return ProblemType.REGRESSION if head.num_labels == 1 else ProblemType.SINGLE_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapter:
    """The two stored maps of an adapter."""

    down: Linear
    up: Linear


def normalised_bottleneck(
    settings: Bottleneck, adapters: Mapping[tuple[int, str], StoredAdapter], config: BackboneConfig
) -> tuple[Bottleneck, dict[str, Tensor]]:
    """Write adapters as one method with its float32 parameters."""
    method = settings.model_copy(
        update={
            "size": max(len(adapter.down.weight) for adapter in adapters.values()),
            "first_layer": min(layer for layer, _ in adapters),
        }
    )
    maths = maths_of(method)
    maths.check(config)
    parameters = {
        name: torch.zeros(shape) for name, shape in maths.parameter_shapes(config).items()
    }
    for (layer, place), adapter in adapters.items():
        for part, linear in (("down", adapter.down), ("up", adapter.up)):
            prefix, (out, into) = f"layers.{layer}.{place}.{part}", linear.weight.shape
            parameters[f"{prefix}.weight"][:out, :into] = linear.weight
            if linear.bias is not None:
                parameters[f"{prefix}.bias"][:out] = linear.bias
    return method, parameters


def import_adapterhub(
    checkpoint: Checkpoint,
    backbone: Backbone,
    choices: checks.ImportChoices = checks.AS_THE_FOLDER_SAYS,
) -> checks.ImportedTask:
    """Read a bottleneck adapter with its head; it computes what `adapters` does, to rounding."""
    family = _family(checkpoint, backbone)
    file = checkpoint.parsed(files.CONFIG_FILE, files.AdapterFile)
    config = files.read_bottleneck(checkpoint, file)
    _check_backbone(checkpoint, file, backbone)
    if checkpoint.settings:
        checks.check_reading(checkpoint, backbone)
    shapes = _shapes(checkpoint, config, f"{family.encoder}.encoder.layer", file.name, backbone)
    tensors = checkpoint.adapter_tensors(files.WEIGHTS_STEM, advice=PICKLE_ADVICE)
    checkpoint.check_tensors(
        tensors,
        {f"{prefix}.{name}": it for prefix, own in shapes.values() for name, it in own.items()},
    )
    adapters = {place: _stored(prefix, config, tensors) for place, (prefix, _) in shapes.items()}
    method, parameters = (
        normalised_bottleneck(_settings(config), adapters, backbone.config)
        if adapters
        else (HeadOnly(), {})
    )
    head = _head(checkpoint, family, backbone)
    meaning = checkpoint.meaning
    return checks.ImportedTask(
        spec=BranchSpec(method=method, head=head.spec),
        labels=checks.labels_in_order(
            checkpoint, head.spec, given=choices.labels, stored=head.id2label or meaning.id2label
        ),
        problem_type=head.problem_type
        and (
            choices.problem_type
            or checks.read_problem_type(checkpoint, meaning.problem_type)
            or head.problem_type
        ),
        parameters={**parameters, **head.parameters},
        max_length=checkpoint.max_length(backbone),
        source="AdapterHub bottleneck folder, "
        + (f"trained on {file.model_name}" if file.model_name else "no base named"),
        base=file.model_name,
    )


def _family(checkpoint: Checkpoint, backbone: Backbone) -> layout.Family:
    if backbone.config.model_type in bert.MODEL_TYPES:
        return layout.FAMILIES[backbone.config.model_type]
    raise checkpoint.refuse(
        f"the backbone is a {backbone.config.model_type}",
        f"folders of AdapterHub are read for {', '.join(bert.MODEL_TYPES)}",
    )


def _check_backbone(checkpoint: Checkpoint, file: files.AdapterFile, backbone: Backbone) -> None:
    theirs, ours = file.model_type, backbone.config.model_type
    width, difference = backbone.config.hidden_width, None
    if theirs != ours:
        difference = f"it adapts a {theirs[:80]} model, the backbone is a {ours}"
    elif file.hidden_size != width:
        difference = f"its base is {file.hidden_size} wide, the backbone {width}"
    if difference is not None:
        raise checkpoint.foreign(backbone, difference)


def _shapes(
    checkpoint: Checkpoint,
    config: files.BottleneckConfig,
    layers: str,
    name: str,
    backbone: Backbone,
) -> dict[tuple[int, str], tuple[str, dict[str, tuple[int, ...]]]]:
    """Layer and our name of the place -> the adapter's prefix at that place, and its tensors."""
    width = backbone.config.hidden_width
    adapted = {"attention_adapter": config.mh_adapter, "feedforward_adapter": config.output_adapter}
    is_trained, one = isinstance(config.scaling, str), config.scaling == files.Scaling.LEARNED
    scaling = {"scaling": (1 if one else width,)} if is_trained else {}
    shapes = dict[tuple[int, str], tuple[str, dict[str, tuple[int, ...]]]]()
    for layer in sorted(set(range(backbone.config.num_layers)) - set(config.leave_out)):
        size = files.size_at(checkpoint, config, layer, width)
        for place, block in PLACES.items():
            if adapted[place]:
                prefix = f"{layers}.{layer}.{block}.adapters.{name}"
                shapes[layer, place] = (
                    prefix,
                    {
                        "adapter_down.0.weight": (size, width),
                        "adapter_down.0.bias": (size,),
                        "adapter_up.weight": (width, size),
                        "adapter_up.bias": (width,),
                        **scaling,
                    },
                )
    return shapes


def _stored(
    prefix: str, config: files.BottleneckConfig, tensors: Mapping[str, Tensor]
) -> StoredAdapter:
    scale = config.scaling
    factor = tensors[f"{prefix}.scaling"] if isinstance(scale, str) else torch.tensor([scale])
    return StoredAdapter(
        down=Linear(
            weight=tensors[f"{prefix}.adapter_down.0.weight"],
            bias=tensors[f"{prefix}.adapter_down.0.bias"],
        ),
        up=Linear(
            weight=tensors[f"{prefix}.adapter_up.weight"] * factor.unsqueeze(1),
            bias=tensors[f"{prefix}.adapter_up.bias"] * factor,
        ),
    )


def _settings(config: files.BottleneckConfig) -> Bottleneck:
    match config.mh_adapter, config.output_adapter:
        case True, True:
            blocks = AdaptedBlocks.BOTH
        case True, False:
            blocks = AdaptedBlocks.ATTENTION
        case _:
            blocks = AdaptedBlocks.FEEDFORWARD
    return Bottleneck(
        blocks=blocks,
        reads=AdapterInput.NORMED_SUM if config.original_ln_before else AdapterInput.BLOCK,
        activation=files.ACTIVATIONS[config.non_linearity.lower()],
        norms=Norms.FROZEN,
        size=1,  # found in the tensors
    )


def _head(checkpoint: Checkpoint, family: layout.Family, backbone: Backbone) -> ImportedHead:
    file = checkpoint.parsed(files.HEAD_FILE, files.HeadFile)
    tensors = checkpoint.adapter_tensors(files.HEAD_STEM, advice=PICKLE_ADVICE)
    if file.config is None:
        return class_head(checkpoint, file, family, tensors, backbone)
    return flexible_head(checkpoint, file.config, file.name or "", tensors, backbone)
