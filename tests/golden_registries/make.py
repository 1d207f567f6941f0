"""Writes the registry of one older layout, by the code of the commit that had the layout.

`regenerate` next to this file checks the commits out and runs this program once for each.
"""

# ruff: noqa: ANN201, PLC0415
# pyrefly: ignore-errors
# The types are those of the older code.

import sqlite3
import sys
import tempfile
import types
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

ROOT, NAME, OUTPUT = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)

for package in ("contract", "artifact", "registry", "model", "versions", "server", "tests"):
    sys.path.insert(0, str(ROOT / package))
# Some commits checked bytes by BLAKE3 in memory, and stored no such digest.
sys.modules["blake3"] = types.ModuleType("blake3")
sys.modules["blake3"].blake3 = import_module("hashlib").blake2b

from sqlalchemy.dialects import postgresql, sqlite  # noqa: E402
from sqlalchemy.schema import CreateIndex, CreateTable  # noqa: E402

from nunatak_registry import Registry  # noqa: E402


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
    if hasattr(registry, "hold"):
        registry.hold("host:1", [("tone", 1)], seconds=60)
    if hasattr(registry, "rollouts"):
        add_candidates(registry)
    if hasattr(registry, "policies"):
        from doubles.policies import make_policy, make_rule, when

        registry.policies.put(make_policy(make_rule(when("tone", "urgent"))))
    if hasattr(registry, "questions"):
        add_card(registry)


def drafts():
    """Yield drafts with their blobs: three versions of one task, and one of another."""
    from doubles.backbones import tiny_backbone
    from doubles.tasks import tiny_task

    backbone = tiny_backbone()
    head, lora = methods()
    yield tiny_task(backbone, method=head, seed=0)
    yield tiny_task(backbone, method=lora, seed=1)
    yield tiny_task(backbone, method=head, seed=2)
    yield tiny_task(backbone, task="topic", method=head, seed=0)


def methods():
    """Return the smallest method, and one with an adapter."""
    # The environment may hold a later `nunatak_contract`.
    has_contract = (ROOT / "contract").exists()
    module = import_module("nunatak_contract.methods" if has_contract else "nunatak_model")
    known = (getattr(module, it, None) for it in ("LoraTarget", "LinearMap"))
    target = next((it for it in known if it is not None), str)
    return module.HeadOnly(), module.Lora(rank=1, alpha=1.0, targets=(target("query"),))


def add_candidates(registry: Registry) -> None:
    import nunatak_registry as package

    module = import_module("nunatak_registry.aliases")
    candidate = getattr(package, "Candidate", None) or module.Candidate
    role = package.CandidateRole
    for kind, share in ((role.CANARY, 0.25), (role.SHADOW, 0.5)):
        registry.rollouts.set(
            candidate(task="tone", alias="prod", role=kind, version=2, share=share)
        )
    registry.rollouts.end("tone", "prod", role.SHADOW)


def add_card(registry: Registry) -> None:
    from nunatak_contract.questions import QuestionCard

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
    schema = next(
        import_module(name)
        for name in ("nunatak_registry.index.schema", "nunatak_registry.schema")
        if (ROOT / "registry" / (name.replace(".", "/") + ".py")).exists()
    )
    for name, dialect in (("sqlite", sqlite.dialect()), ("postgresql", postgresql.dialect())):
        lines = list[str]()
        for table in schema.Base.metadata.sorted_tables:
            create = str(CreateTable(table).compile(dialect=dialect))
            lines.append(" ".join(create.split()) + ";")
            lines += [
                str(CreateIndex(index).compile(dialect=dialect)) + ";"
                for index in sorted(table.indexes, key=lambda it: it.name)
            ]
        (folder / f"{name}.sql").write_text("\n".join(lines) + "\n")
    with closing(sqlite3.connect(registry / "index.sqlite3")) as connection:
        order = [table.name for table in schema.Base.metadata.sorted_tables]
        rows = [line for line in connection.iterdump() if line.startswith("INSERT")]
        used = {row[0] for row in connection.execute("SELECT digest FROM nunatak_version_blobs")}
    rows.sort(key=lambda line: order.index(line.split('"')[1]))
    (folder / "rows.sql").write_text("\n".join(rows) + "\n")
    for blob in (registry / "blobs" / "sha256").rglob("*"):
        if blob.name in used:
            (OUTPUT / "blobs").mkdir(exist_ok=True)
            (OUTPUT / "blobs" / blob.name).write_bytes(blob.read_bytes())


main()
