"""Export of tasks as folders that peft loads.

`PeftModel.from_pretrained(base, folder)` needs the base model with the right head class and number
of labels: `AutoModelFor...from_pretrained(name, num_labels=n)`. peft has no field for labels, so
the labels go into a `config.json` in the same folder. `import_peft` reads this file.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nunatak_artifact.interchange.compatibility import check_exact
from nunatak_artifact.interchange.cross_encoder import activation_fields
from nunatak_artifact.interchange.folders import new_folder, write_json
from nunatak_artifact.interchange.peft_config import (
    CONFIG_FILE,
    HEAD_NAMES,
    SUPPORTED,
    WEIGHTS_STEM,
    PeftConfig,
    TaskType,
    own_dense,
)
from nunatak_artifact.interchange.peft_import import DENSE, PEFT_CONFIGS, stored_head
from nunatak_artifact.interchange.transformers_layout import has_class
from nunatak_artifact.loading import LoadedTask
from nunatak_contract.enums import HeadKind
from nunatak_contract.enums import HeadKind as RecordedKind
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import HeadRecord
from nunatak_model import Backbone, BackboneConfig, tensors_to_bytes

PREFIX = "base_model.model."


def export_peft(task: LoadedTask, folder: Path, backbone: Backbone) -> None:
    """Write a task with its head in peft's layout, in float32.

    A ranking head becomes a sequence classification with one output, as cross-encoders are stored.

    Raises:
        NunatakError: `unsupported_export`, another method, a head that no class of transformers
            has, or token types that peft's class for the head does not read.
        NunatakError: `folder_in_use`, the folder holds something already.
        UnsupportedBackboneError: the backbone is quantized.
    """
    check_exact(backbone)
    _check_supported(task, backbone)
    (peft_type, kind), config = _kind(task), backbone.config
    task_type = _task_type(task, config)
    _check_types(task, task_type, backbone)
    parameters = {name: it.to("cpu", torch.float32) for name, it in task.branch.parameters.items()}
    dense, saved = own_dense(task_type, config), [*HEAD_NAMES[task_type]]
    if dense is not None and not _is_pooler(parameters, backbone):
        saved.append(dense.rpartition(".")[2])
    tensors = {
        **dict(
            kind.stored(name, tensor, config)
            for name, tensor in parameters.items()
            if name.startswith("layers.")
        ),
        **_head(stored_head(task_type, saved, config), parameters),
    }
    fields = {
        "peft_type": peft_type,
        "task_type": task_type.value,
        "base_model_name_or_path": backbone.name,
        "inference_mode": True,
        "modules_to_save": saved,
        **kind.fields(task.branch.spec.method, config),
    }
    with new_folder(folder) as made:
        (made / f"{WEIGHTS_STEM}.safetensors").write_bytes(
            tensors_to_bytes({PREFIX + name: tensor for name, tensor in tensors.items()})
        )
        write_json(made, CONFIG_FILE, fields)
        write_json(made, "config.json", _meaning(task.manifest.head))


def _kind(task: LoadedTask) -> tuple[str, type[PeftConfig]]:
    method = task.branch.spec.method
    for peft_type, kind in PEFT_CONFIGS.items():
        if isinstance(method, kind.METHOD):
            return peft_type, kind
    raise NunatakError(
        "unsupported_export",
        reference=task.manifest.reference,
        part=f"its method is {method.kind}, peft folders hold "
        f"{' and '.join(kind.TITLE for kind in PEFT_CONFIGS.values())}",
        advice="export it in transformers' format",
    )


def _check_supported(task: LoadedTask, backbone: Backbone) -> None:
    if backbone.config.model_type not in SUPPORTED:
        raise NunatakError(
            "unsupported_export",
            reference=task.manifest.reference,
            part=f"its backbone is a {backbone.config.model_type}",
            advice=f"peft folders are written for {', '.join(SUPPORTED)}",
        )


def _task_type(task: LoadedTask, config: BackboneConfig) -> TaskType:
    head = task.branch.spec.head
    match head.kind:
        case HeadKind.TOKEN_CLASSIFICATION:
            return TaskType.TOKEN_CLASSIFICATION
        case HeadKind.QUESTION_ANSWERING:
            return TaskType.QUESTION_ANSWERING
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.RANKING:
            if has_class(head, config):
                return TaskType.SEQUENCE_CLASSIFICATION
            raise NunatakError(
                "unsupported_export",
                reference=task.manifest.reference,
                part=f"its head reads the {head.pooling} of the tokens "
                f"{'through' if head.dense else 'without'} a dense layer",
                advice="transformers' classes read the first token through one; train it on a "
                "backbone "
                "that pools so",
            )


def _check_types(task: LoadedTask, task_type: TaskType, backbone: Backbone) -> None:
    if task_type is TaskType.QUESTION_ANSWERING and backbone.tokenizer.tells_texts_apart:
        raise NunatakError(
            "unsupported_export",
            reference=task.manifest.reference,
            part="peft's class for question answering gives its model no token types, and the task "
            "reads them",
            advice="export it in transformers' format",
        )


def _is_pooler(parameters: Mapping[str, Tensor], backbone: Backbone) -> bool:
    pooler = backbone.pooler
    return pooler is not None and all(
        torch.equal(parameters[f"{DENSE}.{part}"], frozen.to("cpu", torch.float32))
        for part, frozen in (("weight", pooler.weight), ("bias", pooler.bias))
        if frozen is not None
    )


def _head(head: Mapping[str, str], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        f"{module}.{part}": parameters[f"{ours}.{part}"]
        for ours, module in head.items()
        for part in ("weight", "bias")
    }


def _meaning(head: HeadRecord) -> dict[str, object]:
    meaning: dict[str, object] = {}
    if head.labels:
        meaning["id2label"] = {str(index): label for index, label in enumerate(head.labels)}
        meaning["label2id"] = {label: index for index, label in enumerate(head.labels)}
    if head.problem_type is not None:
        meaning["problem_type"] = head.problem_type.value
    if head.kind is RecordedKind.RANKING:
        meaning |= activation_fields(head.score)
    return meaning
