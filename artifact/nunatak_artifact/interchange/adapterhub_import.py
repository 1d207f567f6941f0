"""Reading the bottleneck folders of AdapterHub (the `adapters` package).

Houlsby's kind (`double_seq_bn`) adapts both blocks before the residual addition, as ours does;
Pfeiffer's (`seq_bn`) adapts the feed-forward block and reads the norm of its residual sum. Both
leave the norms frozen. Sizes that differ by layer and layers left out are brought to one size
(`bottleneck_normalising`); scaling is multiplied into `up`.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nunatak_artifact.errors import ForeignBackboneError, PickledWeightsError
from nunatak_artifact.interchange.adapter_folder import (
    check_tensors,
    has_file,
    read_model,
    read_weights,
)
from nunatak_artifact.interchange.adapterhub_config import (
    ACTIVATIONS,
    CONFIG_FILE,
    HEAD_FILE,
    HEAD_PICKLE,
    HEAD_STEM,
    PICKLE,
    WEIGHTS_STEM,
    AdapterFile,
    BottleneckConfig,
    HeadFile,
    Scaling,
    read_bottleneck,
    size_at,
)
from nunatak_artifact.interchange.adapterhub_heads import ImportedHead, class_head, flexible_head
from nunatak_artifact.interchange.bottleneck_normalising import (
    StoredAdapter,
    normalised_bottleneck,
)
from nunatak_artifact.interchange.compatibility import check_reading, read_settings
from nunatak_artifact.interchange.imported import (
    AS_THE_FOLDER_SAYS,
    ImportChoices,
    ImportedTask,
)
from nunatak_artifact.interchange.meanings import (
    labels_in_order,
    read_max_length,
    read_model_config,
)
from nunatak_artifact.interchange.peft_import import encoder_of
from nunatak_model import (
    AdaptedBlocks,
    AdapterInput,
    Backbone,
    Bottleneck,
    BranchSpec,
    HeadOnly,
    Norms,
)
from nunatak_model.weights import Linear

PICKLE_ADVICE = "save it again with save_adapter(..., use_safetensors=True)"
PLACES = {"attention_adapter": "attention.output", "feedforward_adapter": "output"}
"""Our names of the adapted blocks -> theirs."""


def import_adapterhub(
    folder: Path, backbone: Backbone, choices: ImportChoices = AS_THE_FOLDER_SAYS
) -> ImportedTask:
    """Read a bottleneck adapter with its head; it computes what `adapters` computes, to rounding.

    Args:
        folder: holds `adapter_config.json`, `adapter.safetensors`, `head_config.json` and
            `model_head.safetensors`, as `save_adapter(..., use_safetensors=True)` writes them.
        backbone: the base model it was trained on, of which AdapterHub records type and width.
        choices: what the caller says in place of the head, and of a `config.json` in the folder.

    Raises:
        InvalidFolderError: a file is missing, unsound or no part of the folder; tensors and
            configuration differ; or nothing names the labels.
        UnsupportedImportError: what no method or head of ours computes.
        ForeignBackboneError: the adapter fits another backbone.
        InvalidMethodError: a bottleneck is wider than our method takes.
    """
    encoder = encoder_of(folder, backbone)
    file = read_model(folder, CONFIG_FILE, AdapterFile)
    config = read_bottleneck(folder, file)
    _check_backbone(folder, file, backbone)
    if read_settings(folder):
        check_reading(folder, backbone)
    shapes = _shapes(folder, config, f"{encoder}.encoder.layer", file.name, backbone)
    tensors = _read(folder, WEIGHTS_STEM, PICKLE)
    check_tensors(
        folder,
        tensors,
        {f"{prefix}.{name}": it for prefix, own in shapes.values() for name, it in own.items()},
    )
    adapters = {place: _stored(prefix, config, tensors) for place, (prefix, _) in shapes.items()}
    method, parameters = (
        normalised_bottleneck(_settings(config), adapters, backbone.config)
        if adapters
        else (HeadOnly(), {})
    )
    head = _head(folder, encoder, backbone)
    meaning = read_model_config(folder)
    return ImportedTask(
        spec=BranchSpec(method=method, head=head.spec),
        labels=labels_in_order(
            folder, head.spec, given=choices.labels, stored=head.id2label or meaning.id2label
        ),
        problem_type=head.problem_type
        and (choices.problem_type or meaning.problem_type or head.problem_type),
        parameters={**parameters, **head.parameters},
        max_length=read_max_length(folder, backbone),
        source="AdapterHub bottleneck folder, "
        + (f"trained on {file.model_name}" if file.model_name else "no base named"),
        base=file.model_name,
    )


def _check_backbone(folder: Path, file: AdapterFile, backbone: Backbone) -> None:
    theirs, ours = file.model_type, backbone.config.model_type
    if theirs != ours:
        raise ForeignBackboneError(
            folder.name, backbone.name, f"it adapts a {theirs[:80]} model, the backbone is a {ours}"
        )
    width = backbone.config.hidden_width
    if file.hidden_size != width:
        raise ForeignBackboneError(
            folder.name,
            backbone.name,
            f"its base is {file.hidden_size} wide, the backbone {width}",
        )


def _shapes(
    folder: Path, config: BottleneckConfig, layers: str, name: str, backbone: Backbone
) -> dict[tuple[int, str], tuple[str, dict[str, tuple[int, ...]]]]:
    """Layer and our name of the place -> the adapter's prefix there, and its tensors."""
    width = backbone.config.hidden_width
    adapted = {"attention_adapter": config.mh_adapter, "feedforward_adapter": config.output_adapter}
    shapes = dict[tuple[int, str], tuple[str, dict[str, tuple[int, ...]]]]()
    for layer in sorted(set(range(backbone.config.num_layers)) - set(config.leave_out)):
        size = size_at(folder, config, layer, width)
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
                        **_scaling_shape(config, width),
                    },
                )
    return shapes


def _scaling_shape(config: BottleneckConfig, width: int) -> dict[str, tuple[int, ...]]:
    if not isinstance(config.scaling, str):
        return {}
    match Scaling(config.scaling):
        case Scaling.LEARNED:
            return {"scaling": (1,)}
        case Scaling.CHANNEL:
            return {"scaling": (width,)}


def _stored(prefix: str, config: BottleneckConfig, tensors: Mapping[str, Tensor]) -> StoredAdapter:
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


def _settings(config: BottleneckConfig) -> Bottleneck:
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
        activation=ACTIVATIONS[config.non_linearity.lower()],
        norms=Norms.FROZEN,
    )


def _head(folder: Path, encoder: str, backbone: Backbone) -> ImportedHead:
    file = read_model(folder, HEAD_FILE, HeadFile)
    tensors = _read(folder, HEAD_STEM, HEAD_PICKLE)
    if file.config is None:
        return class_head(folder, file, encoder, tensors, backbone)
    return flexible_head(folder, file.config, file.name or "", tensors, backbone)


def _read(folder: Path, stem: str, pickle: str) -> dict[str, Tensor]:
    if has_file(folder, pickle) and not has_file(folder, f"{stem}.safetensors"):
        raise PickledWeightsError(folder.name, pickle, PICKLE_ADVICE)
    return read_weights(folder, stem, advice=PICKLE_ADVICE)
