"""Export of tasks as folders that peft loads.

`PeftModel.from_pretrained(base, folder)` needs the base model with the right head class and number
of labels: `AutoModelFor...from_pretrained(name, num_labels=n)`. A base that has the setting
`classifier_pooling` needs the task's value, too. peft has no field for labels and pooling, so these
go into a `config.json` in the same folder. `import_peft` reads this file.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import Ia3, Lora
from nunatak_exchange import transformers_layout as layout
from nunatak_exchange.checkpoint import CONFIG, new_folder, write_json
from nunatak_exchange.checks import check_exact
from nunatak_exchange.peft_config import CONFIG_FILE, TASK_KINDS, WEIGHTS_STEM
from nunatak_exchange.peft_methods import to_peft
from nunatak_exchange.transformers_export import check_head, export_refusal, meaning_fields
from nunatak_model import Backbone, tensors_to_bytes
from nunatak_versions.loading import LoadedTask

PREFIX = "base_model.model."
DENSE = "head.dense"


def export_peft(task: LoadedTask, folder: Path, backbone: Backbone) -> None:
    """Write a task with its head in peft's layout, in float32.

    A ranking head becomes a sequence classification with one output, as cross-encoders are stored.
    """
    check_exact(backbone)
    method = _method(task)
    check_head(task, backbone, "write it with --format sentence-transformers")
    task_type = _task_type(task, backbone)
    held = layout.ClassLayout(backbone.config, task.branch.spec.head.kind)
    names = held.head_names
    parameters = {name: it.to("cpu", torch.float32) for name, it in task.branch.parameters.items()}
    given = _given_by_base(parameters, names, backbone)
    kept = {
        names[name]: it
        for name, it in parameters.items()
        if name in names and not (given and name.startswith(DENSE))
    }
    of_method, tensors = to_peft(method, parameters, held.map_places())
    stored = {**kept, **tensors}
    fields = {
        "task_type": task_type,
        "base_model_name_or_path": backbone.name,
        "inference_mode": True,
        "modules_to_save": sorted({_saved(name) for name in kept}),
        **of_method,
    }
    with new_folder(folder) as made:
        (made / f"{WEIGHTS_STEM}.safetensors").write_bytes(
            tensors_to_bytes({PREFIX + name: tensor for name, tensor in stored.items()})
        )
        write_json(made, CONFIG_FILE, fields)
        head = task.manifest.head
        meaning = {**layout.pooling_fields(head.pooling, backbone.config), **meaning_fields(head)}
        write_json(made, CONFIG, meaning)


def _saved(name: str) -> str:
    """The module that peft stores whole: `classifier`, or `pooler` of `bert.pooler.dense`."""
    parts = name.split(".")[:-1]
    return parts[1] if parts[0] in {it.encoder for it in layout.FAMILIES.values()} else parts[0]


def _method(task: LoadedTask) -> Lora | Ia3:
    method = task.branch.spec.method
    if isinstance(method, Lora | Ia3):
        return method
    raise export_refusal(
        task,
        f"its method is {method.kind}, peft folders hold LoRA and IA3",
        "export it in transformers' format",
    )


def _task_type(task: LoadedTask, backbone: Backbone) -> str:
    kind = task.branch.spec.head.kind
    if kind is HeadKind.QUESTION_ANSWERING and backbone.tokenizer.tells_texts_apart:
        raise export_refusal(
            task,
            "peft's class for question answering gives its model no token types, and the task "
            "reads them",
            "export it in transformers' format",
        )
    wanted = HeadKind.SEQUENCE_CLASSIFICATION if kind is HeadKind.RANKING else kind
    return next(name for name, it in TASK_KINDS.items() if it is wanted)


def _given_by_base(
    parameters: Mapping[str, Tensor], names: Mapping[str, str], backbone: Backbone
) -> bool:
    """Whether the head's dense layer is the pooler of the base, which the base's folder has."""
    family, pooler = layout.FAMILIES[backbone.config.model_type], backbone.pooler
    if pooler is None or not names.get(f"{DENSE}.weight", "").startswith(f"{family.encoder}."):
        return False
    return all(
        torch.equal(parameters[f"{DENSE}.{part}"], frozen.to("cpu", torch.float32))
        for part, frozen in (("weight", pooler.weight), ("bias", pooler.bias))
        if frozen is not None
    )
