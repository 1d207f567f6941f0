"""What tasks say about inputs: one class of results for each kind of head."""

from abc import abstractmethod
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from nunatak_client.errors import WrongHeadError


class Result(BaseModel):
    """Base of every answer; what the client does not know is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class HeadKind(StrEnum):
    """What a task predicts."""

    SEQUENCE_CLASSIFICATION = "sequence_classification"
    TOKEN_CLASSIFICATION = "token_classification"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "question_answering"
    RANKING = "ranking"


class Score(Result):
    """One label and its score (a probability, or the logit for `function_to_apply="none"`)."""

    label: str
    score: float


Scores = tuple[Score, ...]
"""The labels of one input, best first."""


class Entity(Result):
    """A labelled stretch of the text: one token or word, or an aggregated group of them."""

    label: str = Field(validation_alias=AliasChoices("entity", "entity_group", "label"))
    score: float
    word: str
    start: int
    end: int
    index: int | None = Field(default=None, description="of a single token or word")


Entities = tuple[Entity, ...]
"""The labelled parts of one text, in its order."""


class Answer(Result):
    """A part of the context by its characters; empty where the context has no answer."""

    answer: str
    score: float
    start: int
    end: int


Answers = tuple[Answer, ...]
"""The answers to one question, best first."""


class RankedDocument(Result):
    """One document by its position in the query; its text only if it was asked for."""

    index: int
    score: float
    document: str | None = None


Ranking = tuple[RankedDocument, ...]
"""The documents of one query, best first."""


class Classification(Result):
    """The answers of a sequence classification or regression task, one entry per input."""

    head: Literal[HeadKind.SEQUENCE_CLASSIFICATION] = HeadKind.SEQUENCE_CLASSIFICATION
    outputs: tuple[Annotated[Scores, Field(min_length=1)], ...]


class TokenClassification(Result):
    """The answers of a token classification task, one entry per text."""

    head: Literal[HeadKind.TOKEN_CLASSIFICATION] = HeadKind.TOKEN_CLASSIFICATION
    outputs: tuple[Entities, ...]


class QuestionAnswering(Result):
    """The answers of a question answering task, one entry per question."""

    head: Literal[HeadKind.QUESTION_ANSWERING] = HeadKind.QUESTION_ANSWERING
    outputs: tuple[Answers, ...]


class RankingOutputs(Result):
    """The answers of a ranking task, one entry per query."""

    head: Literal[HeadKind.RANKING] = HeadKind.RANKING
    outputs: tuple[Annotated[Ranking, Field(min_length=1)], ...]


Predicted = Annotated[
    Classification | TokenClassification | QuestionAnswering | RankingOutputs,
    Field(discriminator="head"),
]
"""What a task says; `match` on the class tells which kind of task it is."""


class Answered(Result):
    """Base of what holds predictions: the parts of the first input, by the kind of the task.

    Every property but `labels` is about the first input, and each raises `WrongHeadError` for a
    task of another kind.
    """

    tokens: tuple[int, ...] = ()
    """How many tokens of each input were read; empty from servers that do not tell it."""
    truncated: tuple[bool, ...] = ()
    """Of each input, whether a part of it was not read; empty from servers that do not tell it."""

    @property
    def is_truncated(self) -> bool:
        """Whether a part of any input was not read, as far as the server tells it."""
        return any(self.truncated)

    @abstractmethod
    def require(self) -> Predicted:
        """Return what the task says, or raise why it says nothing."""

    @property
    def scores(self) -> Scores:
        """Labels, best first."""
        return self._classification().outputs[0]

    @property
    def best(self) -> Score:
        """The best label, or the value of a regression."""
        return self.scores[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """The best label of every input."""
        return tuple(scores[0].label for scores in self._classification().outputs)

    @property
    def entities(self) -> Entities:
        """Labelled parts of the text, in its order."""
        match self.require():
            case TokenClassification() as found:
                return found.outputs[0]
            case other:
                raise WrongHeadError(other.head, HeadKind.TOKEN_CLASSIFICATION)

    @property
    def answers(self) -> Answers:
        """Answers to the question, best first; none where the context holds no words."""
        match self.require():
            case QuestionAnswering() as found:
                return found.outputs[0]
            case other:
                raise WrongHeadError(other.head, HeadKind.QUESTION_ANSWERING)

    @property
    def ranking(self) -> Ranking:
        """Documents of the query, best first."""
        match self.require():
            case RankingOutputs() as found:
                return found.outputs[0]
            case other:
                raise WrongHeadError(other.head, HeadKind.RANKING)

    def _classification(self) -> Classification:
        match self.require():
            case Classification() as found:
                return found
            case other:
                raise WrongHeadError(other.head, HeadKind.SEQUENCE_CLASSIFICATION)
