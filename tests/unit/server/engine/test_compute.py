import logging
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.serving_kernels import with_gpu_kernels
from doubles.tasks import random_branch
from nunatak_contract.enums import ServingDtype
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, Branch, Row, TrunkCache, convert_branch, quantize_backbone
from nunatak_server.engine.backbones import cuda_fault, resolve_device, resolve_dtype, tell_speeds
from nunatak_server.engine.compute import (
    WATCHED_BATCHES,
    BatchCompute,
    BatchReport,
    Contention,
    device_failure,
)
from nunatak_server.errors import EngineFailedError, OutOfMemoryError

SERVED = {
    "float32": tiny_backbone(),
    "bfloat16": tiny_backbone(dtype=torch.bfloat16),
    "int8": quantize_backbone(tiny_backbone()),
}


class LostDevice:
    """Takes the place of a branch on a device that is gone."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> object:
        raise self._error


def branches(backbone: Backbone) -> list[Branch]:
    lora = Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)
    methods: list[tuple[Method, int]] = [(TopK(num_layers=1), 3), (HeadOnly(), 5), (lora, 2)]
    return [
        random_branch(backbone, method, num_labels=num_labels, seed=seed)
        for seed, (method, num_labels) in enumerate(methods)
    ]


def rows_of(backbone: Backbone, *texts: str) -> list[Row]:
    """Each text to each branch."""
    encodings = backbone.tokenizer.encode(texts, max_length=16)
    return [Row(encoding=it, branch=branch) for branch in branches(backbone) for it in encodings]


def told(backbone: Backbone, caplog: pytest.LogCaptureFixture, **speeds: float) -> list[str]:
    caplog.set_level(logging.INFO, "nunatak_server")
    tell_speeds(replace(backbone, speeds={"float32": 1.0, **speeds}))
    return [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]


def test_a_trunk_state_is_held_once_it_was_computed_and_kept_and_never_without_a_cache(
    backbone: Backbone,
) -> None:
    rows = rows_of(backbone, "one")
    encoding, depths = rows[0].encoding, [row.branch.split_depth for row in rows]
    kept = BatchCompute(backbone, trunk=TrunkCache(max_bytes=2**20))
    without = BatchCompute(backbone)

    assert not any(kept.holds_trunk(encoding, depth) for depth in depths)
    for compute in (kept, without):
        compute(rows)

    assert all(kept.holds_trunk(encoding, depth) for depth in depths if depth)
    assert not any(without.holds_trunk(encoding, depth) for depth in (*depths, None, 0))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.AcceleratorError("device-side assert"), EngineFailedError),
        (torch.AcceleratorError("CUDA error: out of memory"), OutOfMemoryError),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when"), EngineFailedError),
        (RuntimeError("cuDNN error: CUDNN_STATUS_MAPPING_ERROR"), EngineFailedError),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), OutOfMemoryError),
        (RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling"), RuntimeError),
        (torch.OutOfMemoryError("no room"), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
        (RuntimeError("shapes"), RuntimeError),
    ],
    ids=str,
)
def test_only_a_lost_device_is_the_end_of_the_engine(
    backbone: Backbone, error: Exception, expected: type[Exception]
) -> None:
    (encoding,) = backbone.tokenizer.encode(["one"], max_length=8)
    row = Row(encoding=encoding, branch=cast("Branch", LostDevice(error)))

    with pytest.raises(expected) as raised:
        BatchCompute(backbone)([row])

    assert raised.type is expected


def test_a_failed_allocation_on_a_cpu_is_known_as_missing_memory() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)

    assert isinstance(device_failure(refused.value), OutOfMemoryError)


def test_a_batch_that_is_preempted_gives_the_same_bits_and_so_does_what_preempts(
    backbone: Backbone,
) -> None:
    rows, others = rows_of(backbone, "one"), rows_of(backbone, "another text")
    compute = BatchCompute(backbone)
    assert compute.stops_between_layers
    found: list[list[list[float]]] = []

    def preempt() -> None:
        found.append(compute(others))

    logits = compute(rows, between_layers=preempt)

    assert len(found) == backbone.config.num_layers
    assert logits == compute(rows)
    assert all(each == compute(others) for each in found)


def grouped_rows(served: Backbone) -> list[Row]:
    """Texts to two tasks of one form, in slots of one page."""
    (encoding,) = served.tokenizer.encode(["one"], max_length=16)
    lora = Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)
    stored = [random_branch(served, lora, seed=seed) for seed in range(2)]
    return [Row(encoding=encoding, branch=convert_branch(it, served)) for it in stored]


def test_a_fast_kernel_that_fails_in_a_batch_is_used_no_more(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    num_calls = 0

    def refuse(*_: object, **__: object) -> None:
        nonlocal num_calls
        num_calls += 1
        raise RuntimeError("not on this device")

    served = with_gpu_kernels(backbone)
    compute, rows = BatchCompute(served), grouped_rows(served)
    expected = compute(rows)
    assert compute.fast_kernels == served.fast_kernels != ()
    monkeypatch.setattr(torch.nn.functional, "grouped_mm", refuse)

    found = [compute(rows) for _ in range(3)]

    assert num_calls == 1
    assert compute.fast_kernels == ()
    assert ["NUNATAK_KERNELS=plain" in it.getMessage() for it in caplog.records] == [True]
    for answers in found:
        for one, other in zip(answers, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-4)


def test_rows_that_fail_on_every_kernel_leave_the_fast_ones_in_use(
    backbone: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    served = with_gpu_kernels(backbone)
    (encoding,) = backbone.tokenizer.encode(["one"], max_length=8)
    faulty = cast("Branch", LostDevice(RuntimeError("shapes")))
    compute = BatchCompute(served)

    with pytest.raises(RuntimeError, match="shapes"):
        compute([Row(encoding=encoding, branch=faulty)])

    assert compute.fast_kernels == served.fast_kernels
    assert caplog.records == []
    assert len(compute(grouped_rows(served))) == 2


@pytest.mark.parametrize(
    ("worked_s", "num_warnings"), [(0.02, 1), (0.05, 0)], ids=["waits", "computes"]
)
def test_batches_that_wait_for_cores_are_reported_once(
    caplog: pytest.LogCaptureFixture, worked_s: float, num_warnings: int
) -> None:
    contention = Contention()
    report = BatchReport(
        number=1,
        num_rows=1,
        rows_of={},
        num_tokens=8,
        num_tasks=1,
        num_shared_rows=0,
        num_padding_saved=0,
        started_at=0.0,
        compute_s=0.1,
        worked_s=worked_s,
    )

    for _ in range(2 * WATCHED_BATCHES):
        contention.observe_batch(report)

    assert caplog.text.count("5.0 times their CPU time") == num_warnings


def test_auto_is_a_device_this_machine_has() -> None:
    expected = "cpu" if cuda_fault(torch.device("cuda")) else "cuda"

    assert resolve_device("auto").type == expected


@pytest.mark.parametrize(
    "name", ["", "warp-drive", "cpu:x", "cpu:1", "mps", "xpu", "meta", "hpu", "cuda:", "cuda:x"]
)
def test_a_device_that_does_not_exist_is_refused(name: str) -> None:
    with raises("invalid_settings", match="device"):
        resolve_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none_is_refused() -> None:
    with raises("invalid_settings", match="no CUDA device"):
        resolve_device("cuda")


def test_a_cuda_device_that_cannot_compute_is_refused_by_name_and_passed_over_by_auto() -> None:
    def find_fault(device: torch.device) -> str | None:
        return None if device.index == 1 else "this build of torch has no kernels for it"

    assert resolve_device("cuda:1", find_fault=find_fault) == torch.device("cuda:1")
    assert resolve_device("auto", find_fault=find_fault) == torch.device("cpu")
    assert resolve_device("auto", find_fault=lambda _: None) == torch.device("cuda")
    with raises("invalid_settings", match="no kernels for it"):
        resolve_device("cuda:0", find_fault=find_fault)


@pytest.mark.parametrize(
    ("choice", "device", "capability", "dtype", "num_warnings"),
    [
        (ServingDtype.AUTO, "cpu", None, torch.float32, 0),
        (ServingDtype.BFLOAT16, "cpu", None, torch.bfloat16, 0),
        (ServingDtype.FLOAT16, "cuda", (7, 5), torch.float16, 0),
        (ServingDtype.FLOAT32, "cuda", (9, 0), torch.float32, 0),
        (ServingDtype.AUTO, "cuda", (7, 5), torch.float32, 0),
        (ServingDtype.AUTO, "cuda", (8, 0), torch.bfloat16, 0),
        (ServingDtype.AUTO, "cuda", (12, 0), torch.bfloat16, 0),
        (ServingDtype.BFLOAT16, "cuda", (7, 5), torch.bfloat16, 1),
        (ServingDtype.BFLOAT16, "cuda", (8, 0), torch.bfloat16, 0),
    ],
)
def test_auto_is_a_number_format_that_the_device_computes_itself_and_an_emulated_one_warns(
    caplog: pytest.LogCaptureFixture,
    choice: ServingDtype,
    device: str,
    capability: tuple[int, int],
    dtype: torch.dtype,
    num_warnings: int,
) -> None:
    found = resolve_dtype(choice, torch.device(device), find_capability=lambda _: capability)

    assert found is dtype
    assert [it.levelname for it in caplog.records] == ["WARNING"] * num_warnings


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("has_driver", [True, False])
def test_auto_says_when_torch_does_not_see_the_device_of_the_driver(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_driver: bool
) -> None:
    nvidia_device = tmp_path / "nvidia0"
    if has_driver:
        nvidia_device.touch()

    assert resolve_device("auto", nvidia_device=nvidia_device).type == "cpu"

    assert [it.levelname for it in caplog.records] == ["WARNING"] * has_driver


@pytest.mark.parametrize("used", SERVED)
def test_a_number_format_slower_than_float32_is_told_with_the_figure(
    used: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(SERVED[used], caplog, bfloat16=1.6, int8=3.1) == []
    assert "float32 1.00, bfloat16 1.60, int8 3.10; the fastest is int8" in caplog.text
    slow = {"bfloat16": 0.56, "int8": 0.7}
    warnings = told(SERVED[used], caplog, **slow)

    assert "the fastest is float32" in caplog.text
    assert len(warnings) == (used in slow)
    assert all(f"multiplies in {used}, at {slow[used]:.2f}" in it for it in warnings)
