"""The closed sets of words that manifests, requests and commands share."""

from enum import StrEnum


class HeadKind(StrEnum):
    """What the head predicts."""

    SEQUENCE_CLASSIFICATION = "sequence_classification"
    TOKEN_CLASSIFICATION = "token_classification"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "question_answering"
    RANKING = "ranking"

    @property
    def reads_tokens(self) -> bool:
        """Whether logits are given for every token, rather than once for a text."""
        return self in {HeadKind.TOKEN_CLASSIFICATION, HeadKind.QUESTION_ANSWERING}

    @property
    def fixed_outputs(self) -> int | None:
        """The number of outputs where the kind decides it: start and end, or one score."""
        match self:
            case HeadKind.QUESTION_ANSWERING:
                return 2
            case HeadKind.RANKING:
                return 1
            case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.TOKEN_CLASSIFICATION:
                return None


class ProblemType(StrEnum):
    """What sequence classification predicts (names as in transformers' `problem_type`)."""

    SINGLE_LABEL = "single_label_classification"
    MULTI_LABEL = "multi_label_classification"
    REGRESSION = "regression"


class OnLong(StrEnum):
    """What becomes of a text of more tokens than a task reads at once."""

    WINDOWS = "windows"
    REFUSE = "refuse"
    CUT = "cut"


class Reads(StrEnum):
    """The texts that a sequence classification reads for one answer."""

    SINGLE = "single"
    PAIR = "pair"


class RankingScore(StrEnum):
    """What the logit of a document becomes (names as in requests' `function_to_apply`)."""

    SIGMOID = "sigmoid"
    NONE = "none"


class IntervalMethod(StrEnum):
    """How the interval of a score was found."""

    WILSON = "wilson"
    """Of a proportion (Wilson 1927)."""
    BOOTSTRAP = "bootstrap"
    """From resamples of the examples."""


class Pooling(StrEnum):
    """How the token vectors of a text become one vector."""

    MEAN = "mean"
    FIRST = "first"


class Activation(StrEnum):
    """Non-linearity of a layer, an adapter or a head's dense block (names as in transformers)."""

    GELU = "gelu"
    GELU_TANH = "gelu_new"
    RELU = "relu"
    TANH = "tanh"
    SILU = "silu"
    LEAKY_RELU = "leaky_relu"


class HeadNorm(StrEnum):
    """Layer norm of a head's dense block."""

    NONE = "none"
    GAIN = "gain"
    GAIN_AND_OFFSET = "gain_and_offset"


class MethodKind(StrEnum):
    """Names of the methods, as in manifests and on the command line."""

    TOPK = "topk"
    HEAD = "head"
    BOTTLENECK = "bottleneck"
    LORA = "lora"
    IA3 = "ia3"
    FULL = "full"


class LinearMap(StrEnum):
    """The linear maps of a layer, which methods may change."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUTPUT = "attention_output"
    FEEDFORWARD_IN = "feedforward_in"
    FEEDFORWARD_OUT = "feedforward_out"


class AdaptedBlocks(StrEnum):
    """Which blocks of a layer have a bottleneck adapter."""

    BOTH = "both"
    ATTENTION = "attention"
    FEEDFORWARD = "feedforward"


class AdapterInput(StrEnum):
    """What a bottleneck adapter of a block reads."""

    BLOCK = "block"
    """The block's output, before the residual addition (Houlsby et al. 2019, He et al. 2021)."""
    NORMED_SUM = "normed_sum"
    """The norm of block and residual, which is run again over the adapted sum (Pfeiffer et al.
    2020, as AdapterHub computes it)."""


class Norms(StrEnum):
    """Whose the layer norms after adapted blocks are."""

    OWN = "own"
    """The task's, trained with the adapters."""
    FROZEN = "frozen"
    """The backbone's."""


class TensorDtype(StrEnum):
    """Number format of the stored parameters, in safetensors' spelling of torch's names."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class ServingDtype(StrEnum):
    """Number format of the forward pass; `auto` is float32 on a CPU and bfloat16 on CUDA."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class ImportFormat(StrEnum):
    """The library that wrote a folder to import; `auto`: the files of the folder decide."""

    AUTO = "auto"
    TRANSFORMERS = "transformers"
    PEFT = "peft"
    ADAPTERHUB = "adapterhub"


class LogitUse(StrEnum):
    """The head for an imported model with one logit."""

    CLASSIFICATION = "classification"
    RANKING = "ranking"


class FunctionToApply(StrEnum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


class AggregationStrategy(StrEnum):
    """What becomes of labelled tokens that belong together."""

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"
    WORD = "word"


class CandidateRole(StrEnum):
    """What a version does next to an alias: answer a share of its requests, or run unseen."""

    CANARY = "canary"
    SHADOW = "shadow"
