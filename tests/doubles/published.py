"""Single-task models as their own libraries build them, each with our branch of the same task.

The oracle of the parity tests. A `Twin` holds a published implementation and the branch made from
the same parameters. The published implementations are transformers' classes, peft's, and
transformers' modules with the adapter equation of He et al. written into them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from doubles.backbones import BYTES, DECODERS, Family, save_tokenizer, tiny_config
from doubles.published_names import (
    ANSWERS,
    BLOCKS,
    FINAL_NORMS,
    FUSED,
    HEADS,
    LAYERS,
    OTHER_NORMS,
    PEFT_TARGETS,
    PEFT_TASKS,
    WITHOUT_TYPES,
)
from nunatak_contract.enums import HeadKind, LinearMap
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_exchange.transformers_layout import module_names
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    Encoding,
    HeadSpec,
    build_branch,
    default_head,
    load_backbone,
    parameter_shapes,
)

AUTO_CONFIG: Any = AutoConfig
AUTO_CLASSES: dict[HeadKind, Any] = {
    HeadKind.SEQUENCE_CLASSIFICATION: AutoModelForSequenceClassification,
    HeadKind.TOKEN_CLASSIFICATION: AutoModelForTokenClassification,
    HeadKind.QUESTION_ANSWERING: AutoModelForQuestionAnswering,
    HeadKind.RANKING: AutoModelForSequenceClassification,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Twin:
    """One task in two forms: a published model, and a branch."""

    model: nn.Module
    branch: Branch

    def expected(self, encoding: Encoding) -> Tensor:
        with torch.inference_mode():
            return logits_of(self.model, encoding)


class TwinFactory:
    """Makes tasks that share one random base model."""

    def __init__(
        self,
        folder: Path,
        *,
        family: Family,
        num_layers: int = 4,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.family: Family = family
        self.folder = folder
        self._options = dict(options or {})
        self.num_layers = num_layers
        self.written = dict[str, tuple[Path, Twin]]()
        """Folders of models that were written, and the models."""
        self._generator = torch.Generator().manual_seed(0)
        base = self._model(HeadSpec(num_labels=2))
        randomise(base, self._generator, deviation=0.3)
        self._base = {name: tensor.clone() for name, tensor in base.state_dict().items()}
        base.save_pretrained(folder)
        save_tokenizer(folder, family)
        self.backbone: Backbone = load_backbone(folder)

    def twin(
        self,
        method: Method,
        *,
        kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
        num_labels: int = 3,
    ) -> Twin:
        """A task of this method and head with random parameters."""
        head = default_head(self.backbone, kind=kind, num_labels=kind.fixed_outputs or num_labels)
        model = self._copy_of_base(head)
        _randomise_head(model, self._generator)
        match method:
            case HeadOnly():
                pass
            case TopK(num_layers=count):
                for layer in self._layers(model, kind)[self.num_layers - count :]:
                    randomise(layer, self._generator, deviation=0.3)
                if self.family in FINAL_NORMS:
                    name = self._renamed(FINAL_NORMS[self.family], kind)
                    randomise(model.get_submodule(name), self._generator, deviation=0.3)
            case Full():
                randomise(model, self._generator, deviation=0.3)
            case Lora() | Ia3():
                return self._peft_twin(model, method, head)
            case Bottleneck():
                self._add_adapters(model, method, kind)
        return self._twin(model, method, head, _stored(model))

    def gradients(self, twin: Twin, encodings: Sequence[Encoding]) -> dict[str, Tensor]:
        """Gradients of the sum of all squared logits, by our names of the branch's parameters."""
        twin.model.requires_grad_(requires_grad=True).zero_grad()
        total = torch.stack([logits_of(twin.model, it).square().sum() for it in encodings]).sum()
        total.backward()
        stored = dict[str, Tensor]()
        for name, parameter in twin.model.named_parameters(remove_duplicate=False):
            plain = name.replace(".base_layer", "").replace(".modules_to_save.default", "")
            if parameter.grad is not None:
                stored[plain] = parameter.grad
        spec = twin.branch.spec
        return {name: _find(stored, name, self.family, spec) for name in twin.branch.parameters}

    def _model(self, head: HeadSpec) -> PreTrainedModel:
        raw = tiny_config(num_layers=self.num_layers, family=self.family)
        raw |= self._options | {"id2label": _labels(head.num_labels)}
        return AUTO_CLASSES[head.kind].from_config(config_of(raw))

    def _copy_of_base(self, head: HeadSpec) -> PreTrainedModel:
        model = self._model(head)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        base = {self._renamed(name, head.kind): it for name, it in self._base.items()}
        same = {n: t.clone() for n, t in base.items() if t.shape == shapes.get(n)}
        model.load_state_dict(same, strict=False)
        return model

    def _renamed(self, name: str, kind: HeadKind) -> str:
        """The name of a module or tensor of the base, in the class for this kind."""
        prefix, dot, rest = name.partition(".")
        if self.family in DECODERS and kind is HeadKind.QUESTION_ANSWERING:
            prefix = ANSWERS.get(prefix, prefix)
        return prefix + dot + rest

    def _layers(self, model: PreTrainedModel, kind: HeadKind) -> nn.ModuleList:
        return model.get_submodule(self._renamed(LAYERS[self.family], kind))  # pyrefly: ignore[bad-return]

    def _with_lora(self, model: PreTrainedModel, method: Lora, head: HeadSpec) -> PeftModel:
        # Three independent updates of one map are one update of three times the rank, in blocks.
        wide, alpha = {"Wqkv": 3 * method.rank}, {"Wqkv": 3 * int(method.alpha)}
        config = LoraConfig(
            task_type=PEFT_TASKS[head.kind],
            r=method.rank,
            lora_alpha=int(method.alpha),
            lora_dropout=0.0,
            target_modules=self._pattern(method.targets, method.first_layer, head.kind),
            rank_pattern=wide if self.family == "modernbert" else {},
            alpha_pattern=alpha if self.family == "modernbert" else {},
        )
        adapted = get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = torch.randn(parameter.shape, generator=self._generator) * 0.2
            if "Wqkv.lora_B" in name:
                parameter.data *= _blocks(method, self.backbone.config.hidden_width)
        _share(adapted, "gate_proj.lora_A", "up_proj.lora_A")
        return adapted

    def _with_ia3(self, model: PreTrainedModel, method: Ia3, head: HeadSpec) -> PeftModel:
        scaled = (*method.scaled_outputs, *method.scaled_inputs)
        config = IA3Config(
            task_type=PEFT_TASKS[head.kind],
            target_modules=self._pattern(scaled, method.first_layer, head.kind),
            feedforward_modules=self._pattern(method.scaled_inputs, method.first_layer, head.kind),
        )
        adapted = get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if "ia3_l" in name:
                noise = torch.randn(parameter.shape, generator=self._generator)
                parameter.data = 1.0 + 0.5 * noise
            if "Wqkv.ia3_l" in name:
                for part, target in enumerate(FUSED):
                    if target not in method.scaled_outputs:
                        parameter.data.chunk(3)[part].fill_(1.0)
        if LinearMap.FEEDFORWARD_IN in method.scaled_inputs:
            _share(adapted, "gate_proj.ia3_l", "up_proj.ia3_l")
        return adapted

    def _pattern(self, targets: Sequence[LinearMap], first_layer: int, kind: HeadKind) -> str:
        layers = "|".join(str(index) for index in range(first_layer, self.num_layers))
        paths = "|".join(PEFT_TARGETS[self.family][target] for target in targets)
        return rf".*{self._renamed(LAYERS[self.family], kind)}\.({layers})\.({paths})"

    def _peft_twin(self, model: PreTrainedModel, method: Lora | Ia3, head: HeadSpec) -> Twin:
        if isinstance(method, Lora):
            adapted = self._with_lora(model, method, head)
        else:
            adapted = self._with_ia3(model, method, head)
        stored = dict[str, Tensor]()
        for name, tensor in adapted.state_dict().items():
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            stored[plain.replace(".modules_to_save.default", "")] = tensor
        # The model inside the wrapper, because peft's wrapper for question answering drops the
        # token types.
        inner = adapted.get_base_model().eval()
        return self._twin(inner, method, head, stored)

    def _add_adapters(self, model: PreTrainedModel, method: Bottleneck, kind: HeadKind) -> None:
        for layer in list(self._layers(model, kind))[method.first_layer :]:
            for block in (layer.get_submodule(name) for name in BLOCKS[self.family]):
                width = self.backbone.config.hidden_width
                block.add_module("down", nn.Linear(width, method.size))
                block.add_module("up", nn.Linear(method.size, width))
                if "LayerNorm" not in dict(block.named_children()):
                    block.forward = _adapted_output(block)
                else:
                    block.forward = _adapted_forward(block)
                    randomise(block.get_submodule("LayerNorm"), self._generator, deviation=0.3)
                randomise(block.get_submodule("down"), self._generator, deviation=0.3)
                randomise(block.get_submodule("up"), self._generator, deviation=0.3)
            for name in OTHER_NORMS.get(self.family, ()):
                randomise(layer.get_submodule(name), self._generator, deviation=0.3)

    def _twin(
        self, model: nn.Module, method: Method, head: HeadSpec, stored: Mapping[str, Tensor]
    ) -> Twin:
        spec = BranchSpec(method=method, head=head)
        for usual, prefix in ANSWERS.items():
            stored = {re.sub(rf"^{prefix}\.", f"{usual}.", name): it for name, it in stored.items()}
        parameters = {
            name: _find(stored, name, self.family, spec)
            for name in parameter_shapes(spec, self.backbone.config)
        }
        branch = build_branch(spec, self.backbone.config, parameters)
        return Twin(model=model.eval(), branch=branch)


def logits_of(model: nn.Module, encoding: Encoding) -> Tensor:
    """Logits of a model of transformers or peft for one input alone, with gradients."""
    config = getattr(model, "config", None)
    reads_types = getattr(config, "model_type", "") not in WITHOUT_TYPES
    output = model(
        input_ids=torch.tensor([encoding.token_ids]),
        attention_mask=torch.ones(1, encoding.num_tokens, dtype=torch.long),
        **({"token_type_ids": torch.tensor([encoding.type_ids])} if reads_types else {}),
    )
    if isinstance(output, QuestionAnsweringModelOutput):
        return torch.stack([output["start_logits"][0], output["end_logits"][0]], dim=-1)
    return output.logits[0]


def config_of(raw: Mapping[str, object]) -> Any:  # noqa: ANN401 - untyped there
    fields = {name: it for name, it in raw.items() if name != "model_type"}
    return AUTO_CONFIG.for_model(raw["model_type"], **fields)


def _labels(num_labels: int) -> dict[int, str]:
    return {index: f"label {index}" for index in range(num_labels)}


def _adapted_forward(block: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """`h' = f2(tanh(f1(h))) + h`, before the residual addition and the norm (He et al., eq. 1)."""

    def run(hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        h = block.get_submodule("dense")(hidden_states)
        h = block.get_submodule("up")(torch.tanh(block.get_submodule("down")(h))) + h
        return block.get_submodule("LayerNorm")(h + input_tensor)

    return run


def _adapted_output(block: nn.Module) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """The equation of the adapter, on the sum that a pre-norm block adds to the residual."""
    plain: Callable[..., Tensor | tuple[Tensor, ...]] = block.forward

    def adapted(h: Tensor) -> Tensor:
        return block.get_submodule("up")(torch.tanh(block.get_submodule("down")(h))) + h

    def run(*inputs: Tensor, **options: object) -> Tensor | tuple[Tensor, ...]:
        output = plain(*inputs, **options)
        return (adapted(output[0]), *output[1:]) if isinstance(output, tuple) else adapted(output)

    return run


def _blocks(method: Lora, width: int) -> Tensor:
    """A mask of ones where each target among query, key and value reads its own third."""
    mask = torch.zeros(3 * width, 3 * method.rank)
    for part, target in enumerate(FUSED):
        if target in method.targets:
            mask[part * width :, part * method.rank :][:width, : method.rank] = 1.0
    return mask


def _stored(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _find(stored: Mapping[str, Tensor], name: str, family: Family, spec: BranchSpec) -> Tensor:
    """Our tensor `name` out of a published model's state."""
    match name.split("."):
        case ["head", part, kind]:
            return stored[f"{_head_name(part, family, spec.head.kind)}.{kind}"]
        case ["layers", layer, "lora" | "ia3", target, side]:
            return _find_change(stored, _paths(family, layer, target), target, side, spec)
        case ["layers", layer, "attention_adapter", side, kind]:
            return stored[f"{LAYERS[family]}.{layer}.{BLOCKS[family][0]}.{side}.{kind}"]
        case ["layers", layer, "feedforward_adapter", side, kind]:
            return stored[f"{LAYERS[family]}.{layer}.{BLOCKS[family][1]}.{side}.{kind}"]
        case _:
            prefix = LAYERS[family].split(".")[0]
            sources = module_names(name, family)
            return torch.cat([stored[f"{prefix}.{source}"] for source in sources])


def _find_change(
    stored: Mapping[str, Tensor], paths: Sequence[str], target: str, side: str, spec: BranchSpec
) -> Tensor:
    """The factor or the scale of the map that these modules make up."""
    name = {"down": "lora_A.default.weight", "up": "lora_B.default.weight"}.get(side)
    tensors = [stored[f"{path}.{name or 'ia3_l.default'}"] for path in paths]
    tensors = tensors if name else [it.flatten() for it in tensors]
    if paths[0].endswith("Wqkv"):
        if name:
            return _third(tensors[0], LinearMap(target), spec)
        return tensors[0].chunk(3)[FUSED.index(LinearMap(target))]
    # All modules of a map read one input.
    return tensors[0] if side in {"down", "input"} else torch.cat(tensors)


def _paths(family: Family, layer: str, target: str) -> list[str]:
    paths = PEFT_TARGETS[family][LinearMap(target)].split("|")
    return [f"{LAYERS[family]}.{layer}.{path}" for path in paths]


def _head_name(part: str, family: Family, kind: HeadKind) -> str:
    if kind is HeadKind.QUESTION_ANSWERING and family != "modernbert":
        return "qa_outputs"
    if kind.reads_tokens and family not in BYTES:
        return "classifier"
    return HEADS[family][part]


def _third(update: Tensor, target: LinearMap, spec: BranchSpec) -> Tensor:
    """The part of query, key or value in an update of all three."""
    assert isinstance(spec.method, Lora)
    rank, part = spec.method.rank, FUSED.index(target)
    columns = slice(part * rank, (part + 1) * rank)
    if update.shape[0] == 3 * rank:
        return update[columns]
    return update.chunk(3)[part][:, columns].contiguous()


def _share(adapted: PeftModel, one: str, other: str) -> None:
    """Give each module `other` the parameter of the module `one` of its layer: one map here."""
    parameters = dict(adapted.named_parameters())
    for name in parameters:
        if other in name:
            module, _, last = name.rpartition(".")
            shared = parameters[name.replace(other, one)]
            adapted.get_submodule(module).register_parameter(last, shared)


def randomise(module: nn.Module, generator: torch.Generator, *, deviation: float) -> None:
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * deviation
        is_gain = name.endswith("weight") and parameter.dim() == 1
        parameter.data = 1.0 + 0.1 * noise if is_gain else noise


def _randomise_head(model: nn.Module, generator: torch.Generator) -> None:
    for name, parameter in model.named_parameters():
        parts = ("classifier", "pooler", "qa_outputs", "head.", "score")
        if any(part in name for part in parts) or name.startswith("dense."):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
