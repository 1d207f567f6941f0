"""The parity probe: a few inputs with their logits, recorded at publication, checked at loading."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from nunatak_contract.errors import NunatakError
from nunatak_contract.evidence import ProbeLogits, ProbeRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Backbone, Branch, Row, TextInput, TrunkStates, forward

RELATIVE_TOLERANCE: Mapping[torch.dtype, float] = {
    # Half-precision formats keep 8 or 11 significant bits per value. A dozen layers turn this
    # rounding into a few percent of the largest logit (measured). A wrong label order, layer or
    # backbone is off by the size of the logits themselves.
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
    # Kernels of other devices sum in another order.
    torch.float32: 1e-5,
}
INT8_TOLERANCE = 0.2
"""Tolerance on a quantized backbone. Another CPU or kernel may round a last bit differently, which
can move a number to the next integer in every layer above. Of 2,672 texts of three tasks, 169 moved
by more than 2 %, and the farthest by 13 %."""


def record_probe(
    branch: Branch, backbone: Backbone, inputs: Sequence[TextInput], *, max_length: int
) -> ProbeRecord:
    logits = list[ProbeLogits]()
    # One input at a time: the probe records the logits of a row alone.
    for encoding in backbone.tokenizer.encode(inputs, max_length=max_length):
        with torch.inference_mode():
            (output,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
        found = output.cpu()
        logits.append(_floats(found) if found.dim() == 1 else tuple(map(_floats, found)))
    return ProbeRecord(inputs=tuple(inputs), logits=tuple(logits))


def run_probe(
    manifest: TaskManifest, branch: Branch, backbone: Backbone, *, trunk: TrunkStates | None = None
) -> None:
    """Check that a branch gives the recorded logits, with all inputs in one batch.

    `trunk` may hold trunk states from earlier probes, which do not depend on the branch.
    """
    probe = manifest.probe
    encodings = backbone.tokenizer.encode(probe.inputs, max_length=manifest.max_length)
    rows = [Row(encoding=encoding, branch=branch) for encoding in encodings]
    with torch.inference_mode():
        outputs = forward(backbone, rows, trunk=trunk)
    for number, (output, expected) in enumerate(zip(outputs, probe.logits, strict=True)):
        actual = output.cpu()
        problem = _difference(probe.tolerance, torch.tensor(expected), actual, backbone)
        if problem is not None:
            raise NunatakError(
                "probe_failed", reference=manifest.reference, number=number, reason=problem
            )


def probe_tolerance(recorded: float, expected: Sequence[float], backbone: Backbone) -> float:
    """Return the allowed difference of a logit; rounding grows with the largest one of the row."""
    scale = max(1.0, *(abs(logit) for logit in expected))
    relative = RELATIVE_TOLERANCE[backbone.dtype]
    if backbone.is_quantized:
        relative = max(relative, INT8_TOLERANCE)
    return max(recorded, relative * scale)


def _floats(logits: Tensor) -> tuple[float, ...]:
    return tuple(cast("list[float]", logits.tolist()))


def _difference(
    recorded: float, expected: Tensor, actual: Tensor, backbone: Backbone
) -> str | None:
    if expected.shape != actual.shape:
        return f"{_shape(actual)} logits, {_shape(expected)} were recorded"
    tolerance = probe_tolerance(recorded, _floats(expected.flatten()), backbone)
    error = (actual - expected).abs().max().item()
    # Every comparison with NaN is false; this form makes NaN fail.
    if not error <= tolerance:
        return f"logits differ by {error:.3g} from the recorded ones, {tolerance:.3g} is allowed"
    return None


def _shape(logits: Tensor) -> str:
    return " x ".join(map(str, logits.shape))
