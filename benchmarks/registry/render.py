"""Renders what `make torture` recorded as docs/results/registry.md."""

from benchmarks.harness.recording import FIGURES, Figure, latest

PAGE = FIGURES.parent / "registry.md"
PREFIX = "registry."
TOP = """# The registry under torture

Made by `make torture` and `make figures` from `figures.jsonl`; the newest figure of each
identifier. Goals are exact: one version lost, one wrong answer or one version without its blob is a
failure.

| figure | value | goal | met | date |
|---|---|---|---|---|
"""
BOTTOM = """
Measured on {hardware}.

## What is done to it

- **Kills at random times.** A process publishes, promotes, rolls back, deletes and collects, and
  writes down each operation that was acknowledged. It is killed with signal 9 after 0 to 120 ms,
  one in ten while it opens the registry. No valid operation may be refused or hang. The store must
  then show the state after the last acknowledged operation, or after the one that was under way,
  with every blob readable. A plain model knows these states. On PostgreSQL the client is killed;
  the server goes on.
- **A kill at every step, an error at every call.** A small preloaded library counts the system
  calls on the store, SQLite's own included, and kills the process at the Nth or lets the call
  fail with ENOSPC, EIO, EMFILE or EACCES, once or from there on, for every N. Each operation must
  end refused, in the state before or after it, and succeed when repeated. The same library traces
  the calls: no version may be named in the index before its bytes and their folder are synced,
  and no journal may be left to undo a commit. (A killed process loses no page cache, so kills
  alone prove no fsync.)
- **Damaged stores.** One blob or the index is flipped, cut, lengthened, overwritten, swapped,
  removed, or replaced by a link, a pipe or a folder, or strangers are added. Damage of blobs must
  be found and moved aside, so that nothing is left that is not named by its own digest, and every
  other version be served. Damage of the index must be found, or change no answer.
- **Hostile artefacts and names.** Each must be refused with its own code in under 100 ms, and not
  a byte below the watched folder may change.
- **Races.** Eight processes publish and promote by compare-and-swap on one store. All replies
  must fit one history in which every move follows from the one before it and none comes before a
  move that had ended when it began.
- **Planted bugs.** Registries with one step left out or done too early (no fsync of a file, none
  of a folder, none of the journal, writes in place, the row before the blob, the blob gone before
  the row, errors swallowed, bytes trusted, strangers overlooked, quarantine that moves nothing,
  acknowledged too early, no compare in compare-and-swap, names as paths). Each must be caught by
  the check that is there for it.
- **Many versions.** A registry of 10,000 versions of 100 tasks beside one of 100 versions: listing,
  resolving and promoting must take 20 ms at most at the median, and opening no more than twice what
  it takes with 100.

Kills, steps and damage run on a file system in memory where there is one, races and timings on
the disk. Not covered: loss of power with unsynced writes dropped (only the order of the syncs is
checked), and kills at every step with the index in PostgreSQL.

A promotion waits for five fsyncs, with 100 versions as with 10,000. On the disk it was measured on
one fsync took from 0.1 ms to 4 ms, depending on who else wrote to it: beside other jobs a promotion
took 20 to 24 ms, which is the disk's share of it and more than the goal.

## Run it

`make torture` takes about a quarter of an hour on a quiet machine; `make torture ONLY="corruption
controls"` runs these campaigns alone, and the command of every figure in `figures.jsonl` names its
own. The short form is part of `make test` (`tests/torture`). The library of faults needs a C
compiler, and an index in PostgreSQL its server programs; without them the tests are skipped and the
campaigns left out.
"""


def write_page() -> None:
    """Write the page from the newest figures of the registry."""
    figures = [figure for figure in latest().values() if figure.id.startswith(PREFIX)]
    rows = "".join(_row(figure) for figure in sorted(figures, key=lambda figure: figure.id))
    hardware = "; ".join(sorted({figure.hardware for figure in figures}))
    PAGE.write_text(TOP + rows + BOTTOM.format(hardware=hardware), encoding="utf-8")


def _row(figure: Figure) -> str:
    met = {None: "", True: "yes", False: f"no: {figure.reason}"}[figure.met]
    goal = figure.goal or ""
    return f"| `{figure.id}` | {figure.value:g} {figure.unit} | {goal} | {met} | {figure.date} |\n"


if __name__ == "__main__":
    write_page()
