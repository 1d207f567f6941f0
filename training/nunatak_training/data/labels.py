"""Labels: what an example says is true of its text, by the kind of task."""

from dataclasses import dataclass

from pydantic import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """All labels that apply to a text, sorted; maybe none."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One tagged word by its characters in the text."""

    begin: int
    end: int
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWords:
    """All words of a text, in order."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSpan:
    """One right answer by its characters in the context."""

    text: str
    begin: int

    @property
    def end(self) -> int:
        """One past its last character."""
        return self.begin + len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """All right answers to a question; none where the context does not answer it."""

    spans: tuple[AnswerSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relevance:
    """How well a document answers its query, among those of one group."""

    grade: float
    group: str


Label = str | float | LabelSet | TaggedWords | Answers | Relevance
"""One name; one value; several names; tags; answers; relevance."""


def label_json(label: Label) -> JsonValue:
    """Return a label as JSON, the same for the same label."""
    match label:
        case str() | float() | int():
            return label
        case LabelSet():
            return list(label.names)
        case TaggedWords():
            return [[word.begin, word.end, word.tag] for word in label.words]
        case Answers():
            return [[span.begin, span.text] for span in label.spans]
        case Relevance():
            return [label.grade, label.group]
