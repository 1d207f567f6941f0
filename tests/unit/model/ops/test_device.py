import pytest
import torch

from nunatak_model import SideStream
from nunatak_model.ops.device import flattened, to_device, write_on_device

CPU = torch.device("cpu")


def test_numbers_arrive_in_order_and_in_their_format() -> None:
    assert torch.equal(to_device([3, 1, 2], CPU), torch.tensor([3, 1, 2]))
    assert to_device([3], CPU, dtype=torch.int32).dtype is torch.int32
    assert torch.equal(flattened([(1, 2), (), (3,)], CPU), torch.tensor([1, 2, 3]))


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
