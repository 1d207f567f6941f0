"""`nunatak evaluate` and `doubts`: what labelled examples say of a task version, and of each other.

`evaluate` scores a version on a server or in this process. `doubts` lists examples whose label is
likely wrong.
"""

# ruff: noqa: PLC0415 - a command imports training when it runs, not for --help

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from pydantic import JsonValue
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nunatak_cli import options
from nunatak_cli.asking.predictors import Item, Predictor, items_of, open_predictor, predicted_of
from nunatak_cli.output import plain_table, print_outcome, tell_rejected
from nunatak_cli.registry.show import matrix_table
from nunatak_contract.enums import FunctionToApply, HeadKind, ProblemType
from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import Progress, Work, shown_progress
from nunatak_contract.requests import Input, Query, Question
from nunatak_rows import RowFormat, check_rows_file, write_rows
from nunatak_rows.inputs import bad_row
from nunatak_rows.written import dialect_like

if TYPE_CHECKING:
    from nunatak_client import TaskResult
    from nunatak_client.calls import ShownOptions
    from nunatak_contract.manifest import TaskManifest
    from nunatak_training.data import Example, ExampleSet, TaggedWords
    from nunatak_training.data.examples import ReadExample
    from nunatak_training.doubts import Doubt
    from nunatak_training.kinds import TaskKind
    from nunatak_training.scoring.evaluation import Evaluation, ExampleAnswer

SHOWN_LABELS = 12
"""Labels of a confusion matrix that people see; JSON has all."""
DOCUMENTS_OF_A_QUERY = 16
"""Documents of one request, which every server accepts."""
SHOWN_DOUBTS = 20
"""Doubts that people see; a file and JSON have all."""
DOUBT_CHARACTERS = 80
OUTSIDE = "O"
"""The tag of a word without tokens, if the task has this tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    manifest: "TaskManifest"
    read: "Sequence[ReadExample]"
    examples: "ExampleSet"
    """Those of `read`."""
    said: "Sequence[ExampleAnswer]"
    num_truncated: int
    """Number of inputs that the task did not read to the end."""
    trained: bool
    """Whether the version was trained on these examples, or on these without its dev set."""
    evaluation: "Evaluation"


def evaluate(  # noqa: PLR0913 - one parameter per option is how typer works
    reference: options.ReferenceArgument,
    *,
    data: options.ExamplesOption,
    wrong: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the examples with a wrong answer to this CSV or JSONL file, with all "
            "scores. Of a regression: all examples, the largest error first.",
        ),
    ] = None,
    rows: options.LabelledRows,
    escape_formulas: options.EscapeFormulasOption = False,
    server: options.AskedServerOption = None,
    registry: options.RegistryOption = None,
    backbone: options.VersionBackboneOption = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Score a version on labelled examples: metrics, scores by label, confusion, calibration."""
    check_rows_file("--wrong", wrong, data)
    with needs_extra("training"):
        # Imported before the task is loaded, because the rest of the command needs this package.
        import_module("nunatak_training")
    spelt = rows.spelt_in(str(data))
    with (
        open_predictor(server, [reference], registry=registry, backbone=backbone) as predictor,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        scored = score_version(reference, data, predictor, spelt, progress)
    tell_rejected(spelt)
    if wrong is not None:
        missed = [_wrong_row(*row, spelt) for row in _wrong(scored)]
        like = dialect_like(data, delimiter=rows.delimiter, escapes_formulas=escape_formulas)
        write_rows("--wrong", wrong, missed, like)
    print_outcome(_scored_json(scored), *_report(scored, data), as_json=as_json)


def score_version(
    reference: str, data: Path, predictor: Predictor, spelt: RowFormat, progress: Progress
) -> Scored:
    from nunatak_training.data import ExampleSet
    from nunatak_training.data.sources import load_test_rows
    from nunatak_training.kinds import kind_of_head
    from nunatak_training.scoring.evaluation import evaluation_of

    manifest = predictor.manifest(reference)
    kind, labels = kind_of_head(manifest.head), manifest.head.labels
    read = load_test_rows(data, kind=kind, labels=labels, spelt=spelt)
    said, num_truncated = _ask(read, predictor, manifest, progress)
    examples = ExampleSet(examples=tuple(it.example for it in read))
    positive = manifest.recipe and manifest.recipe.settings.get("positive_label")
    return Scored(
        manifest=manifest,
        read=read,
        examples=examples,
        said=said,
        num_truncated=num_truncated,
        trained=_is_trained_on(read, examples.digest, kind, manifest),
        evaluation=evaluation_of(
            kind, labels, examples, said, next((it for it in labels if it == positive), None)
        ),
    )


def _is_trained_on(
    read: "Sequence[ReadExample]", digest: str, kind: "TaskKind", manifest: "TaskManifest"
) -> bool:
    from nunatak_training.data import ExampleSet
    from nunatak_training.data.splits import draw_dev

    found = manifest.data
    if found is None or len(read) != found.num_train + found.num_dev:
        return found is not None and found.train_digest == digest
    with suppress(NunatakError):  # of other examples, of which none can be spared
        train, _ = draw_dev(list(read), kind, seed=0, name=found.name)
        return ExampleSet(examples=tuple(it.example for it in train)).digest == found.train_digest
    return False


def _ask(
    read: "Sequence[ReadExample]",
    predictor: Predictor,
    manifest: "TaskManifest",
    progress: Progress,
) -> "tuple[list[ExampleAnswer], int]":
    """Ask about all examples; return the answer for each, and the number of cut inputs."""
    asked = list(_inputs(read, manifest))
    answers = predictor.ask(
        (source for source, _ in asked), [manifest.reference], **_shown(read, manifest)
    )
    said = list["ExampleAnswer"]()
    num_truncated = 0
    progress.begin(Work(f"asking {manifest.reference}", unit="input", total=len(asked)))
    for (_, members), (answer,) in zip(asked, answers, strict=True):
        if (error := answer.error) is not None:
            if error.position is None:
                answer.require()  # The version fails, whatever the example is.
            reason = f"[{error.code}] {error.detail or error.title}"
            raise bad_row(members[0].where, f"the task refuses it: {reason}")
        num_truncated += answer.is_truncated
        said.extend(_said(answer, members, manifest))
        progress.advance()
    return said, num_truncated


def _inputs(
    read: "Sequence[ReadExample]", manifest: "TaskManifest"
) -> "Iterator[tuple[Input, Sequence[ReadExample]]]":
    """Yield each input with its examples: one example, or several for a query."""
    match manifest.head.kind:
        case HeadKind.RANKING:
            for query, group in groupby(read, lambda it: it.example.text):
                documents = list(group)
                for start in range(0, len(documents), DOCUMENTS_OF_A_QUERY):
                    part = documents[start : start + DOCUMENTS_OF_A_QUERY]
                    texts = [it.example.text_pair or "" for it in part]
                    yield Query(query=query, documents=texts), part
        case HeadKind.QUESTION_ANSWERING:
            for it in read:
                context = it.example.text_pair or ""
                yield Question(question=it.example.text, context=context), (it,)
        case HeadKind.SEQUENCE_CLASSIFICATION | HeadKind.TOKEN_CLASSIFICATION:
            for it in read:
                yield it.example.model_input, (it,)


def _shown(read: "Sequence[ReadExample]", manifest: "TaskManifest") -> "ShownOptions":
    """Return options that show everything to score, and that change no answer."""
    from nunatak_client import Parameters
    from nunatak_training.data import Answers

    match manifest.head.kind:
        case HeadKind.TOKEN_CLASSIFICATION:
            return {"parameters": Parameters(ignore_labels=())}
        case HeadKind.QUESTION_ANSWERING:
            labels = (it.example.label for it in read)
            is_open = any(isinstance(it, Answers) and not it.spans for it in labels)
            return {"parameters": Parameters(handle_impossible_answer=is_open)}
        case HeadKind.RANKING:
            # Scores of large logits round to the same number; a server ranks by logits, too.
            return {"function_to_apply": FunctionToApply.NONE}
        case _:
            return {}


def _said(
    answer: "TaskResult", members: "Sequence[ReadExample]", manifest: "TaskManifest"
) -> "list[ExampleAnswer]":
    from nunatak_training.scoring.evaluation import ExampleAnswer

    items, predicted = items_of(answer), predicted_of(answer)
    match manifest.head.kind:
        case HeadKind.SEQUENCE_CLASSIFICATION if predicted is not None:
            scores = {str(it["label"]): cast("float", it["score"]) for it in items}
            return [ExampleAnswer(value=predicted, scores=scores)]
        case HeadKind.TOKEN_CLASSIFICATION:
            words = cast("TaggedWords", members[0].example.label)
            return [ExampleAnswer(value=_tags(items, words, manifest.head.labels))]
        case HeadKind.QUESTION_ANSWERING:
            return [ExampleAnswer(value=str(items[0]["answer"]) if items else "")]
        case HeadKind.RANKING:
            by_place = {cast("int", it["index"]): it["score"] for it in items}
            return [
                ExampleAnswer(value=cast("float", by_place[place])) for place in range(len(members))
            ]
        case _:
            raise bad_row(members[0].where, "the server does not say what is predicted")


def _tags(items: Sequence[Item], words: "TaggedWords", labels: Sequence[str]) -> tuple[str, ...]:
    """Return the tag of each word: the tag of the word's first token, as in training."""
    begins = [word.begin for word in words.words]
    tags = [OUTSIDE if OUTSIDE in labels else labels[0]] * len(begins)
    last = -1
    for token in items:
        begin, end = cast("int", token["start"]), cast("int", token["end"])
        # The last character finds the word: for some tokenizers, a token begins with the space
        # before its word.
        word = bisect_right(begins, end - 1) - 1
        if begin < end and word > last:
            tags[word] = str(token["entity"])
            last = word
    return tuple(tags)


def _wrong(scored: Scored) -> "list[tuple[float, ReadExample, ExampleAnswer]]":
    """Return the examples with a wrong answer in their order; values by their error."""
    rows = list(zip(scored.evaluation.misses, scored.read, scored.said, strict=True))
    if scored.manifest.head.problem_type is ProblemType.REGRESSION:
        return sorted(rows, key=lambda row: -row[0])
    return [row for row in rows if row[0]]


def _wrong_row(
    miss: float, read: "ReadExample", said: "ExampleAnswer", spelt: RowFormat
) -> dict[str, object]:
    example = read.example
    value = list(said.value) if isinstance(said.value, tuple) else said.value
    used = {"text", "text_pair", "label", "labels", *spelt.renamed.values()}
    return {
        **{name: it for name, it in read.row.values.items() if name not in used},
        "place": read.where,
        "text": example.text,
        "text_pair": example.text_pair,
        "expected": _expected(example),
        "predicted": value,
        "miss": miss,
        "scores": dict(said.scores),
    }


def _expected(example: "Example") -> JsonValue:
    from nunatak_training.data import Answers, LabelSet, Relevance, TaggedWords

    match example.label:
        case LabelSet(names=names):
            return list(names)
        case TaggedWords(words=words):
            return [word.tag for word in words]
        case Answers(spans=spans):
            return [span.text for span in spans]
        case Relevance(grade=grade):
            return grade
        case label:
            return label


def _scored_json(scored: Scored) -> dict[str, object]:
    found = scored.evaluation
    is_value = scored.manifest.head.problem_type is ProblemType.REGRESSION
    cells = [
        {"truth": truth, "predicted": predicted, "count": count}
        for (truth, predicted), count in sorted((found.confusion or {}).items())
    ]
    return {
        "reference": scored.manifest.reference,
        "num_examples": len(scored.read),
        # A value is hardly ever exactly right.
        "num_wrong": None if is_value else sum(map(bool, found.misses)),
        "num_truncated": scored.num_truncated,
        "trained": scored.trained,
        "metrics": {it.name: it.value for it in found.scores.values()},
        "intervals": {it.name: it.interval for it in found.scores.values() if it.interval},
        "errors": dict(found.errors),
        "majority": found.majority and {"label": found.majority[0], "share": found.majority[1]},
        "labels": [asdict(label) for label in found.labels],
        "confusion": None if found.confusion is None else cells,
        "expected_calibration_error": found.calibration_error,
    }


def _report(scored: Scored, data: Path) -> list[RenderableType]:
    found = scored.evaluation
    num_read = counted(len(scored.read), "example")
    title = Text(f"{scored.manifest.reference} on {data.name}: {num_read}")
    parts: list[RenderableType] = [title, _metrics_table(found)]
    if scored.trained:
        told = "the version was trained on these examples: the scores of others will be lower"
        parts.append(Text(told, style="yellow"))
    if found.labels:
        parts.append(_labels_table(found))
    if found.confusion is not None and len(scored.manifest.head.labels) <= SHOWN_LABELS:
        labels = scored.manifest.head.labels
        counts = [[found.confusion.get((own, other), 0) for other in labels] for own in labels]
        parts.append(matrix_table(labels, counts))
    if scored.num_truncated:
        parts.append(Text(f"{counted(scored.num_truncated, 'input')} truncated", style="yellow"))
    return parts


def _metrics_table(found: "Evaluation") -> Table:
    table = plain_table("metric", "value", "95 %", right=("value", "95 %"))
    for it in found.scores.values():
        extent = "" if it.interval is None else "{:.4f} to {:.4f}".format(*it.interval)
        table.add_row(it.name, f"{it.value:.4f}", extent)
    if found.majority is not None:
        label, share = found.majority
        table.add_row("majority share", f"{share:.4f}", Text(f"always {label}"))
    for name, value in found.errors.items():
        table.add_row(name, f"{value:.4f}", "")
    if found.calibration_error is not None:
        table.add_row("expected_calibration_error", f"{found.calibration_error:.4f}", "")
    return table


def _labels_table(found: "Evaluation") -> Table:
    numbers = ("precision", "recall", "f1", "expected", "predicted")
    table = plain_table("label", *numbers, right=numbers)
    for label in found.labels:
        scores = (f"{it:.4f}" for it in (label.precision, label.recall, label.f1))
        table.add_row(label.label, *scores, str(label.num_expected), str(label.num_predicted))
    return table


def doubts(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    data: Annotated[
        str, typer.Option(metavar="PATH", help="Examples with one label each, as for `train`.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all doubts to this CSV or JSONL.")
    ] = None,
    rows: options.LabelledRows,
    escape_formulas: options.EscapeFormulasOption = False,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that are read of a text (128).")
    ] = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    cache: options.CacheOption = True,
    compute: options.ComputeOptions,
    backbone: options.BackboneOption = None,
) -> None:
    """List examples whose label is likely wrong, by cross-validation; the strongest doubt first."""
    check_rows_file("--out", out, Path(data))
    with needs_extra("training"):
        from nunatak_training.doubts import find_doubts
        from nunatak_training.report import Report
        from nunatak_training.trunk import DiskTrunkStore
    spelt = rows.spelt_in(data)
    compute.prepare()
    with shown_progress(quiet=quiet, as_json=as_json) as progress:
        found = find_doubts(
            data,
            compute.backbone(backbone),
            spelt=spelt,
            max_length=max_length,
            trunks=DiskTrunkStore() if cache else None,
            report=Report("doubts", progress),
        )
    tell_rejected(spelt)
    listed = [_doubt_row(doubt) for doubt in found]
    if out is not None:
        kept = [{**doubt.others, **row} for doubt, row in zip(found, listed, strict=True)]
        like = dialect_like(Path(data), delimiter=rows.delimiter, escapes_formulas=escape_formulas)
        write_rows("--out", out, kept, like)
    line = f"{counted(len(found), 'example')} in doubt"
    rest = f"; the first {SHOWN_DOUBTS} are shown" if len(found) > SHOWN_DOUBTS else ""
    print_outcome({"doubts": listed}, _doubts_table(found), line + rest, as_json=as_json)


def _doubt_row(doubt: "Doubt") -> dict[str, JsonValue]:
    names = ("place", "text", "text_pair", "label", "label_probability")
    return {name: getattr(doubt, name) for name in (*names, "likely_label", "likely_probability")}


def _doubts_table(found: "Sequence[Doubt]") -> Table:
    table = plain_table("place", "label", "likely", "text")
    for doubt in found[:SHOWN_DOUBTS]:
        label = f"{doubt.label} {doubt.label_probability:.2f}"
        likely = f"{doubt.likely_label} {doubt.likely_probability:.2f}"
        table.add_row(*map(Text, (doubt.place, label, likely, doubt.text[:DOUBT_CHARACTERS])))
    return table
