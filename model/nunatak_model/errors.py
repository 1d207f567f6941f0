"""Errors of the model that code catches; all others are a `NunatakError` with another code."""

from collections.abc import Iterable, Mapping

from nunatak_contract.errors import NunatakError


class UnsupportedBackboneError(NunatakError):
    """A checkpoint of another architecture, or in a format that no reader here knows."""

    def __init__(self, problem: str) -> None:
        super().__init__("unsupported_backbone", problem=problem)


class CorruptBackboneError(NunatakError):
    """The checkpoint has other bytes than expected."""

    def __init__(self, problem: str) -> None:
        super().__init__("corrupt_backbone", problem=problem)


class InvalidTensorsError(NunatakError):
    """Bytes that are not safetensors."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_tensors", problem=problem)


def mismatch_of(names: Mapping[str, Iterable[str]]) -> str:
    lists = {kind: tuple(own) for kind, own in names.items()}
    return "; ".join(
        f"{len(own)} {kind} ({', '.join(own[:3])}{', ...' if len(own) > 3 else ''})"
        for kind, own in lists.items()
        if own
    )
