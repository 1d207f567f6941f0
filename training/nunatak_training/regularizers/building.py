"""From the settings of a recipe to the regularizer of one run."""

from collections.abc import Mapping

import torch
from torch import Tensor

from nunatak_registry.manifest import MethodRecord, TopKRecord
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.regularizers.base import Regularizer, Unregularized
from nunatak_training.regularizers.freezing import (
    EpochGradDrop,
    GradFreeze,
    bottom_up,
    free_from_then_on,
    free_once,
    top_down,
)
from nunatak_training.regularizers.graddrop import (
    GradDrop,
    LayerGradDrop,
    RateOfEpoch,
    annealed_rate,
    constant_rate,
)
from nunatak_training.regularizers.mixout import Mixout
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


def build_regularizer(
    settings: RegularizerSettings,
    parameters: Mapping[str, Tensor],
    *,
    num_epochs: int,
    generator: torch.Generator,
) -> Regularizer:
    """Return the regularizer of a run that is about to train `parameters`.

    It draws from `generator` and from nothing else. To go on in the middle of a run, build it
    anew on the initial parameters and a new generator of the same seed; then set the parameters,
    the generator's state, and begin the epoch again.
    """
    match settings:
        case UnregularizedSettings():
            return Unregularized()
        case GradDropSettings():
            return _of_batches(settings.name, parameters, constant_rate(settings.rate), generator)
        case AnnealedGradDropSettings():
            rate = annealed_rate(settings.rate, num_epochs=num_epochs)
            return _of_batches(settings.name, parameters, rate, generator)
        case EpochGradDropSettings():
            stays_free = settings.name is RegularizerName.GRADDROP_EPOCH
            is_free = free_from_then_on if stays_free else free_once
            return EpochGradDrop(parameters, is_free, generator, num_epochs=num_epochs)
        case GradFreezeSettings():
            is_top_down = settings.name is RegularizerName.GRADFREEZE_TOPDOWN
            order = top_down if is_top_down else bottom_up
            return GradFreeze(parameters, order, num_epochs=num_epochs)
        case MixoutSettings():
            return Mixout(parameters, settings.rate, generator)


def random_source(parameters: Mapping[str, Tensor], *, seed: int) -> torch.Generator:
    """Return a random state for the regularizer alone, so that it leaves all other draws alone."""
    return torch.Generator(next(iter(parameters.values())).device).manual_seed(seed)


def _of_batches(
    name: RegularizerName,
    parameters: Mapping[str, Tensor],
    rate: RateOfEpoch,
    generator: torch.Generator,
) -> Regularizer:
    if name in {RegularizerName.LAYER_GRADDROP, RegularizerName.ANNEAL_LAYER_GRADDROP}:
        return LayerGradDrop(parameters, rate, generator)
    return GradDrop(parameters, rate, generator)


def check_method(settings: RegularizerSettings, method: MethodRecord) -> None:
    """Return if a method tunes what a regularizer is for.

    Raises:
        InvalidRecipeError: it tunes no layers, or too few to make a difference.
    """
    name = settings.name
    if method.kind == "head" and name is not RegularizerName.NONE:
        raise InvalidRecipeError(
            f"regularizer {name!s} is for layers, and method head tunes none; choose another "
            "method, or no regularizer"
        )
    if isinstance(settings, GradFreezeSettings) and method == TopKRecord(num_layers=1):
        raise InvalidRecipeError(
            f"regularizer {name!s} frees one layer after another and needs at least 2 tuned "
            "layers, got 1"
        )


def check_course(settings: RegularizerSettings, *, num_epochs: int) -> None:
    """Return if a regularizer has something to do in a run of so many epochs.

    Raises:
        InvalidRecipeError: it would be the same as none.
    """
    goes_by_epochs = (AnnealedGradDropSettings, EpochGradDropSettings, GradFreezeSettings)
    if isinstance(settings, goes_by_epochs) and num_epochs < 2:
        raise InvalidRecipeError(
            f"regularizer {settings.name!s} changes from epoch to epoch and needs at least 2, got 1"
        )
