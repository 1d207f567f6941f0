"""A job: a corpus, the tasks that score it, and OUT. `run_job` does the work that is left.

Task references are resolved once, at the begin of a run. A run that goes on after a kill uses the
versions of the record, also if an alias has moved meanwhile.
"""

# ruff: noqa: PLC0415 - the server imports torch, which --help does not need

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import TYPE_CHECKING

from nunatak_cli.asking.corpus.chunks import (
    CHUNK_ROWS,
    Chunk,
    OnBatch,
    answered_rows,
    corpus_files,
    read_chunks,
    rejected_rows,
    score_chunks,
)
from nunatak_cli.asking.corpus.run import CorpusRecord, RunFolder, ScoredVersion, scored_files
from nunatak_cli.asking.corpus.writing import AnswerColumns, ColumnType, layout_of
from nunatak_contract.enums import AggregationStrategy, OnLong
from nunatak_contract.errors import invalid_option, needs_extra
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import Parameters
from nunatak_rows import FileOfRows, RowFormat

if TYPE_CHECKING:
    from nunatak_contract.manifest import TaskManifest
    from nunatak_registry import Registry
    from nunatak_server.predict.scoring import ScoredInputs
    from nunatak_server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusJob:
    corpus: str
    """A file, a folder or a glob."""
    out: Path
    references: tuple[str, ...]
    spelt: RowFormat = field(default_factory=RowFormat)
    keep: tuple[str, ...] | None = None
    """The columns of the corpus that OUT keeps; None: all."""
    has_all_scores: bool = False
    escapes_formulas: bool = False
    """Whether texts of CSV that a spreadsheet would compute are escaped."""
    aggregation: AggregationStrategy = AggregationStrategy.NONE
    on_long: OnLong | None = None
    chunk_rows: int = CHUNK_ROWS
    on: str | None = None
    """The Ray cluster that scores; None: this process does."""
    num_scorers: int | None = None
    """Scorers on the cluster; None: as many as it has cores for."""

    def options(self) -> "Parameters":
        return Parameters(aggregation_strategy=self.aggregation, on_long=self.on_long)


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
    on_chunk: Callable[[Chunk, int], None] | None = None,
    on_batch: Callable[[Chunk, int, float], None] = lambda *_: None,
) -> Outcome | None:
    """Score the chunks that have no part yet, and write OUT.

    `on_chunk` gets each written chunk, and the number of bytes of the corpus. `on_batch` gets both
    and the scored share of a chunk, from another thread, after each batch of this process. Returns
    None if OUT is there already, because the last run was killed after its last step but one.
    """
    folder = RunFolder(job.out)
    # OUT may stand in the folder of the corpus, where a killed run may have left its files.
    made = {job.out.absolute(), folder.rejected.absolute()}
    listed = corpus_files(job.corpus, delimiter=job.spelt.delimiter)
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
        columns = [_columns_of(job, name, manifest) for name, manifest in versions.items()]
        types = _types_of(columns)
        layout = layout_of(
            files,
            job.out,
            spelt=job.spelt,
            keep=job.keep,
            answers=types,
            escapes_formulas=job.escapes_formulas,
        )
        num_bytes = sum(file.path.stat().st_size for file in files)
        num_chunks = num_rows = num_scored = 0
        with _scoring(job, registry, versions, settings) as scoring:
            record = partial(_record, job, files, versions, settings, scoring.numerics)
            folder.begin(record())
            chunks = read_chunks(
                files,
                job.spelt,
                taken=types if job.keep is None else (),
                done=folder.done(layout),
                size=job.chunk_rows,
            )

            def tell(chunk: Chunk, share: float) -> None:
                on_batch(chunk, num_bytes, share)

            # Closed here, because an interrupt of this loop must not wait for chunks ahead.
            with closing(scoring.score(chunks, tell)) as scored_chunks:
                for chunk, scored in scored_chunks:
                    if scored is not None:
                        part = layout.part(answered_rows(chunk, scored, columns))
                        folder.write(chunk.index, layout, part, rejected_rows(chunk, scored))
                        num_scored += chunk.num_rows
                    num_chunks += 1
                    num_rows += chunk.num_rows
                    if on_chunk is not None:
                        on_chunk(chunk, num_bytes)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scoring:
    numerics: str
    score: "Callable[[Iterable[Chunk], OnBatch], Generator[tuple[Chunk, ScoredInputs | None]]]"


@contextmanager
def _scoring(
    job: CorpusJob,
    registry: "Registry",
    versions: "Mapping[str, TaskManifest]",
    settings: "ServerSettings",
) -> Generator[_Scoring]:
    if job.on is None:
        from nunatak_server.predict.scoring import open_scorer

        scorer = open_scorer(registry, versions, settings=settings, options=job.options())
        yield _Scoring(numerics=scorer.numerics, score=partial(score_chunks, scorer=scorer))
        return
    with needs_extra("ray"):
        from nunatak_cluster.scorers import ray_scorers

    with ray_scorers(
        job.on,
        settings=settings,
        versions=versions,
        options=job.options(),
        num_scorers=job.num_scorers,
    ) as scorers:
        yield _Scoring(
            numerics=scorers.numerics,
            score=lambda chunks, _: scorers.score(
                (chunk, None if chunk.is_done else chunk.inputs) for chunk in chunks
            ),
        )


def _record(
    job: CorpusJob,
    files: Iterable[FileOfRows],
    versions: "Mapping[str, TaskManifest]",
    settings: "ServerSettings",
    numerics: str,
) -> CorpusRecord:
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
        options={
            "text_column": job.spelt.text,
            "pair_column": job.spelt.pair,
            "delimiter": job.spelt.delimiter,
            "keep": None if job.keep is None else [*job.keep],
            "scores": job.has_all_scores,
            "escape_formulas": job.escapes_formulas,
            "aggregation": job.aggregation,
            "on_long": job.on_long,
            "max_text_chars": settings.max_text_chars,
        },
        chunk_rows=job.chunk_rows,
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


def _columns_of(job: CorpusJob, name: str, manifest: "TaskManifest") -> AnswerColumns:
    from nunatak_server.outputs.outputs import on_long_of

    return AnswerColumns(
        reference=name,
        problem_type=manifest.head.problem_type,
        has_all_scores=job.has_all_scores,
        is_cut=on_long_of(manifest, job.options()) is OnLong.CUT,
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
