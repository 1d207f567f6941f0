"""Whether a branch differs from the backbone at all.

An adapter whose keys were renamed, whose training never ran or whose layers were copied unchanged
loads without complaint and answers like the bare backbone. Only here can that be seen.
"""

from nunatak_artifact.errors import NoEffectError
from nunatak_model import Backbone, Branch, HeadOnly
from nunatak_model.layer import (
    Adapter,
    BottleneckLayer,
    LayerOverride,
    LoraLayer,
    LoraUpdate,
)


def check_effect(reference: str, branch: Branch, backbone: Backbone) -> None:
    """Refuse a branch that claims to change layers and changes none.

    Costs one pass over the parameters up to the first that differs.

    Raises:
        NoEffectError: every layer computes exactly what the backbone's does.
    """
    method = branch.spec.method
    if isinstance(method, HeadOnly):
        return
    if not _owns_other_values(branch, backbone) and not any(map(_adds, branch.layers.values())):
        raise NoEffectError(reference, method.kind.value)


def _owns_other_values(branch: Branch, backbone: Backbone) -> bool:
    return any(backbone.equals(name, tensor) is False for name, tensor in branch.parameters.items())


def _adds(layer: LayerOverride) -> bool:
    match layer:
        case LoraLayer():
            return any(map(_updates, layer.updates.values()))
        case BottleneckLayer():
            adapters = (layer.attention_adapter, layer.feedforward_adapter)
            return any(_answers(adapter) for adapter in adapters if adapter is not None)
        case _:
            return False


def _updates(update: LoraUpdate) -> bool:
    return bool(update.up.any()) and bool(update.down.any())


def _answers(adapter: Adapter) -> bool:
    return any(bool(it.any()) for it in (adapter.up.weight, adapter.up.bias) if it is not None)
