"""Import of the adapter folders of peft.

BERT reads sequences through its pooler, a dense layer with tanh over the first token; DistilBERT
and DeBERTa have such a layer next to `classifier`. RoBERTa's `classifier` has one of its own. All
become `head.dense` here. A change of a layer outside `classifier` is merged into its weights.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

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
    read_model,
    read_model_config,
    read_problem_type,
    read_weights,
)
from nunatak_artifact.interchange.peft_config import (
    CONFIG_FILE,
    SUPPORTED,
    WEIGHTS_STEM,
    AdaptedModule,
    PeftConfig,
    TaskType,
    adapted_modules,
    own_dense,
    saved_modules,
    task_type_of,
)
from nunatak_artifact.interchange.peft_ia3 import Ia3Config
from nunatak_artifact.interchange.peft_lora import LoraConfig
from nunatak_artifact.interchange.transformers_layout import CLASSIFIER, FAMILIES
from nunatak_artifact.interchange.transformers_layout import head_spec as head_of_class
from nunatak_contract.enums import HeadKind, RankingScore
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import HeadOnly, Method
from nunatak_model import Backbone, BackboneConfig, BranchSpec, HeadSpec
from nunatak_model.errors import mismatch_of

HEAD_KINDS = {
    TaskType.SEQUENCE_CLASSIFICATION: HeadKind.SEQUENCE_CLASSIFICATION,
    TaskType.TOKEN_CLASSIFICATION: HeadKind.TOKEN_CLASSIFICATION,
    TaskType.QUESTION_ANSWERING: HeadKind.QUESTION_ANSWERING,
}
OUTPUT, DENSE = "head.output", "head.dense"
PREFIX = "base_model.model."
PICKLE_ADVICE = "save it again with a current peft (save_pretrained), which writes safetensors"
PEFT_CONFIGS: Mapping[str, type[PeftConfig]] = {"LORA": LoraConfig, "IA3": Ia3Config}
"""peft's name of each method that can be imported and exported, and the method's configuration."""


class _Kind(BaseModel):
    model_config = ConfigDict(frozen=True)

    peft_type: str


def stored_head(
    task_type: TaskType, saved: Collection[str], config: BackboneConfig
) -> dict[str, str]:
    """Our name of each linear map of the head -> its module in the adapted model.

    A dense layer outside `classifier` is among them if it was trained, that is, if a name in
    `saved` ends the name of its module, as peft compares them. `classifier` ends `pre_classifier`.
    """
    family = FAMILIES[config.model_type]
    match task_type:
        case TaskType.QUESTION_ANSWERING:
            return {OUTPUT: family.answer_output}
        case TaskType.TOKEN_CLASSIFICATION:
            return {OUTPUT: CLASSIFIER}
        case TaskType.SEQUENCE_CLASSIFICATION:
            dense = own_dense(task_type, config)
            is_stored = dense is None or any(dense.endswith(it) for it in saved)
            head = {OUTPUT: family.sequence_output}
            return {**head, DENSE: family.dense} if is_stored else head


def head_spec(
    task_type: TaskType, num_labels: int, config: BackboneConfig, *, ranks: bool = False
) -> HeadSpec:
    """The shape of the head of a class of transformers; a ranking head if the one logit `ranks`."""
    kind = HeadKind.RANKING if ranks else HEAD_KINDS[task_type]
    return head_of_class(kind, config, num_outputs=num_labels)


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
        NunatakError: `foreign_backbone`, the backbone has no pooler.
    """
    pooler = backbone.pooler
    if pooler is None or pooler.bias is None:
        raise NunatakError(
            "foreign_backbone",
            folder=folder.name,
            backbone=backbone.name,
            difference="the head reads the pooler of its base, and this backbone has none",
        )
    return {
        f"{DENSE}.weight": pooler.weight.to("cpu", torch.float32, copy=True),
        f"{DENSE}.bias": pooler.bias.to("cpu", torch.float32, copy=True),
    }


def import_peft(
    folder: Path, backbone: Backbone, choices: ImportChoices = AS_THE_FOLDER_SAYS
) -> ImportedTask:
    """Read an adapter with its head; it computes what peft computes, to rounding.

    Args:
        folder: holds `adapter_config.json` and `adapter_model.safetensors`, as peft writes them.
        backbone: the base model of the adapter. peft records no digest of the base model, so only
            shapes and names can be checked here.
        choices: replace a `config.json` in the folder, since peft stores neither labels nor problem
            type.

    Raises:
        NunatakError: `invalid_folder`, a file is missing, unsound or no part of the folder;
            tensors and configuration differ; or nothing names the labels.
        NunatakError: `unsupported_import`, no method or head here computes the same.
        NunatakError: `foreign_backbone`, the adapter fits another shape of backbone.
        NunatakError: `invalid_method`, a rank is beyond what our method takes.
    """
    check_supported(folder, backbone)
    config, shape = read_peft_config(folder), backbone.config
    task_type = task_type_of(folder, config)
    adapted = adapted_modules(folder, config, task_type, shape)
    head = stored_head(task_type, saved_modules(folder, config, task_type, shape), shape)
    _check_types(folder, task_type, backbone)
    if read_settings(folder):
        check_reading(folder, backbone)
    tensors, cross_encoder = _tensors(folder), read_cross_encoder(folder, backbone)
    num_labels = _num_labels(tensors, task_type, head[OUTPUT])
    ranks = task_type is TaskType.SEQUENCE_CLASSIFICATION and is_ranking(
        folder, cross_encoder, choices, num_outputs=num_labels
    )
    spec = head_spec(task_type, num_labels, shape, ranks=ranks)
    _check_backbone(folder, tensors, adapted, backbone)
    check_tensors(folder, tensors, _shapes(adapted, head, spec, shape))
    method, parameters = _branch(config, adapted, tensors, shape)
    parameters |= head_parameters(head, tensors)
    if spec.dense and DENSE not in head:
        parameters |= pooler_parameters(folder, backbone)
    parameters |= _changed_pooler(adapted, tensors, parameters)
    meaning, base = read_model_config(folder), config.base_model_name_or_path
    return ImportedTask(
        spec=BranchSpec(method=method, head=spec),
        labels=labels_in_order(folder, spec, given=choices.labels, stored=meaning.id2label),
        problem_type=problem_type_of(
            folder, spec, choices.problem_type or read_problem_type(folder, meaning.problem_type)
        ),
        parameters=parameters,
        max_length=read_max_length(folder, backbone),
        source=f"peft {config.TITLE} folder, {f'trained on {base}' if base else 'no base named'}",
        score=score_of(cross_encoder) if ranks else RankingScore.SIGMOID,
        base=base,
    )


def read_peft_config(folder: Path) -> PeftConfig:
    """Read a configuration that we can reproduce exactly.

    Raises:
        NunatakError: `invalid_folder`, it cannot be read.
        NunatakError: `unsupported_import`, it is of another method, or uses what we refuse.
    """
    kind = read_model(folder, CONFIG_FILE, _Kind).peft_type
    if kind not in PEFT_CONFIGS:
        raise NunatakError(
            "unsupported_import",
            folder=folder.name,
            found=f"it is a peft adapter of type {kind}",
            advice=f"expected one of {', '.join(PEFT_CONFIGS)}; merge the adapter "
            "(merge_and_unload) and import the whole model",
        )
    config = read_model(folder, CONFIG_FILE, PEFT_CONFIGS[kind])
    config.check(folder)
    return config


def _check_types(folder: Path, task_type: TaskType, backbone: Backbone) -> None:
    if task_type is TaskType.QUESTION_ANSWERING and backbone.tokenizer.tells_texts_apart:
        raise NunatakError(
            "unsupported_import",
            folder=folder.name,
            found="peft's class for question answering gives its model no token types, and this "
            "backbone reads them",
            advice="merge the adapter (merge_and_unload), check that the merged model answers "
            "well with token types, and import it whole",
        )


def check_supported(
    folder: Path, backbone: Backbone, supported: Collection[str] = SUPPORTED
) -> None:
    """Raise `unsupported_import` unless adapters of such a model can be imported."""
    if backbone.config.model_type not in supported:
        raise NunatakError(
            "unsupported_import",
            folder=folder.name,
            found=f"the backbone is a {backbone.config.model_type}",
            advice=f"adapter folders are read for {', '.join(supported)}",
        )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """The stored tensors by their names in the adapted model."""
    stored = read_weights(folder, WEIGHTS_STEM, advice=PICKLE_ADVICE)
    strange = [name for name in stored if not name.startswith(PREFIX)]
    if strange:
        raise NunatakError(
            "tensor_mismatch",
            folder=folder.name,
            found=mismatch_of({"that nothing reads": strange}),
        )
    return {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}


def _check_backbone(
    folder: Path,
    tensors: Mapping[str, Tensor],
    adapted: Sequence[AdaptedModule],
    backbone: Backbone,
) -> None:
    """Distinguish another base model from a damaged folder, by names and widths."""
    differences = [
        *(_foreign_name(name, backbone.config) for name in tensors),
        *(it.difference(tensors) for it in adapted),
    ]
    for difference in differences:
        if difference is not None:
            raise NunatakError(
                "foreign_backbone",
                folder=folder.name,
                backbone=backbone.name,
                difference=difference,
            )


def _foreign_name(name: str, config: BackboneConfig) -> str | None:
    encoder = FAMILIES[config.model_type].encoder
    found = re.match(r"(\w+)\.(?:encoder|transformer)\.layer\.(\d+)\.", name)
    if found is None:
        return None
    if found[1] != encoder:
        return f"it adapts a {found[1]} model, the backbone is a {encoder} model"
    if int(found[2]) >= config.num_layers:
        return f"it adapts layer {found[2]}, the backbone has {config.num_layers} layers"
    return None


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
    shapes = stored_shapes(head, spec, width=config.hidden_width)
    for it in adapted:
        shapes |= it.shapes()
    return shapes


def _branch(
    kind: PeftConfig,
    adapted: Sequence[AdaptedModule],
    tensors: Mapping[str, Tensor],
    config: BackboneConfig,
) -> tuple[Method, dict[str, Tensor]]:
    """The method with its parameters; one that adapts no layer is a head."""
    changes = {
        (it.module.layer, it.module.target): it.change(tensors)
        for it in adapted
        if it.module.layer is not None and it.module.target is not None
    }
    return kind.normalised(changes, config) if changes else (HeadOnly(), {})


def _changed_pooler(
    adapted: Sequence[AdaptedModule],
    tensors: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The pooler's weights with the change of the adapter, if there is one."""
    pooler = next((it for it in adapted if it.module.layer is None), None)
    if pooler is None:
        return {}
    weight, bias = (parameters[f"{DENSE}.{part}"].clone() for part in ("weight", "bias"))
    pooler.change(tensors).merge(weight, bias)
    return {f"{DENSE}.weight": weight, f"{DENSE}.bias": bias}
