"""`nunatak predict-file`: score a corpus with many tasks, in parts that a kill cannot lose."""

# ruff: noqa: PLC0415 - the command imports the server when it runs, not for --help

import time
from pathlib import Path
from threading import Lock
from typing import Annotated

import typer

from nunatak_cli import options
from nunatak_cli.asking.corpus.chunks import Chunk
from nunatak_cli.asking.corpus.job import CorpusJob, CorpusOptions, run_job
from nunatak_cli.asking.predictors import backbone_of
from nunatak_cli.output import error_console, print_outcome
from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.errors import needs_extra
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import Progress, Work, shown_progress

SOME_REJECTED = 3
"""Exit status of a complete run with rejected rows."""


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
    backbone: options.BackboneOption = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Score every row of a corpus with all tasks. Repeat the command to go on after a kill.

    Rows that a task cannot read go to OUT.rejected.jsonl: exit status 3.
    The server's settings, such as NUNATAK_DEVICE, apply here too.
    """
    with needs_extra("server"):
        from nunatak_server.configuration import configure

    job = CorpusJob(corpus=corpus, out=out.expanduser(), references=tuple(task), options=asked)
    given = {"registry": registry, "backbone": backbone}
    settings = configure({name: it for name, it in given.items() if it is not None}).settings
    started = time.monotonic()
    with (
        existing_registry(settings.registry) as opened,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        if "backbone" not in settings.model_fields_set:
            settings = settings.model_copy(update={"backbone": backbone_of(opened, task)})
        told = ChunkProgress(progress)
        outcome = run_job(job, opened, settings=settings, on_chunk=told, on_batch=told)
    if outcome is None:
        error_console().print(f"{out} is complete: the last run was killed after its last row")
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
        error_console().print(f"{line}{outcome.rejected}", soft_wrap=True)
    if outcome.num_rejected:
        raise typer.Exit(SOME_REJECTED)


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
