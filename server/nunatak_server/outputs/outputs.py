"""Outputs: the logits of an input's rows become its answer, by the kind of the head.

The model reads each window of a long text as if the window were a whole text. The logits of the
text follow from the logits of its windows:

- several labels: each label gets its largest logit, because one place in a text is enough;
- one label with a default label that means "nothing found": the window in which another label is
  most likely, because one window with a finding is enough;
- one label without a default: the mean of the probabilities;
- a value: the mean;
- the score of a document: the best window (MaxP, Dai and Callan 2019, arXiv:1905.09217).

Windows overlap by half, so the last window is more than half full. A mean weighted by tokens would
differ little, and the plain mean is easier to check.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final, NotRequired, TypedDict, assert_never

from nunatak_contract.enums import FunctionToApply, HeadKind, OnLong, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input, Parameters, Query, Question
from nunatak_contract.wire import PredictedValue
from nunatak_model import Alignment, Encoding
from nunatak_server.outputs.entities import (
    AnswerScore,
    Entity,
    Join,
    SpanWindow,
    Window,
    best_answers,
    find_entities,
)
from nunatak_server.tokenization import Encodings, Reading, default_stride

Logits = Sequence[float]

MAX_LOGITS_ON_LOOP: Final = 500
"""Most logits whose outputs are made on the event loop, in about a millisecond."""
SPANS_PER_LOGIT: Final = 4
"""Number of spans that take the time of one logit."""
LOGITS_PER_ROW: Final = 8
"""Number of logits that take the time of a row, whatever its number of logits."""
CONTEXT: Final = 1
"""Index of the context in the pair of question and context."""
DEFAULT_OPTIONS: Final = Parameters()


def apply_function(function: FunctionToApply, logits: Logits) -> list[float]:
    """Turn logits that belong together into scores; softmax makes them a distribution."""
    match function:
        case FunctionToApply.SOFTMAX:
            return softmax(logits)
        case FunctionToApply.SIGMOID:
            return [_sigmoid(logit) for logit in logits]
        case FunctionToApply.NONE:
            return list(logits)
        case _:
            assert_never(function)


def softmax(logits: Logits) -> list[float]:
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def _sigmoid(logit: float) -> float:
    # exp never overflows for a non-positive argument.
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    weight = math.exp(logit)
    return weight / (1 + weight)


class LabelScore(TypedDict):
    label: str
    score: float


def label_scores(
    logits: Logits, head: HeadRecord, options: Parameters
) -> tuple[list[LabelScore], PredictedValue]:
    """Return the labels by score, best first, and what is predicted, whatever the options."""
    default = default_function(head.problem_type)
    function = options.function_to_apply or default
    own = apply_function(default, logits)
    scores = own if function is default else apply_function(function, logits)
    ranked = sorted(zip(head.labels, scores, strict=True), key=lambda pair: -pair[1])
    shown = [LabelScore(label=label, score=score) for label, score in ranked[: options.top_k]]
    return shown, predicted_of(logits, own, head)


def default_function(problem_type: ProblemType | None) -> FunctionToApply:
    match problem_type:
        case ProblemType.SINGLE_LABEL | None:
            return FunctionToApply.SOFTMAX
        case ProblemType.MULTI_LABEL:
            return FunctionToApply.SIGMOID
        case ProblemType.REGRESSION:
            return FunctionToApply.NONE


def predicted_of(logits: Logits, scores: Sequence[float], head: HeadRecord) -> PredictedValue:
    """Return the best label, all labels that reach their thresholds, or the value.

    `scores` are those of the default function.
    """
    match head.problem_type:
        case ProblemType.REGRESSION:
            return logits[0]
        case ProblemType.MULTI_LABEL:
            scored = zip(head.labels, scores, strict=True)
            found = [it for it in scored if it[1] >= head.threshold(it[0])]
            return tuple(label for label, _ in sorted(found, key=lambda it: -it[1]))
        case ProblemType.SINGLE_LABEL | None:
            return head.labels[logits.index(max(logits))]


class DocumentScore(TypedDict):
    """One document by its position in the query, with its text only on request."""

    index: int
    score: float
    document: NotRequired[str]


def rank_documents(
    logits: Logits,
    documents: Sequence[str],
    *,
    default: FunctionToApply = FunctionToApply.SIGMOID,
    options: Parameters,
) -> list[DocumentScore]:
    """Return the documents by logit, best first; ties keep the order of the query."""
    scores = apply_function(options.function_to_apply or default, logits)
    # Sorted by logits, because scores of large logits round to the same number.
    order = sorted(range(len(documents)), key=lambda index: -logits[index])
    ranked: list[DocumentScore] = []
    for index in order[: options.top_k]:
        found = DocumentScore(index=index, score=scores[index])
        if options.return_documents:
            found["document"] = documents[index]
        ranked.append(found)
    return ranked


Output = list[LabelScore] | list[Entity] | list[AnswerScore] | list[DocumentScore]
"""The answer of one task to one input, by the kind of the head."""


def reading_of(manifest: TaskManifest, options: Parameters) -> Reading:
    """Return how a task reads its inputs; tasks that refuse or cut long texts read alike."""
    read = partial(
        Reading,
        max_length=manifest.max_length,
        backbone=manifest.backbone.digest,
        is_literal=options.is_literal,
    )
    match manifest.head.kind:
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.RANKING:
            is_windowed = on_long_of(manifest, options) is OnLong.WINDOWS
            stride = default_stride(manifest.max_length) if is_windowed else None
            return read(stride=stride)
        case HeadKind.TOKEN_CLASSIFICATION:
            stride = options.stride
        case HeadKind.QUESTION_ANSWERING:
            stride = options.doc_stride
    if stride is None:
        stride = default_stride(manifest.max_length)
    return read(stride=stride, is_aligned=True)


def on_long_of(manifest: TaskManifest, options: Parameters) -> OnLong:
    if manifest.head.kind.reads_tokens:
        return OnLong.WINDOWS
    return options.on_long or manifest.reads_long


def work_of(head: HeadRecord, read: Sequence[Encodings], *, options: Parameters) -> int:
    if not head.kind.reads_tokens:
        return (LOGITS_PER_ROW + head.num_outputs) * sum(map(len, read))
    sizes = [encoding.num_tokens for encodings in read for encoding in encodings]
    num_logits = head.num_outputs * sum(sizes)
    if head.kind is not HeadKind.QUESTION_ANSWERING:
        return num_logits
    num_spans = sum(size * min(size, options.max_answer_len) for size in sizes)
    return num_logits + num_spans // SPANS_PER_LOGIT


def outputs_of(
    head: HeadRecord,
    inputs: Sequence[Input],
    read: Sequence[Encodings],
    logits: Iterable[Logits],
    *,
    options: Parameters,
    join: Join,
) -> tuple[tuple[Output, ...], tuple[PredictedValue, ...] | None]:
    """Return a head's output for each input, and what a sequence classification predicts.

    `read` holds the encodings of each input. `logits` yields one row for each encoding of all
    inputs, in order: token after token if the head reads tokens. A row is taken when the row before
    it is done.
    """
    rows = iter(logits)
    found = [
        _output(head, item, encodings, islice(rows, len(encodings)), options, join)
        for item, encodings in zip(inputs, read, strict=True)
    ]
    predicted = tuple(it for _, it in found if it is not None)
    classifies = head.kind is HeadKind.SEQUENCE_CLASSIFICATION
    return tuple(output for output, _ in found), predicted if classifies else None


def _output(
    head: HeadRecord,
    item: Input,
    encodings: Encodings,
    logits: Iterable[Logits],
    options: Parameters,
    join: Join,
) -> tuple[Output, PredictedValue | None]:
    rows = zip(encodings, logits, strict=True)
    match head.kind, item:
        case HeadKind.TOKEN_CLASSIFICATION, str():
            windows = (window_of(*it) for it in rows)
            return find_entities(windows, labels=head.labels, join=join, options=options), None
        case HeadKind.QUESTION_ANSWERING, Question():
            spans = (span_window_of(*it) for it in rows)
            return best_answers(spans, item.context, options=options), None
        case HeadKind.RANKING, Query():
            scores = [combine_windows(it, head)[0] for it in _by_text(encodings, logits)]
            default = FunctionToApply(head.score.value)
            return rank_documents(scores, item.documents, default=default, options=options), None
        case HeadKind.SEQUENCE_CLASSIFICATION, str() | tuple():
            return label_scores(combine_windows(list(logits), head), head, options)
        case _:
            raise AssertionError(f"a {head.kind} head cannot answer this kind of input")


def window_of(encoding: Encoding, logits: Logits) -> Window:
    width = len(logits) // encoding.num_tokens
    rows = (logits[begin : begin + width] for begin in range(0, len(logits), width))
    return Window(alignment=_aligned(encoding), scores=tuple(map(softmax, rows)))


def span_window_of(encoding: Encoding, logits: Logits) -> SpanWindow:
    alignment = _aligned(encoding)
    tokens = [0, *(token for token, text in enumerate(alignment.text_ids) if text == CONTEXT)]
    starts, ends = (
        dict(zip(tokens, softmax([logits[2 * token + side] for token in tokens]), strict=True))
        for side in (0, 1)
    )
    return SpanWindow(alignment=alignment, starts=starts, ends=ends)


def _aligned(encoding: Encoding) -> Alignment:
    assert encoding.alignment is not None, "heads that read tokens need alignments"  # noqa: S101
    return encoding.alignment


def _by_text(encodings: Encodings, logits: Iterable[Logits]) -> list[list[Logits]]:
    found: list[list[Logits]] = []
    for encoding, row in zip(encodings, logits, strict=True):
        if encoding.part.index == 0:
            found.append([])
        found[-1].append(row)
    return found


def combine_windows(windows: Sequence[Logits], head: HeadRecord) -> Logits:
    if len(windows) == 1:
        return windows[0]
    match head.problem_type:
        case ProblemType.MULTI_LABEL | None:
            return list(map(max, zip(*windows, strict=True)))
        case ProblemType.REGRESSION:
            return [sum(values) / len(windows) for values in zip(*windows, strict=True)]
        case ProblemType.SINGLE_LABEL if head.default_label is not None:
            default = head.labels.index(head.default_label)
            return max(windows, key=lambda logits: _strongest_finding(logits, default))
        case ProblemType.SINGLE_LABEL:
            return _log_mean(windows)


def _strongest_finding(logits: Logits, default: int) -> float:
    """Return the log-odds of the best label other than the default; they do not round to 1."""
    others = [logit for label, logit in enumerate(logits) if label != default]
    best = max(others)
    others.remove(best)
    return best - _log_sum([*others, logits[default]])


def _log_mean(windows: Sequence[Logits]) -> list[float]:
    """Return the logarithms of the mean probabilities, without underflow."""
    totals = [_log_sum(logits) for logits in windows]
    logs = [
        [logit - total for logit in logits] for logits, total in zip(windows, totals, strict=True)
    ]
    return [_log_sum(values) - math.log(len(windows)) for values in zip(*logs, strict=True)]


def _log_sum(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(sum(math.exp(value - largest) for value in values))
