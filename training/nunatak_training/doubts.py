"""Doubts: examples whose label is likely wrong, found by confident learning.

A logistic regression on the pooled vectors of the frozen backbone is trained by cross-validation,
so no example is judged by a model that has seen it, or another example of the same text.

Northcutt, Jiang and Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels"
(arXiv:1911.00068): the confident joint (sec. 3.1), pruning by noise rate and the order by
normalised margin (sec. 3.2). As in cleanlab, the paper's library, no example is in doubt whose own
label is the most likely one.

Axes: examples, labels, width = hidden width.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from nunatak_contract.errors import invalid_option
from nunatak_contract.methods import HeadOnly
from nunatak_model import Backbone, TextInput, embedding_branch
from nunatak_training.data import Data, RowFormat, load_labelled
from nunatak_training.data.examples import ReadExample, sorted_labels
from nunatak_training.errors import too_few
from nunatak_training.fitting import check_length
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.fit import logits_of, predict
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_training.trunk import MemoryTrunkStore, Progress, TrunkStore

NUM_FOLDS = 5
SEED = 0

Probabilities = Float[np.ndarray, "examples labels"]
Numbers = Int[np.ndarray, " examples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """An example, and the label that is likelier than its own."""

    place: str
    text: str
    text_pair: str | None
    label: str
    label_probability: float
    """Of the given label, by a model that has not seen the example."""
    likely_label: str
    likely_probability: float
    others: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)


def find_doubts(
    data: Data,
    backbone: Backbone,
    *,
    spelt: RowFormat | None = None,
    max_length: int | None = None,
    trunks: TrunkStore | None = None,
    report: Report | None = None,
) -> tuple[Doubt, ...]:
    """Return the examples of all parts whose label is in doubt, the strongest doubt first.

    The strongest doubts are the labels with a single text, such as a typo of another label. The
    same examples, backbone and machine give the same doubts.
    """
    changes = {} if max_length is None else {"max_length": max_length}
    recipe = default_recipe(HeadOnly(), backbone=backbone.name, changes=changes)
    check_length(recipe, backbone)
    kind, read = load_labelled(data, spelt=spelt)
    if kind is not TaskKind.SINGLE_LABEL:
        raise invalid_option(f"doubts need examples with one label each, got a {kind} task")
    names = [str(it.example.label) for it in read]
    labels = sorted_labels(names)
    numbers = np.array([labels.index(name) for name in names], dtype=np.int64)
    spelt = spelt or RowFormat()
    folds = deal_folds(read, numbers)
    is_lone = lone(numbers, folds, len(labels))
    check_judged(read, numbers[~is_lone], labels)
    vectors = _vectors(
        [it.example.model_input for it in read],
        backbone,
        recipe.max_length,
        trunks or MemoryTrunkStore(),
        (report or Report()).prepared,
    )
    probabilities = held_out_probabilities(vectors, numbers, folds, is_lone, len(labels))
    found = [(int(place), int(probabilities[place].argmax())) for place in np.flatnonzero(is_lone)]
    # Labels of lone texts have no example that a model could learn from.
    judged, known = np.flatnonzero(~is_lone), np.unique(numbers[~is_lone])
    renumbered = np.searchsorted(known, numbers[judged])
    for place, likely in doubtful(probabilities[judged][:, known], renumbered):
        found.append((int(judged[place]), int(known[likely])))
    used = {"text", "text_pair", "label", *spelt.renamed.values()}
    return tuple(
        Doubt(
            place=read[place].where,
            text=read[place].example.text,
            text_pair=read[place].example.text_pair,
            label=names[place],
            label_probability=float(probabilities[place, numbers[place]]),
            likely_label=labels[likely],
            likely_probability=float(probabilities[place, likely]),
            others={it: own for it, own in read[place].row.values.items() if it not in used},
        )
        for place, likely in found
    )


def deal_folds(read: Sequence[ReadExample], numbers: Numbers) -> Numbers:
    """Equal texts share a fold, and labels spread over folds."""
    texts: defaultdict[int, dict[tuple[str, ...], list[int]]] = defaultdict(dict)
    label_of = dict[tuple[str, ...], int]()
    for place, it in enumerate(read):
        text = it.example.same_text
        # A text of several labels belongs to the first.
        first = label_of.setdefault(text, int(numbers[place]))
        texts[first].setdefault(text, []).append(place)
    folds, dealt = np.zeros(len(read), dtype=np.int64), 0
    source = random.Random(SEED)  # noqa: S311 - folds need no secrecy
    for number in sorted(texts):
        groups = list(texts[number].values())
        source.shuffle(groups)
        for group in groups:
            folds[group] = dealt % NUM_FOLDS
            dealt += 1
    return folds


def lone(numbers: Numbers, folds: Numbers, num_labels: int) -> Bool[np.ndarray, " examples"]:
    """Whether the label of each example has a single text, which no model can judge."""
    own = [len(set(folds[numbers == number])) < 2 for number in range(num_labels)]
    return np.array(own, dtype=bool)[numbers]


def check_judged(read: Sequence[ReadExample], numbers: Numbers, labels: Sequence[str]) -> None:
    if len(set(numbers)) < 2:
        raise too_few(
            read[0].where if read else "data",
            "expected at least 2 labels with at least 2 texts each, got "
            f"{len(set(numbers))} of {len(labels)} labels",
        )


def held_out_probabilities(
    vectors: Float[np.ndarray, "examples width"],
    numbers: Numbers,
    folds: Numbers,
    is_lone: Bool[np.ndarray, " examples"],
    num_labels: int,
) -> Probabilities:
    """Return the probability of each label by the model that was trained without the fold.

    The models know no label of a lone text, whose probability is 0.
    """
    # At length one, the default strength of the penalty keeps the model from fitting wrong labels.
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    model, known = LogisticRegression(max_iter=1000), np.unique(numbers[~is_lone])
    found: Probabilities = np.zeros((len(numbers), num_labels))
    judged, split = np.flatnonzero(~is_lone), PredefinedSplit(folds[~is_lone])
    own = cross_val_predict(model, unit[judged], numbers[judged], cv=split, method="predict_proba")
    found[np.ix_(judged, known)] = own
    if is_lone.any():
        model.fit(unit[judged], numbers[judged])
        found[np.ix_(np.flatnonzero(is_lone), known)] = model.predict_proba(unit[is_lone])
    return found


def doubtful(probabilities: Probabilities, numbers: Numbers) -> list[tuple[int, int]]:
    """Return the places of doubtful examples with their likely labels, the smallest margin first.

    Semantics: t[j] is the mean of p[x, j] over all examples x of label j. An example is confident
    in the likeliest of the labels with p[x, j] >= t[j], if there are some. c[i][j] counts the
    examples of label i that are confident in j. Of the n[i] examples of label i, the share
    c[i][j] / sum(c[i]) is estimated to have the true label j. So many of them, of the largest
    p[x, j] - p[x, i], are doubtful if this difference is above 0. The margin of an example is the
    probability of its own label minus the largest of another label.
    """
    num_labels = probabilities.shape[1]
    sizes = np.bincount(numbers, minlength=num_labels)
    joint = _confident_joint(probabilities, numbers)
    likely = dict[int, int]()
    for own, other in permutations(range(num_labels), 2):
        num_confident = joint[own].sum()
        if not num_confident:
            continue
        members = np.flatnonzero(numbers == own)
        excess = probabilities[members, other] - probabilities[members, own]
        num_wrong = round(float(sizes[own] * joint[own, other] / num_confident))
        for index in np.argsort(-excess, kind="stable")[:num_wrong].tolist():
            place = int(members[index])
            best = likely.get(place)
            is_better = best is None or probabilities[place, other] > probabilities[place, best]
            if excess[index] > 0 and is_better:
                likely[place] = other
    others = probabilities.copy()
    places = np.arange(len(numbers))
    others[places, numbers] = -1.0
    margins = probabilities[places, numbers] - others.max(axis=1)
    return sorted(likely.items(), key=lambda it: (margins[it[0]], it[0]))


def _confident_joint(
    probabilities: Probabilities, numbers: Numbers
) -> Int[np.ndarray, "labels labels"]:
    num_labels = probabilities.shape[1]
    thresholds = np.array([probabilities[numbers == it, it].mean() for it in range(num_labels)])
    is_confident = probabilities >= thresholds
    chosen = np.where(is_confident, probabilities, -1.0).argmax(axis=1)
    joint = np.zeros((num_labels, num_labels), dtype=np.int64)
    np.add.at(joint, (numbers, chosen), is_confident.any(axis=1).astype(np.int64))
    return joint


def _vectors(
    inputs: Sequence[TextInput],
    backbone: Backbone,
    max_length: int,
    trunks: TrunkStore,
    progress: Progress,
) -> Float[np.ndarray, "examples width"]:
    encodings = backbone.tokenizer.encode(inputs, max_length=max_length)
    depth = backbone.config.num_layers
    states = trunks.states(backbone, encodings, depth=depth, progress=progress)
    pooled = logits_of(backbone, embedding_branch(backbone), states)
    return torch.stack(predict(pooled, encodings)).float().cpu().numpy()
