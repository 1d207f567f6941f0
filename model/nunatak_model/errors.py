"""Errors of the model package.

ModelError
+-- BackboneNotFoundError       no such folder, hub id or embedded backbone
+-- UnsupportedBackboneError    a checkpoint of another architecture or in a format we do not read
+-- CorruptBackboneError        the checkpoint's bytes are not the expected ones
+-- InvalidMethodError          a method's settings do not fit the backbone
+-- InvalidHeadError            a head whose shape contradicts its kind
+-- ParameterMismatchError      parameters are missing, unused or of another shape or dtype
+-- NonFiniteParameterError     a parameter holds NaN or infinity
+-- InvalidTensorsError         bytes that are not safetensors
+-- LayerNotHeldError           a backbone layer that was left out of memory is needed
"""

from collections.abc import Iterable
from typing import ClassVar


class ModelError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "model_error"


class BackboneNotFoundError(ModelError):
    """No such folder, hub id or embedded backbone."""

    code = "backbone_not_found"

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(
            f"no backbone at {source!r}: {reason}; "
            "expected 'minilm', a checkpoint folder or a hub id"
        )


class UnsupportedBackboneError(ModelError):
    """A checkpoint of another architecture, or in a format we do not read."""

    code = "unsupported_backbone"


class CorruptBackboneError(ModelError):
    """The checkpoint's bytes are not the expected ones."""

    code = "corrupt_backbone"


class InvalidMethodError(ModelError):
    """A method's settings do not fit the backbone."""

    code = "invalid_method"


class InvalidHeadError(ModelError):
    """A head whose shape contradicts its kind."""

    code = "invalid_head"


class ParameterMismatchError(ModelError):
    """The parameters are not exactly the set that the method and the head declare."""

    code = "parameter_mismatch"

    def __init__(
        self, *, missing: Iterable[str] = (), unused: Iterable[str] = (), wrong: Iterable[str] = ()
    ) -> None:
        self.missing = tuple(sorted(missing))
        self.unused = tuple(sorted(unused))
        self.wrong = tuple(wrong)
        found = [
            f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for what, names in (
                ("missing", self.missing),
                ("unused", self.unused),
                ("of another shape or dtype", self.wrong),
            )
            if names
        ]
        super().__init__(f"parameters do not fit their method and head: {'; '.join(found)}")


class NonFiniteParameterError(ModelError):
    """A parameter holds NaN or infinity."""

    code = "non_finite_parameter"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"parameter {name!r} holds NaN or infinity; train or publish it again")


class InvalidTensorsError(ModelError):
    """Bytes that are not safetensors."""

    code = "invalid_tensors"


class LayerNotHeldError(ModelError):
    """A backbone layer is needed that was left out of memory."""

    code = "layer_not_held"

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(
            f"backbone layer {index} is needed, and only lower ones are held; hold at least "
            f"{index + 1} (setting backbone_layers), or all"
        )
