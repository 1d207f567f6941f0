"""The task card: a manifest as a page of Markdown."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from nunatak_registry.cards.confusion import confusion_matrix, worst_mistakes
from nunatak_registry.cards.markdown import markdown_table
from nunatak_registry.cards.wording import (
    head_text,
    long_examples_text,
    long_text,
    method_text,
    own_parameters,
    saved_share,
    score_text,
    shared_text,
    stored_bytes,
)
from nunatak_registry.manifest import HeadKind, TaskManifest
from nunatak_registry.plain_text import visible, visible_lines

SHOWN_LABELS = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~&$])")
_LIST_OR_RULE = re.compile(r"^(\d*)([-+=.)])")
"""What begins a list, a rule or the underline of a heading at the start of a line."""


def task_card(manifest: TaskManifest, *, source: str | None = None) -> str:
    """Write the card of a version.

    Args:
        manifest: of the version.
        source: where `nunatak task pull` finds it, if it is to be found somewhere.
    """
    sections = (
        _head(manifest),
        _scores(manifest),
        _confusion(manifest),
        _data(manifest),
        _recipe(manifest),
        _usage(manifest, source),
    )
    page = "\n\n".join("\n".join(lines) for section in sections if (lines := list(section)))
    return visible_lines(page) + "\n"


def _head(manifest: TaskManifest) -> Iterator[str]:
    yield f"# {_text(manifest.task)}"
    yield ""
    yield (
        f"Version {manifest.version}: {head_text(manifest.head)} on the frozen backbone "
        f"{_text(manifest.backbone.name)}, for Nunatak."
    )
    if manifest.note:
        yield from ("", _text(manifest.note))
    yield ""
    yield from _table(("", ""), _facts(manifest))


def _facts(manifest: TaskManifest) -> Iterator[tuple[str, str]]:
    counts, saved = manifest.parameter_counts, saved_share(manifest)
    if manifest.head.labels:
        yield f"labels ({len(manifest.head.labels)})", _labels(manifest.head.labels)
    yield "method", method_text(manifest.method)
    yield "shared layers", shared_text(manifest)
    depth = "none (a full copy)" if manifest.split_depth is None else str(manifest.split_depth)
    yield "split depth", depth
    yield (
        "own parameters",
        f"{own_parameters(manifest):,} ({counts.branch:,} branch, {counts.head:,} head)",
    )
    if saved is not None:
        yield "saved against a model of its own", f"{saved:.1%} of the parameters"
    yield "stored", f"{stored_bytes(manifest):,} bytes ({manifest.dtype})"
    if manifest.head.default_label is not None:
        yield "default label", _text(manifest.head.default_label)
    yield "longest input", f"{manifest.max_length} tokens; {long_text(manifest)}"
    yield "backbone digest", f"`{manifest.backbone.digest}`"
    yield "tokenizer digest", f"`{manifest.tokenizer_digest}`"
    yield "created", manifest.created_at.strftime("%Y-%m-%d %H:%M:%S %Z").strip()


def _scores(manifest: TaskManifest) -> Iterator[str]:
    yield from ("## Scores", "")
    if not manifest.metrics:
        yield "None recorded."
        return
    rows = (
        (
            _text(metric.name),
            score_text(metric),
            f"{metric.num_examples:,}",
            f"`{metric.data_digest}`",
        )
        for metric in manifest.metrics
    )
    yield from _table(("metric", "value [95 % interval]", "examples", "data digest"), rows)


def _confusion(manifest: TaskManifest) -> Iterator[str]:
    matrix, mistakes = confusion_matrix(manifest), worst_mistakes(manifest)
    if manifest.confusion is None:
        return
    yield from ("## Confusion on the dev examples", "")
    if matrix is not None:
        header = ("true \\\\ predicted", *map(_text, matrix.labels))
        rows = zip(matrix.labels, matrix.rows, strict=True)
        yield from _table(header, ((_text(label), *map(str, row)) for label, row in rows))
    elif mistakes:
        found = ((_text(it.truth), _text(it.predicted), str(it.count)) for it in mistakes)
        yield from _table(("true", "predicted instead", "times"), found)
    else:
        yield "No mistakes."


def _data(manifest: TaskManifest) -> Iterator[str]:
    yield from ("## Data", "")
    data = manifest.data
    if data is None:
        yield "Not recorded."
        return
    yield _text(data.name)
    yield ""
    yield from _table(
        ("part", "examples", "SHA-256"),
        (
            ("train", f"{data.num_train:,}", f"`{data.train_digest}`"),
            ("dev", f"{data.num_dev:,}", f"`{data.dev_digest}`"),
        ),
    )
    if told := long_examples_text(manifest):
        yield from ("", told)


def _recipe(manifest: TaskManifest) -> Iterator[str]:
    yield from ("## Recipe", "")
    recipe = manifest.recipe
    if recipe is None:
        yield "Not recorded."
        return
    settings = ((_text(name), _text(json.dumps(it))) for name, it in recipe.settings.items())
    yield from _table(("setting", "value"), settings)
    yield from ("", f"SHA-256 of the recipe: `{recipe.digest}`")


def _usage(manifest: TaskManifest, source: str | None) -> Iterator[str]:
    task, text = manifest.task, '"some text"'
    options = ""
    match manifest.head.kind:
        case HeadKind.QUESTION_ANSWERING:
            options = ' --question "who?"'
        case HeadKind.RANKING:
            options = ' --document "one" --document "another"'
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.TOKEN_CLASSIFICATION:
            pass
    yield from ("## How to call it", "", "```sh")
    if source is not None:
        yield f"nunatak task pull {source} --task {task}"
    yield f"nunatak predict {text} --task {task}{options}"
    yield "nunatak serve --port 8080"
    yield "```"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from markdown_table(header, rows).splitlines()


def _labels(labels: Sequence[str]) -> str:
    shown = ", ".join(map(_text, labels[:SHOWN_LABELS]))
    more = len(labels) - SHOWN_LABELS
    return f"{shown} and {more} more" if more > 0 else shown


def _text(value: str) -> str:
    """Somebody's text on one line, with nothing in it that Markdown or HTML would read."""
    plain = _SPECIAL.sub(r"\\\1", visible(" ".join(value.split())))
    return _LIST_OR_RULE.sub(r"\1\\\2", plain)
