"""Export of LoRA tasks as folders that peft loads.

`PeftModel.from_pretrained(base, folder)` needs the base model with the right head class and number
of labels: `AutoModelFor...from_pretrained(name, num_labels=n)`. peft has no field for labels, so
the labels go into a `config.json` in the same folder. `import_peft` reads this file.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nunatak_artifact.errors import UnsupportedExportError
from nunatak_artifact.interchange.compatibility import check_exact
from nunatak_artifact.interchange.cross_encoder import activation_fields
from nunatak_artifact.interchange.folders import new_folder, write_json
from nunatak_artifact.interchange.peft_config import (
    CONFIG_FILE,
    ENCODERS,
    HEAD_NAMES,
    TARGETS,
    WEIGHTS_STEM,
    TaskType,
    has_pooler,
)
from nunatak_artifact.interchange.peft_import import DENSE, stored_head
from nunatak_artifact.loading import LoadedTask
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.enums import HeadKind as RecordedKind
from nunatak_contract.heads import HeadRecord
from nunatak_contract.methods import Lora
from nunatak_model import Backbone, tensors_to_bytes

PREFIX = "base_model.model."


def export_peft(task: LoadedTask, folder: Path, backbone: Backbone) -> None:
    """Write a LoRA task with its head in peft's layout, in float32.

    A ranking head becomes a sequence classification with one output, as cross-encoders are stored.

    Raises:
        UnsupportedExportError: another method, a head that no class of transformers has, or token
            types that peft's class for the head does not read.
        FolderInUseError: the folder holds something already.
        UnsupportedBackboneError: the backbone is quantized.
    """
    check_exact(backbone)
    method, encoder, task_type = _method(task), _encoder(task, backbone), _task_type(task)
    _check_types(task, task_type, backbone)
    parameters = {name: it.to("cpu", torch.float32) for name, it in task.branch.parameters.items()}
    owns_pooler = has_pooler(encoder, task_type) and not _is_pooler(parameters, backbone)
    saved = [*HEAD_NAMES[task_type], *(["pooler"] if owns_pooler else [])]
    tensors = {
        **_updates(parameters, encoder),
        **_head(stored_head(encoder, task_type, saved), parameters),
    }
    fields = {
        "peft_type": "LORA",
        "task_type": task_type.value,
        "base_model_name_or_path": backbone.name,
        "inference_mode": True,
        "r": method.rank,
        "lora_alpha": method.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _targets(method, encoder, backbone.config.num_layers),
        "modules_to_save": saved,
    }
    with new_folder(folder) as made:
        (made / f"{WEIGHTS_STEM}.safetensors").write_bytes(
            tensors_to_bytes({PREFIX + name: tensor for name, tensor in tensors.items()})
        )
        write_json(made, CONFIG_FILE, fields)
        write_json(made, "config.json", _meaning(task.manifest.head))


def _method(task: LoadedTask) -> Lora:
    method = task.branch.spec.method
    if isinstance(method, Lora):
        return method
    raise UnsupportedExportError(
        task.manifest.reference,
        f"its method is {method.kind}, peft folders hold LoRA",
        "export it in transformers' format",
    )


def _encoder(task: LoadedTask, backbone: Backbone) -> str:
    encoder = ENCODERS.get(backbone.config.model_type)
    if encoder is not None:
        return encoder
    raise UnsupportedExportError(
        task.manifest.reference,
        f"its backbone is a {backbone.config.model_type}",
        f"peft folders are written for {', '.join(ENCODERS)}",
    )


def _task_type(task: LoadedTask) -> TaskType:
    head = task.branch.spec.head
    match head.kind:
        case HeadKind.TOKEN_CLASSIFICATION:
            return TaskType.TOKEN_CLASSIFICATION
        case HeadKind.QUESTION_ANSWERING:
            return TaskType.QUESTION_ANSWERING
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.RANKING:
            if head.pooling is Pooling.FIRST and head.dense:
                return TaskType.SEQUENCE_CLASSIFICATION
            raise UnsupportedExportError(
                task.manifest.reference,
                f"its head reads the {head.pooling} of the tokens "
                f"{'through' if head.dense else 'without'} a dense layer",
                "transformers' classes read the first token through one; train it on a backbone "
                "that pools so",
            )


def _check_types(task: LoadedTask, task_type: TaskType, backbone: Backbone) -> None:
    if task_type is TaskType.QUESTION_ANSWERING and backbone.tokenizer.tells_texts_apart:
        raise UnsupportedExportError(
            task.manifest.reference,
            "peft's class for question answering gives its model no token types, and the task "
            "reads them",
            "export it in transformers' format",
        )


def _is_pooler(parameters: Mapping[str, Tensor], backbone: Backbone) -> bool:
    pooler = backbone.pooler
    return pooler is not None and all(
        torch.equal(parameters[f"{DENSE}.{part}"], frozen.to("cpu", torch.float32))
        for part, frozen in (("weight", pooler.weight), ("bias", pooler.bias))
        if frozen is not None
    )


def _updates(parameters: Mapping[str, Tensor], encoder: str) -> dict[str, Tensor]:
    tensors = dict[str, Tensor]()
    for name, tensor in parameters.items():
        if name.startswith("layers."):
            _, layer, _, target, side = name.split(".")
            path = next(path for it, path in TARGETS.items() if it == target)
            half = "lora_A" if side == "down" else "lora_B"
            tensors[f"{encoder}.encoder.layer.{layer}.{path}.{half}.weight"] = tensor
    return tensors


def _head(head: Mapping[str, str], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        f"{module}.{part}": parameters[f"{ours}.{part}"]
        for ours, module in head.items()
        for part in ("weight", "bias")
    }


def _targets(method: Lora, encoder: str, num_layers: int) -> str:
    """A pattern for whole names: a list of last parts would confuse the two `output.dense`."""
    layers = "|".join(map(str, range(method.first_layer, num_layers)))
    paths = "|".join(TARGETS[target].replace(".", r"\.") for target in method.targets)
    return rf"{encoder}\.encoder\.layer\.({layers})\.({paths})"


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
