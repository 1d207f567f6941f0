"""Import of the adapter folders of peft.

peft adapts a model of transformers that has the backbone's weights. Its answers are the reference.
Then peft merges the adapter into the weights. If LoRA or IA3 here gives the same weights, the task
is LoRA or IA3; otherwise the task owns the layers from the lowest changed layer up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_artifact import reference
from nunatak_artifact.checkpoint import CONFIG, Checkpoint
from nunatak_artifact.interchange import checks, peft_config
from nunatak_artifact.interchange import cross_encoder as cross_encoders
from nunatak_artifact.interchange import transformers_layout as layout
from nunatak_artifact.interchange.peft_methods import ADAPTER, kind_of, native_method
from nunatak_artifact.interchange.transformers_export import merged_weights
from nunatak_artifact.interchange.transformers_import import find_divergence
from nunatak_contract.enums import HeadKind, Pooling, RankingScore
from nunatak_contract.errors import needs_extra
from nunatak_contract.methods import Method
from nunatak_model import (
    Backbone,
    BackboneConfig,
    BranchSpec,
    HeadSpec,
    build_branch,
    parameter_shapes,
)
from nunatak_model.architectures import architecture_of, encoder_shapes
from nunatak_model.heads import head_shapes

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

PREFIX: Final = "base_model.model."
PICKLE_ADVICE: Final = (
    "save it again with a current peft (save_pretrained), which writes safetensors"
)
SHAPED_BY_TRAINING: Final = frozenset({"ADALORA"})
"""Methods whose tensors have other shapes after training than the configuration says."""
MERGE_TOLERANCE: Final = 1e-5
"""Largest difference of two merged weights, as a part of the tensor's largest value."""


def import_peft(
    checkpoint: Checkpoint,
    backbone: Backbone,
    choices: checks.ImportChoices = checks.AS_THE_FOLDER_SAYS,
) -> checks.ImportedTask:
    """Read an adapter with its head; it computes what peft computes, to rounding.

    Args:
        checkpoint: holds `adapter_config.json` and `adapter_model.safetensors` of peft.
        backbone: the base model of the adapter. peft records no digest of the base model, so only
            shapes and names can be checked here.
        choices: replace the folder's `config.json`, since peft stores neither labels nor problem
            type.
    """
    fields = peft_config.read_fields(checkpoint)
    family, kind = (
        layout.FAMILIES[backbone.config.model_type],
        peft_config.head_kind(checkpoint, fields),
    )
    _check_types(checkpoint, kind, backbone)
    if checkpoint.settings:
        checks.check_reading(checkpoint, backbone)
    stored = checkpoint.adapter_tensors(peft_config.WEIGHTS_STEM, advice=PICKLE_ADVICE)
    cross_encoder = cross_encoders.read_cross_encoder(checkpoint, backbone)
    num_outputs = layout.num_outputs_of(stored, family, kind, prefix=PREFIX)
    ranks = kind is HeadKind.SEQUENCE_CLASSIFICATION and cross_encoders.is_ranking(
        checkpoint, cross_encoder, choices, num_outputs=num_outputs
    )
    meaning, base = checkpoint.meaning, fields.get("base_model_name_or_path")
    head = _with_padding(
        checkpoint,
        layout.head_spec(
            HeadKind.RANKING if ranks else kind,
            backbone.config,
            num_outputs=num_outputs,
            pooling=_pooling(checkpoint, backbone.config, kind, meaning.classifier_pooling),
        ),
    )
    branch = _branch(
        checkpoint, fields, stored, _base(checkpoint, backbone, family, head), backbone
    )
    trained_on = f"trained on {base}" if base else "no base named"
    return checks.ImportedTask(
        spec=branch.spec,
        labels=checks.labels_in_order(
            checkpoint, head, given=choices.labels, stored=meaning.id2label
        ),
        problem_type=checks.problem_type_of(
            checkpoint,
            head,
            choices.problem_type or checks.read_problem_type(checkpoint, meaning.problem_type),
        ),
        parameters=branch.parameters,
        max_length=cross_encoder.max_length,
        source=f"peft {branch.found}, {trained_on}",
        score=cross_encoder.score if ranks else RankingScore.SIGMOID,
        base=str(base) if base else None,
    )


def _check_types(checkpoint: Checkpoint, kind: HeadKind, backbone: Backbone) -> None:
    if kind is HeadKind.QUESTION_ANSWERING and backbone.tokenizer.tells_texts_apart:
        raise checkpoint.refuse(
            "peft's class for question answering gives its model no token types, and this "
            "backbone reads them",
            "merge the adapter (merge_and_unload), check that the merged model answers "
            "well with token types, and import it whole",
        )


def _pooling(
    checkpoint: Checkpoint, config: BackboneConfig, kind: HeadKind, named: str | None
) -> Pooling | None:
    """The pooling of the head, which is a setting of the base model in some architectures."""
    if kind.reads_tokens:
        return None
    if named is None and config.model_type in layout.POOLINGS:
        raise checkpoint.refuse(
            f"nothing names the pooling of its head ({layout.POOLING})",
            f"write {layout.POOLING} of the base's config.json, "
            f"{' or '.join(layout.POOLINGS[config.model_type])}, into a config.json next to the "
            "adapter",
        )
    return layout.read_pooling(checkpoint, config, named)


def _with_padding(checkpoint: Checkpoint, head: HeadSpec) -> HeadSpec:
    """The head of a decoder with the padding token that the folder names, if it names one."""
    if head.pooling is not Pooling.LAST or not checkpoint.has(CONFIG):
        return head
    named = checkpoint.config.get("pad_token_id")
    return replace(head, padding_id=named) if isinstance(named, int) and named >= 0 else head


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The base model with the backbone's weights."""

    model: "PreTrainedModel"
    family: layout.Family
    head: HeadSpec
    random: Mapping[str, tuple[int, ...]]
    """The shapes of the tensors that the backbone does not have, by name."""


def _base(
    checkpoint: Checkpoint, backbone: Backbone, family: layout.Family, head: HeadSpec
) -> _Base:
    raw: dict[str, JsonValue] = {
        **layout.config_fields(backbone, head.pooling),
        "id2label": {str(index): f"LABEL_{index}" for index in range(head.num_labels)},
    }
    if head.pooling is Pooling.LAST:
        raw["pad_token_id"] = head.padding_id
    parameters = {name: backbone.floating(name) for name in encoder_shapes(backbone.config)}
    tensors = layout.encoder_to_stored(
        {name: it for name, it in parameters.items() if it is not None},
        family,
        head.kind,
        backbone.config,
    )
    tensors |= _initial_head(backbone, family, head)
    model_class = reference.class_named(checkpoint, layout.class_name(family, head.kind))
    loaded = reference.load_model(
        checkpoint, model_class, reference.config_of(checkpoint, raw), tensors
    )
    random = {name: tuple(loaded.model.get_parameter(name).shape) for name in loaded.missing}
    return _Base(model=loaded.model, family=family, head=head, random=random)


def _initial_head(backbone: Backbone, family: layout.Family, head: HeadSpec) -> dict[str, Tensor]:
    """The tensors of the head that the base's checkpoint has, under transformers' names."""
    names, sources = (
        layout.head_names(family, head.kind),
        architecture_of(backbone.config).HEAD_SOURCES,
    )
    found = dict[str, Tensor]()
    for part, layer in (("head.dense", backbone.pooler), ("head.norm", backbone.pooler_norm)):
        for kind in ("weight", "bias"):
            theirs = names.get(f"{part}.{kind}")
            tensor = None if layer is None else getattr(layer, kind)
            # RoBERTa's pooler has the shape of `classifier.dense`, but is another layer.
            if theirs and tensor is not None and theirs.endswith(f"{sources[part]}.{kind}"):
                found[theirs] = tensor
    return {
        name: it
        for name, it in found.items()
        if name in {names[ours] for ours in head_shapes(head, backbone.config)}
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Imported:
    spec: BranchSpec
    parameters: Mapping[str, Tensor]
    found: str


def _branch(
    checkpoint: Checkpoint,
    fields: Mapping[str, JsonValue],
    stored: Mapping[str, Tensor],
    base: _Base,
    backbone: Backbone,
) -> _Imported:
    """The adapter as a branch whose answers equal peft's own."""
    peft_config.check_patterns(
        checkpoint, fields, [name for name, _ in cast("Any", base.model).named_modules()]
    )
    adapted = _adapted(checkpoint, fields, base)
    _set_weights(checkpoint, adapted, stored, base, backbone)
    encodings = reference.probe_encodings(backbone)
    expected = reference.answers_of(adapted.get_base_model(), encodings)
    places = layout.map_places(base.family, base.head.kind, backbone.config)
    native = native_method(adapted, places, backbone.config)
    _unwrap(adapted.get_base_model())
    with checkpoint.refused_by("peft", "merge it"), reference.quiet():
        merged = cast("PreTrainedModel", cast("Any", adapted).merge_and_unload(safe_merge=True))
    theirs = layout.from_model(merged.state_dict(), base.family, base.head, backbone.config)
    kind = str(fields["peft_type"])
    found = _native(native, theirs, base.head, backbone, kind) or _merged(
        theirs, base.head, backbone, kind
    )
    branch = build_branch(found.spec, backbone.config, found.parameters)
    reference.check_answers(checkpoint, branch, backbone, encodings, expected)
    return found


def _adapted(checkpoint: Checkpoint, fields: Mapping[str, JsonValue], base: _Base) -> "PeftModel":
    config = peft_config.peft_config(checkpoint, fields)
    with needs_extra("training"):
        from peft import get_peft_model  # noqa: PLC0415 - takes seconds
    with checkpoint.refused_by("peft", "adapt the backbone"), reference.quiet():
        return get_peft_model(base.model, config).eval()


def _set_weights(
    checkpoint: Checkpoint,
    adapted: "PeftModel",
    stored: Mapping[str, Tensor],
    base: _Base,
    backbone: Backbone,
) -> None:
    """Load the stored tensors, which must be exactly the adapter's own."""
    import peft  # noqa: PLC0415 - takes seconds

    library = cast("Any", peft)
    with checkpoint.refused_by("peft", "name its tensors"), reference.quiet():
        own = cast("dict[str, Tensor]", library.get_peft_model_state_dict(adapted))
    expected = {name: tuple(it.shape) for name, it in own.items()}
    for name, shape in base.random.items():
        # The head must come from the checkpoint, whether the configuration says so or not.
        expected.setdefault(PREFIX + name, shape)
    if kind_of(adapted) in SHAPED_BY_TRAINING:
        expected |= {name: tuple(it.shape) for name, it in stored.items() if name in expected}
    _check_pooler(checkpoint, stored, expected, base, backbone)
    checkpoint.check_tensors(stored, expected)
    with checkpoint.refused_by("peft", "load its tensors"), reference.quiet():
        library.set_peft_model_state_dict(adapted, dict(stored))


def _unwrap(model: Any) -> None:  # noqa: ANN401 - a model of transformers
    """Put modules that are stored whole in their places; peft itself unwraps linear maps alone."""
    from peft.utils import ModulesToSaveWrapper  # noqa: PLC0415 - takes seconds

    for name, module in list(model.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            model.set_submodule(name, module.modules_to_save[ADAPTER])


def _check_pooler(
    checkpoint: Checkpoint,
    stored: Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    base: _Base,
    backbone: Backbone,
) -> None:
    pooler = f"{base.family.dense}.weight"
    is_needed = pooler in base.random and PREFIX + pooler in expected
    if is_needed and backbone.pooler is None and PREFIX + pooler not in stored:
        raise checkpoint.foreign(
            backbone,
            f"the head reads {base.family.dense} of its base, and this backbone has no such layer "
            "(an adapter keeps the layer if modules_to_save names it)",
        )


def _native(
    native: tuple[Method, dict[str, Tensor]] | None,
    theirs: Mapping[str, Tensor],
    head: HeadSpec,
    backbone: Backbone,
    kind: str,
) -> _Imported | None:
    """The adapter as LoRA or IA3 here, if that gives the weights that peft merges."""
    if native is None or kind not in peft_config.NATIVE:
        return None
    method, parameters = native
    own = {name: theirs[name].clone() for name in head_shapes(head, backbone.config)}
    spec = BranchSpec(method=method, head=head)
    branch = build_branch(spec, backbone.config, {**parameters, **own})
    ours = merged_weights(branch, backbone)
    for name in encoder_shapes(backbone.config):
        frozen = backbone.floating(name)
        is_changed = frozen is None or not torch.equal(ours[name], frozen.to("cpu", torch.float32))
        room = MERGE_TOLERANCE * float(theirs[name].abs().max()) if is_changed else 0.0
        if not float((ours[name] - theirs[name]).abs().max()) <= room:
            return None
    return _Imported(
        spec=spec, parameters={**parameters, **own}, found=f"{peft_config.NATIVE[kind]} folder"
    )


def _merged(
    theirs: Mapping[str, Tensor], head: HeadSpec, backbone: Backbone, kind: str
) -> _Imported:
    """The merged weights from the lowest changed layer up, with their cost."""
    method = find_divergence(theirs, backbone).method()
    spec = BranchSpec(method=method, head=head)
    parameters = {name: theirs[name].clone() for name in parameter_shapes(spec, backbone.config)}
    size = sum(it.nbytes for name, it in parameters.items() if not name.startswith("head."))
    layers = {name.split(".")[1] for name in parameters if name.startswith("layers.")}
    copy = " and the embeddings" if any(it.startswith("embeddings.") for it in parameters) else ""
    found = (
        f"{ {**peft_config.NATIVE, **peft_config.MERGED}[kind] } folder, merged: {len(layers)} of "
        f"{backbone.config.num_layers} layers{copy} its own, {size / 1e6:.0f} MB"
    )
    return _Imported(spec=spec, parameters=parameters, found=found)
