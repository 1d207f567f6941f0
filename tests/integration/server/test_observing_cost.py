"""The cost of observing a server: the sizes of tasks are computed at loading."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from torch.overrides import TorchFunctionMode

from doubles.backbones import tiny_backbone
from doubles.serving import running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_registry import Registry

METHODS: Mapping[str, Method] = {
    "topk": TopK(num_layers=1),
    "lora": Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
}


class TensorLooks(TorchFunctionMode):
    """Counts the operations on any tensor of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - a method may return any type
        self.count += 1
        return func(*args, **(kwargs or {}))


async def looks_at_tensors(client: httpx.AsyncClient, path: str) -> int:
    with TensorLooks() as looks:
        assert (await client.get(path)).status_code == 200
    return looks.count


@pytest.mark.parametrize("path", ["/v1/memory", "/metrics", "/v1/tasks"])
async def test_what_is_in_memory_is_not_weighed_again(tmp_path: Path, path: str) -> None:
    backbone = tiny_backbone()

    async def scenario(registry: Registry) -> tuple[int, int]:
        async with running_client(backbone, registry) as client:
            without = await looks_at_tensors(client, path)
            for name in METHODS:
                loaded = await client.post(f"/v1/tasks/{name}/preload")
                assert loaded.status_code == 200
            return without, await looks_at_tensors(client, path)

    with Registry.open(tmp_path) as registry:
        for name, method in METHODS.items():
            publish_tiny_task(registry, backbone, task=name, method=method)
        without, beside_tasks = await scenario(registry)

    assert beside_tasks == without
    # The size of the backbone is computed on the same thread, so the counter certainly works.
    assert (without > 0) == (path != "/v1/tasks")
