"""Renders what `make torture` recorded as docs/results/registry.md."""

from recording import FIGURES, Figure, latest

PAGE = FIGURES.parent / "registry.md"
PREFIX = "registry."
TOP = """# The registry under torture

`make torture` measures these figures, and `make figures` renders them from `figures.jsonl`. The
page shows the newest figure of each identifier. The goals are exact: one lost version, one wrong
answer or one version without its blob is a failure.

| figure | value | goal | met | date |
|---|---|---|---|---|
"""
BOTTOM = """
Measured on {hardware}.

## The campaigns

- **Kills at random times.** A process publishes, promotes, rolls back, deletes and collects. It
  writes down each operation that the registry acknowledged. After 0 to 120 ms the campaign kills
  the process with signal 9, one time in ten while the process opens the registry. The registry
  must not refuse a valid operation, and no operation may hang. After the kill the store must show
  the state after the last acknowledged operation, or after the operation in progress, and every
  blob must be readable. A plain model of the registry predicts both states. On PostgreSQL only
  the client is killed.
- **A kill at every step, an error at every call.** A small preloaded library counts the system
  calls on the store, including SQLite's own calls. For every N, the library kills the process at
  call N, or lets call N fail with ENOSPC, EIO, EMFILE or EACCES, once or from then on. Each
  operation must end refused, must leave the state before or after it, and must succeed when it is
  repeated. The library also traces the calls: the index may name a version only after its bytes
  and their folder are synced, and no journal may be left that would undo a commit. (A killed
  process loses no page cache, so kills alone prove no fsync.)
- **Damaged stores.** The campaign flips, cuts, lengthens, overwrites, swaps or removes one blob
  or the index, replaces it by a link, a pipe or a folder, or adds foreign files. Verification
  must find damaged blobs and move them aside. Afterwards every file must match the digest in its
  name, and every other version must be served. Damage of the index must be found, or must change
  no answer.
- **Hostile artefacts and names.** The registry must refuse each one with its own code in under
  100 ms. No byte below the watched folder may change.
- **Races.** Eight processes publish and promote by compare-and-swap on one store. All replies
  must fit one history: every move follows from the move before it, and no move comes before a
  move that had ended when it began.
- **Planted bugs.** A registry with a planted bug leaves out one step or does one step too early:
  no fsync of a file, of a folder or of the journal; writes in place; the row before the blob; the
  blob gone before the row; swallowed errors; trusted bytes; overlooked foreign files; a
  quarantine that moves nothing; an early acknowledgement; no compare in compare-and-swap; names
  used as paths. The check for each bug must catch it.
- **Many versions.** The campaign compares a registry of 10,000 versions of 100 tasks with one of
  100 versions. Listing, resolving and promoting must take 20 ms at most at the median. Opening
  must take no more than twice the time that it takes with 100 versions.

Kills, steps and damage run on a file system in memory where there is one. Races and timings run on
the disk. Two cases are not covered: a loss of power that drops unsynced writes (the campaigns only
check the order of the syncs), and kills at every step with the index in PostgreSQL.

A promotion waits for five fsyncs, however many versions the registry holds. On the measured disk
one fsync took between 0.1 ms and 4 ms, depending on what else wrote to the disk. While other jobs
wrote, a promotion took 20 to 24 ms. That is above the goal, and it is the time of the disk.

## Run it

`make torture` takes about a quarter of an hour on a machine without other work.
`make torture ONLY="corruption controls"` runs these two campaigns alone. The command of every
figure in `figures.jsonl` names the figure's campaign. `make test` runs a short form
(`tests/torture`). The library of faults needs a C compiler, and an index in PostgreSQL needs the
PostgreSQL server programs. Without them the tests are skipped and the campaigns are left out.
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
