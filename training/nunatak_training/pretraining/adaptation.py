"""Task-adaptive pretraining of what a method owns."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_artifact import method_of
from nunatak_model import Backbone, Encoding, Row, build_branch, forward, initial_parameters
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.loop.checkpoints import Checkpoint
from nunatak_training.loop.epochs import Epochs, TrainBatch, shuffled_batches
from nunatak_training.loop.optimizer import HEAD_PREFIX, plan_course
from nunatak_training.loop.randomness import seeded
from nunatak_training.loop.resuming import LoopState, Place, resume, snapshot
from nunatak_training.loop.stepping import Best, Stepper
from nunatak_training.pretraining.language_head import (
    initial_decoder,
    language_loss,
    language_spec,
)
from nunatak_training.pretraining.masking import MaskedText, Masking
from nunatak_training.pretraining.settings import TaptSettings
from nunatak_training.recipes import Recipe, changed_recipe
from nunatak_training.report import Report

WORDS = "embeddings.word"

LanguageLoss = Callable[[Sequence[MaskedText]], Float[Tensor, ""]]


def adapt(
    parameters: Mapping[str, Tensor],
    encodings: Sequence[Encoding],
    settings: TaptSettings,
    recipe: Recipe,
    backbone: Backbone,
    *,
    report: Report,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Move what the method owns of `parameters`, in place, by masked language modelling.

    The backbone stays as it is, and so does the task's head. The language head starts from random
    numbers, tied to the word embeddings (the backbone's, or the task's own where it has a full
    copy), and is thrown away. The caller's random state is left as it was.

    Args:
        parameters: of the task, in float32, as they are before tuning.
        encodings: the task's train texts.
        settings: how long, how fast and how many tokens are hidden.
        recipe: of the tuning that follows; optimizer, schedule and batch size are shared.
        backbone: the frozen encoder.
        report: is told of every step.
        checkpoint: holds how far it is, and at last what came out, for a run that goes on later.

    Raises:
        CacheError: the checkpoint cannot be written.
        InvalidRecipeError: the vocabulary has no mask token, or no text has an ordinary one.
        TrainingDivergedError: the loss or a gradient became infinite or NaN.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    masking = Masking(backbone.tokenizer, masked_share=settings.masked_share, generator=generator)
    readable = [encoding for encoding in encodings if masking.hide(encoding) is not None]
    if not readable:
        raise InvalidRecipeError("tapt needs texts with words in them; leave tapt out")
    changes = {
        "epochs": settings.epochs,
        "min_steps": 0,
        "learning_rate": settings.learning_rate or recipe.learning_rate,
    }
    recipe = changed_recipe(recipe, changes)
    moved, loss_of = _language_model(parameters, recipe, backbone, generator)
    course = plan_course(recipe, len(readable))
    state = LoopState(
        parameters=moved,
        stepper=Stepper(moved, recipe, course),
        randomness=generator,
        best=Best(),
        place=Place(),
        history=[],
    )

    def loss_on(batch: Sequence[int]) -> Float[Tensor, ""]:
        hidden = [masking.hide(readable[index]) for index in batch]
        return loss_of([text for text in hidden if text is not None])

    def batches(place: Place) -> list[TrainBatch]:
        return shuffled_batches(place, count=len(readable), size=recipe.batch_size, loss=loss_on)

    report.started(num_steps=course.num_steps, num_epochs=course.num_epochs)
    try:
        with seeded(recipe.seed, backbone.device):
            resume(state, checkpoint, report)
            Epochs(
                state=state,
                course=course,
                batches=batches,
                dev_score=None,
                checkpoint=checkpoint,
                report=report,
            ).run()
            if checkpoint is not None:
                # The tuning that follows begins here, also where it is begun anew.
                checkpoint.save(snapshot(state))
    finally:
        report.ended()
        for tensor in moved.values():
            tensor.requires_grad_(False)  # noqa: FBT003 - torch names it otherwise than its stub
            tensor.grad = None


def _language_model(
    parameters: Mapping[str, Tensor],
    recipe: Recipe,
    backbone: Backbone,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], LanguageLoss]:
    """What is trained, and the loss that it gives on hidden tokens."""
    spec = language_spec(method_of(recipe.method), backbone)
    own = {name: it for name, it in parameters.items() if not name.startswith(HEAD_PREFIX)}
    fresh = initial_parameters(spec, backbone, generator=generator)
    head = {name: it for name, it in fresh.items() if name.startswith(HEAD_PREFIX)}
    branch = build_branch(spec, backbone.config, {**own, **head})
    decoder = initial_decoder(backbone)
    words = own.get(WORDS, backbone.embeddings.word)

    def loss(texts: Sequence[MaskedText]) -> Float[Tensor, ""]:
        rows = [Row(encoding=text.encoding, branch=branch) for text in texts]
        vectors = forward(backbone, rows, dropout=recipe.dropout)
        epsilon = backbone.config.layer_norm_epsilon
        return language_loss(vectors, texts, decoder, words, epsilon=epsilon)

    return {**own, **head, **decoder}, loss
