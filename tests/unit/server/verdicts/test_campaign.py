"""A campaign of verdicts while tasks and policies change, and its controls.

The controls show that the campaign finds wrong decisions.
"""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import cast

from doubles.verdict_campaign import Campaign
from nunatak_server.outputs.conditions import ConditionState
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import (
    PredictionRequest,
    StreamedResult,
    TaskFailure,
    TaskPrediction,
)

COUNT = 500


async def test_no_verdict_is_wrong_under_promotions_evictions_and_failures() -> None:
    tally = await Campaign(seed=1).run(COUNT)

    assert tally.wrong == []
    assert tally.let_through == 0
    assert tally.decisions == COUNT
    assert min(tally.by_failure, tally.blocks, tally.promotions, tally.evictions) > 0


class Forgetful:
    """A service that turns failures into answers that find nothing."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service

    async def stream(self, request: PredictionRequest) -> AsyncGenerator[StreamedResult]:
        calm: TaskPrediction | None = None
        async for streamed in self._service.stream(request):
            result = streamed.result
            if isinstance(result, TaskPrediction):
                calm = result
            elif calm is not None:
                yield replace(streamed, result=found_nothing(calm, result, request))
                continue
            yield streamed


def found_nothing(
    like: TaskPrediction, failure: TaskFailure, request: PredictionRequest
) -> TaskPrediction:
    nothing = dict.fromkeys(request.conditions, ConditionState(holds=False, score=0.0))
    return replace(like, reference=failure.reference, states=(nothing,))


class Mistaken:
    """A service whose answers arrive under the name of another task."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service

    async def stream(self, request: PredictionRequest) -> AsyncGenerator[StreamedResult]:
        found = [it async for it in self._service.stream(request)]
        names = [it.result.reference for it in found]
        for streamed, name in zip(found, reversed(names), strict=True):
            yield replace(streamed, result=replace(streamed.result, reference=name))


async def test_the_campaign_finds_failures_that_count_as_nothing_found() -> None:
    campaign = Campaign(seed=1, fault_share=0.4)
    forgetful = cast("PredictionService", Forgetful(campaign.bench.service))

    tally = await campaign.run(250, service=forgetful)

    assert tally.wrong
    assert tally.let_through > 0


async def test_the_campaign_finds_answers_of_other_tasks() -> None:
    campaign = Campaign(seed=1, fault_share=0)
    mistaken = cast("PredictionService", Mistaken(campaign.bench.service))

    tally = await campaign.run(250, service=mistaken)

    assert tally.wrong
