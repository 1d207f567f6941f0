"""The heads of transformers' BERT and RoBERTa classes as ours.

BERT reads sequences through its pooler, a dense layer with tanh over the first token that belongs
to the checkpoint; RoBERTa's `classifier` has such a layer of its own. To us both are `head.dense`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from nunatak_artifact.errors import ForeignBackboneError
from nunatak_artifact.interchange.peft_config import TaskType
from nunatak_artifact.interchange.peft_modules import has_pooler
from nunatak_model import Backbone, HeadKind, HeadSpec, Pooling

HEAD_KINDS = {
    TaskType.SEQUENCE_CLASSIFICATION: HeadKind.SEQUENCE_CLASSIFICATION,
    TaskType.TOKEN_CLASSIFICATION: HeadKind.TOKEN_CLASSIFICATION,
    TaskType.QUESTION_ANSWERING: HeadKind.QUESTION_ANSWERING,
}
OUTPUT, DENSE = "head.output", "head.dense"


def stored_head(encoder: str, task_type: TaskType, saved: Collection[str]) -> dict[str, str]:
    """Our name of each linear map of the head -> its module in the adapted model.

    The pooler is among them where it was trained, that is, `saved`.
    """
    match task_type:
        case TaskType.QUESTION_ANSWERING:
            return {OUTPUT: "qa_outputs"}
        case TaskType.TOKEN_CLASSIFICATION:
            return {OUTPUT: "classifier"}
        case TaskType.SEQUENCE_CLASSIFICATION:
            if not has_pooler(encoder, task_type):
                return {OUTPUT: "classifier.out_proj", DENSE: "classifier.dense"}
            pooler = f"{encoder}.pooler"
            trained = not {"pooler", pooler}.isdisjoint(saved)
            return {OUTPUT: "classifier"} | ({DENSE: f"{pooler}.dense"} if trained else {})


def head_spec(task_type: TaskType, num_labels: int, *, ranks: bool = False) -> HeadSpec:
    """The shape of the head of a class of transformers; of a ranking, if its one logit `ranks`."""
    kind = HeadKind.RANKING if ranks else HEAD_KINDS[task_type]
    if kind.reads_tokens:
        return HeadSpec(kind=kind, num_labels=num_labels)
    return HeadSpec(kind=kind, num_labels=num_labels, pooling=Pooling.FIRST, dense=True)


def stored_shapes(
    head: Mapping[str, str], spec: HeadSpec, *, width: int
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the stored tensors of a head."""
    shapes = dict[str, tuple[int, ...]]()
    for ours, module in head.items():
        out = spec.num_labels if ours == OUTPUT else width
        shapes[f"{module}.weight"], shapes[f"{module}.bias"] = (out, width), (out,)
    return shapes


def head_parameters(head: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors of a head under our names."""
    return {
        f"{ours}.{part}": tensors[f"{module}.{part}"]
        for ours, module in head.items()
        for part in ("weight", "bias")
    }


def pooler_parameters(folder: Path, backbone: Backbone) -> dict[str, Tensor]:
    """The backbone's pooler as the dense layer of a head, in float32.

    Raises:
        ForeignBackboneError: it has none.
    """
    pooler = backbone.pooler
    if pooler is None or pooler.bias is None:
        raise ForeignBackboneError(
            folder.name,
            backbone.name,
            "the head reads the pooler of its base, and this backbone has none",
        )
    return {
        f"{DENSE}.weight": pooler.weight.to("cpu", torch.float32, copy=True),
        f"{DENSE}.bias": pooler.bias.to("cpu", torch.float32, copy=True),
    }
