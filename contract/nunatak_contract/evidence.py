"""The origin and the evidence of a version: data, recipe, scores and a parity probe."""

from typing import Annotated

from pydantic import Field, FiniteFloat, JsonValue, model_validator

from nunatak_contract.enums import IntervalMethod
from nunatak_contract.heads import Label
from nunatak_contract.names import Digest
from nunatak_contract.record import Record

MAX_CONFUSION_CELLS = 100_000

ProbeText = Annotated[str, Field(max_length=4096)]
ProbeInput = ProbeText | tuple[ProbeText, ProbeText]
ProbeLogits = tuple[FiniteFloat, ...] | tuple[tuple[FiniteFloat, ...], ...]


class DataRecord(Record, frozen=True):
    """The examples that trained a version and chose its best epoch."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    train_digest: Digest
    dev_digest: Digest
    num_train: Annotated[int, Field(ge=1)]
    num_dev: Annotated[int, Field(ge=1)]
    num_train_long: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="examples of more tokens than the task reads at once",
        # Added after version 1 of the schema, like the interval of a score.
        exclude_if=lambda count: count is None,
    )
    num_dev_long: Annotated[int, Field(ge=0)] | None = Field(
        default=None, exclude_if=lambda count: count is None
    )

    @property
    def long_share(self) -> float | None:
        """The share of train and dev examples that do not fit; None if not counted."""
        if self.num_train_long is None or self.num_dev_long is None:
            return None
        return (self.num_train_long + self.num_dev_long) / (self.num_train + self.num_dev)


class RecipeRecord(Record, frozen=True):
    """How a version was trained: the settings in full, and their digest."""

    settings: dict[str, JsonValue]
    digest: Digest


class MetricRecord(Record, frozen=True):
    """One score and the data it was measured on."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    value: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat] | None = Field(
        default=None,
        description="at 95 %",
        # Added after version 1 of the schema: content without this field keeps its digest.
        exclude_if=lambda interval: interval is None,
    )
    interval_method: IntervalMethod | None = Field(
        default=None,
        description="how the interval was found; null: by bootstrap, if there is an interval",
        exclude_if=lambda method: method is None,
    )
    data_digest: Digest
    num_examples: Annotated[int, Field(ge=1)]


class ConfusionCell(Record, frozen=True):
    """The number of examples for a pair of true label and predicted label."""

    truth: Label
    predicted: Label
    count: Annotated[int, Field(ge=1)]


class ConfusionRecord(Record, frozen=True):
    """The confusion matrix of a data set; pairs of labels that never met are left out."""

    data_digest: Digest
    cells: Annotated[tuple[ConfusionCell, ...], Field(min_length=1, max_length=MAX_CONFUSION_CELLS)]

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Counts by true and predicted label."""
        return {(cell.truth, cell.predicted): cell.count for cell in self.cells}

    @model_validator(mode="after")
    def _no_pair_twice(self) -> "ConfusionRecord":
        if len(self.counts) != len(self.cells):
            raise ValueError("a confusion matrix must name each pair of labels once")
        return self


class ProbeRecord(Record, frozen=True):
    """A few inputs with their expected logits. A server runs the probe before it serves a version.

    Some heads read pairs: a question with its context, or a query with a document.
    """

    inputs: Annotated[tuple[ProbeInput, ...], Field(min_length=1, max_length=32)]
    logits: tuple[ProbeLogits, ...] = Field(description="per token for heads that read tokens")
    tolerance: Annotated[FiniteFloat, Field(gt=0, le=1)] = 1e-4

    @model_validator(mode="after")
    def _one_row_of_logits_per_input(self) -> "ProbeRecord":
        if len(self.logits) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} probe inputs, but {len(self.logits)} logit rows")
        return self

    @model_validator(mode="after")
    def _tokens_have_equally_many_logits(self) -> "ProbeRecord":
        for row in self.logits:
            if len({len(token) for token in row if isinstance(token, tuple)}) > 1:
                raise ValueError("the tokens of a probe input must have equally many logits")
        return self
