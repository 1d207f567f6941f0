"""Regularizers: what keeps tuned weights near the pretrained ones, or frees them by and by."""

from nunatak_training.regularizers.base import Regularizer, Unregularized
from nunatak_training.regularizers.building import (
    build_regularizer,
    check_course,
    check_method,
    random_source,
)
from nunatak_training.regularizers.settings import (
    AnnealedGradDropSettings,
    EpochGradDropSettings,
    GradDropSettings,
    GradFreezeSettings,
    MixoutSettings,
    RegularizerName,
    RegularizerSettings,
    UnregularizedSettings,
)

__all__ = [
    "AnnealedGradDropSettings",
    "EpochGradDropSettings",
    "GradDropSettings",
    "GradFreezeSettings",
    "MixoutSettings",
    "Regularizer",
    "RegularizerName",
    "RegularizerSettings",
    "Unregularized",
    "UnregularizedSettings",
    "build_regularizer",
    "check_course",
    "check_method",
    "random_source",
]
