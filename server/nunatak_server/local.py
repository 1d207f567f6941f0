"""Predictions in this process, without HTTP: the same service and engine, called synchronously."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Self, TypeVar, Unpack, cast

from pydantic import ValidationError

from nunatak_client import FanOut, TaskResult, calls
from nunatak_client.calls import Messages, Parts, ShownOptions, json_body, wire_parameters
from nunatak_client.replies import ResultT, with_head_outputs
from nunatak_contract.enums import Kernels, PolicyMode
from nunatak_contract.errors import NunatakError
from nunatak_contract.policies import Policy
from nunatak_contract.problems import REASONS, names_of
from nunatak_contract.record import problems_text
from nunatak_contract.requests import Input, Message, Parameters, VerdictMessages, VerdictTexts
from nunatak_contract.wire import PolicyVerdict, Problem
from nunatak_model import Backbone, pack_backbone
from nunatak_registry import PublishedPolicy, Registry
from nunatak_server.engine.backbones import Backbones
from nunatak_server.errors import invalid_request
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS
from nunatak_server.predict.types import (
    Handling,
    PredictionRequest,
    Predictions,
    TaskFailure,
    TaskPrediction,
    prediction_fields,
)
from nunatak_server.runtime import Runtime
from nunatak_server.settings import ServerSettings
from nunatak_server.verdicts.calls import judge_request
from nunatak_server.verdicts.judge import Judgement
from nunatak_server.verdicts.rules import TextDecision

Answer = TypeVar("Answer")
Answered = TypeVar("Answered", Predictions, Judgement)
Sent = TypeVar("Sent", bound=Message)


class LocalPredictor:
    """Answers like a server; a context manager for use from one thread."""

    def __init__(self, registry: Registry, *backbones: Backbone) -> None:
        self._registry = registry
        # Without a call the event loop stands still, and no lease could be renewed. There are no
        # requests with a deadline, so a prediction may take days.
        fixed = {"registry_lease_s": None, "default_deadline_ms": 10**9}
        self._settings = ServerSettings().model_copy(update=fixed)
        packs = self._settings.kernels is Kernels.AUTO
        default, *others = (
            pack_backbone(it) if packs and not it.is_packed else it for it in backbones
        )
        self._backbones = Backbones(default, others)
        self._runner = asyncio.Runner()
        self._runtime: Runtime | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        try:
            self._runner.run(self._start())
        except BaseException:
            # Python calls no `__exit__` after an `__enter__` that raises.
            self.close()
            raise

    def predict(
        self,
        inputs: Sequence[Input],
        tasks: Sequence[str],
        *,
        options: Parameters = DEFAULT_OPTIONS,
    ) -> Predictions:
        """Return the answer or the failure of each task for all inputs."""

        def ask(runtime: Runtime, handling: Handling) -> Coroutine[Any, Any, Predictions]:
            request = PredictionRequest(
                references=tuple(tasks), inputs=tuple(inputs), options=options, handling=handling
            )
            return runtime.service.predict(request)

        return self._run(ask)

    def predict_all(
        self, inputs: Iterable[Input], tasks: Sequence[str], **shown: Unpack[ShownOptions]
    ) -> Iterator[tuple[Sequence[Input], FanOut]]:
        """Ask and answer as `Client.predict_all` does."""
        for part, found in self.parts(inputs, tasks, options=options_of(**shown)):
            yield part, FanOut(results=tuple(map(result_of, found.results)))

    def predict_many(
        self, source: Input, tasks: Sequence[str], **shown: Unpack[ShownOptions]
    ) -> FanOut:
        """Ask and answer as `Client.predict_many` does."""
        _, found = next(self.predict_all([source], tasks, **shown))
        return found

    def parts(
        self, inputs: Iterable[Input], tasks: Sequence[str], *, options: Parameters
    ) -> Iterator[tuple[Sequence[Input], Predictions]]:
        """Yield parts of any number of inputs, in order, with the answers of all tasks."""
        return answered_in_parts(inputs, lambda part: self.predict(part, tasks, options=options))

    def judge(
        self,
        policy: str,
        inputs: str | Sequence[str] | None = None,
        *,
        messages: Messages | None = None,
    ) -> PolicyVerdict:
        """Ask and answer as `Client.judge` does; no deadline counts, also none of the policy."""
        sent = calls.judge(policy, inputs, messages=messages).content
        kind = VerdictTexts if messages is None else VerdictMessages
        body = read_as_sent(kind, sent, "body")
        _, fields = self._run(
            lambda it, how: judge_request(it.judge, it.settings, policy, body, how, problem_of)
        )
        return PolicyVerdict.model_validate(fields)

    def judge_all(self, policy: Policy, texts: Sequence[str]) -> Iterator[TextDecision]:
        """Yield the decision of a policy, published or not, about each text, as it is enforced.

        Raises:
            NunatakError: a task fails or refuses a text, whose place is the error's position. So
                `on_failure` decides only about what a task cannot read or mask.
        """
        enforced = policy.model_copy(update={"mode": PolicyMode.ENFORCE})
        asked = PublishedPolicy(document=enforced, version=0, published_at=datetime.now(UTC), by="")

        def ask(part: Sequence[Input]) -> Judgement:
            own = cast("tuple[str, ...]", tuple(part))
            return self._run(lambda it, how: it.judge.ask(asked, own, how, stops_early=False))

        for _, judgement in answered_in_parts(texts, ask):
            for answer in judgement.answers.values():
                if isinstance(answer, TaskFailure):
                    raise answer.error
            yield from judgement.decisions

    def close(self) -> None:
        """End the threads; the registry stays open."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._runner.run(runtime.aclose())
        self._runner.close()

    async def _start(self) -> None:
        self._runtime = Runtime(
            settings=self._settings, backbones=self._backbones, registry=self._registry
        )
        await self._runtime.start(is_replica=False)

    def _run(self, ask: Callable[[Runtime, Handling], Coroutine[Any, Any, Answer]]) -> Answer:
        if self._runtime is None:
            raise RuntimeError("a LocalPredictor must be started before it predicts")
        # The event loop stood still since the last call, so no task has polled the registry.
        self._runner.run(self._runtime.follow_own_change())
        limit_s = self._settings.default_deadline_ms / 1000
        handling = Handling(default_deadline_s=limit_s, own_deadline_s=limit_s)
        return self._runner.run(ask(self._runtime, handling))


def answered_in_parts(
    inputs: Iterable[Input], ask: Callable[[Sequence[Input]], Answered]
) -> Iterator[tuple[Sequence[Input], Answered]]:
    """Yield parts of any number of inputs, in order, with their answers.

    An input that some of the tasks refuse is a part alone.
    """
    parts = Parts(inputs)
    while part := parts.take():
        try:
            answered = ask(part)
        except NunatakError as error:
            if REASONS[error.code].status is not HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            parts.refuse(part, error)
        else:
            refusals = [it.error for it in answered.failures if it.error.position is not None]
            place = parts.accept(part, [it.position for it in refusals])
            if place is not None:
                for refusal in refusals:
                    refusal.position = place
                yield part, answered


def options_of(**shown: Unpack[ShownOptions]) -> Parameters:
    return read_as_sent(Parameters, json_body(wire_parameters(**shown)), "options")


def read_as_sent(kind: type[Sent], content: bytes | None, whole: str) -> Sent:
    """Read a part of a request as the server reads it."""
    try:
        return kind.model_validate_json(content or b"")
    except ValidationError as error:
        raise invalid_request(problems_text(error, whole)) from error


def result_of(found: TaskPrediction | TaskFailure) -> TaskResult:
    if isinstance(found, TaskFailure):
        return TaskResult(reference=found.reference, error=problem_of(found.error))
    return answer_as(TaskResult, found, reference=found.reference)


def problem_of(error: NunatakError) -> Problem:
    return Problem(
        **names_of(error.code),
        code=error.code,
        status=REASONS[error.code].status,
        detail=str(error),
        position=error.position,
    )


def answer_as(kind: type[ResultT], found: TaskPrediction, **more: str) -> ResultT:
    fields = with_head_outputs(prediction_fields(found, []), len(found.extents))
    return kind.model_validate({**fields, **more})
