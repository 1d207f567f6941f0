"""Cross-encoders of sentence-transformers, releases 2 to 6: one logit that ranks pairs of texts.

Each release marks a cross-encoder in its own place: release 6 in
`config_sentence_transformers.json`, releases 4 and 5 with the key `sentence_transformers` in
`config.json`, releases 2 and 3 with another key in `config.json`. Releases 2 and 3 write the key
only if the user chose the activation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import JsonValue

from nunatak_contract.enums import LogitUse, RankingScore
from nunatak_exchange.checkpoint import CONFIG, Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_model import Backbone, sentence_folder

MODEL_TYPE: Final = "CrossEncoder"
KEY, OLD_KEY = "sentence_transformers", "sbert_ce_default_activation_function"
ACTIVATION: Final = "activation_fn"
SCORES: Final[Mapping[str, RankingScore]] = {
    "Sigmoid": RankingScore.SIGMOID,
    "Identity": RankingScore.NONE,
}
"""Scores by the class name of the activation in `torch.nn`."""
PATHS: Final[Mapping[RankingScore, str]] = {
    RankingScore.SIGMOID: "torch.nn.modules.activation.Sigmoid",
    RankingScore.NONE: "torch.nn.modules.linear.Identity",
}
"""The activations as sentence-transformers writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEncoder:
    max_length: int | None
    """The longest input in tokens: the modules', else the tokenizer's; None if not set."""
    score: RankingScore = RankingScore.SIGMOID
    is_marked: bool = True
    """Whether the folder says that it is a cross-encoder."""


def read_cross_encoder(checkpoint: Checkpoint, backbone: Backbone) -> CrossEncoder:
    def read(name: str) -> object:
        return checkpoint.json(name) if checkpoint.has(name) else None

    with checkpoint.backbone_errors():
        general = sentence_folder.json_object(read, sentence_folder.SENTENCE_CONFIG)
        config = sentence_folder.json_object(read, CONFIG)
        is_new = general.get("model_type") == MODEL_TYPE
        if not is_new and config.get(KEY) is None and config.get(OLD_KEY) is None:
            return CrossEncoder(max_length=checkpoint.max_length(backbone), is_marked=False)
        max_length = None
        if is_new and sentence_folder.read_modules(read) is not None:
            kinds = [kind for kind, _ in sentence_folder.read_modules(read) or ()]
            if kinds != ["Transformer"]:
                raise checkpoint.refuse(
                    f"its modules are {', '.join(kinds)}",
                    "expected a cross-encoder of one Transformer",
                )
            sentence_folder.check_prompt(general)
            definition, settings = checkpoint.definition(backbone), checkpoint.settings
            max_length = sentence_folder.read_max_tokens(read, definition, settings)
        return CrossEncoder(
            score=_score(checkpoint, general, config),
            max_length=max_length or checkpoint.max_length(backbone),
        )


def is_ranking(
    checkpoint: Checkpoint, cross_encoder: CrossEncoder, choices: ImportChoices, *, num_outputs: int
) -> bool:
    """Whether a sequence classification becomes a ranking: the caller decides before the folder."""
    if choices.logit_use is LogitUse.RANKING:
        if num_outputs != 1:
            raise checkpoint.refuse(
                f"it has {num_outputs} logits",
                "expected one logit for a ranking; import it as a classification",
            )
        return True
    said = choices.logit_use is not None or choices.problem_type is not None
    return num_outputs == 1 and cross_encoder.is_marked and not said


def activation_fields(score: RankingScore) -> dict[str, JsonValue]:
    """The fields that releases 4 and later read in the `config.json` of a cross-encoder."""
    return {KEY: {ACTIVATION: PATHS[score]}}


def _score(
    checkpoint: Checkpoint, general: Mapping[str, Any], config: Mapping[str, Any]
) -> RankingScore:
    """The activation of the logit, from the first place that sentence-transformers would read."""
    path = general.get(ACTIVATION)
    inner = config.get(KEY)
    if path is None and isinstance(inner, dict):
        path = cast("dict[str, object]", inner).get(ACTIVATION)
    elif path is None:
        path = config.get(OLD_KEY)
    if path is None:
        return RankingScore.SIGMOID
    module, _, name = str(path).rpartition(".")
    if name not in SCORES or not f"{module}.".startswith("torch.nn."):
        raise checkpoint.refuse(
            f"it scores by {str(path)[:80]!r}", f"expected {' or '.join(PATHS.values())}"
        )
    return SCORES[name]
