import pytest
import torch

from doubles.fake_cuda import Launches, fake_cuda
from nunatak_model import SideStream
from nunatak_model.ops.device import flattened, to_device, to_device_at_once, write_on_device

CPU = torch.device("cpu")


def test_numbers_arrive_in_order_and_in_their_format() -> None:
    assert torch.equal(to_device([3, 1, 2], CPU), torch.tensor([3, 1, 2]))
    assert to_device([3], CPU, dtype=torch.int32).dtype is torch.int32
    assert torch.equal(flattened([(1, 2), (), (3,)], CPU), torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lists_that_are_sent_at_once_arrive_as_they_would_one_by_one(dtype: torch.dtype) -> None:
    lists = [[3, 1, 2], [], [7]]

    for found, numbers in zip(to_device_at_once(lists, CPU, dtype=dtype), lists, strict=True):
        assert found.dtype is dtype
        assert torch.equal(found, to_device(numbers, CPU, dtype=dtype))


def test_lists_that_are_sent_at_once_take_one_copy() -> None:
    lists, gpu = [[3, 1, 2], [4], [7]], torch.device("cuda:0")

    with fake_cuda((9, 0)), Launches() as at_once:
        sent = to_device_at_once(lists, gpu, dtype=torch.int32)
    with fake_cuda((9, 0)), Launches() as one_by_one:
        _ = [to_device(numbers, gpu, dtype=torch.int32) for numbers in lists]

    assert [(len(it), it.dtype, it.device) for it in sent] == [
        (len(numbers), torch.int32, gpu) for numbers in lists
    ]
    assert (at_once.count.copies, one_by_one.count.copies) == (1, 3)


def test_a_tensor_is_written_over_another_in_place() -> None:
    target = torch.zeros(2, 3)
    where = target.data_ptr()

    write_on_device(torch.ones(3, 2).t(), target)

    assert target.data_ptr() == where
    assert bool((target == 1).all())


def test_a_failure_next_to_the_batches_is_its_callers() -> None:
    side_stream = SideStream(CPU)

    with pytest.raises(KeyError), side_stream.work():
        raise KeyError
    with side_stream.work():
        pass
