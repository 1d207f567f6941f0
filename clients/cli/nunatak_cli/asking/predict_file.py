"""`nunatak predict-file`: score a corpus with many tasks, in parts that a kill cannot lose.

Task references are resolved once, at the begin of a run. A run that goes on after a kill uses the
versions of the record, also if an alias has moved meanwhile.
"""

# ruff: noqa: PLC0415 - the command imports the server when it runs, not for --help

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version as distribution_version
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli import options
from nunatak_cli.asking.chunks import (
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
from nunatak_cli.asking.parts import CorpusRecord, RunFolder, ScoredVersion
from nunatak_cli.asking.predictors import backbones_of
from nunatak_cli.asking.writing import AnswerColumns, ColumnType, layout_of
from nunatak_cli.output import json_value, print_outcome, remark
from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.enums import AggregationStrategy, OnLong
from nunatak_contract.errors import invalid_option, needs_extra
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import Progress, Work, shown_progress
from nunatak_contract.requests import Parameters
from nunatak_rows import FileOfRows

if TYPE_CHECKING:
    from nunatak_registry import Registry
    from nunatak_server.settings import ServerSettings

SOME_REJECTED = 3
"""Exit status of a complete run with rejected rows."""


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(options.TextColumns):
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Column of IN that OUT keeps. Repeatable. Absent: all columns."
        ),
    ] = None
    scores: Annotated[
        bool, typer.Option("--scores", help="Add a column with the scores of all labels.")
    ] = False
    escape_formulas: options.EscapeFormulasOption = False
    aggregation: Annotated[
        AggregationStrategy,
        typer.Option(help="The rule that joins tokens with labels to entities."),
    ] = AggregationStrategy.NONE
    on_long: options.OnLongOption = None
    on: options.OnOption = None
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


def predict_file(  # noqa: PLR0913 - one parameter per option is how typer works
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="File, folder or glob of inputs: .jsonl, .jsonl.gz, .csv, .tsv, .parquet or .txt.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="File to write, of the format of IN; rows of CSV may become JSON lines.",
        ),
    ],
    *,
    task: options.TasksOption,
    asked: CorpusOptions,
    registry: options.RegistryOption = None,
    backbone: options.VersionBackboneOption = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Score every row of a corpus with all tasks. Repeat the command to go on after a kill.

    Rows that a task cannot read go to OUT.rejected.jsonl: exit status 3.
    The server's settings, such as NUNATAK_DEVICE, apply here too.
    """
    with needs_extra("server"):
        from nunatak_server.configuration import configure

    if asked.scorers is not None and asked.on is None:
        raise invalid_option("--scorers counts processes of a cluster; name the cluster with --on")
    job = CorpusJob(corpus=corpus, out=out.expanduser(), references=tuple(task), options=asked)
    given = {"registry": registry, "backbone": backbone}
    settings = configure({name: it for name, it in given.items() if it is not None}).settings
    started = time.monotonic()
    with (
        existing_registry(settings.registry) as opened,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        if "backbone" not in settings.model_fields_set:
            own, *others = backbones_of(opened, task)
            if others:
                names = ", ".join(Path(it).name for it in (own, *others))
                raise invalid_option(
                    f"--task: a run computes on one backbone, and these tasks run on {names}; "
                    "give the tasks of each backbone a run of their own"
                )
            settings = settings.model_copy(update={"backbone": own})
        told = ChunkProgress(progress)
        outcome = run_job(job, opened, settings=settings, on_chunk=told, on_batch=told)
    if outcome is None:
        remark(f"{out} is complete: the last run was killed after its last row")
        return
    seconds = time.monotonic() - started
    versions = ", ".join(it.reference for it in outcome.versions.values())
    earlier = outcome.num_rows - outcome.num_scored
    document = {
        "out": str(out),
        "versions": {name: it.version for name, it in outcome.versions.items()},
        "rows": outcome.num_rows,
        "rejected": outcome.num_rejected,
        "rejected_file": str(outcome.rejected) if outcome.num_rejected else None,
        "seconds": round(seconds, 3),
    }
    line = (
        f"{out}: {counted(outcome.num_rows - outcome.num_rejected, 'row')} with the answers of "
        f"{versions}; {counted(outcome.num_scored, 'row')} in {seconds:.1f} s"
        + (f", {earlier:,} before a kill" if earlier else "")
    )
    print_outcome(document, line, as_json=as_json)
    if outcome.num_rejected and not as_json:
        line = f"rejected {counted(outcome.num_rejected, 'row')}; the reasons are in "
        remark(f"{line}{outcome.rejected}")
    if outcome.num_rejected:
        raise typer.Exit(SOME_REJECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    versions: Mapping[str, TaskManifest]
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
    asked: CorpusOptions,
    registry: "Registry",
    versions: Mapping[str, TaskManifest],
    settings: "ServerSettings",
) -> Generator[tuple[str, ScoreChunks]]:
    """Yield the numerics, and what scores chunks: this process or a cluster."""
    if asked.on is None:
        from nunatak_server.predict.scoring import open_scorer

        scorer = open_scorer(registry, versions, settings=settings, options=asked.parameters)
        yield scorer.numerics, partial(score_chunks, scorer=scorer)
        return
    with needs_extra("ray"):
        from nunatak_cluster.scorers import ray_scorers

    with ray_scorers(
        asked.on,
        settings=settings,
        versions=versions,
        options=asked.parameters,
        num_scorers=asked.scorers,
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
    versions: Mapping[str, TaskManifest],
    settings: "ServerSettings",
    numerics: str,
) -> CorpusRecord:
    shaping = {name: it for name, it in asdict(job.options).items() if name not in OF_NO_ROW}
    read = {"max_text_chars": settings.max_text_chars, "chunk_rows": job.chunk_rows}
    stats = ((it.name, it.path.stat()) for it in files)
    return CorpusRecord(
        release=distribution_version("nunatak"),
        files={name: (it.st_size, it.st_mtime_ns) for name, it in stats},
        tasks=tuple(
            ScoredVersion(reference=name, meant=it.reference, digest=it.content_digest())
            for name, it in versions.items()
        ),
        backbone=settings.backbone,
        numerics=numerics,
        options=json_value({**shaping, **read}),
    )


def _versions(
    job: CorpusJob, registry: "Registry", begun: CorpusRecord | None
) -> dict[str, TaskManifest]:
    """Return the version of each reference: of the run that began here, or of this moment."""
    if len(set(job.references)) != len(job.references):
        raise invalid_option("--task names one reference twice")
    if begun is None:
        return {name: registry.resolve(name) for name in job.references}
    meant = {it.reference: it.meant for it in begun.tasks}
    # A reference that the run did not have makes another record, which `begin` refuses.
    return {name: registry.resolve(meant.get(name, name)) for name in job.references}


def _columns_of(asked: CorpusOptions, name: str, manifest: TaskManifest) -> AnswerColumns:
    from nunatak_server.outputs.outputs import on_long_of

    return AnswerColumns(
        reference=name,
        problem_type=manifest.head.problem_type,
        has_all_scores=asked.scores,
        is_cut=on_long_of(manifest, asked.parameters) is OnLong.CUT,
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


class ChunkProgress:
    """Tells the scored rows; those of a killed run took none of this run's time.

    One thread tells of batches that are scored, and another one of chunks that are written.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._num_rows = 0
        self._has_begun = False
        self._one_at_a_time = Lock()
        progress.begin(Work("loading the tasks"))

    def __call__(self, chunk: Chunk, scored: float = 1.0) -> None:
        num_rows = chunk.first_row + round(scored * chunk.num_rows)
        share = chunk.begin + scored * (chunk.end - chunk.begin)
        with self._one_at_a_time:
            if num_rows <= self._num_rows:
                return
            added, self._num_rows = num_rows - self._num_rows, num_rows
            if chunk.is_done or not self._has_begun:
                # The first batch includes the time to load.
                self._has_begun = not chunk.is_done
                self._progress.begin(Work("scoring", unit="row", done=num_rows, share=share))
            else:
                self._progress.advance(added, share=share)
