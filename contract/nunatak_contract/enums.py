"""The closed sets of words that manifests, requests and commands share."""

from enum import StrEnum


class UnknownQuestions(StrEnum):
    """What answers a question without a card."""

    REFUSE = "refuse"
    EMBEDDINGS = "embeddings"
    UPSTREAM = "upstream"


class HeadKind(StrEnum):
    """The kind of prediction of a head."""

    SEQUENCE_CLASSIFICATION = "sequence_classification"
    TOKEN_CLASSIFICATION = "token_classification"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "question_answering"
    RANKING = "ranking"

    @property
    def reads_tokens(self) -> bool:
        """Whether the head gives logits for every token, and not once for a text."""
        return self in {HeadKind.TOKEN_CLASSIFICATION, HeadKind.QUESTION_ANSWERING}

    @property
    def fixed_outputs(self) -> int | None:
        """The number of outputs, if the kind fixes it: start and end, or one score."""
        match self:
            case HeadKind.QUESTION_ANSWERING:
                return 2
            case HeadKind.RANKING:
                return 1
            case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.TOKEN_CLASSIFICATION:
                return None


class ProblemType(StrEnum):
    """The kind of sequence classification (names as in transformers' `problem_type`)."""

    SINGLE_LABEL = "single_label_classification"
    MULTI_LABEL = "multi_label_classification"
    REGRESSION = "regression"


class OnLong(StrEnum):
    """The treatment of a text with more tokens than a task reads at once."""

    WINDOWS = "windows"
    REFUSE = "refuse"
    CUT = "cut"


class Reads(StrEnum):
    """The texts that a sequence classification reads for one answer."""

    SINGLE = "single"
    PAIR = "pair"


class RankingScore(StrEnum):
    """The function from a document's logit to its score (names as in `function_to_apply`)."""

    SIGMOID = "sigmoid"
    NONE = "none"


class IntervalMethod(StrEnum):
    """How the interval of a score was found."""

    WILSON = "wilson"
    """The interval of a proportion (Wilson 1927)."""
    BOOTSTRAP = "bootstrap"
    """From resamples of the examples."""


class Pooling(StrEnum):
    """How the token vectors of a text become one vector."""

    MEAN = "mean"
    FIRST = "first"
    LAST = "last"
    LATE = "late"
    """The mean of the logits of all tokens, for heads alone."""


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
    """The blocks of a layer that have a bottleneck adapter."""

    BOTH = "both"
    ATTENTION = "attention"
    FEEDFORWARD = "feedforward"


class AdapterInput(StrEnum):
    """The input of a block's bottleneck adapter."""

    BLOCK = "block"
    """The block's output, before the residual addition (Houlsby et al. 2019, He et al. 2021)."""
    NORMED_SUM = "normed_sum"
    """The norm of block and residual. The norm runs again over the adapted sum (Pfeiffer et al.
    2020, as AdapterHub computes it)."""


class Norms(StrEnum):
    """The owner of the layer norms after adapted blocks."""

    OWN = "own"
    """The task owns the norms, which are trained with the adapters."""
    FROZEN = "frozen"
    """The norms are the backbone's."""


class TensorDtype(StrEnum):
    """Number format of the stored parameters, in safetensors' spelling of torch's names."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class ServingDtype(StrEnum):
    """Number format of the forward pass; `auto` is bfloat16 on CUDA devices that compute it."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Kernels(StrEnum):
    """The operations of the forward pass: the fastest of the device, or torch's own alone."""

    AUTO = "auto"
    PLAIN = "plain"


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
    """The rule that joins labelled tokens (names as in transformers' pipelines)."""

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"
    WORD = "word"


class CandidateRole(StrEnum):
    """A version next to an alias either answers a share of the requests or runs unseen."""

    CANARY = "canary"
    SHADOW = "shadow"


class StreamEventKind(StrEnum):
    """The kind of an event of a stream of verdicts."""

    TEXT = "text"
    """Judged text, to show as it is."""
    MASK = "mask"
    """The label of a masked part, to show in the part's place."""
    VERDICT = "verdict"
    ERROR = "error"
    """There is no verdict; treat the text as blocked."""


class VerdictAction(StrEnum):
    """What to do with a text, from the weakest to the strongest."""

    ALLOW = "allow"
    FLAG = "flag"
    """Let the text through, and report it."""
    MASK = "mask"
    """Let the text through without the parts that were found."""
    BLOCK = "block"

    @property
    def strength(self) -> int:
        """The position in the order from the weakest to the strongest."""
        return list(VerdictAction).index(self)


class PolicyMode(StrEnum):
    """Whether the decision of a policy counts, or is only reported."""

    ENFORCE = "enforce"
    DRY_RUN = "dry_run"


class OnFailure(StrEnum):
    """The decision while a task that could change the decision has no answer."""

    BLOCK = "block"
    ALLOW = "allow"


class Combine(StrEnum):
    """How many conditions of a rule must hold."""

    ANY = "any"
    ALL = "all"


class ModerationCategory(StrEnum):
    """The categories of OpenAI's moderations."""

    HARASSMENT = "harassment"
    HARASSMENT_THREATENING = "harassment/threatening"
    HATE = "hate"
    HATE_THREATENING = "hate/threatening"
    ILLICIT = "illicit"
    ILLICIT_VIOLENT = "illicit/violent"
    SELF_HARM = "self-harm"
    SELF_HARM_INSTRUCTIONS = "self-harm/instructions"
    SELF_HARM_INTENT = "self-harm/intent"
    SEXUAL = "sexual"
    SEXUAL_MINORS = "sexual/minors"
    VIOLENCE = "violence"
    VIOLENCE_GRAPHIC = "violence/graphic"


class UnjudgedPart(StrEnum):
    """Parts of a request to a language model that no task reads (the first as in LiteLLM)."""

    IMAGES = "images"
    TOOLS = "tools"
    TOOL_CALLS = "tool_calls"
    FILES = "files"
    AUDIO = "audio"
    TURNS = "turns"
    """Texts of one role with other roles between, as one text."""
    OTHER = "other"
    UNREAD = "unread"
    """Characters of a text for which a task has no token."""
