"""A job: a corpus, the tasks that score it, and OUT. `run_job` does the work that is left.

Task references are resolved once, at the begin of a run. A run that goes on after a kill uses the
versions of the record, also if an alias has moved meanwhile.
"""

# ruff: noqa: PLC0415 - the server imports torch, which --help does not need

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic_core import to_jsonable_python

from nunatak_cli.asking.corpus.chunks import (
    CHUNK_ROWS,
    Chunk,
    OnBatch,
    ScoreChunks,
    answered_rows,
    corpus_files,
    read_chunks,
    rejected_rows,
    score_chunks,
)
from nunatak_cli.asking.corpus.run import CorpusRecord, RunFolder, ScoredVersion, scored_files
from nunatak_cli.asking.corpus.writing import AnswerColumns, ColumnType, layout_of
from nunatak_cli.options import EscapeFormulasOption, OnLongOption, OnOption, TextColumns
from nunatak_contract.enums import AggregationStrategy, OnLong
from nunatak_contract.errors import invalid_option, needs_extra
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import Parameters
from nunatak_rows import FileOfRows

if TYPE_CHECKING:
    from nunatak_contract.manifest import TaskManifest
    from nunatak_registry import Registry
    from nunatak_server.settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(TextColumns):
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Column of IN that OUT keeps. Repeatable. Absent: all columns."
        ),
    ] = None
    scores: Annotated[
        bool, typer.Option("--scores", help="Add a column with the scores of all labels.")
    ] = False
    escape_formulas: EscapeFormulasOption = False
    aggregation: Annotated[
        AggregationStrategy,
        typer.Option(help="The rule that joins tokens with labels to entities."),
    ] = AggregationStrategy.NONE
    on_long: OnLongOption = None
    on: OnOption = None
    scorers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --on: processes that score. Absent: as many as the cluster has cores for.",
        ),
    ] = None

    @property
    def parameters(self) -> Parameters:
        return Parameters(aggregation_strategy=self.aggregation, on_long=self.on_long)


OF_NO_ROW = {"on", "scorers"}
"""The options that change no row of OUT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusJob:
    corpus: str
    """A file, a folder or a glob."""
    out: Path
    references: tuple[str, ...]
    options: CorpusOptions = field(default_factory=CorpusOptions)
    chunk_rows: int = CHUNK_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    versions: "Mapping[str, TaskManifest]"
    """The version of each reference."""
    num_rows: int
    num_scored: int
    """Rows of the chunks that this process has scored, after the chunks of a killed process."""
    num_rejected: int
    rejected: Path
    """The file of the rejected rows, if there are any."""


def run_job(
    job: CorpusJob,
    registry: "Registry",
    *,
    settings: "ServerSettings",
    on_chunk: Callable[[Chunk], None] = lambda _: None,
    on_batch: OnBatch = lambda *_: None,
) -> Outcome | None:
    """Score the chunks that have no part yet, and write OUT.

    `on_chunk` gets each written chunk. Returns None if OUT is there already, because the last run
    was killed after its last step but one.
    """
    folder, spelt = RunFolder(job.out), job.options.spelt
    # OUT may stand in the folder of the corpus, where a killed run may have left its files.
    made = {job.out.absolute(), folder.rejected.absolute()}
    listed = corpus_files(job.corpus, delimiter=spelt.delimiter)
    files = [it for it in listed if it.path.absolute() not in made] or listed
    with folder.held():
        if folder.is_finished:
            folder.remove()
            return None
        begun = folder.record()
        for path in (job.out, *([folder.rejected] if begun is None else [])):
            if path.exists():
                raise invalid_option(f"{path} exists; remove it, or name another OUT")
        versions = _versions(job, registry, begun)
        columns = [_columns_of(job.options, name, manifest) for name, manifest in versions.items()]
        types = _types_of(columns)
        layout = layout_of(
            files,
            job.out,
            spelt=spelt,
            keep=job.options.keep,
            answers=types,
            escapes_formulas=job.options.escape_formulas,
        )
        num_chunks = num_rows = num_scored = 0
        with _scoring(job.options, registry, versions, settings) as (numerics, score):
            record = partial(_record, job, files, versions, settings, numerics)
            folder.begin(record())
            chunks = read_chunks(
                files,
                spelt,
                taken=types if job.options.keep is None else (),
                done=folder.done(layout),
                size=job.chunk_rows,
            )
            # Closed here, because an interrupt of this loop must not wait for chunks ahead.
            with closing(score(chunks, on_batch)) as scored_chunks:
                for chunk, scored in scored_chunks:
                    if scored is not None:
                        part = layout.part(answered_rows(chunk, scored, columns))
                        folder.write(chunk.index, layout, part, rejected_rows(chunk, scored))
                        num_scored += chunk.num_rows
                    num_chunks += 1
                    num_rows += chunk.num_rows
                    on_chunk(chunk)
        # A file may have changed while it was read.
        folder.begin(record())
        num_rejected = folder.finish(layout, num_chunks=num_chunks)
    return Outcome(
        versions=versions,
        num_rows=num_rows,
        num_scored=num_scored,
        num_rejected=num_rejected,
        rejected=folder.rejected,
    )


@contextmanager
def _scoring(
    options: CorpusOptions,
    registry: "Registry",
    versions: "Mapping[str, TaskManifest]",
    settings: "ServerSettings",
) -> Generator[tuple[str, ScoreChunks]]:
    """Yield the numerics, and what scores chunks: this process or a cluster."""
    if options.on is None:
        from nunatak_server.predict.scoring import open_scorer

        scorer = open_scorer(registry, versions, settings=settings, options=options.parameters)
        yield scorer.numerics, partial(score_chunks, scorer=scorer)
        return
    with needs_extra("ray"):
        from nunatak_cluster.scorers import ray_scorers

    with ray_scorers(
        options.on,
        settings=settings,
        versions=versions,
        options=options.parameters,
        num_scorers=options.scorers,
    ) as scorers:
        yield (
            scorers.numerics,
            lambda chunks, _: scorers.score(
                (it, None if it.is_done else it.inputs) for it in chunks
            ),
        )


def _record(
    job: CorpusJob,
    files: Iterable[FileOfRows],
    versions: "Mapping[str, TaskManifest]",
    settings: "ServerSettings",
    numerics: str,
) -> CorpusRecord:
    shaping = {name: it for name, it in asdict(job.options).items() if name not in OF_NO_ROW}
    read = {"max_text_chars": settings.max_text_chars, "chunk_rows": job.chunk_rows}
    return CorpusRecord(
        release=distribution_version("nunatak"),
        files=scored_files(files),
        tasks=tuple(
            ScoredVersion(
                reference=name,
                task=manifest.task,
                version=manifest.version,
                digest=manifest.content_digest(),
            )
            for name, manifest in versions.items()
        ),
        backbone=settings.backbone,
        numerics=numerics,
        options=to_jsonable_python({**shaping, **read}),
    )


def _versions(
    job: CorpusJob, registry: "Registry", begun: CorpusRecord | None
) -> "dict[str, TaskManifest]":
    """Return the version of each reference: of the run that began here, or of this moment."""
    if len(set(job.references)) != len(job.references):
        raise invalid_option("--task names one reference twice")
    if begun is None:
        return {name: registry.resolve(name) for name in job.references}
    meant = {it.reference: TaskReference(task=it.task, version=it.version) for it in begun.tasks}
    # A reference that the run did not have makes another record, which `begin` refuses.
    return {name: registry.resolve(meant.get(name, name)) for name in job.references}


def _columns_of(options: CorpusOptions, name: str, manifest: "TaskManifest") -> AnswerColumns:
    from nunatak_server.outputs.outputs import on_long_of

    return AnswerColumns(
        reference=name,
        problem_type=manifest.head.problem_type,
        has_all_scores=options.scores,
        is_cut=on_long_of(manifest, options.parameters) is OnLong.CUT,
    )


def _types_of(columns: Iterable[AnswerColumns]) -> dict[str, ColumnType]:
    found = dict[str, ColumnType]()
    for task in columns:
        for name, kind in task.types().items():
            if name in found:
                raise invalid_option(
                    f"two tasks have a column {name!r}; name one by its version, such as "
                    f"{task.reference}/1, or score one by itself"
                )
            found[name] = kind
    return found
