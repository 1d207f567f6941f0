"""Errors of task versions as artifacts.

ArtifactError
+-- BackboneMismatchError     trained on another backbone or tokenizer
+-- UnservableTaskError       manifest and parameters contradict each other
+-- NoEffectError             an adapter or own layers that change nothing
+-- ProbeFailedError          the version does not reproduce its recorded logits
+-- InvalidFolderError        a folder to import is not whole, or cannot be read
|   +-- CorruptFileError      a file breaks its format or our limits
|   +-- EscapingFileError     a file is a link that leads out of the folder
|   +-- TensorMismatchError   the tensors do not fit the configuration
|   +-- UnknownLabelsError    the folder does not name the labels of the logits
+-- UnsupportedImportError    a folder to import uses a feature that this package lacks
|   +-- PickledWeightsError   the weights are pickled
+-- ForeignBackboneError      a folder to import was made from another backbone
+-- UnsupportedExportError    the wanted format cannot hold a part of the version
+-- FolderInUseError          the folder to write to is not empty
+-- HubUnavailableError       the hub gave or took nothing
"""

from collections.abc import Iterable
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


class InvalidFolderError(ArtifactError):
    """A folder to import that is not whole, or cannot be read."""

    code = "invalid_folder"

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(f"cannot import {folder!r}: {reason}")


class CorruptFileError(InvalidFolderError):
    """A file that breaks its format, or is beyond our limits."""

    code = "corrupt_file"

    def __init__(self, folder: str, file: str, problem: str) -> None:
        self.file = file
        self.problem = problem
        super().__init__(folder, f"{file} {problem}; save or download it again")


class EscapingFileError(InvalidFolderError):
    """A link that leads out of the folder."""

    code = "escaping_file"

    def __init__(self, folder: str, file: str) -> None:
        self.file = file
        super().__init__(
            folder,
            f"{file} is a link out of the folder; if you trust it, copy the folder with its links "
            "followed (cp -rL) and import the copy",
        )


class TensorMismatchError(InvalidFolderError):
    """The tensors of a folder do not match its configuration exactly."""

    code = "tensor_mismatch"

    def __init__(
        self, folder: str, *, missing: Iterable[str], unused: Iterable[str], wrong: Iterable[str]
    ) -> None:
        self.missing = tuple(sorted(missing))
        self.unused = tuple(sorted(unused))
        self.wrong = tuple(sorted(wrong))
        found = [
            f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for what, names in (
                ("missing", self.missing),
                ("that nothing reads", self.unused),
                ("of another shape", self.wrong),
            )
            if names
        ]
        super().__init__(folder, f"its tensors do not fit its configuration: {'; '.join(found)}")


class UnknownLabelsError(InvalidFolderError):
    """The folder does not name one label for each logit."""

    code = "unknown_labels"

    def __init__(self, folder: str, num_labels: int, found: str) -> None:
        self.num_labels = num_labels
        self.found = found
        super().__init__(
            folder,
            f"expected {num_labels} different labels in the order of the logits, {found}; put the "
            "config.json of the trained model into the folder, or name the labels",
        )


class UnsupportedImportError(ArtifactError):
    """A folder to import uses a feature that this package lacks."""

    code = "unsupported_import"

    def __init__(self, folder: str, found: str, advice: str) -> None:
        self.folder = folder
        self.found = found
        self.advice = advice
        super().__init__(f"cannot import {folder!r}: {found}; {advice}")


class PickledWeightsError(UnsupportedImportError):
    """Weights in a format that can run code when it is read."""

    code = "pickled_weights"

    def __init__(self, folder: str, file: str, advice: str) -> None:
        self.file = file
        super().__init__(
            folder, f"{file} is a pickle, and reading a pickle runs whatever is in it", advice
        )


class ForeignBackboneError(ArtifactError):
    """A folder to import that was made from another backbone than the one at hand."""

    code = "foreign_backbone"

    def __init__(self, folder: str, backbone: str, difference: str) -> None:
        self.folder = folder
        self.backbone = backbone
        self.difference = difference
        super().__init__(
            f"cannot import {folder!r} on backbone {backbone!r}: {difference}; "
            "name the backbone it was trained from"
        )


class UnsupportedExportError(ArtifactError):
    """A version has a part that the wanted format cannot hold."""

    code = "unsupported_export"

    def __init__(self, reference: str, part: str, advice: str) -> None:
        self.reference = reference
        self.part = part
        self.advice = advice
        super().__init__(f"cannot export {reference}: {part}; {advice}")


class FolderInUseError(ArtifactError):
    """A folder to write to that holds something already."""

    code = "folder_in_use"

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(f"{folder!r} must be new or an empty folder; choose another or empty it")


class HubUnavailableError(ArtifactError):
    """The hub gave or took nothing."""

    code = "hub_unavailable"

    def __init__(self, repository: str, action: str, reason: str) -> None:
        self.repository = repository
        self.action = action
        self.reason = reason
        super().__init__(
            f"cannot {action} {repository!r}: {reason}; check its name, your network and, for "
            "what is private, your token (HF_TOKEN)"
        )
