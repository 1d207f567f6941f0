"""Single-task models as their own libraries build them, each beside our branch of the same task.

The oracle of the parity tests: a `Twin` holds a published implementation (transformers' classes,
peft's, or transformers' modules with the adapter equation of He et al. written into them) and the
branch made of the same parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from doubles.backbones import Family, tiny_config, tiny_tokenizer
from nunatak_model import (
    Backbone,
    Bottleneck,
    Branch,
    BranchSpec,
    Encoding,
    Full,
    HeadKind,
    HeadOnly,
    HeadSpec,
    Lora,
    Method,
    Pooling,
    TopK,
    build_branch,
    load_backbone,
    parameter_shapes,
)
from nunatak_model.architectures.bert import source_names

MODEL_CLASSES: dict[Family, dict[HeadKind, type[PreTrainedModel]]] = {
    "bert": {
        HeadKind.SEQUENCE_CLASSIFICATION: BertForSequenceClassification,
        HeadKind.TOKEN_CLASSIFICATION: BertForTokenClassification,
        HeadKind.QUESTION_ANSWERING: BertForQuestionAnswering,
        HeadKind.RANKING: BertForSequenceClassification,
    },
    "roberta": {
        HeadKind.SEQUENCE_CLASSIFICATION: RobertaForSequenceClassification,
        HeadKind.TOKEN_CLASSIFICATION: RobertaForTokenClassification,
        HeadKind.QUESTION_ANSWERING: RobertaForQuestionAnswering,
        HeadKind.RANKING: RobertaForSequenceClassification,
    },
}
PEFT_TASKS = {
    HeadKind.SEQUENCE_CLASSIFICATION: "SEQ_CLS",
    HeadKind.TOKEN_CLASSIFICATION: "TOKEN_CLS",
    HeadKind.QUESTION_ANSWERING: "QUESTION_ANS",
    HeadKind.RANKING: "SEQ_CLS",
}
PEFT_TARGETS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "feedforward_in": "intermediate.dense",
    "feedforward_out": "output.dense",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Twin:
    """One task twice: as its own library runs it, and as a branch."""

    model: nn.Module
    branch: Branch

    def expected(self, encoding: Encoding) -> Tensor:
        """Logits of the published implementation for this input alone."""
        with torch.inference_mode():
            output = self.model(
                input_ids=torch.tensor([encoding.token_ids]),
                token_type_ids=torch.tensor([encoding.type_ids]),
                attention_mask=torch.ones(1, encoding.num_tokens, dtype=torch.long),
            )
        if isinstance(output, QuestionAnsweringModelOutput):
            return torch.stack([output["start_logits"][0], output["end_logits"][0]], dim=-1)
        return output.logits[0]


class TwinFactory:
    """Makes tasks that share one random base model."""

    def __init__(self, folder: Path, *, family: Family, num_layers: int = 4) -> None:
        self.family: Family = family
        self.num_layers = num_layers
        self._generator = torch.Generator().manual_seed(0)
        base = self._model(HeadSpec(num_labels=2))
        _randomise(base, self._generator, deviation=0.3)
        self._base = {name: tensor.clone() for name, tensor in base.state_dict().items()}
        base.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType] - untyped options
        tiny_tokenizer(family).save(str(folder / "tokenizer.json"))
        self.backbone: Backbone = load_backbone(folder)

    def twin(
        self,
        method: Method,
        *,
        kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
        num_labels: int = 3,
    ) -> Twin:
        """A task of this method and head with random parameters."""
        head = head_of(kind, num_labels=num_labels)
        model = self._copy_of_base(head)
        _randomise_head(model, self._generator)
        match method:
            case HeadOnly():
                pass
            case TopK(num_layers=count):
                for layer in self._layers(model)[self.num_layers - count :]:
                    _randomise(layer, self._generator, deviation=0.3)
            case Full():
                _randomise(model, self._generator, deviation=0.3)
            case Lora():
                return self._lora_twin(model, method, head)
            case Bottleneck():
                self._add_adapters(model, method)
        return Twin(model=model.eval(), branch=self._branch(method, head, _stored(model)))

    def _model(self, head: HeadSpec) -> PreTrainedModel:
        raw = tiny_config(num_layers=self.num_layers, family=self.family)
        make = BertConfig if self.family == "bert" else RobertaConfig
        config = make(**raw, id2label=_labels(head.num_labels))  # pyright: ignore[reportArgumentType]
        return MODEL_CLASSES[self.family][head.kind](config)

    def _copy_of_base(self, head: HeadSpec) -> PreTrainedModel:
        model = self._model(head)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        same = {n: t.clone() for n, t in self._base.items() if t.shape == shapes.get(n)}
        model.load_state_dict(same, strict=False)
        return model

    def _layers(self, model: PreTrainedModel) -> nn.ModuleList:
        return model.get_submodule(f"{self.family}.encoder.layer")  # pyright: ignore[reportReturnType]

    def _lora_twin(self, model: PreTrainedModel, method: Lora, head: HeadSpec) -> Twin:
        layers = "|".join(str(index) for index in range(method.first_layer, self.num_layers))
        targets = "|".join(PEFT_TARGETS[target] for target in method.targets)
        config = LoraConfig(
            task_type=PEFT_TASKS[head.kind],
            r=method.rank,
            lora_alpha=int(method.alpha),
            lora_dropout=0.0,
            target_modules=rf".*encoder\.layer\.({layers})\.({targets})",
        )
        adapted = get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = torch.randn(parameter.shape, generator=self._generator) * 0.3
        stored = dict[str, Tensor]()
        for name, tensor in adapted.state_dict().items():
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            stored[plain.replace(".modules_to_save.default", "")] = tensor
        # The model inside the wrapper: peft's own for question answering drops the token types.
        inner = adapted.get_base_model().eval()
        return Twin(model=inner, branch=self._branch(method, head, stored))

    def _add_adapters(self, model: PreTrainedModel, method: Bottleneck) -> None:
        for layer in list(self._layers(model))[method.first_layer :]:
            for block in (layer.get_submodule("attention.output"), layer.get_submodule("output")):
                width = self.backbone.config.hidden_width
                block.add_module("down", nn.Linear(width, method.size))
                block.add_module("up", nn.Linear(method.size, width))
                block.forward = _adapted_forward(block)
                _randomise(block.get_submodule("down"), self._generator, deviation=0.3)
                _randomise(block.get_submodule("up"), self._generator, deviation=0.3)
                _randomise(block.get_submodule("LayerNorm"), self._generator, deviation=0.3)

    def _branch(self, method: Method, head: HeadSpec, stored: Mapping[str, Tensor]) -> Branch:
        spec = BranchSpec(method=method, head=head)
        parameters = {
            name: _find(stored, name, self.family, head.kind)
            for name in parameter_shapes(spec, self.backbone.config)
        }
        return build_branch(spec, self.backbone.config, parameters)


def head_of(kind: HeadKind, *, num_labels: int) -> HeadSpec:
    """The head that transformers' class of this kind has."""
    outputs = kind.fixed_outputs or num_labels
    if kind.reads_tokens:
        return HeadSpec(kind=kind, num_labels=outputs)
    return HeadSpec(kind=kind, num_labels=outputs, pooling=Pooling.FIRST, dense=True)


def _labels(num_labels: int) -> dict[int, str]:
    return {index: f"label {index}" for index in range(num_labels)}


def _adapted_forward(block: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """`h' = f2(tanh(f1(h))) + h`, before the residual addition and the norm (He et al., eq. 1)."""

    def run(hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        h = block.get_submodule("dense")(hidden_states)
        h = block.get_submodule("up")(torch.tanh(block.get_submodule("down")(h))) + h
        return block.get_submodule("LayerNorm")(h + input_tensor)

    return run


def _stored(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _find(stored: Mapping[str, Tensor], name: str, family: Family, head: HeadKind) -> Tensor:
    """Our tensor `name` out of a published model's state."""
    match name.split("."):
        case ["head", _, kind] if head.reads_tokens:
            is_answer = head is HeadKind.QUESTION_ANSWERING
            return stored[f"{'qa_outputs' if is_answer else 'classifier'}.{kind}"]
        case ["head", part, kind]:
            bert = {"dense": "bert.pooler.dense", "output": "classifier"}
            roberta = {"dense": "classifier.dense", "output": "classifier.out_proj"}
            return stored[f"{(bert if family == 'bert' else roberta)[part]}.{kind}"]
        case ["layers", layer, "lora", target, side]:
            letter = "A" if side == "down" else "B"
            path = f"{family}.encoder.layer.{layer}.{PEFT_TARGETS[target]}"
            return stored[f"{path}.lora_{letter}.default.weight"]
        case ["layers", layer, "attention_adapter", side, kind]:
            return stored[f"{family}.encoder.layer.{layer}.attention.output.{side}.{kind}"]
        case ["layers", layer, "feedforward_adapter", side, kind]:
            return stored[f"{family}.encoder.layer.{layer}.output.{side}.{kind}"]
        case _:
            return torch.cat([stored[f"{family}.{source}"] for source in source_names(name)])


def _randomise(module: nn.Module, generator: torch.Generator, *, deviation: float) -> None:
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * deviation
        is_gain = "LayerNorm.weight" in name or (name == "weight" and parameter.dim() == 1)
        parameter.data = 1.0 + 0.1 * noise if is_gain else noise


def _randomise_head(model: nn.Module, generator: torch.Generator) -> None:
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("classifier", "pooler", "qa_outputs")):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
