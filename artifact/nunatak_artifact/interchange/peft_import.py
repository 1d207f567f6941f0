"""Import of the LoRA folders of peft.

`Lora` has one rank and one scale for all targets, and adapts every layer from its first. An adapter
with several ranks, or with gaps between its layers, is padded to the largest rank: zero rows of
`down` and zero columns of `up` add nothing. Where scales differ, they are multiplied into `up`.
Padding costs memory and time, but it keeps a batch of tasks one product.

BERT reads sequences through its pooler, a dense layer with tanh over the first token. RoBERTa's
`classifier` has such a layer of its own. Both become `head.dense` here. A LoRA update of BERT's
pooler is added to the pooler's weights.

Axes: rank, in, out = of one update.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nunatak_artifact.errors import (
    ForeignBackboneError,
    TensorMismatchError,
    UnsupportedImportError,
)
from nunatak_artifact.interchange.compatibility import (
    AS_THE_FOLDER_SAYS,
    ImportChoices,
    ImportedTask,
    check_reading,
    read_settings,
)
from nunatak_artifact.interchange.cross_encoder import is_ranking, read_cross_encoder, score_of
from nunatak_artifact.interchange.folders import (
    check_tensors,
    labels_in_order,
    problem_type_of,
    read_max_length,
    read_model_config,
    read_weights,
)
from nunatak_artifact.interchange.peft_config import (
    ENCODERS,
    WEIGHTS_STEM,
    AdaptedModule,
    TaskType,
    adapted_modules,
    has_pooler,
    read_peft_config,
    saved_modules,
    task_type_of,
)
from nunatak_contract.enums import HeadKind, LoraTarget, Pooling, RankingScore
from nunatak_contract.methods import HeadOnly, Lora
from nunatak_model import Backbone, BackboneConfig, BranchSpec, HeadSpec, maths_of
from nunatak_model.layer import LoraUpdate
from nunatak_model.methods.lora import check_rank

Updates = Mapping[tuple[int, LoraTarget], LoraUpdate]
"""Layer and target -> its update; at least one."""
HEAD_KINDS = {
    TaskType.SEQUENCE_CLASSIFICATION: HeadKind.SEQUENCE_CLASSIFICATION,
    TaskType.TOKEN_CLASSIFICATION: HeadKind.TOKEN_CLASSIFICATION,
    TaskType.QUESTION_ANSWERING: HeadKind.QUESTION_ANSWERING,
}
OUTPUT, DENSE = "head.output", "head.dense"
PREFIX = "base_model.model."
PICKLE_ADVICE = "save it again with a current peft (save_pretrained), which writes safetensors"


def normalised_lora(updates: Updates, config: BackboneConfig) -> tuple[Lora, dict[str, Tensor]]:
    """Write updates as one method with its float32 parameters.

    Semantics:
        for each (layer, target), x:
            scale * (x @ down.T) @ up.T  is the same before and after, zero where there was none

    Raises:
        InvalidMethodError: a rank is beyond what our method takes.
    """
    rank = max(update.down.shape[0] for update in updates.values())
    check_rank(rank, config)
    scales = {update.scale for update in updates.values()}
    scale = min(scales) if len(scales) == 1 and min(scales) > 0.0 else 1.0
    method = Lora(
        rank=rank,
        alpha=scale * rank,
        targets=tuple(target for target in LoraTarget if any(it == target for _, it in updates)),
        first_layer=min(layer for layer, _ in updates),
    )
    maths = maths_of(method)
    maths.check(config)
    parameters = {
        name: torch.zeros(shape) for name, shape in maths.parameter_shapes(config).items()
    }
    for (layer, target), update in updates.items():
        prefix, own_rank = f"layers.{layer}.lora.{target}", update.down.shape[0]
        parameters[f"{prefix}.down"][:own_rank] = update.down
        parameters[f"{prefix}.up"][:, :own_rank] = update.up * (update.scale / scale)
    return method, parameters


def stored_head(encoder: str, task_type: TaskType, saved: Collection[str]) -> dict[str, str]:
    """Our name of each linear map of the head -> its module in the adapted model.

    The pooler is among them where it was trained, that is, `saved`.
    """
    match task_type:
        case TaskType.QUESTION_ANSWERING:
            return {OUTPUT: "qa_outputs"}
        case TaskType.TOKEN_CLASSIFICATION:
            return {OUTPUT: "classifier"}
        case TaskType.SEQUENCE_CLASSIFICATION:
            if not has_pooler(encoder, task_type):
                return {OUTPUT: "classifier.out_proj", DENSE: "classifier.dense"}
            pooler = f"{encoder}.pooler"
            trained = not {"pooler", pooler}.isdisjoint(saved)
            return {OUTPUT: "classifier"} | ({DENSE: f"{pooler}.dense"} if trained else {})


def head_spec(task_type: TaskType, num_labels: int, *, ranks: bool = False) -> HeadSpec:
    """The shape of the head of a class of transformers; of a ranking, if its one logit `ranks`."""
    kind = HeadKind.RANKING if ranks else HEAD_KINDS[task_type]
    if kind.reads_tokens:
        return HeadSpec(kind=kind, num_labels=num_labels)
    return HeadSpec(kind=kind, num_labels=num_labels, pooling=Pooling.FIRST, dense=True)


def stored_shapes(
    head: Mapping[str, str], spec: HeadSpec, *, width: int
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the stored tensors of a head."""
    shapes = dict[str, tuple[int, ...]]()
    for ours, module in head.items():
        out = spec.num_labels if ours == OUTPUT else width
        shapes[f"{module}.weight"], shapes[f"{module}.bias"] = (out, width), (out,)
    return shapes


def head_parameters(head: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors of a head under our names."""
    return {
        f"{ours}.{part}": tensors[f"{module}.{part}"]
        for ours, module in head.items()
        for part in ("weight", "bias")
    }


def pooler_parameters(folder: Path, backbone: Backbone) -> dict[str, Tensor]:
    """The backbone's pooler as the dense layer of a head, in float32.

    Raises:
        ForeignBackboneError: it has none.
    """
    pooler = backbone.pooler
    if pooler is None or pooler.bias is None:
        raise ForeignBackboneError(
            folder.name,
            backbone.name,
            "the head reads the pooler of its base, and this backbone has none",
        )
    return {
        f"{DENSE}.weight": pooler.weight.to("cpu", torch.float32, copy=True),
        f"{DENSE}.bias": pooler.bias.to("cpu", torch.float32, copy=True),
    }


def import_peft(
    folder: Path, backbone: Backbone, choices: ImportChoices = AS_THE_FOLDER_SAYS
) -> ImportedTask:
    """Read a LoRA adapter with its head; it computes what peft computes, to rounding.

    Args:
        folder: holds `adapter_config.json` and `adapter_model.safetensors`, as peft writes them.
        backbone: the base model of the adapter. peft records no digest of the base model, so only
            shapes and names can be checked here.
        choices: replace a `config.json` in the folder, since peft stores neither labels nor problem
            type.

    Raises:
        InvalidFolderError: a file is missing, unsound or no part of the folder; tensors and
            configuration differ; or nothing names the labels.
        UnsupportedImportError: no method or head here computes the same.
        ForeignBackboneError: the adapter fits another shape of backbone.
        InvalidMethodError: a rank is beyond what our method takes.
    """
    encoder = encoder_of(folder, backbone)
    config = read_peft_config(folder)
    task_type = task_type_of(folder, config)
    adapted = adapted_modules(folder, config, task_type, encoder, backbone.config)
    head = stored_head(encoder, task_type, saved_modules(folder, config, task_type, encoder))
    _check_types(folder, task_type, backbone)
    if read_settings(folder):
        check_reading(folder, backbone)
    tensors, cross_encoder = _tensors(folder), read_cross_encoder(folder, backbone)
    num_labels = _num_labels(tensors, task_type, head[OUTPUT])
    ranks = task_type is TaskType.SEQUENCE_CLASSIFICATION and is_ranking(
        folder, cross_encoder, choices, num_outputs=num_labels
    )
    spec = head_spec(task_type, num_labels, ranks=ranks)
    _check_backbone(folder, tensors, adapted, backbone, encoder)
    check_tensors(folder, tensors, _shapes(adapted, head, spec, backbone.config))
    method, parameters = _branch(adapted, tensors, backbone.config)
    parameters |= head_parameters(head, tensors)
    if spec.dense and DENSE not in head:
        parameters |= pooler_parameters(folder, backbone)
    parameters |= _updated_pooler(adapted, tensors, parameters)
    meaning, base = read_model_config(folder), config.base_model_name_or_path
    return ImportedTask(
        spec=BranchSpec(method=method, head=spec),
        labels=labels_in_order(folder, spec, given=choices.labels, stored=meaning.id2label),
        problem_type=problem_type_of(spec, choices.problem_type or meaning.problem_type),
        parameters=parameters,
        max_length=read_max_length(folder, backbone),
        source=f"peft LoRA folder, trained on {base}"
        if base
        else "peft LoRA folder, no base named",
        score=score_of(cross_encoder) if ranks else RankingScore.SIGMOID,
        base=base,
    )


def _check_types(folder: Path, task_type: TaskType, backbone: Backbone) -> None:
    if task_type is TaskType.QUESTION_ANSWERING and backbone.tokenizer.tells_texts_apart:
        raise UnsupportedImportError(
            folder.name,
            "peft's class for question answering gives its model no token types, and this backbone "
            "reads them",
            "merge the adapter (merge_and_unload), check that the merged model answers well with "
            "token types, and import it whole",
        )


def encoder_of(folder: Path, backbone: Backbone) -> str:
    """Return the name of an encoder like the backbone in transformers' classes with a head.

    Raises:
        UnsupportedImportError: adapters of such a model cannot be imported.
    """
    encoder = ENCODERS.get(backbone.config.model_type)
    if encoder is None:
        raise UnsupportedImportError(
            folder.name,
            f"the backbone is a {backbone.config.model_type}",
            f"adapter folders are read for {', '.join(ENCODERS)}",
        )
    return encoder


def _tensors(folder: Path) -> dict[str, Tensor]:
    """The stored tensors by their names in the adapted model."""
    stored = read_weights(folder, WEIGHTS_STEM, advice=PICKLE_ADVICE)
    strange = [name for name in stored if not name.startswith(PREFIX)]
    if strange:
        raise TensorMismatchError(folder.name, missing=(), unused=strange, wrong=())
    return {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}


def _check_backbone(
    folder: Path,
    tensors: Mapping[str, Tensor],
    adapted: Sequence[AdaptedModule],
    backbone: Backbone,
    encoder: str,
) -> None:
    """Tell another base model from a damaged folder, as far as names and widths allow."""
    differences = [
        *(_foreign_name(name, encoder, backbone.config) for name in tensors),
        *(_foreign_width(it, tensors) for it in adapted),
    ]
    for difference in differences:
        if difference is not None:
            raise ForeignBackboneError(folder.name, backbone.name, difference)


def _foreign_name(name: str, encoder: str, config: BackboneConfig) -> str | None:
    found = re.match(r"(\w+)\.encoder\.layer\.(\d+)\.", name)
    if found is None:
        return None
    if found[1] != encoder:
        return f"it adapts a {found[1]} model, the backbone is a {encoder} model"
    if int(found[2]) >= config.num_layers:
        return f"it adapts layer {found[2]}, the backbone has {config.num_layers} layers"
    return None


def _foreign_width(adapted: AdaptedModule, tensors: Mapping[str, Tensor]) -> str | None:
    module = adapted.module
    down, up = (tensors.get(name) for name in _names(adapted))
    if down is None or up is None or not down.dim() == up.dim() == 2:
        return None
    found, wanted = (up.shape[0], down.shape[1]), (module.out, module.into)
    return (
        None if found == wanted else f"{module.name} maps {found[::-1]} there, {wanted[::-1]} here"
    )


def _names(adapted: AdaptedModule) -> tuple[str, str]:
    return f"{adapted.module.name}.lora_A.weight", f"{adapted.module.name}.lora_B.weight"


def _num_labels(tensors: Mapping[str, Tensor], task_type: TaskType, output: str) -> int:
    bias = tensors.get(f"{output}.bias")
    # If the tensor is missing, the check of all tensors reports it.
    return 2 if task_type is TaskType.QUESTION_ANSWERING or bias is None else bias.numel()


def _shapes(
    adapted: Sequence[AdaptedModule],
    head: Mapping[str, str],
    spec: HeadSpec,
    config: BackboneConfig,
) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    for it in adapted:
        down, up = _names(it)
        shapes[down], shapes[up] = (it.rank, it.module.into), (it.module.out, it.rank)
    shapes |= stored_shapes(head, spec, width=config.hidden_width)
    return shapes


def _branch(
    adapted: Sequence[AdaptedModule], tensors: Mapping[str, Tensor], config: BackboneConfig
) -> tuple[Lora | HeadOnly, dict[str, Tensor]]:
    """The method with its parameters; one that adapts no layer is a head."""
    updates = {
        (it.module.layer, it.module.target): _update(it, tensors)
        for it in adapted
        if it.module.layer is not None and it.module.target is not None
    }
    return normalised_lora(updates, config) if updates else (HeadOnly(), {})


def _updated_pooler(
    adapted: Sequence[AdaptedModule],
    tensors: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The pooler's weights with its low-rank update, if it has one."""
    pooler = next((it for it in adapted if it.module.layer is None), None)
    if pooler is None:
        return {}
    name, update = f"{DENSE}.weight", _update(pooler, tensors)
    return {name: parameters[name] + update.scale * (update.up @ update.down)}


def _update(adapted: AdaptedModule, tensors: Mapping[str, Tensor]) -> LoraUpdate:
    down, up = _names(adapted)
    return LoraUpdate(down=tensors[down], up=tensors[up], scale=adapted.scale)
