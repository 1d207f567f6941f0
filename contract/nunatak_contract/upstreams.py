"""How an upstream is asked and read: the protocols of System One and of OpenAI's decisions.

A question that a protocol cannot say without a change is not asked. An answer counts only if all of
it fits its question: the same ids, type and outcomes, and probabilities that sum to 1.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from pydantic import TypeAdapter

from nunatak_contract.questions import TypedQuestion

CALL_HEADERS: Final = {"accept-encoding": "identity", "connection": "close"}
"""Of a call. What follows a reply on a kept connection would be the reply to the next call."""
MAX_REPLY_BYTES: Final = 8 * 1024**2
MAX_SUM_ERROR, MAX_ROUNDING = 0.05, 0.005
"""How far probabilities may be from a sum of 1, and from their rounding (jevcompat 0.1)."""

_JSON: Final = TypeAdapter[Any](Any)
Said: TypeAlias = dict[str, Any]
Shares: TypeAlias = tuple[float, ...]


class UnusableReplyError(Exception):
    """The reply of an upstream is no answer. The message repeats nothing of the reply."""


class ReplyBody(bytearray):
    """The body of a reply that may be broken or hostile, gathered within a bound of bytes.

    Raises:
        UnusableReplyError: a compressed body, or more than `max_bytes`.
    """

    def __init__(self, headers: Mapping[str, str], *, max_bytes: int = MAX_REPLY_BYTES) -> None:
        super().__init__()
        # A small compressed part can become gigabytes before anybody can count them.
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnusableReplyError("its reply is compressed")
        self._max_bytes = max_bytes

    def take(self, part: bytes) -> None:
        """Add a part."""
        self += part
        if len(self) > self._max_bytes:
            raise UnusableReplyError(f"its reply has more than {self._max_bytes} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamProtocol:
    """One protocol, by pure functions. Questions have the ids `q0`, `q1` and so on."""

    name: str
    say: Callable[[TypedQuestion], Said | None]
    """Returns a question as the protocol has it, or None: it cannot say this question."""
    body: Callable[[str, str, Sequence[Said]], Said]
    """Returns the request of a model, a text and questions."""
    read: Callable[[TypedQuestion, Any], Shares | None]
    """Returns the probabilities of a question's outcomes, or None: the upstream refused it."""


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


def _read_system_one(question: TypedQuestion, answer: Any) -> Shares:  # noqa: ANN401 - JSON
    match question.type, answer:
        case "predicate", {"type": "noul", "noul": share}:
            return _shares(question, [(False, 1 - _share(share)), (True, share)])
        case "choice", {"type": "choice", "choice": best, "probabilities": found}:
            return _likeliest(best, question, _shares(question, found.items()))
        case "score", {"type": "score", "score": score, "legend": legend, "probabilities": found}:
            places = {str(it): it for it in question.outcomes}
            labels = {str(at): it.label for at, it in enumerate(question.levels)}
            # JSON may come back as a text.
            named = {at: it if isinstance(it, str) else legend.get(at) for at, it in labels.items()}
            if legend != named:
                raise UnusableReplyError("it names other levels")
            pairs = [(places.get(at, at), share) for at, share in found.items()]
            return _expected(score, _shares(question, pairs))
        case _:
            raise UnusableReplyError("it has another form than the question")


def _read_openai(question: TypedQuestion, answer: Any) -> Shares | None:  # noqa: ANN401 - JSON
    match question.type, answer:
        case _, {"type": "refusal"}:
            return None
        case "predicate", {"type": "predicate", "probability": share}:
            return _shares(question, [(False, 1 - _share(share)), (True, share)])
        case "choice", {"type": "choice", "choice": best, "probabilities": found}:
            pairs = [(it["value"], it["probability"]) for it in found]
            return _likeliest(best, question, _shares(question, pairs))
        case "score", {"type": "score", "score": score, "probabilities": found}:
            named = {it["value"]: it["label"] for it in found}
            if named != {at: it.label for at, it in enumerate(question.levels)}:
                raise UnusableReplyError("it names other levels")
            pairs = [(it["value"], it["probability"]) for it in found]
            return _expected(score, _shares(question, pairs))
        case _:
            raise UnusableReplyError("it has another form than the question")


def read_reply(
    protocol: UpstreamProtocol, data: bytes, questions: Sequence[TypedQuestion]
) -> list[Shares | None]:
    """Return the probabilities of each question's outcomes, or None: the upstream refused it.

    Raises:
        UnusableReplyError: some of the reply does not fit its question.
    """
    names = [f"q{it}" for it in range(len(questions))]
    try:
        found = _JSON.validate_json(data)["answers"]
        if isinstance(found, list):
            found = [(it["name"], it) for it in cast("list[Any]", found)]
        else:
            found = sorted(found.items(), key=lambda it: int(it[0][1:]))
        if [name for name, _ in found] != names:
            raise UnusableReplyError("it answers other questions")
        return [protocol.read(it, said) for it, (_, said) in zip(questions, found, strict=True)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A message may have words of the reply.
        problem = type(error).__name__
        raise UnusableReplyError(f"it does not follow the protocol ({problem})") from None


def _share(value: object) -> float:
    """Return a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UnusableReplyError("a probability is no number from 0 to 1")
    return value


def _key(outcome: object) -> tuple[type, object]:
    """Return an outcome with its type, because 1 equals true."""
    return type(outcome), outcome


def _shares(question: TypedQuestion, pairs: Iterable[tuple[Any, Any]]) -> Shares:
    """Return the shares of all outcomes in the order of the question."""
    given = [(_key(it), _share(share)) for it, share in pairs]
    found, keys = dict(given), [_key(it) for it in question.outcomes]
    if len(given) != len(keys) or found.keys() != set(keys):
        raise UnusableReplyError("it has other options than the question")
    shares = [found[it] for it in keys]
    total = math.fsum(shares)
    if abs(total - 1) > MAX_SUM_ERROR:
        raise UnusableReplyError("its probabilities do not sum to 1")
    return tuple(share / total for share in shares)


def _likeliest(choice: object, question: TypedQuestion, shares: Shares) -> Shares:
    """Return the shares, if the choice has the largest one."""
    found = dict(zip(map(_key, question.outcomes), shares, strict=True))
    if max(shares) - found.get(_key(choice), -1) > MAX_ROUNDING:
        raise UnusableReplyError("its choice is not its likeliest option")
    return shares


def _expected(score: Any, shares: Shares) -> Shares:  # noqa: ANN401 - JSON
    """Return the shares, if the score is their expectation."""
    expected = math.fsum(place * share for place, share in enumerate(shares))
    distance = math.nan if isinstance(score, bool) else abs(score - expected)
    # NaN is neither above nor below a limit.
    if not distance <= MAX_SUM_ERROR * (len(shares) - 1):
        raise UnusableReplyError("its score is not that of its probabilities")
    return shares


def _body_of_system_one(model: str, text: str, questions: Sequence[Said]) -> Said:
    named = {f"q{at}": it for at, it in enumerate(questions)}
    return {"model": model, "state": text, "questions": named}


def _body_of_openai(model: str, text: str, questions: Sequence[Said]) -> Said:
    named = [{**it, "name": f"q{at}"} for at, it in enumerate(questions)]
    return {"model": model, "input": text, "questions": named}


PROTOCOLS: Final[Mapping[str, UpstreamProtocol]] = {
    "/v1/systemone": UpstreamProtocol(
        name="System One", say=_say_to_system_one, body=_body_of_system_one, read=_read_system_one
    ),
    "/v1/decisions": UpstreamProtocol(
        name="OpenAI", say=_say_to_openai, body=_body_of_openai, read=_read_openai
    ),
}
"""The protocols by the end of an upstream's path."""
