"""Import of the bottleneck folders of AdapterHub (the `adapters` package).

The fields are from `adapters` 1.3 (`BnConfig`, `PredictionHead`). Older files have the same fields
or fewer. An unknown field is accepted while it is off (null, false, empty). An unknown field that
is on is refused.

Heads first. A head of `adapters`' own classes is a chain of dropout, linear maps and
non-linearities; the names of its tensors are positions in this chain. Such a head may read the
pooler of the base model in place of the first token. Folders of transformers' classes hold the
class's own head, as peft's folders do.

Adapters next. Houlsby's adapters (`double_seq_bn`) adapt both blocks before the residual addition.
Pfeiffer's (`seq_bn`) adapt the feed-forward block and read the norm of its residual sum. Both
kinds leave the norms frozen. `Bottleneck` has one size and adapts every layer from its first, so
smaller adapters and skipped layers are padded with zeros, which change no result. The scaling is
multiplied into `up`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import torch
from pydantic import BaseModel, Field, JsonValue, NonNegativeInt
from torch import Tensor

from nunatak_contract.enums import (
    Activation,
    AdaptedBlocks,
    AdapterInput,
    HeadKind,
    Norms,
    Pooling,
    ProblemType,
)
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import Bottleneck, HeadOnly, Method
from nunatak_exchange import checks
from nunatak_exchange import transformers_layout as layout
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.peft_methods import new_parameters
from nunatak_model import Backbone, BranchSpec, HeadSpec
from nunatak_model.architectures import bert
from nunatak_model.heads import head_shapes

CONFIG_FILE, WEIGHTS_STEM = "adapter_config.json", "adapter"
HEAD_FILE, HEAD_STEM = "head_config.json", "model_head"

Factor = Annotated[float, Field(gt=0)]

ACTIVATIONS = {
    "relu": Activation.RELU,
    "swish": Activation.SILU,
    "silu": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "leakyrelu": Activation.LEAKY_RELU,
    "tanh": Activation.TANH,
}
REFUSED = {
    "ln_before": "a layer norm inside the adapter (ln_before)",
    "ln_after": "a layer norm inside the adapter (ln_after)",
    "is_parallel": "parallel adapters (is_parallel)",
    "use_gating": "gated adapters (use_gating)",
    "inv_adapter": "invertible adapters (inv_adapter)",
    "phm_layer": "Compacter layers (phm_layer)",
    "cross_adapter": "adapters of cross attention (cross_adapter)",
}
TRAINING_ALONE = frozenset(
    {
        *("dropout", "stochastic_depth", "init_weights", "init_weights_seed"),
        *("phm_dim", "factorized_phm_W", "shared_W_phm", "shared_phm_rule", "phm_rank", "phm_bias"),
        *("factorized_phm_rule", "phm_c_init", "phm_init_range", "learn_phm"),
        *("hypercomplex_nonlinearity", "inv_adapter_reduction_factor"),
        # Without a norm in between, both orders of adding give the same sum.
        "adapter_residual_before_ln",
    }
)
"""Settings without effect on a trained adapter's results, and settings of refused features."""


class Scaling(StrEnum):
    """Trained factors of an adapter's output: one for all, or one for each channel."""

    LEARNED = "learned"
    CHANNEL = "channel"


class BottleneckConfig(BaseModel, frozen=True, extra="allow", allow_inf_nan=False, strict=True):
    """A bottleneck configuration; the fields are documented by `adapters`' `BnConfig`."""

    mh_adapter: bool
    output_adapter: bool
    reduction_factor: Factor | dict[str, Factor]
    non_linearity: str
    original_ln_before: bool = False
    original_ln_after: bool = True
    residual_before_ln: bool | str = True
    scaling: float | str = 1.0
    leave_out: tuple[NonNegativeInt, ...] = ()


class AdapterFile(BaseModel, frozen=True):
    config: dict[str, JsonValue]
    name: str
    model_type: str
    hidden_size: int
    model_name: str | None = None


class FlexibleHead(BaseModel, frozen=True, extra="allow", strict=True):
    """The head of a model class of `adapters`."""

    head_type: str
    num_labels: Annotated[int, Field(ge=1)] = 2
    layers: int
    activation_function: str | None = None
    label2id: dict[str, NonNegativeInt] | None = None
    use_pooler: bool = False
    bias: bool = True


class HeadFile(BaseModel, frozen=True):
    """`head_config.json`; heads of transformers' own classes have no `config`."""

    config: FlexibleHead | None
    name: str | None
    model_class: str
    num_labels: Annotated[int, Field(ge=1)] | None = None
    label2id: dict[str, NonNegativeInt] | None = None


def read_bottleneck(checkpoint: Checkpoint, file: AdapterFile) -> BottleneckConfig:
    architecture = file.config.get("architecture")
    if architecture is not None:
        raise unsupported(
            checkpoint, f"it is an adapter of architecture {str(architecture)[:80]!r}"
        )
    config = checkpoint.parsed(CONFIG_FILE, _ConfigOnly).config
    for name, value in (config.__pydantic_extra__ or {}).items():
        if value and name not in TRAINING_ALONE:
            found = REFUSED.get(name, f"the unknown setting {name} = {str(value)[:80]!r}")
            raise unsupported(checkpoint, f"it uses {found}")
    if config.non_linearity.lower() not in ACTIVATIONS:
        raise unsupported(checkpoint, f"its non-linearity is {config.non_linearity[:80]!r}")
    if isinstance(config.scaling, str) and config.scaling not in set(Scaling):
        raise unsupported(checkpoint, f"its scaling is {config.scaling[:80]!r}")
    # If the adapter reads the block alone, the residual setting has no effect.
    residuals = (True,) if config.original_ln_before else (True, False)
    if config.residual_before_ln not in residuals or not config.original_ln_after:
        raise unsupported(
            checkpoint,
            "its norms and residuals have another place than Houlsby's or Pfeiffer's "
            f"(residual_before_ln={config.residual_before_ln!r}, "
            f"original_ln_after={config.original_ln_after})",
        )
    return config


def size_at(checkpoint: Checkpoint, config: BottleneckConfig, layer: int, width: int) -> int:
    factor = config.reduction_factor
    if isinstance(factor, dict):
        found = factor.get(str(layer), factor.get("default"))
        if found is None:
            raise checkpoint.invalid(
                f"its reduction_factor names neither layer {layer} nor a default"
            )
        factor = found
    return max(1, int(width // factor))


def unsupported(checkpoint: Checkpoint, found: str) -> NunatakError:
    return checkpoint.refuse(
        found,
        "expected a bottleneck adapter of Houlsby's or Pfeiffer's kind (double_seq_bn, seq_bn)",
    )


class _ConfigOnly(BaseModel, frozen=True):
    config: BottleneckConfig


HEAD_TYPES = {
    "classification": HeadKind.SEQUENCE_CLASSIFICATION,
    "multilabel_classification": HeadKind.SEQUENCE_CLASSIFICATION,
    "tagging": HeadKind.TOKEN_CLASSIFICATION,
    "question_answering": HeadKind.QUESTION_ANSWERING,
}
OUTPUT, DENSE = "head.output", "head.dense"
FIRST_LINEAR, SECOND_LINEAR = "1", "4"
"""Positions in the chain: dropout, linear, tanh, dropout, linear."""
PICKLE_ADVICE = "save it again with save_adapter(..., use_safetensors=True)"
PLACES = {"attention_adapter": "attention.output", "feedforward_adapter": "output"}
"""Our names of the adapted blocks -> theirs."""


def import_adapterhub(
    checkpoint: Checkpoint,
    backbone: Backbone,
    choices: checks.ImportChoices = checks.AS_THE_FOLDER_SAYS,
) -> checks.ImportedTask:
    """Read a bottleneck adapter with its head; it computes what `adapters` does, to rounding."""
    return _AdapterHubImport(checkpoint, backbone, choices).task()


class _AdapterHubImport(checks.Import):
    def task(self) -> checks.ImportedTask:
        checkpoint, config = self.checkpoint, self.backbone.config
        if config.model_type not in bert.MODEL_TYPES:
            raise checkpoint.refuse(
                f"the backbone is a {config.model_type}",
                f"folders of AdapterHub are read for {', '.join(bert.MODEL_TYPES)}",
            )
        file = checkpoint.parsed(CONFIG_FILE, AdapterFile)
        bottleneck = read_bottleneck(checkpoint, file)
        self._check_backbone(file)
        self.check_tokenizer(is_adapter=True)
        method, parameters = self._adapters(bottleneck, file.name)
        head_file = checkpoint.parsed(HEAD_FILE, HeadFile)
        tensors = checkpoint.adapter_tensors(HEAD_STEM, advice=PICKLE_ADVICE)
        flexible = head_file.config
        head, names = (
            self._class_head(head_file)
            if flexible is None
            else self._flexible_head(flexible, head_file.name or "")
        )
        parameters |= self._head_parameters(head, names, tensors)
        label2id = (flexible or head_file).label2id or {}
        id2label: dict[str, JsonValue] = {str(number): it for it, number in label2id.items()}
        return checks.ImportedTask(
            spec=BranchSpec(method=method, head=head),
            labels=self.labels(head, id2label or checkpoint.meaning.id2label),
            problem_type=self._problem_type(head, flexible),
            parameters=parameters,
            max_length=checkpoint.max_length(self.backbone),
            source="AdapterHub bottleneck folder, "
            + (f"trained on {file.model_name}" if file.model_name else "no base named"),
            base=file.model_name,
        )

    def _check_backbone(self, file: AdapterFile) -> None:
        theirs, ours = file.model_type, self.backbone.config.model_type
        width, difference = self.backbone.config.hidden_width, None
        if theirs != ours:
            difference = f"it adapts a {theirs[:80]} model, the backbone is a {ours}"
        elif file.hidden_size != width:
            difference = f"its base is {file.hidden_size} wide, the backbone {width}"
        if difference is not None:
            raise self.checkpoint.foreign(self.backbone, difference)

    def _adapters(self, config: BottleneckConfig, name: str) -> tuple[Method, dict[str, Tensor]]:
        """The adapters as one method with its parameters; without adapters, a head alone."""
        checkpoint, ours = self.checkpoint, self.backbone.config
        is_adapted = {
            "attention_adapter": config.mh_adapter,
            "feedforward_adapter": config.output_adapter,
        }
        layers = sorted(set(range(ours.num_layers)) - set(config.leave_out))
        sizes = {it: size_at(checkpoint, config, it, ours.hidden_width) for it in layers}
        stem = f"{layout.FAMILIES[ours.model_type].encoder}.encoder.layer"
        prefixes = {
            (layer, place): f"{stem}.{layer}.{block}.adapters.{name}"
            for layer in layers
            for place, block in PLACES.items()
            if is_adapted[place]
        }
        tensors = checkpoint.adapter_tensors(WEIGHTS_STEM, advice=PICKLE_ADVICE)
        expected = {
            f"{prefix}.{part}": shape
            for (layer, _), prefix in prefixes.items()
            for part, shape in _shapes(config, sizes[layer], ours.hidden_width).items()
        }
        checkpoint.check_tensors(tensors, expected)
        if not prefixes:
            return HeadOnly(), {}
        method = _method(config, size=max(sizes.values()), first_layer=layers[0])
        parameters = new_parameters(method, ours, torch.zeros)
        for (layer, place), prefix in prefixes.items():
            adapter, size = f"layers.{layer}.{place}", sizes[layer]
            stored = tensors.get(f"{prefix}.scaling")
            scale = torch.tensor([config.scaling]) if stored is None else stored
            down, up = f"{prefix}.adapter_down.0", f"{prefix}.adapter_up"
            scaled = tensors[f"{up}.weight"] * scale.unsqueeze(1)
            parameters[f"{adapter}.down.weight"][:size] = tensors[f"{down}.weight"]
            parameters[f"{adapter}.down.bias"][:size] = tensors[f"{down}.bias"]
            parameters[f"{adapter}.up.weight"][:, :size] = scaled
            parameters[f"{adapter}.up.bias"].copy_(tensors[f"{up}.bias"] * scale)
        return method, parameters

    def _flexible_head(self, head: FlexibleHead, name: str) -> tuple[HeadSpec, dict[str, str]]:
        """The head, and the stored names of its tensors by ours."""
        spec = self._spec(head)
        positions = {OUTPUT: FIRST_LINEAR}
        if head.layers == 2:
            positions = {OUTPUT: SECOND_LINEAR, DENSE: FIRST_LINEAR}
        names = {
            f"{ours}.{part}": f"heads.{name}.{position}.{part}"
            for ours, position in positions.items()
            for part in ("weight", "bias")
        }
        return spec, names

    def _class_head(self, file: HeadFile) -> tuple[HeadSpec, dict[str, str]]:
        kind = layout.kind_of_class(file.model_class)
        if kind is None:
            raise self._other_head(f"its head belongs to {file.model_class[:80]!r}")
        if file.num_labels is None:
            raise self.checkpoint.invalid("its head_config.json has no num_labels")
        spec = layout.head_spec(kind, self.backbone.config, num_outputs=file.num_labels)
        held = layout.ClassLayout(self.backbone.config, kind)
        of_base = f"{held.family.encoder}."
        return spec, {
            ours: it for ours, it in held.head_names.items() if not it.startswith(of_base)
        }

    def _problem_type(self, head: HeadSpec, flexible: FlexibleHead | None) -> ProblemType | None:
        if head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
            return None
        if flexible is None:
            usual = layout.usual_problem_type(head)
        elif flexible.head_type == "multilabel_classification":
            usual = ProblemType.MULTI_LABEL
        else:
            usual = ProblemType.REGRESSION if head.num_labels == 1 else ProblemType.SINGLE_LABEL
        return self.named_problem_type or usual

    def _head_parameters(
        self, head: HeadSpec, names: Mapping[str, str], tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The stored tensors of a head. A dense layer without a name is the backbone's pooler."""
        shapes = head_shapes(head, self.backbone.config)
        expected = {names[it]: shapes[it] for it in shapes if it in names}
        self.checkpoint.check_tensors(tensors, expected)
        pooler = {} if shapes.keys() <= names.keys() else self._pooler_parameters()
        return {it: tensors[names[it]] if it in names else pooler[it] for it in shapes}

    def _pooler_parameters(self) -> dict[str, Tensor]:
        pooler = self.backbone.pooler
        if pooler is None or pooler.bias is None:
            difference = "the head reads the pooler of its base, and this backbone has none"
            raise self.checkpoint.foreign(self.backbone, difference)
        return {
            f"{DENSE}.weight": pooler.weight.to("cpu", torch.float32, copy=True),
            f"{DENSE}.bias": pooler.bias.to("cpu", torch.float32, copy=True),
        }

    def _spec(self, head: FlexibleHead) -> HeadSpec:
        kind = HEAD_TYPES.get(head.head_type)
        if kind is None:
            raise self._other_head(f"its head is of type {head.head_type[:80]!r}")
        named = f"its {head.head_type} head has"
        most = 2 if kind is HeadKind.SEQUENCE_CLASSIFICATION else 1
        if not 1 <= head.layers + head.use_pooler <= most or head.layers < 1:
            pooler = " over the pooler" if head.use_pooler else ""
            raise self._other_head(f"{named} {head.layers} layers{pooler}")
        if head.layers == 2 and head.activation_function != "tanh":
            raise self._other_head(f"its head activates by {head.activation_function!r}")
        if not head.bias:
            raise self._other_head("its head has no offset (bias)")
        if kind.fixed_outputs not in {None, head.num_labels}:
            raise self._other_head(f"{named} {head.num_labels} outputs")
        if kind.reads_tokens:
            return HeadSpec(kind=kind, num_labels=head.num_labels)
        dense = head.layers == 2 or head.use_pooler
        return HeadSpec(kind=kind, num_labels=head.num_labels, pooling=Pooling.FIRST, dense=dense)

    def _other_head(self, found: str) -> NunatakError:
        return self.checkpoint.refuse(
            found,
            "expected a head for classification, tagging or question answering, of one linear map "
            "or, for classification, two with tanh between them",
        )


def _shapes(config: BottleneckConfig, size: int, width: int) -> dict[str, tuple[int, ...]]:
    """The stored tensors of one adapter."""
    shapes: dict[str, tuple[int, ...]] = {
        "adapter_down.0.weight": (size, width),
        "adapter_down.0.bias": (size,),
        "adapter_up.weight": (width, size),
        "adapter_up.bias": (width,),
    }
    if isinstance(config.scaling, str):
        shapes["scaling"] = (1 if config.scaling == Scaling.LEARNED else width,)
    return shapes


def _method(config: BottleneckConfig, *, size: int, first_layer: int) -> Bottleneck:
    if config.mh_adapter and config.output_adapter:
        blocks = AdaptedBlocks.BOTH
    else:
        blocks = AdaptedBlocks.ATTENTION if config.mh_adapter else AdaptedBlocks.FEEDFORWARD
    return Bottleneck(
        blocks=blocks,
        reads=AdapterInput.NORMED_SUM if config.original_ln_before else AdapterInput.BLOCK,
        activation=ACTIVATIONS[config.non_linearity.lower()],
        norms=Norms.FROZEN,
        size=size,
        first_layer=first_layer,
    )
