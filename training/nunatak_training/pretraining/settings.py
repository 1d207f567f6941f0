"""What a recipe says of task-adaptive pretraining."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class TaptSettings(BaseModel):
    """How the task's own texts are gone through, before any label is looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: Annotated[int, Field(ge=1, le=10_000)] = 10
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="null: as in the tuning"
    )
    masked_share: Annotated[float, Field(gt=0, lt=1, description="of the tokens of a text")] = 0.15
