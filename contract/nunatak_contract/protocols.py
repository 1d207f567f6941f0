"""How an upstream is asked and read: the protocols of System One and of OpenAI's decisions.

A question that a protocol cannot say without a change is not asked. An answer counts only if all of
it fits its question: the same ids, type and outcomes, and probabilities that sum to 1.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Discriminator, Field, StrictBool, StrictInt, StrictStr, ValidationError

from nunatak_contract.questions import JsonText, Outcome, TypedQuestion
from nunatak_contract.record import Result

MAX_SUM_ERROR, MAX_ROUNDING = 0.05, 0.005
"""How far probabilities may be from a sum of 1, and from their rounding (jevcompat 0.1)."""

Said: TypeAlias = dict[str, Any]
Shares: TypeAlias = tuple[float, ...]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Place = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class UnusableReplyError(Exception):
    """The reply of an upstream is no answer. The message repeats nothing of the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One protocol, by pure functions. Questions have the ids `q0`, `q1` and so on."""

    name: str
    say: Callable[[TypedQuestion], Said | None]
    """Returns a question as the protocol has it, or None: it cannot say this question."""
    body: Callable[[str, str, Sequence[Said]], Said]
    """Returns the request of a model, a text and questions."""
    read: Callable[[bytes, Sequence[TypedQuestion]], Sequence[Shares | None]]
    """Returns the probabilities of each question's outcomes, or None: the upstream refused it.

    Raises `UnusableReplyError`.
    """


def _say_to_system_one(question: TypedQuestion) -> Said | None:
    criteria: object = None
    match question.type:
        case "predicate":
            sides = {"true": question.yes, "false": question.no}
            criteria = {name: it for name, it in sides.items() if it is not None} or None
        case "choice":
            if any(isinstance(it.value, bool) for it in question.options):
                return None
            criteria = {str(it.value): it.description for it in question.options}
        case "score":
            if any(it.description is not None for it in question.levels):
                return None
            criteria = [it.label for it in question.levels]
    said = {
        "type": "noul" if question.type == "predicate" else question.type,
        "instructions": question.instructions,
        "criteria": criteria,
    }
    return {name: it for name, it in said.items() if it is not None}


def _say_to_openai(question: TypedQuestion) -> Said | None:
    sides = (question.yes, question.no)
    plain = (it for it in question.texts if not isinstance(it, str))
    if question.instructions is None or sides != (None, None) or any(True for _ in plain):
        return None
    options = [it.model_dump(exclude_none=True) for it in question.options]
    levels = [it.model_dump(exclude_none=True) for it in question.levels]
    listed = {"choices": options, "levels": levels}
    given = {name: it for name, it in listed.items() if it}
    return {"type": question.type, "instructions": question.instructions, **given}


class _Noul(Result):
    type: Literal["noul"]
    noul: Share


class _NamedChoice(Result):
    type: Literal["choice"]
    choice: StrictStr
    probabilities: dict[StrictStr, Share]


class _NamedScore(Result):
    type: Literal["score"]
    score: Place
    legend: dict[StrictStr, JsonText]
    probabilities: dict[StrictStr, Share]


class _SystemOneReply(Result):
    answers: dict[str, Annotated[_Noul | _NamedChoice | _NamedScore, Discriminator("type")]]


class _Named(Result):
    name: StrictStr


class _Predicate(_Named):
    type: Literal["predicate"]
    probability: Share


class _OptionShare(Result):
    value: StrictBool | StrictStr
    probability: Share


class _Choice(_Named):
    type: Literal["choice"]
    choice: StrictBool | StrictStr
    probabilities: list[_OptionShare]


class _LevelShare(Result):
    value: StrictInt
    label: StrictStr
    probability: Share


class _Score(_Named):
    type: Literal["score"]
    score: Place
    probabilities: list[_LevelShare]


class _Refusal(_Named):
    type: Literal["refusal"]


class _OpenAIReply(Result):
    answers: list[Annotated[_Predicate | _Choice | _Score | _Refusal, Discriminator("type")]]


def _read_system_one(data: bytes, questions: Sequence[TypedQuestion]) -> Sequence[Shares | None]:
    found = _parsed(_SystemOneReply, data).answers
    if found.keys() != {f"q{it}" for it in range(len(questions))}:
        raise UnusableReplyError("it answers other questions")
    return [_named_shares(it, found[f"q{at}"]) for at, it in enumerate(questions)]


def _named_shares(question: TypedQuestion, answer: _Noul | _NamedChoice | _NamedScore) -> Shares:
    match question.type, answer:
        case "predicate", _Noul(noul=share):
            return (1 - share, share)
        case "choice", _NamedChoice(choice=best, probabilities=found):
            return _shares(question, found.items(), best=best)
        case "score", _NamedScore(score=score, legend=legend, probabilities=found):
            places = {str(it): it for it in question.outcomes}
            if not _is_legend(legend, [it.label for it in question.levels]):
                raise UnusableReplyError("it names other levels")
            pairs = [(places.get(name, name), share) for name, share in found.items()]
            return _shares(question, pairs, score=score)
        case _:
            raise UnusableReplyError("it has another type than the question")


def _is_legend(legend: Mapping[str, JsonText], labels: Sequence[JsonText]) -> bool:
    """Return whether a legend has these levels; JSON may come back as a text."""
    named = {str(at): label for at, label in enumerate(labels)}
    return legend.keys() == named.keys() and all(
        legend[at] == it or (isinstance(legend[at], str) and not isinstance(it, str))
        for at, it in named.items()
    )


def _read_openai(data: bytes, questions: Sequence[TypedQuestion]) -> Sequence[Shares | None]:
    found = _parsed(_OpenAIReply, data).answers
    if [it.name for it in found] != [f"q{it}" for it in range(len(questions))]:
        raise UnusableReplyError("it answers other questions")
    return [_listed_shares(*it) for it in zip(questions, found, strict=True)]


def _listed_shares(
    question: TypedQuestion, answer: _Predicate | _Choice | _Score | _Refusal
) -> Shares | None:
    match question.type, answer:
        case _, _Refusal():
            return None
        case "predicate", _Predicate(probability=share):
            return (1 - share, share)
        case "choice", _Choice(choice=best, probabilities=found):
            return _shares(question, [(it.value, it.probability) for it in found], best=best)
        case "score", _Score(score=score, probabilities=found):
            labels = {at: it.label for at, it in enumerate(question.levels)}
            if {it.value: it.label for it in found} != labels:
                raise UnusableReplyError("it names other levels")
            return _shares(question, [(it.value, it.probability) for it in found], score=score)
        case _:
            raise UnusableReplyError("it has another type than the question")


def _parsed(kind: type[Any], data: bytes) -> Any:  # noqa: ANN401 - an object of `kind`
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        # Places and messages may have words of the reply.
        problem = error.errors(include_url=False, include_input=False)[0]["type"]
        raise UnusableReplyError(f"it does not follow the protocol ({problem})") from None


def _shares(
    question: TypedQuestion,
    pairs: Iterable[tuple[Outcome, float]],
    *,
    best: Outcome | None = None,
    score: float | None = None,
) -> Shares:
    """Return the shares of all outcomes, if the rest of the answer agrees with them."""
    given = [((type(it), it), share) for it, share in pairs]
    found = dict(given)
    keys = [(type(it), it) for it in question.outcomes]
    if len(given) != len(keys) or found.keys() != set(keys):
        raise UnusableReplyError("it has other options than the question")
    shares = [found[it] for it in keys]
    total = math.fsum(shares)
    if abs(total - 1) > MAX_SUM_ERROR:
        raise UnusableReplyError("its probabilities do not sum to 1")
    if best is not None and max(shares) - found.get((type(best), best), -1) > MAX_ROUNDING:
        raise UnusableReplyError("its choice is not its likeliest option")
    expected = math.fsum(place * share for place, share in enumerate(shares))
    if score is not None and abs(score - expected) > MAX_SUM_ERROR * (len(shares) - 1):
        raise UnusableReplyError("its score is not that of its probabilities")
    return tuple(share / total for share in shares)


def _ask_system_one(model: str, text: str, questions: Sequence[Said]) -> Said:
    named = {f"q{at}": it for at, it in enumerate(questions)}
    return {"model": model, "state": text, "questions": named}


def _ask_openai(model: str, text: str, questions: Sequence[Said]) -> Said:
    named = [{**it, "name": f"q{at}"} for at, it in enumerate(questions)]
    return {"model": model, "input": text, "questions": named}


PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "/v1/systemone": Protocol(
        name="System One", say=_say_to_system_one, body=_ask_system_one, read=_read_system_one
    ),
    "/v1/decisions": Protocol(
        name="OpenAI", say=_say_to_openai, body=_ask_openai, read=_read_openai
    ),
}
"""The protocols by the end of an upstream's path."""
