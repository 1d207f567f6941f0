"""The tasks of a registry in this process: the server's own engine, without HTTP."""

# ruff: noqa: PLC0415 - `import nunatak` must not import torch

import os
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Never, Self, TypeVar, Unpack, cast

from nunatak_client import FanOut, Inputs, Prediction
from nunatak_client.calls import Messages, ShownOptions, json_body, named_tasks, wire_inputs
from nunatak_client.errors import InvalidInputError
from nunatak_contract.errors import NunatakError, invalid_option, needs_extra
from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_contract.requests import Input, Parameters
from nunatak_contract.wire import PolicyVerdict

if TYPE_CHECKING:
    from nunatak_model import Backbone
    from nunatak_registry import Registry
    from nunatak_server.predict.types import TaskFailure, TaskPrediction

Answer = TypeVar("Answer")


def load(
    registry: str | Path | None = None,
    *,
    backbone: str | Path | Sequence[str | Path] = DEFAULT_BACKBONE,
    device: str = "cpu",
) -> "LocalTasks":
    """Load one backbone or several, and open a registry whose tasks then predict in this process.

    Args:
        registry: a folder or a database URL; absent: NUNATAK_REGISTRY, else the user's data folder.
        backbone: the backbone of the tasks: `minilm`, an added one, a folder or a hub id; a list
            for tasks of several.
        device: `cpu` or `cuda`.

    Raises:
        MissingExtraError: the extra `server` is not installed.
        NunatakError: there is no such registry, or a backbone cannot be loaded.
    """
    with needs_extra("server"):
        names = [backbone] if isinstance(backbone, (str, Path)) else backbone
        if not names:
            raise invalid_option("backbone: expected one backbone or several, got an empty list")
        loaded = [loaded_backbone(it, device) for it in names]
        from nunatak_registry import Registry, default_location
    return LocalTasks(Registry.open(registry or default_location(), create=False), *loaded)


def loaded_backbone(backbone: str | Path, device: str) -> "Backbone":
    """Load a backbone onto a device.

    Raises:
        NunatakError: there is no such device, or the backbone cannot be loaded.
    """
    from nunatak_model import has_cuda, load_backbone, on_own_thread

    if device not in {"cpu", "cuda"} or (device == "cuda" and not has_cuda()):
        found = "torch finds no CUDA device here" if device == "cuda" else f"got {device!r}"
        raise invalid_option(f"device must be 'cpu', or 'cuda' with a GPU; {found}")
    # Settings of torch such as a default device hold for the caller's thread.
    return on_own_thread(load_backbone, str(backbone), device=device)


class LocalTasks:
    """The tasks of a registry; a context manager that any thread may use, also in a notebook.

    Each task version loads at its first prediction and stays in memory within the limits of the
    server's settings. Aliases are followed. The registry is closed with the tasks. A forked process
    loads its own tasks.
    """

    def __init__(self, registry: "Registry", *backbones: "Backbone") -> None:
        self._registry = registry
        self._pid = os.getpid()
        with ExitStack() as stack:
            stack.callback(registry.close)
            with needs_extra("server"):
                from nunatak_server.local import LocalPredictor
            # A notebook runs an event loop in its main thread, where no second loop can run.
            thread = self._thread = ThreadPoolExecutor(1, thread_name_prefix="nunatak-local")
            stack.callback(thread.shutdown)
            self._predictor = thread.submit(LocalPredictor, registry, *backbones).result()
            predictor = self._predictor
            thread.submit(predictor.start).result()
            stack.callback(lambda: thread.submit(predictor.close).result())
            self._held = stack.pop_all()
        # The garbage collector may run on each of the threads, and no thread can wait for its end.
        ending = Thread(target=_end, args=(self._held, self._pid), daemon=True)
        weakref.finalize(self, ending.start).atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Never:
        """Say why no tasks can be pickled or copied."""
        raise InvalidInputError(
            "loaded tasks cannot be pickled or copied, because their threads belong to one "
            "process; call nunatak.load in each process"
        )

    def predict(self, task: str, inputs: Inputs, **options: Unpack[ShownOptions]) -> Prediction:
        """Ask one task about one input or a list of inputs, of any length.

        The arguments and the answer are those of `Client.predict`. One version answers all inputs.

        Raises:
            NunatakError: the reference means no version, the version cannot be served, or an input
                cannot be answered.
        """
        from nunatak_server.local import answer_as
        from nunatak_server.predict.types import TaskFailure

        (found,) = self._ask([task], inputs, options)
        if isinstance(found, TaskFailure):
            raise found.error
        return answer_as(Prediction, found)

    def predict_many(
        self, inputs: Inputs, tasks: Sequence[str], **options: Unpack[ShownOptions]
    ) -> FanOut:
        """Ask several tasks about the same inputs; a task that fails does not fail the others.

        The arguments and the answer are those of `Client.predict_many`.

        Raises:
            NunatakError: no task can answer an input.
        """
        from nunatak_server.local import result_of

        found = self._ask(named_tasks(tasks), inputs, options)
        return FanOut(results=tuple(map(result_of, found)))

    def judge(
        self,
        policy: str,
        inputs: str | Sequence[str] | None = None,
        *,
        messages: Messages | None = None,
    ) -> PolicyVerdict:
        """Ask for the decision of a policy about texts or messages; an error is a block.

        The arguments and the answer are those of `Client.judge`. No deadline counts, also not that
        of the policy: the first call may load tasks.

        Raises:
            NunatakError: there is no such policy, or no task can read a text.
        """
        return self._run(partial(self._predictor.judge, policy, inputs, messages=messages))

    def close(self) -> None:
        """End the threads and close the registry; a second call does nothing."""
        _end(self._held, self._pid)

    def _ask(
        self, tasks: Sequence[str], inputs: Inputs, options: ShownOptions
    ) -> "list[TaskPrediction | TaskFailure]":
        from nunatak_server.local import options_of

        if isinstance(inputs, Iterator):
            inputs = list(inputs)
        wire = wire_inputs(inputs)
        json_body({"inputs": wire.value})  # refuses what no request can hold
        items = cast("Sequence[Input]", [inputs] if wire.num_inputs is None else inputs)
        wanted = options_of(**options)
        return self._run(partial(self._answers, tasks, items, wanted))

    def _run(self, work: Callable[[], Answer]) -> Answer:
        if self._pid != os.getpid():
            raise InvalidInputError(
                "these tasks were loaded before the fork of this process, and their threads stayed "
                "behind; call nunatak.load after the fork"
            )
        with _while_threads_run():
            return self._thread.submit(work).result()

    def _answers(
        self, tasks: Sequence[str], inputs: Sequence[Input], options: Parameters
    ) -> "list[TaskPrediction | TaskFailure]":
        # An alias that moves meanwhile must not mix the answers of two versions.
        references = [self._fixed(task) for task in tasks]
        parts = [
            found.results for _, found in self._predictor.parts(inputs, references, options=options)
        ]
        whole = map(_joined, zip(*parts, strict=True))
        return [replace(it, reference=task) for it, task in zip(whole, tasks, strict=True)]

    def _fixed(self, task: str) -> str:
        try:
            return self._registry.resolve(task).reference
        except NunatakError:
            return task  # its answer says why


@contextmanager
def _while_threads_run() -> Generator[None]:
    """Refuse a call after `close`, or after the main thread, with which Python ends all pools."""
    try:
        yield
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise InvalidInputError(
            "these tasks are closed, by close or by the end of the main thread; load them again, "
            "or let the main thread join the threads that predict"
        ) from error


def _end(held: ExitStack, pid: int) -> None:
    """Close what is held, unless this process is a fork or Python has ended the threads."""
    with suppress(InvalidInputError), _while_threads_run():
        if pid == os.getpid():
            held.close()


def _joined(parts: "Sequence[TaskPrediction | TaskFailure]") -> "TaskPrediction | TaskFailure":
    """Return the answers of a task to all parts of the inputs, or its first failure."""
    from nunatak_server.predict.types import TaskFailure

    answered = list["TaskPrediction"]()
    for part in parts:
        if isinstance(part, TaskFailure):
            return part
        answered.append(part)
    said = [part.predicted for part in answered if part.predicted is not None]
    return replace(
        answered[0],
        outputs=tuple(chain.from_iterable(part.outputs for part in answered)),
        predicted=tuple(chain.from_iterable(said)) if said else None,
        extents=tuple(chain.from_iterable(part.extents for part in answered)),
    )
