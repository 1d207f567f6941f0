"""Manifests for people: facts in words, the confusion matrix, comparisons and the task card.

In reading order: Markdown tables, the facts of a version, its confusion matrix, the comparison of
two versions, and the task card (a manifest as a page of Markdown).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from pydantic import JsonValue

from nunatak_contract.enums import HeadKind, IntervalMethod, OnLong, RankingScore, Reads
from nunatak_contract.evidence import ConfusionCell, MetricRecord, ReliabilityBin, ReliabilityRecord
from nunatak_contract.heads import DEFAULT_THRESHOLD, HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.plain_text import counted, percent, visible, visible_lines

LONG_SHARE_TO_WARN_OF: Final = 0.01
"""If more than this share of the examples is cut, the card warns."""
SHOWN_CONFUSED_LABELS = 12
"""Most labels of a matrix: pages and terminals have no room for more columns."""
SHOWN_MISTAKES = 10
SHOWN_LABELS = 100
PICTURE_WIDTH = 40
"""Characters of a share of 1 in the picture of reliability."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~&$])")
_LIST_OR_RULE = re.compile(r"^(\d*)([-+=.)])")
"""Matches the start of a list, a rule or the underline of a heading."""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table, one line per row; cells hold no line break and no bare `|`."""
    lines = (f"| {' | '.join(line)} |\n" for line in (header, *rows))
    return next(lines) + f"|{'---|' * len(header)}\n" + "".join(lines)


def head_text(head: HeadRecord) -> str:
    """The kind of prediction: `token classification`, `regression`."""
    if head.score is RankingScore.NONE:
        return "ranking, scored by its logits"
    return (head.problem_type or head.kind).value.replace("_", " ")


def thresholds_text(head: HeadRecord) -> str | None:
    """The scores from which labels of a multi-label task apply; None if none is recorded."""
    if not head.thresholds:
        return None
    named = ", ".join(f"{_listed(label)} {value:g}" for label, value in head.thresholds.items())
    return f"{named}; other labels {DEFAULT_THRESHOLD:g}"


def shared_text(manifest: TaskManifest) -> str:
    """The number of layers that the version shares with other tasks."""
    if manifest.split_depth is None:
        return "none"
    return f"{manifest.split_depth} of {manifest.backbone.num_layers}"


def score_text(metric: MetricRecord) -> str:
    """A score, with its interval at 95 % and the interval's method if they were measured."""
    value = f"{metric.value:.4f}"
    if metric.interval is None:
        return value
    low, high = metric.interval
    method = metric.interval_method or IntervalMethod.BOOTSTRAP
    return f"{value} [{low:.4f}, {high:.4f}] ({method})"


def calibration_text(manifest: TaskManifest) -> str | None:
    """The temperature and the calibration errors; None for a version that is not calibrated."""
    found = manifest.calibration
    if found is None:
        return None
    parts = {"dev": found.dev, "test": found.test}
    errors = ", ".join(
        f"{part} {it.error_before:.3f} -> {it.error_after:.3f}"
        for part, it in parts.items()
        if it is not None
    )
    kept = " (unchanged: no other fits held-out dev examples)" if found.temperature == 1 else ""
    return f"temperature {found.temperature:.3f}{kept}; expected calibration error {errors}"


def teacher_text(manifest: TaskManifest) -> str | None:
    """What the version was adopted from, and their scores; None if it had no teacher."""
    found = manifest.teacher
    if found is None:
        return None
    told = f"{found.name} ({found.digest[:12]}...): {counted(found.num_texts, 'text')}"
    told += f", asked in {found.seconds:.1f} s" * (found.seconds > 0)
    agreed, score, own = found.agreement, found.score, found.own_score
    told += f"; agreement ({agreed.name}) on {counted(agreed.num_examples, 'held-out text')}: "
    told += score_text(agreed)
    if score is not None and own is not None:
        told += f"; {score.name} of {score.num_examples:,} labelled ones: teacher "
        told += f"{score_text(score)}, task {score_text(own)}"
    return told


def own_parameters(manifest: TaskManifest) -> int:
    """Parameters that the version owns, with its head."""
    return manifest.parameter_counts.branch + manifest.parameter_counts.head


def saved_share(manifest: TaskManifest) -> float | None:
    """Share of a dedicated model's parameters that the version saves.

    None for versions that do not record the size of their backbone.
    """
    backbone = manifest.backbone.num_parameters
    if backbone is None:
        return None
    return 1.0 - own_parameters(manifest) / (backbone + manifest.parameter_counts.head)


def stored_bytes(manifest: TaskManifest) -> int:
    """Bytes of all blobs."""
    return sum(blob.size_bytes for blob in manifest.blobs)


def long_text(manifest: TaskManifest) -> str:
    """Return the treatment of inputs that are longer than the maximum."""
    match manifest.reads_long:
        case OnLong.WINDOWS:
            return "longer inputs are read in overlapping windows"
        case OnLong.REFUSE:
            return "longer inputs are refused"
        case OnLong.CUT:
            return "longer inputs are cut"


def long_examples_text(manifest: TaskManifest) -> str | None:
    """The number of examples that did not fit, with a warning if high; None if none is known."""
    data = manifest.data
    if data is None or data.num_train_long is None or data.num_dev_long is None:
        return None
    if not data.num_train_long + data.num_dev_long:
        return None
    told = (
        f"{data.num_train_long:,} of {data.num_train:,} train examples and "
        f"{data.num_dev_long:,} of {data.num_dev:,} dev examples "
        f"have more than {manifest.max_length} tokens"
    )
    share = max(data.num_train_long / data.num_train, data.num_dev_long / data.num_dev)
    if share <= LONG_SHARE_TO_WARN_OF or manifest.head.kind.reads_tokens:
        return f"{told}."
    return (
        f"{told}. Warning: that is {percent(share)} of one part, and training and scoring read "
        "only the beginning of those examples; a larger max_length reads more of them."
    )


def facts(manifest: TaskManifest, *, max_labels: int) -> dict[str, str]:
    """What a version is, in words, by the name of each fact.

    Facts that the manifest does not record are left out, and so are labels after `max_labels`.
    """
    head, counts, saved = manifest.head, manifest.parameter_counts, saved_share(manifest)
    saving = "" if saved is None else f"; saves {percent(saved)} of the parameters of a full model"
    is_sequence = head.kind is HeadKind.SEQUENCE_CLASSIFICATION
    told = {
        "head": head_text(head),
        f"labels ({len(head.labels)})": first_labels(head.labels, max_labels),
        "default label": head.default_label,
        "thresholds": thresholds_text(head),
        "reads": reads_text(manifest) if is_sequence else None,
        "method": manifest.method.text,
        "shared layers": shared_text(manifest),
        "parameters": (
            f"{own_parameters(manifest):,} ({counts.branch:,} branch, {counts.head:,} head){saving}"
        ),
        "stored": f"{stored_bytes(manifest):,} bytes ({manifest.dtype})",
        "backbone": f"{manifest.backbone.name}, {manifest.backbone.digest[:12]}...",
        "longest input": f"{counted(manifest.max_length, 'token')}; {long_text(manifest)}",
        "long examples": long_examples_text(manifest),
        "calibration": calibration_text(manifest),
        "teacher": teacher_text(manifest),
        "created": manifest.created_at.strftime("%Y-%m-%d %H:%M:%S %Z").strip(),
    }
    return {name: text for name, text in told.items() if text}


def first_labels(labels: Sequence[str], most: int) -> str:
    """The first labels in one line, and the number of the others."""
    more = len(labels) - most
    return ", ".join(map(_listed, labels[:most])) + (f" and {more} more" if more > 0 else "")


def _listed(label: str) -> str:
    """In quotes if it has a comma, which would make it two."""
    return repr(label) if "," in label else label


def reads_text(manifest: TaskManifest) -> str:
    """What a sequence classification reads for one answer."""
    match manifest.reads:
        case Reads.SINGLE:
            return "single texts"
        case Reads.PAIR:
            return "pairs of texts"
        case None:
            return "single texts and pairs of texts"


def confusion_matrix(manifest: TaskManifest) -> list[list[int]] | None:
    """The whole matrix; None if there is none or it is too wide.

    Row = true label, column = predicted label, both in the order of the labels of the head.
    """
    labels = manifest.head.labels
    if manifest.confusion is None or len(labels) > SHOWN_CONFUSED_LABELS:
        return None
    counts = manifest.confusion.counts
    return [[counts.get((truth, predicted), 0) for predicted in labels] for truth in labels]


def worst_mistakes(manifest: TaskManifest) -> list[ConfusionCell]:
    """The most frequent mistakes, at most `SHOWN_MISTAKES`; none if nothing is recorded."""
    cells = () if manifest.confusion is None else manifest.confusion.cells
    mistakes = [it for it in cells if it.truth != it.predicted]
    return sorted(mistakes, key=lambda it: (-it.count, it.truth, it.predicted))[:SHOWN_MISTAKES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One property of both versions; None: the version does not have the property."""

    name: str
    left: JsonValue
    right: JsonValue

    @property
    def differs(self) -> bool:
        """Whether the versions differ in this fact."""
        return self.left != self.right

    @property
    def change(self) -> float | None:
        """Right minus left, if both are numbers."""
        match self.left, self.right:
            case (bool(), _) | (_, bool()):
                return None
            case ((int() | float() as left), (int() | float() as right)):
                return right - left
            case _:
                return None


def compare(left: TaskManifest, right: TaskManifest) -> tuple[Compared, ...]:
    """Compare the facts of versions: method, labels, scores, data, recipe and sizes.

    From the recipes, only the differing settings are listed.
    """
    settings = _merged("recipe", _settings(left), _settings(right))
    return (
        *_merged("", _facts_of_both(left), _facts_of_both(right)),
        *_merged("metric", _values(left.metrics), _values(right.metrics)),
        *_merged("test metric", _values(left.test_metrics), _values(right.test_metrics)),
        *_merged("calibration", _calibration_facts(left), _calibration_facts(right)),
        *(row for row in settings if row.differs),
    )


def _facts_of_both(manifest: TaskManifest) -> dict[str, JsonValue]:
    data = manifest.data
    return {
        "head": head_text(manifest.head),
        "labels": list[JsonValue](manifest.head.labels),
        "method": manifest.method.text,
        "shared layers": shared_text(manifest),
        "split depth": manifest.split_depth,
        "backbone": f"{manifest.backbone.name} {manifest.backbone.digest[:12]}",
        "longest input": manifest.max_length,
        "own parameters": own_parameters(manifest),
        "stored bytes": stored_bytes(manifest),
        "train data": None if data is None else f"{data.name} {data.train_digest[:12]}",
        "dev data": None if data is None else data.dev_digest[:12],
    }


def _values(metrics: Iterable[MetricRecord]) -> dict[str, JsonValue]:
    return {metric.name: metric.value for metric in metrics}


def _calibration_facts(manifest: TaskManifest) -> dict[str, JsonValue]:
    found = manifest.calibration
    if found is None:
        return {}
    return {"temperature": found.temperature, "dev error": found.dev.error_after}


def _settings(manifest: TaskManifest) -> dict[str, JsonValue]:
    # The method already has its own line.
    recipe = manifest.recipe
    return {} if recipe is None else {k: v for k, v in recipe.settings.items() if k != "method"}


def _merged(
    group: str, left: Mapping[str, JsonValue], right: Mapping[str, JsonValue]
) -> Iterator[Compared]:
    for name in dict.fromkeys([*left, *right]):
        shown = f"{group} {name}".strip()
        yield Compared(name=shown, left=left.get(name), right=right.get(name))


def task_card(manifest: TaskManifest, *, source: str | None = None) -> str:
    """Write the card of a version.

    Args:
        manifest: the version's manifest.
        source: the place of the task for `nunatak task pull`, if it was pushed.
    """
    sections = (
        _head(manifest),
        _scores(manifest),
        _confusion(manifest),
        _calibration(manifest),
        _data(manifest),
        _recipe(manifest),
        _usage(manifest, source),
    )
    return visible_lines("\n\n".join(chain.from_iterable(sections))) + "\n"


def _head(manifest: TaskManifest) -> Iterator[str]:
    yield f"# {_text(manifest.task)}"
    yield (
        f"Version {manifest.version}: {head_text(manifest.head)} on the frozen backbone "
        f"{_text(manifest.backbone.name)}, for Nunatak."
    )
    if manifest.note:
        yield _text(manifest.note)
    told = {name: _text(it) for name, it in facts(manifest, max_labels=SHOWN_LABELS).items()}
    digests = {
        "backbone digest": f"`{manifest.backbone.digest}`",
        "tokenizer digest": f"`{manifest.tokenizer_digest}`",
    }
    yield _table(("", ""), (told | digests).items())


def _scores(manifest: TaskManifest) -> Iterator[str]:
    yield "## Scores"
    yield _score_table(manifest.metrics) if manifest.metrics else "None recorded."
    if manifest.metrics and manifest.test_metrics:
        yield "On test examples, by which nothing was chosen:"
        yield _score_table(manifest.test_metrics)


def _score_table(metrics: Sequence[MetricRecord]) -> str:
    rows = (
        (
            _text(metric.name),
            score_text(metric),
            f"{metric.num_examples:,}",
            f"`{metric.data_digest}`",
        )
        for metric in metrics
    )
    return _table(("metric", "value [95 % interval]", "examples", "data digest"), rows)


def _confusion(manifest: TaskManifest) -> Iterator[str]:
    matrix, mistakes = confusion_matrix(manifest), worst_mistakes(manifest)
    if manifest.confusion is None:
        return
    yield "## Confusion on the dev examples"
    if matrix is not None:
        labels = list(map(_text, manifest.head.labels))
        rows = zip(labels, matrix, strict=True)
        header = ("true \\\\ predicted", *labels)
        yield _table(header, ((label, *map(str, row)) for label, row in rows))
    elif mistakes:
        found = ((_text(it.truth), _text(it.predicted), str(it.count)) for it in mistakes)
        yield _table(("true", "predicted instead", "times"), found)
    else:
        yield "No mistakes."


def _calibration(manifest: TaskManifest) -> Iterator[str]:
    found = manifest.calibration
    if found is None:
        return
    yield "## Calibration"
    if found.temperature == 1:
        yield "Temperature 1: no other one lowered the loss of held-out dev examples."
    else:
        yield (
            f"Temperature {found.temperature:.3f}, fitted to the dev examples and contained in the "
            "output layer. The expected calibration error of dev examples after it is cross-fitted."
        )
    parts = {"dev": found.dev, "test": found.test}
    yield _table(
        ("examples", "number", "error before", "error after"),
        (
            (part, f"{it.num_examples:,}", f"{it.error_before:.4f}", f"{it.error_after:.4f}")
            for part, it in parts.items()
            if it is not None
        ),
    )
    shown = found.test or found.dev
    yield (
        f"Scores of the {'dev' if found.test is None else 'test'} examples by range.\n"
        "A bar is the share of right ones, and `|` is the mean score. They meet in good scores."
    )
    yield "\n".join(("```text", *_picture(shown), "```"))
    if len(found.curves) > SHOWN_CONFUSED_LABELS:
        return
    yield "The threshold with the largest F1 on the dev examples:"
    best = [(curve.label, curve.best()) for curve in found.curves]
    rows = (
        (
            _text(label),
            f"{point.threshold:g}",
            f"{point.precision:.3f}",
            f"{point.recall:.3f}",
            f"{point.f1:.3f}",
            f"{point.num_expected:,}",
        )
        for label, point in best
        if point is not None
    )
    yield _table(("label", "threshold", "precision", "recall", "F1", "examples"), rows)


def _picture(shown: ReliabilityRecord) -> Iterator[str]:
    """The diagrams of reliability before and after, one line for each range of scores."""
    for title, bins in (("before", shown.bins_before), ("after", shown.bins_after)):
        yield f"{title:>6}  {'share right':<{PICTURE_WIDTH + 1}}  right   number"
        yield from map(_bar, bins)


def _bar(one: ReliabilityBin) -> str:
    bar = list(("#" * round(one.share_right * PICTURE_WIDTH)).ljust(PICTURE_WIDTH + 1))
    bar[round(one.score * PICTURE_WIDTH)] = "|"
    return f"{one.score:6.3f}  {''.join(bar)}  {one.share_right:5.3f}  {one.count:7,}"


def _data(manifest: TaskManifest) -> Iterator[str]:
    yield "## Data"
    data = manifest.data
    if data is None:
        yield "Not recorded."
        return
    yield _text(data.name)
    yield _table(
        ("part", "examples", "SHA-256"),
        (
            ("train", f"{data.num_train:,}", f"`{data.train_digest}`"),
            ("dev", f"{data.num_dev:,}", f"`{data.dev_digest}`"),
        ),
    )
    if told := long_examples_text(manifest):
        yield told


def _recipe(manifest: TaskManifest) -> Iterator[str]:
    yield "## Recipe"
    recipe = manifest.recipe
    if recipe is None:
        yield "Not recorded."
        return
    settings = ((_text(name), _text(json.dumps(it))) for name, it in recipe.settings.items())
    yield _table(("setting", "value"), settings)
    yield f"SHA-256 of the recipe: `{recipe.digest}`"


def _usage(manifest: TaskManifest, source: str | None) -> Iterator[str]:
    task, text = manifest.task, '"some text"'
    options = ""
    match manifest.head.kind:
        case HeadKind.QUESTION_ANSWERING:
            options = ' --question "who?"'
        case HeadKind.RANKING:
            options = ' --document "one" --document "another"'
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.TOKEN_CLASSIFICATION:
            options = ' --pair "another text"' if manifest.reads is Reads.PAIR else ""
    pull = "" if source is None else f"nunatak task pull {source} --task {task}\n"
    yield "## How to call it"
    yield (
        f"```sh\n{pull}nunatak predict {text} --task {task}{options}\n"
        "nunatak serve --port 8080\n```"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown_table(header, rows).removesuffix("\n")


def _text(value: str) -> str:
    """Foreign text on one line, with the special characters of Markdown and HTML escaped."""
    plain = _SPECIAL.sub(r"\\\1", visible(" ".join(value.split())))
    return _LIST_OR_RULE.sub(r"\1\\\2", plain)
