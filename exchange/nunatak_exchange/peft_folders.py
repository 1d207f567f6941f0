"""Folders of adapters that peft writes and loads: import and export.

Import: peft adapts a model of transformers that has the backbone's weights. Its answers are the
reference. Then peft merges the adapter into the weights. If LoRA or IA3 here gives the same
weights, the task is LoRA or IA3; otherwise the task owns the layers from the lowest changed layer
up.

Export: `PeftModel.from_pretrained(base, folder)` needs the base model with the right head class and
number of labels: `AutoModelFor...from_pretrained(name, num_labels=n)`. A base that has the setting
`classifier_pooling` needs the task's value, too. peft has no field for labels and pooling, so these
go into a `config.json` in the same folder, which the import reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.errors import needs_extra
from nunatak_contract.methods import Ia3, Lora, Method
from nunatak_exchange import checks, peft_config, reference
from nunatak_exchange import transformers_layout as layout
from nunatak_exchange.checkpoint import CONFIG, Checkpoint, new_folder, write_json
from nunatak_exchange.peft_config import CONFIG_FILE, TASK_KINDS, WEIGHTS_STEM
from nunatak_exchange.peft_methods import ADAPTER, native_method, to_peft
from nunatak_exchange.transformers_export import (
    check_head,
    check_merges,
    export_refusal,
    meaning_fields,
    merged_weights,
    write_meaning,
)
from nunatak_exchange.transformers_import import find_divergence, read_logits
from nunatak_model import (
    Backbone,
    BranchSpec,
    HeadSpec,
    build_branch,
    parameter_shapes,
    tensors_to_bytes,
)
from nunatak_model.architectures import architecture_of, encoder_shapes
from nunatak_model.heads import head_shapes
from nunatak_model.tokenizer_folder import quiet
from nunatak_versions.versions import LoadedTask

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

    peft records no digest of the base model, so only shapes and names can be checked against
    `backbone`; and neither labels nor problem type, so `choices` replace `config.json`.
    """
    return _PeftImport(checkpoint, backbone, choices).task()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    spec: BranchSpec
    parameters: Mapping[str, Tensor]
    found: str


@dataclass
class _PeftImport(checks.Import):
    def __post_init__(self) -> None:
        self.fields = peft_config.read_fields(self.checkpoint)
        self.method = str(self.fields["peft_type"])
        self.kind = peft_config.head_kind(self.checkpoint, self.fields)
        self.names = layout.ClassLayout(self.backbone.config, self.kind)

    def task(self) -> checks.ImportedTask:
        self._check_types()
        self.check_tokenizer(is_adapter=True)
        num_outputs = self.names.num_outputs(self.stored, prefix=PREFIX)
        reading = read_logits(self, self.kind, num_outputs=num_outputs)
        head = layout.head_spec(
            reading.kind, self.backbone.config, num_outputs=num_outputs, pooling=self._pooling()
        )
        branch = self._branch(self._with_padding(head))
        base = self.fields.get("base_model_name_or_path")
        return checks.ImportedTask(
            spec=branch.spec,
            labels=self.labels(head, self.checkpoint.meaning.id2label),
            problem_type=self.problem_type(head),
            parameters=branch.parameters,
            max_length=reading.max_length,
            source=f"peft {branch.found}, " + (f"trained on {base}" if base else "no base named"),
            score=reading.score,
            base=str(base) if base else None,
        )

    @cached_property
    def stored(self) -> Mapping[str, Tensor]:
        return self.checkpoint.adapter_tensors(peft_config.WEIGHTS_STEM, advice=PICKLE_ADVICE)

    def _check_types(self) -> None:
        if self.kind is HeadKind.QUESTION_ANSWERING and self.backbone.tokenizer.tells_texts_apart:
            raise self.checkpoint.refuse(
                "peft's class for question answering gives its model no token types, and this "
                "backbone reads them",
                "merge the adapter (merge_and_unload), check that the merged model answers "
                "well with token types, and import it whole",
            )

    def _pooling(self) -> Pooling | None:
        """The pooling of the head, which is a setting of the base model in some architectures."""
        config, named = self.backbone.config, self.checkpoint.meaning.classifier_pooling
        if self.kind.reads_tokens:
            return None
        if named is None and config.model_type in layout.POOLINGS:
            raise self.checkpoint.refuse(
                f"nothing names the pooling of its head ({layout.POOLING})",
                f"write {layout.POOLING} of the base's config.json, "
                f"{' or '.join(layout.POOLINGS[config.model_type])}, into a config.json next to "
                "the adapter",
            )
        return layout.read_pooling(self.checkpoint, config, named)

    def _with_padding(self, head: HeadSpec) -> HeadSpec:
        if head.pooling is not Pooling.LAST or not self.checkpoint.has(CONFIG):
            return head
        named = self.checkpoint.config.get("pad_token_id")
        return replace(head, padding_id=named) if isinstance(named, int) and named >= 0 else head

    def _base(self, head: HeadSpec) -> reference.Loaded:
        """A model with the backbone's weights; `missing` names what the backbone does not have."""
        backbone = self.backbone
        raw: dict[str, JsonValue] = {
            **layout.config_fields(backbone, head.pooling),
            "id2label": {str(index): f"LABEL_{index}" for index in range(head.num_labels)},
        }
        if head.pooling is Pooling.LAST:
            raw["pad_token_id"] = head.padding_id
        parameters = {name: backbone.floating(name) for name in encoder_shapes(backbone.config)}
        known = {name: it for name, it in parameters.items() if it is not None}
        tensors = self.names.encoder_to_stored(known) | self._initial_head(head)
        model_class = reference.class_named(self.checkpoint, self.names.class_name)
        config = reference.config_of(self.checkpoint, raw)
        return reference.load_model(self.checkpoint, model_class, config, tensors)

    def _initial_head(self, head: HeadSpec) -> dict[str, Tensor]:
        backbone, names = self.backbone, self.names.head_names
        sources, found = architecture_of(backbone.config).head_sources, dict[str, Tensor]()
        for part, layer in (("head.dense", backbone.pooler), ("head.norm", backbone.pooler_norm)):
            for kind in ("weight", "bias"):
                theirs = names.get(f"{part}.{kind}")
                tensor = None if layer is None else getattr(layer, kind)
                # RoBERTa's pooler has the shape of `classifier.dense`, but is another layer.
                if theirs and tensor is not None and theirs.endswith(f"{sources[part]}.{kind}"):
                    found[theirs] = tensor
        needed = {names[ours] for ours in head_shapes(head, backbone.config)}
        return {name: it for name, it in found.items() if name in needed}

    def _branch(self, head: HeadSpec) -> _Found:
        checkpoint, backbone, base = self.checkpoint, self.backbone, self._base(head)
        modules = [name for name, _ in cast("Any", base.model).named_modules()]
        peft_config.check_patterns(checkpoint, self.fields, modules)
        adapted = self._adapted(base)
        expected = reference.answers_of(adapted.get_base_model(), backbone)
        native = native_method(self.method, adapted, self.names.map_places(), backbone.config)
        _unwrap(adapted.get_base_model())
        with checkpoint.refused_by("peft", "merge it"), quiet():
            merged = cast("PreTrainedModel", cast("Any", adapted).merge_and_unload(safe_merge=True))
        theirs = self.names.from_model(merged.state_dict(), head)
        found = self._native(native, theirs, head) or self._merged(theirs, head)
        branch = build_branch(found.spec, backbone.config, found.parameters)
        reference.check_answers(checkpoint, branch, backbone, expected)
        return found

    def _adapted(self, base: reference.Loaded) -> "PeftModel":
        """Peft's model with the stored tensors, which must be exactly the adapter's own."""
        config = peft_config.peft_config(self.checkpoint, self.fields)
        with needs_extra("training"):
            import peft  # noqa: PLC0415 - takes seconds
        library, stored = cast("Any", peft), self.stored
        random = {name: tuple(base.model.get_parameter(name).shape) for name in base.missing}
        with self.checkpoint.refused_by("peft", "adapt the backbone"), quiet():
            adapted = cast("PeftModel", library.get_peft_model(base.model, config).eval())
        with self.checkpoint.refused_by("peft", "name its tensors"), quiet():
            own = cast("dict[str, Tensor]", library.get_peft_model_state_dict(adapted))
        expected = {name: tuple(it.shape) for name, it in own.items()}
        for name, shape in random.items():
            # The head must come from the checkpoint, whether the configuration says so or not.
            expected.setdefault(PREFIX + name, shape)
        if self.method in SHAPED_BY_TRAINING:
            expected |= {name: tuple(it.shape) for name, it in stored.items() if name in expected}
        self._check_pooler(base, expected)
        self.checkpoint.check_tensors(stored, expected)
        with self.checkpoint.refused_by("peft", "load its tensors"), quiet():
            library.set_peft_model_state_dict(adapted, dict(stored))
        return adapted

    def _check_pooler(
        self, base: reference.Loaded, expected: Mapping[str, tuple[int, ...]]
    ) -> None:
        dense = self.names.family.dense
        pooler = f"{dense}.weight"
        is_needed = pooler in base.missing and PREFIX + pooler in expected
        if is_needed and self.backbone.pooler is None and PREFIX + pooler not in self.stored:
            raise self.checkpoint.foreign(
                self.backbone,
                f"the head reads {dense} of its base, and this backbone has no such "
                "layer (an adapter keeps the layer if modules_to_save names it)",
            )

    def _native(
        self,
        native: tuple[Method, dict[str, Tensor]] | None,
        theirs: Mapping[str, Tensor],
        head: HeadSpec,
    ) -> _Found | None:
        """The adapter as LoRA or IA3 here, if that gives the weights that peft merges."""
        if native is None or self.method not in peft_config.NATIVE:
            return None
        backbone, (method, own) = self.backbone, native
        spec = BranchSpec(method=method, head=head)
        of_head = {name: theirs[name].clone() for name in head_shapes(head, backbone.config)}
        parameters = {**own, **of_head}
        ours = merged_weights(build_branch(spec, backbone.config, parameters), backbone)
        for name in encoder_shapes(backbone.config):
            frozen = backbone.floating(name)
            is_changed = frozen is None or not torch.equal(
                ours[name], frozen.to("cpu", torch.float32)
            )
            room = MERGE_TOLERANCE * float(theirs[name].abs().max()) if is_changed else 0.0
            if not float((ours[name] - theirs[name]).abs().max()) <= room:
                return None
        found = f"{peft_config.NATIVE[self.method]} folder"
        return _Found(spec=spec, parameters=parameters, found=found)

    def _merged(self, theirs: Mapping[str, Tensor], head: HeadSpec) -> _Found:
        config = self.backbone.config
        spec = BranchSpec(method=find_divergence(theirs, self.backbone).method(), head=head)
        parameters = {name: theirs[name].clone() for name in parameter_shapes(spec, config)}
        size = sum(it.nbytes for name, it in parameters.items() if not name.startswith("head."))
        layers = {name.split(".")[1] for name in parameters if name.startswith("layers.")}
        has_embeddings = any(it.startswith("embeddings.") for it in parameters)
        method = {**peft_config.NATIVE, **peft_config.MERGED}[self.method]
        found = (
            f"{method} folder, merged: {len(layers)} of {config.num_layers} layers"
            f"{' and the embeddings' if has_embeddings else ''} its own, {size / 1e6:.0f} MB"
        )
        return _Found(spec=spec, parameters=parameters, found=found)


def _unwrap(model: Any) -> None:  # noqa: ANN401 - a model of transformers
    """Put modules that are stored whole in their places; peft itself unwraps linear maps alone."""
    from peft.utils import ModulesToSaveWrapper  # noqa: PLC0415 - takes seconds

    for name, module in list(model.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            model.set_submodule(name, module.modules_to_save[ADAPTER])


DENSE = "head.dense"


def export_peft(task: LoadedTask, folder: Path, backbone: Backbone) -> None:
    """Write a task with its head in peft's layout, in float32.

    A ranking head becomes a sequence classification with one output, as cross-encoders are stored.
    """
    check_merges(task, backbone, "no folder of peft")
    check_head(task, backbone, "write it with --format sentence-transformers")
    method = _method(task)
    kind = task.branch.spec.head.kind
    if kind is HeadKind.QUESTION_ANSWERING and backbone.tokenizer.tells_texts_apart:
        raise export_refusal(
            task,
            "peft's class for question answering gives its model no token types, and the task "
            "reads them",
            "write it with --format transformers",
        )
    wanted = HeadKind.SEQUENCE_CLASSIFICATION if kind is HeadKind.RANKING else kind
    task_type = next(name for name, it in TASK_KINDS.items() if it is wanted)
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
        write_meaning(made, meaning, backbone, max_length=task.manifest.max_length)


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
        "write it with --format transformers",
    )


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
