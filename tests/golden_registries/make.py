"""Writes the registry of one older layout, by the code of the commit that had the layout.

`regenerate` next to this file checks the commits out and runs this program once for each.
"""

# ruff: noqa: ANN201
# pyrefly: ignore-errors
# The types are those of the older code.

import sqlite3
import sys
import tempfile
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

ROOT, NAME, OUTPUT = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)

for package in ("contract", "registry", "model", "versions", "server", "tests"):
    sys.path.insert(0, str(ROOT / package))

from sqlalchemy.dialects import postgresql, sqlite  # noqa: E402
from sqlalchemy.schema import CreateIndex, CreateTable  # noqa: E402

from doubles.backbones import tiny_backbone  # noqa: E402
from doubles.policies import make_policy, make_rule, when  # noqa: E402
from doubles.tasks import tiny_task  # noqa: E402
from nunatak_contract.methods import HeadOnly, LinearMap, Lora  # noqa: E402
from nunatak_contract.questions import QuestionCard  # noqa: E402
from nunatak_registry import Candidate, CandidateRole, Registry  # noqa: E402
from nunatak_registry.index.schema import Base  # noqa: E402


def main() -> None:
    folder = OUTPUT / NAME
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, suppress(FileExistsError):
        with Registry.open(Path(scratch), clock=lambda: MADE_AT) as registry:
            fill(registry)
        save(Path(scratch), folder)


def fill(registry: Registry) -> None:
    """Publish tasks, move aliases, delete a version, and use whatever else the layout has."""
    for draft, blobs in drafts():
        registry.publish(draft, blobs)
    for version in (1, 2):
        registry.promote("tone", "prod", version)
    registry.promote("tone", "next", 2)
    registry.rollback("tone", "prod")
    registry.delete("tone", 3)
    registry.hold("host:1", [("tone", 1)], seconds=60)
    add_candidates(registry)
    registry.policies.put(make_policy(make_rule(when("tone", "urgent"))))
    add_card(registry)


def drafts():
    """Yield drafts with their blobs: three versions of one task, and one of another."""
    backbone = tiny_backbone()
    head, lora = HeadOnly(), Lora(rank=1, alpha=1.0, targets=(LinearMap.QUERY,))
    yield tiny_task(backbone, method=head, seed=0)
    yield tiny_task(backbone, method=lora, seed=1)
    yield tiny_task(backbone, method=head, seed=2)
    yield tiny_task(backbone, task="topic", method=head, seed=0)


def add_candidates(registry: Registry) -> None:
    for role, share in ((CandidateRole.CANARY, 0.25), (CandidateRole.SHADOW, 0.5)):
        registry.rollouts.set(
            Candidate(task="tone", alias="prod", role=role, version=2, share=share)
        )
    registry.rollouts.end("tone", "prod", CandidateRole.SHADOW)


def add_card(registry: Registry) -> None:
    card = {
        "name": "tone",
        "task": "tone",
        "question": {
            "type": "choice",
            "instructions": "Which tone?",
            "criteria": {"calm": None, "urgent": None, "other": None},
        },
    }
    registry.questions.put(QuestionCard.model_validate(card))


def save(registry: Path, folder: Path) -> None:
    """Write tables, rows and blobs as small files."""
    for name, dialect in (("sqlite", sqlite.dialect()), ("postgresql", postgresql.dialect())):
        lines = list[str]()
        for table in Base.metadata.sorted_tables:
            create = str(CreateTable(table).compile(dialect=dialect))
            lines.append(" ".join(create.split()) + ";")
            lines += [
                str(CreateIndex(index).compile(dialect=dialect)) + ";"
                for index in sorted(table.indexes, key=lambda it: it.name)
            ]
        (folder / f"{name}.sql").write_text("\n".join(lines) + "\n")
    with closing(sqlite3.connect(registry / "index.sqlite3")) as connection:
        order = [table.name for table in Base.metadata.sorted_tables]
        rows = [line for line in connection.iterdump() if line.startswith("INSERT")]
        used = {row[0] for row in connection.execute("SELECT digest FROM nunatak_version_blobs")}
    rows.sort(key=lambda line: order.index(line.split('"')[1]))
    (folder / "rows.sql").write_text("\n".join(rows) + "\n")
    for blob in (registry / "blobs" / "sha256").rglob("*"):
        if blob.name in used:
            (OUTPUT / "blobs").mkdir(exist_ok=True)
            (OUTPUT / "blobs" / blob.name).write_bytes(blob.read_bytes())


main()
