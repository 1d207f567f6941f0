"""Errors of task versions as artifacts.

ArtifactError
+-- BackboneMismatchError     trained on another backbone or tokenizer
+-- UnservableTaskError       manifest and parameters contradict each other
+-- NoEffectError             an adapter or own layers that change nothing
+-- ProbeFailedError          the version does not reproduce its recorded logits
"""

from typing import ClassVar


class ArtifactError(Exception):
    """Base of every error this package raises on purpose: one task version cannot be used."""

    code: ClassVar[str] = "artifact_error"


class BackboneMismatchError(ArtifactError):
    """A task version trained on another backbone or tokenizer than the one at hand."""

    code = "backbone_mismatch"

    def __init__(self, reference: str, part: str, wanted: str, served: str) -> None:
        self.reference = reference
        self.part = part
        self.wanted = wanted
        self.served = served
        super().__init__(
            f"{reference} was trained on {part} {wanted}, here runs {served}; "
            "serve it with its own backbone or train it again"
        )


class UnservableTaskError(ArtifactError):
    """The manifest and the parameters of a version contradict each other or the backbone."""

    code = "unservable_task"

    def __init__(self, reference: str, reason: str) -> None:
        self.reference = reference
        self.reason = reason
        super().__init__(f"{reference} cannot be served: {reason}; publish it again")


class NoEffectError(ArtifactError):
    """Parameters that leave every layer exactly as the backbone has it."""

    code = "no_effect"

    def __init__(self, reference: str, method: str) -> None:
        self.reference = reference
        self.method = method
        super().__init__(
            f"{reference} must change what the backbone computes, but its {method} parameters "
            "change no layer; check that the trained weights were exported, or publish it as "
            "method 'head'"
        )


class ProbeFailedError(ArtifactError):
    """A version that does not reproduce the logits its publisher recorded."""

    code = "probe_failed"

    def __init__(self, reference: str, position: int, reason: str) -> None:
        self.reference = reference
        self.position = position
        self.reason = reason
        super().__init__(f"{reference} fails its parity probe at input {position}: {reason}")
