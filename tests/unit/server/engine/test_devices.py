from pathlib import Path

import pytest
import torch

from doubles.refusals import raises
from nunatak_contract.enums import ServingDtype
from nunatak_server.engine.backbones import cuda_fault, resolve_device, resolve_dtype


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
    ("choice", "device", "dtype"),
    [
        (ServingDtype.AUTO, "cpu", torch.float32),
        (ServingDtype.BFLOAT16, "cpu", torch.bfloat16),
        (ServingDtype.FLOAT16, "cuda", torch.float16),
        (ServingDtype.FLOAT32, "cuda", torch.float32),
    ],
)
def test_auto_dtype_follows_the_device(
    choice: ServingDtype, device: str, dtype: torch.dtype
) -> None:
    assert resolve_dtype(choice, torch.device(device)) is dtype


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [
        ((6, 1), torch.float32),
        ((7, 0), torch.float32),
        ((7, 5), torch.float32),
        ((8, 0), torch.bfloat16),
        ((8, 6), torch.bfloat16),
        ((9, 0), torch.bfloat16),
        ((12, 0), torch.bfloat16),
    ],
    ids=str,
)
def test_auto_dtype_is_one_that_the_device_computes_itself(
    capability: tuple[int, int], dtype: torch.dtype
) -> None:
    found = resolve_dtype(
        ServingDtype.AUTO, torch.device("cuda"), find_capability=lambda _: capability
    )

    assert found is dtype


def test_a_number_format_that_the_device_emulates_is_served_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = [
        resolve_dtype(
            ServingDtype.BFLOAT16, torch.device("cuda"), find_capability=lambda _, it=it: it
        )
        for it in ((7, 5), (8, 0))
    ]

    assert chosen == [torch.bfloat16] * 2
    assert [it.levelname for it in caplog.records] == ["WARNING"]


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
