import pytest
import torch

from doubles.refusals import raises
from nunatak_contract.enums import ServingDtype
from nunatak_server.devices import cuda_fault, resolve_device, resolve_dtype


def test_auto_is_a_device_this_machine_has() -> None:
    expected = "cpu" if cuda_fault(torch.device("cuda")) else "cuda"

    assert resolve_device("auto").type == expected


@pytest.mark.parametrize("name", ["", "warp-drive", "cpu:x", "mps", "xpu", "meta", "hpu"])
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
        (ServingDtype.AUTO, "cuda", torch.bfloat16),
        (ServingDtype.BFLOAT16, "cpu", torch.bfloat16),
        (ServingDtype.FLOAT16, "cuda", torch.float16),
        (ServingDtype.FLOAT32, "cuda", torch.float32),
    ],
)
def test_auto_dtype_follows_the_device(
    choice: ServingDtype, device: str, dtype: torch.dtype
) -> None:
    assert resolve_dtype(choice, torch.device(device)) is dtype
