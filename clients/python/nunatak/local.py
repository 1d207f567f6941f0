"""The tasks of a registry in this process: the server's own engine, without HTTP."""

# ruff: noqa: PLC0415 - `import nunatak` must not import torch

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack, cast

from pydantic import JsonValue, ValidationError

from nunatak_client import Inputs, Prediction
from nunatak_client.payloads import ShownOptions, json_body, wire_inputs, wire_parameters
from nunatak_contract import requests
from nunatak_contract.errors import NunatakError, invalid_option, needs_extra
from nunatak_contract.inputs import Input
from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_contract.record import problems_text

if TYPE_CHECKING:
    from nunatak_model import Backbone
    from nunatak_registry import Registry
    from nunatak_server.predict.types import TaskPrediction


def load(
    registry: str | Path | None = None,
    *,
    backbone: str | Path = DEFAULT_BACKBONE,
    device: str = "cpu",
) -> "LocalTasks":
    """Load a backbone, and open a registry whose tasks then predict in this process.

    Args:
        registry: a folder or a database URL; absent: NUNATAK_REGISTRY, else a folder in the user's
            data directory.
        backbone: the backbone of the tasks: `minilm`, an added one, a folder or a hub id.
        device: `cpu` or `cuda`.

    Raises:
        MissingExtraError: the extra `server` is not installed.
        NunatakError: there is no such registry, or the backbone cannot be loaded.
    """
    with needs_extra("server"):
        loaded = loaded_backbone(backbone, device)
        from nunatak_registry import Registry, default_location
    return LocalTasks(Registry.open(registry or default_location(), create=False), loaded)


def loaded_backbone(backbone: str | Path, device: str) -> "Backbone":
    """Load a backbone onto a device.

    Raises:
        NunatakError: there is no such device, or the backbone cannot be loaded.
    """
    from nunatak_model import has_cuda, load_backbone

    if device not in {"cpu", "cuda"} or (device == "cuda" and not has_cuda()):
        found = "torch finds no CUDA device here" if device == "cuda" else f"got {device!r}"
        raise invalid_option(f"device must be 'cpu', or 'cuda' with a GPU; {found}")
    return load_backbone(str(backbone), device=device)


class LocalTasks:
    """The tasks of a registry; a context manager that any thread may use, also in a notebook.

    Each task version loads at its first prediction and stays in memory within the limits of the
    server's settings. Aliases are followed. The registry is closed with the tasks.
    """

    def __init__(self, registry: "Registry", backbone: "Backbone") -> None:
        self._registry = registry
        with ExitStack() as stack:
            stack.callback(registry.close)
            with needs_extra("server"):
                from nunatak_server.local import LocalPredictor
            # A notebook runs an event loop in its main thread, where no second loop can run.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="nunatak-local")
            stack.callback(self._thread.shutdown)
            self._predictor = LocalPredictor(registry, backbone)
            self._thread.submit(self._predictor.start).result()
            stack.callback(lambda: self._thread.submit(self._predictor.close).result())
            self._held = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def predict(self, task: str, inputs: Inputs, **options: Unpack[ShownOptions]) -> Prediction:
        """Ask one task about one input or a list of inputs, of any length.

        The arguments and the answer are those of `Client.predict`. One version answers all inputs.

        Raises:
            NunatakError: the reference means no version, the version cannot be served, or an input
                cannot be answered.
        """
        if isinstance(inputs, Iterator):
            inputs = list(inputs)
        wire = wire_inputs(inputs)
        json_body({"inputs": wire.value})  # refuses what no request can hold
        items = [inputs] if wire.num_inputs is None else inputs
        wanted = wire_parameters(**options)
        return self._thread.submit(self._ask, task, cast("Sequence[Input]", items), wanted).result()

    def close(self) -> None:
        """End the threads and close the registry; a second call does nothing."""
        self._held.close()

    def _ask(
        self, task: str, inputs: Sequence[Input], options: Mapping[str, JsonValue]
    ) -> Prediction:
        from nunatak_server.local import answer_as
        from nunatak_server.predict.types import TaskFailure

        # An alias that moves meanwhile must not mix the answers of two versions.
        reference = self._registry.resolve(task).reference
        parts = list["TaskPrediction"]()
        chosen = _parameters(options)
        for _, found in self._predictor.predict_all(inputs, [reference], options=chosen):
            (result,) = found.results
            if isinstance(result, TaskFailure):
                raise result.error
            parts.append(result)
        said = [part.predicted for part in parts if part.predicted is not None]
        whole = replace(
            parts[0],
            outputs=tuple(chain.from_iterable(part.outputs for part in parts)),
            predicted=tuple(chain.from_iterable(said)) if said else None,
            extents=tuple(chain.from_iterable(part.extents for part in parts)),
        )
        return answer_as(Prediction, whole)


def _parameters(options: Mapping[str, JsonValue]) -> requests.Parameters:
    """Read options as the server reads them."""
    try:
        return requests.Parameters.model_validate(options)
    except ValidationError as error:
        raise NunatakError("invalid_request", problem=problems_text(error, "options")) from error
