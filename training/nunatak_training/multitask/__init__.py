"""Multi-task training of one encoder (MT-DNN), which then serves as the backbone of its tasks.

Liu et al. 2019 (arXiv:1901.11504), sec. 3.3; Lee, Tang, Lin 2019 (arXiv:1911.03090), sec. 3.1,
freeze such an encoder below each task's own layers.
"""

from nunatak_training.multitask.backbone import (
    MultitaskOutcome,
    MultitaskSettings,
    SharedTask,
    train_backbone,
)
from nunatak_training.multitask.fitting import FittedEncoder, fit_encoder

__all__ = [
    "FittedEncoder",
    "MultitaskOutcome",
    "MultitaskSettings",
    "SharedTask",
    "fit_encoder",
    "train_backbone",
]
