"""Policies and answers of tasks, written by hand."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from nunatak_contract.enums import Combine, HeadKind, Pooling, UnjudgedPart, VerdictAction
from nunatak_contract.heads import HeadRecord
from nunatak_contract.policies import Condition, Policy, Rule
from nunatak_model import Encoding
from nunatak_model.text.encoding import Alignment, Part
from nunatak_server.outputs.conditions import ConditionState, FoundSpan, states_of
from nunatak_server.predict.types import TaskPrediction
from nunatak_server.tokenization import Encodings, extent_of
from nunatak_server.verdicts.patterns import matches_in
from nunatak_server.verdicts.rules import Answers, TextDecision, decisions

Scores = Mapping[str, float]
UNREAD_PASSES = frozenset({UnjudgedPart.UNREAD})
"""Characters without tokens are let pass."""
SYMBOLS = "\U0001f300" * 100
"""A text of symbols: no word is larger than a span."""


def when(task: str, *labels: str, threshold: float | None = None) -> Condition:
    return Condition(task=task, labels=labels, threshold=threshold)


def make_rule(
    *conditions: Condition,
    name: str = "first",
    action: VerdictAction = VerdictAction.BLOCK,
    combine: Combine = Combine.ANY,
    **fields: Any,  # noqa: ANN401 - fields of a rule
) -> Rule:
    return Rule(name=name, conditions=conditions, action=action, combine=combine, **fields)


def decide(policy: Policy, answers: Answers, texts: Sequence[str]) -> tuple[TextDecision, ...]:
    """Return the decision about each text by answers, and by what the policy's patterns match."""
    matches = [matches_in(policy.patterns, it) for it in texts]
    return tuple(decisions(policy, answers, texts, matches))


def make_policy(*rules: Rule, name: str = "guard", **fields: Any) -> Policy:  # noqa: ANN401 - fields of a policy
    return Policy(name=name, rules=rules, **fields)


def classifier(*labels: str, **fields: Any) -> HeadRecord:  # noqa: ANN401 - fields of a head
    return HeadRecord(labels=labels, pooling=Pooling.MEAN, dense=False, **fields)


def tagger(*labels: str) -> HeadRecord:
    return HeadRecord(
        kind=HeadKind.TOKEN_CLASSIFICATION,
        problem_type=None,
        labels=labels,
        pooling=None,
        dense=False,
    )


class AnyStates(dict[Condition, ConditionState]):
    """The states of whatever conditions are asked for, from the logits of a text's windows."""

    def __init__(
        self, head: HeadRecord, text: str, windows: Encodings, logits: Sequence[Sequence[float]]
    ) -> None:
        super().__init__()
        self.windows = windows
        self._asked = head, text, logits

    def __missing__(self, condition: Condition) -> ConditionState:
        head, text, logits = self._asked
        (states,) = states_of(head, [condition], (text,), [self.windows], logits)
        return states[condition]

    def get(self, condition: Condition, default: Any = None) -> ConditionState:  # noqa: ANN401
        return self[condition]


def answered(task: str, head: HeadRecord, *texts: AnyStates, version: int = 1) -> TaskPrediction:
    return TaskPrediction(
        reference=task,
        task=task,
        version=version,
        head=head.kind,
        problem_type=head.problem_type,
        labels=head.labels,
        states=texts,
        extents=tuple(extent_of(it.windows) for it in texts),
    )


def windowed(head: HeadRecord, *windows: Sequence[float], num_unread: int = 0) -> AnyStates:
    """Return what the windows of one text say, by the logits of each window."""
    encodings = tuple(
        Encoding(
            token_ids=(index,),
            type_ids=(0,),
            part=Part(index=index, num_unread=0 if index else num_unread),
        )
        for index in range(len(windows))
    )
    return AnyStates(head, SYMBOLS, encodings, windows)


def scored(task: str, *texts: Scores, version: int = 1, num_unread: int = 0) -> TaskPrediction:
    """Return the answer of a task with one label per text; the scores of each text by label."""
    head = classifier(*texts[0])
    logits = ([math.log(max(it, 1e-300)) for it in scores.values()] for scores in texts)
    states = (windowed(head, row, num_unread=num_unread) for row in logits)
    return answered(task, head, *states, version=version)


def tagged_window(
    head: HeadRecord,
    places: Sequence[tuple[int, int]],
    rows: Sequence[Sequence[float]],
    *,
    index: int,
) -> tuple[Encoding, list[float]]:
    """Return a window with one token at each place, and its logits token after token."""
    tokens = tuple(range(len(places)))
    alignment = Alignment(
        tokens=("",) * len(places),
        offsets=tuple(places),
        text_ids=(0,) * len(places),
        word_ids=tokens,
        continues_word=(False,) * len(places),
    )
    encoding = Encoding(
        token_ids=tokens, type_ids=(0,) * len(places), alignment=alignment, part=Part(index=index)
    )
    assert all(len(row) == len(head.labels) for row in rows)
    return encoding, list(chain.from_iterable(rows))


def spanned(
    task: str, *texts: Sequence[FoundSpan], labels: Sequence[str] = ("O", "B-NAME", "I-NAME")
) -> TaskPrediction:
    """Return the answer of a token classification with one token for each span."""
    head = tagger(*labels)
    states = list[AnyStates]()
    for spans in texts:
        rows = [[9.0 if label == f"B-{it.label}" else 0.0 for label in labels] for it in spans]
        places = [(it.start, it.end) for it in spans]
        # A last token stands for no character, like the special tokens of a real window.
        rows.append([0.0] * len(labels))
        window, logits = tagged_window(head, [*places, (0, 0)], rows, index=0)
        states.append(AnyStates(head, SYMBOLS, (window,), [logits]))
    return answered(task, head, *states)


def span(start: int, end: int, label: str = "NAME") -> FoundSpan:
    return FoundSpan(start=start, end=end, label=label)
