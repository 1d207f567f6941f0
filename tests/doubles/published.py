"""Single-task models as their own libraries build them, each with our branch of the same task.

The oracle of the parity tests. A `Twin` holds a published implementation and the branch made from
the same parameters. The published implementations are transformers' classes, peft's, and
transformers' modules with the adapter equation of He et al. written into them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    DebertaV2Config,
    DebertaV2ForQuestionAnswering,
    DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification,
    DistilBertConfig,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    ElectraConfig,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ModernBertConfig,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    MPNetConfig,
    MPNetForQuestionAnswering,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from doubles.backbones import Family, tiny_config, tiny_tokenizer
from nunatak_contract.enums import HeadKind, LinearMap
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK
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
from nunatak_model.architectures import ARCHITECTURES

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
    "distilbert": {
        HeadKind.SEQUENCE_CLASSIFICATION: DistilBertForSequenceClassification,
        HeadKind.TOKEN_CLASSIFICATION: DistilBertForTokenClassification,
        HeadKind.QUESTION_ANSWERING: DistilBertForQuestionAnswering,
        HeadKind.RANKING: DistilBertForSequenceClassification,
    },
    "electra": {
        HeadKind.SEQUENCE_CLASSIFICATION: ElectraForSequenceClassification,
        HeadKind.TOKEN_CLASSIFICATION: ElectraForTokenClassification,
        HeadKind.QUESTION_ANSWERING: ElectraForQuestionAnswering,
        HeadKind.RANKING: ElectraForSequenceClassification,
    },
    "deberta-v2": {
        HeadKind.SEQUENCE_CLASSIFICATION: DebertaV2ForSequenceClassification,
        HeadKind.TOKEN_CLASSIFICATION: DebertaV2ForTokenClassification,
        HeadKind.QUESTION_ANSWERING: DebertaV2ForQuestionAnswering,
        HeadKind.RANKING: DebertaV2ForSequenceClassification,
    },
    "mpnet": {
        HeadKind.SEQUENCE_CLASSIFICATION: MPNetForSequenceClassification,
        HeadKind.TOKEN_CLASSIFICATION: MPNetForTokenClassification,
        HeadKind.QUESTION_ANSWERING: MPNetForQuestionAnswering,
        HeadKind.RANKING: MPNetForSequenceClassification,
    },
    "modernbert": {
        HeadKind.SEQUENCE_CLASSIFICATION: ModernBertForSequenceClassification,
        HeadKind.TOKEN_CLASSIFICATION: ModernBertForTokenClassification,
        HeadKind.QUESTION_ANSWERING: ModernBertForQuestionAnswering,
        HeadKind.RANKING: ModernBertForSequenceClassification,
    },
}
CONFIG_CLASSES: dict[Family, type[PreTrainedConfig]] = {
    "bert": BertConfig,
    "roberta": RobertaConfig,
    "distilbert": DistilBertConfig,
    "electra": ElectraConfig,
    "deberta-v2": DebertaV2Config,
    "mpnet": MPNetConfig,
    "modernbert": ModernBertConfig,
}
LAYERS: dict[Family, str] = {
    "bert": "bert.encoder.layer",
    "roberta": "roberta.encoder.layer",
    "distilbert": "distilbert.transformer.layer",
    "electra": "electra.encoder.layer",
    "deberta-v2": "deberta.encoder.layer",
    "mpnet": "mpnet.encoder.layer",
    "modernbert": "model.layers",
}
BLOCKS: dict[Family, tuple[str, str]] = {
    "bert": ("attention.output", "output"),
    "roberta": ("attention.output", "output"),
    "distilbert": ("attention", "ffn"),
    "electra": ("attention.output", "output"),
    "deberta-v2": ("attention.output", "output"),
    "mpnet": ("attention.attn", "output"),
    "modernbert": ("attn", "mlp"),
}
"""The modules that give the output of the attention and of the feed-forward block."""
OTHER_NORMS: dict[Family, tuple[str, ...]] = {
    "distilbert": ("sa_layer_norm", "output_layer_norm"),
    "mpnet": ("attention.LayerNorm",),
    "modernbert": ("attn_norm", "mlp_norm"),
}
"""Norms of a layer that are no part of these modules."""
WITHOUT_TYPES: tuple[Family, ...] = ("distilbert", "mpnet", "modernbert")
"""Families whose classes take no token types."""
PEFT_TASKS = {
    HeadKind.SEQUENCE_CLASSIFICATION: "SEQ_CLS",
    HeadKind.TOKEN_CLASSIFICATION: "TOKEN_CLS",
    HeadKind.QUESTION_ANSWERING: "QUESTION_ANS",
    HeadKind.RANKING: "SEQ_CLS",
}
BERT_TARGETS = {
    LinearMap.QUERY: "attention.self.query",
    LinearMap.KEY: "attention.self.key",
    LinearMap.VALUE: "attention.self.value",
    LinearMap.ATTENTION_OUTPUT: "attention.output.dense",
    LinearMap.FEEDFORWARD_IN: "intermediate.dense",
    LinearMap.FEEDFORWARD_OUT: "output.dense",
}
FUSED = (LinearMap.QUERY, LinearMap.KEY, LinearMap.VALUE)
PEFT_TARGETS: dict[Family, dict[LinearMap, str]] = {
    "bert": BERT_TARGETS,
    "roberta": BERT_TARGETS,
    "distilbert": {
        LinearMap.QUERY: "attention.q_lin",
        LinearMap.KEY: "attention.k_lin",
        LinearMap.VALUE: "attention.v_lin",
        LinearMap.ATTENTION_OUTPUT: "attention.out_lin",
        LinearMap.FEEDFORWARD_IN: "ffn.lin1",
        LinearMap.FEEDFORWARD_OUT: "ffn.lin2",
    },
    "electra": BERT_TARGETS,
    "deberta-v2": {
        **BERT_TARGETS,
        LinearMap.QUERY: "attention.self.query_proj",
        LinearMap.KEY: "attention.self.key_proj",
        LinearMap.VALUE: "attention.self.value_proj",
    },
    "mpnet": {
        **BERT_TARGETS,
        LinearMap.QUERY: "attention.attn.q",
        LinearMap.KEY: "attention.attn.k",
        LinearMap.VALUE: "attention.attn.v",
        LinearMap.ATTENTION_OUTPUT: "attention.attn.o",
    },
    "modernbert": {
        **dict.fromkeys(FUSED, "attn.Wqkv"),
        LinearMap.ATTENTION_OUTPUT: "attn.Wo",
        LinearMap.FEEDFORWARD_IN: "mlp.Wi",
        LinearMap.FEEDFORWARD_OUT: "mlp.Wo",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Twin:
    """One task in two forms: a published model, and a branch."""

    model: nn.Module
    branch: Branch
    has_types: bool = True

    def expected(self, encoding: Encoding) -> Tensor:
        """Logits of the published implementation for this input alone."""
        with torch.inference_mode():
            return self.logits(encoding)

    def logits(self, encoding: Encoding) -> Tensor:
        """The same logits, with gradients."""
        output = self.model(
            input_ids=torch.tensor([encoding.token_ids]),
            attention_mask=torch.ones(1, encoding.num_tokens, dtype=torch.long),
            **({"token_type_ids": torch.tensor([encoding.type_ids])} if self.has_types else {}),
        )
        if isinstance(output, QuestionAnsweringModelOutput):
            return torch.stack([output["start_logits"][0], output["end_logits"][0]], dim=-1)
        return output.logits[0]


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
        head = default_head(self.backbone, kind=kind, num_labels=kind.fixed_outputs or num_labels)
        model = self._copy_of_base(head)
        _randomise_head(model, self._generator)
        match method:
            case HeadOnly():
                pass
            case TopK(num_layers=count):
                for layer in self._layers(model)[self.num_layers - count :]:
                    _randomise(layer, self._generator, deviation=0.3)
                if self.family == "modernbert":
                    final_norm = model.get_submodule("model.final_norm")
                    _randomise(final_norm, self._generator, deviation=0.3)
            case Full():
                _randomise(model, self._generator, deviation=0.3)
            case Lora() | Ia3():
                return self._peft_twin(model, method, head)
            case Bottleneck():
                self._add_adapters(model, method)
        return self._twin(model, method, head, _stored(model))

    def gradients(self, twin: Twin, encodings: Sequence[Encoding]) -> dict[str, Tensor]:
        """Gradients of the sum of all squared logits, by our names of the branch's parameters."""
        twin.model.requires_grad_(requires_grad=True).zero_grad()
        total = torch.stack([twin.logits(it).square().sum() for it in encodings]).sum()
        total.backward()  # pyright: ignore[reportUnknownMemberType]
        stored = dict[str, Tensor]()
        for name, parameter in twin.model.named_parameters():
            plain = name.replace(".base_layer", "").replace(".modules_to_save.default", "")
            if parameter.grad is not None:
                stored[plain] = parameter.grad
        spec = twin.branch.spec
        return {name: _find(stored, name, self.family, spec) for name in twin.branch.parameters}

    def _model(self, head: HeadSpec) -> PreTrainedModel:
        raw = tiny_config(num_layers=self.num_layers, family=self.family)
        raw |= self._options | {"id2label": _labels(head.num_labels)}
        config = CONFIG_CLASSES[self.family](**raw)  # pyright: ignore[reportArgumentType]
        return MODEL_CLASSES[self.family][head.kind](config)

    def _copy_of_base(self, head: HeadSpec) -> PreTrainedModel:
        model = self._model(head)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        same = {n: t.clone() for n, t in self._base.items() if t.shape == shapes.get(n)}
        model.load_state_dict(same, strict=False)
        return model

    def _layers(self, model: PreTrainedModel) -> nn.ModuleList:
        return model.get_submodule(LAYERS[self.family])  # pyright: ignore[reportReturnType]

    def _with_lora(self, model: PreTrainedModel, method: Lora, head: HeadSpec) -> PeftModel:
        # Three independent updates of one map are one update of three times the rank, in blocks.
        wide, alpha = {"Wqkv": 3 * method.rank}, {"Wqkv": 3 * int(method.alpha)}
        config = LoraConfig(
            task_type=PEFT_TASKS[head.kind],
            r=method.rank,
            lora_alpha=int(method.alpha),
            lora_dropout=0.0,
            target_modules=self._pattern(method.targets, method.first_layer),
            rank_pattern=wide if self.family == "modernbert" else {},
            alpha_pattern=alpha if self.family == "modernbert" else {},
        )
        adapted = get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = torch.randn(parameter.shape, generator=self._generator) * 0.3
            if "Wqkv.lora_B" in name:
                parameter.data *= _blocks(method, self.backbone.config.hidden_width)
        return adapted

    def _with_ia3(self, model: PreTrainedModel, method: Ia3, head: HeadSpec) -> PeftModel:
        scaled = (*method.scaled_outputs, *method.scaled_inputs)
        config = IA3Config(
            task_type=PEFT_TASKS[head.kind],
            target_modules=self._pattern(scaled, method.first_layer),
            feedforward_modules=self._pattern(method.scaled_inputs, method.first_layer),
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
        return adapted

    def _pattern(self, targets: Sequence[LinearMap], first_layer: int) -> str:
        layers = "|".join(str(index) for index in range(first_layer, self.num_layers))
        paths = "|".join(PEFT_TARGETS[self.family][target] for target in targets)
        return rf".*{LAYERS[self.family]}\.({layers})\.({paths})"

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

    def _add_adapters(self, model: PreTrainedModel, method: Bottleneck) -> None:
        for layer in list(self._layers(model))[method.first_layer :]:
            for block in (layer.get_submodule(name) for name in BLOCKS[self.family]):
                width = self.backbone.config.hidden_width
                block.add_module("down", nn.Linear(width, method.size))
                block.add_module("up", nn.Linear(method.size, width))
                if "LayerNorm" not in dict(block.named_children()):
                    block.forward = _adapted_output(block)
                else:
                    block.forward = _adapted_forward(block)
                    _randomise(block.get_submodule("LayerNorm"), self._generator, deviation=0.3)
                _randomise(block.get_submodule("down"), self._generator, deviation=0.3)
                _randomise(block.get_submodule("up"), self._generator, deviation=0.3)
            for name in OTHER_NORMS.get(self.family, ()):
                _randomise(layer.get_submodule(name), self._generator, deviation=0.3)

    def _twin(
        self, model: nn.Module, method: Method, head: HeadSpec, stored: Mapping[str, Tensor]
    ) -> Twin:
        branch = self._branch(method, head, stored)
        return Twin(model=model.eval(), branch=branch, has_types=self.family not in WITHOUT_TYPES)

    def _branch(self, method: Method, head: HeadSpec, stored: Mapping[str, Tensor]) -> Branch:
        spec = BranchSpec(method=method, head=head)
        parameters = {
            name: _find(stored, name, self.family, spec)
            for name in parameter_shapes(spec, self.backbone.config)
        }
        return build_branch(spec, self.backbone.config, parameters)


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
        case ["layers", layer, "lora", target, side]:
            letter = "A" if side == "down" else "B"
            path = f"{LAYERS[family]}.{layer}.{PEFT_TARGETS[family][LinearMap(target)]}"
            tensor = stored[f"{path}.lora_{letter}.default.weight"]
            return _third(tensor, LinearMap(target), spec) if path.endswith("Wqkv") else tensor
        case ["layers", layer, "ia3", target, _]:
            path = f"{LAYERS[family]}.{layer}.{PEFT_TARGETS[family][LinearMap(target)]}"
            scale = stored[f"{path}.ia3_l.default"].flatten()
            is_fused = path.endswith("Wqkv")
            return scale.chunk(3)[FUSED.index(LinearMap(target))] if is_fused else scale
        case ["layers", layer, "attention_adapter", side, kind]:
            return stored[f"{LAYERS[family]}.{layer}.{BLOCKS[family][0]}.{side}.{kind}"]
        case ["layers", layer, "feedforward_adapter", side, kind]:
            return stored[f"{LAYERS[family]}.{layer}.{BLOCKS[family][1]}.{side}.{kind}"]
        case _:
            prefix = LAYERS[family].split(".")[0]
            sources = ARCHITECTURES[family].source_names(name)
            return torch.cat([stored[f"{prefix}.{source}"] for source in sources])


def _head_name(part: str, family: Family, kind: HeadKind) -> str:
    match family:
        case "modernbert":
            return {"dense": "head.dense", "norm": "head.norm", "output": "classifier"}[part]
        case _ if kind.reads_tokens:
            return "qa_outputs" if kind is HeadKind.QUESTION_ANSWERING else "classifier"
        case "bert":
            return {"dense": "bert.pooler.dense", "output": "classifier"}[part]
        case "deberta-v2":
            return {"dense": "pooler.dense", "output": "classifier"}[part]
        case "distilbert":
            return {"dense": "pre_classifier", "output": "classifier"}[part]
        case "roberta" | "electra" | "mpnet":
            return {"dense": "classifier.dense", "output": "classifier.out_proj"}[part]


def _third(update: Tensor, target: LinearMap, spec: BranchSpec) -> Tensor:
    """The part of query, key or value in an update of all three."""
    assert isinstance(spec.method, Lora)
    rank, part = spec.method.rank, FUSED.index(target)
    columns = slice(part * rank, (part + 1) * rank)
    if update.shape[0] == 3 * rank:
        return update[columns]
    return update.chunk(3)[part][:, columns].contiguous()


def _randomise(module: nn.Module, generator: torch.Generator, *, deviation: float) -> None:
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * deviation
        is_gain = name.endswith("weight") and parameter.dim() == 1
        parameter.data = 1.0 + 0.1 * noise if is_gain else noise


def _randomise_head(model: nn.Module, generator: torch.Generator) -> None:
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("classifier", "pooler", "qa_outputs", "head.")):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
