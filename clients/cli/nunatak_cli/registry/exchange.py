"""`nunatak task import|export|push|pull` and `nunatak backbone`: exchange with other programs."""

# ruff: noqa: PLC0415 - a command imports torch when it runs, not for --help
import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli import options
from nunatak_cli.output import facts_table, plain_table, print_outcome
from nunatak_cli.registry import registries
from nunatak_cli.registry.registries import existing_registry, publishing_registry
from nunatak_contract.cards import shared_text
from nunatak_contract.enums import ImportFormat, LogitUse, OnLong, ProblemType, Reads
from nunatak_contract.errors import invalid_option, needs_extra
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import DEFAULT_BACKBONE, check_task_name
from nunatak_contract.progress import Work, shown_progress

if TYPE_CHECKING:
    from nunatak_exchange.backbones import AddedBackbone
    from nunatak_registry import Registry
    from nunatak_versions import VersionDraft

PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|HUB_ID",
        help="A folder, written as a path (./name), or a repository on the hub (owner/name).",
    ),
]


def import_(  # noqa: PLR0913 - one parameter per option is how typer works
    place: PlaceArgument,
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task.")],
    kind: Annotated[
        ImportFormat, typer.Option(help="Library that wrote the folder; auto: its files decide.")
    ] = ImportFormat.AUTO,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Names of the logits, in order; a name with a comma in quotes, as in CSV. Absent: "
            "the names in the folder.",
        ),
    ] = None,
    default_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="The label that means that nothing was found; name it for a guard. Absent: none.",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=X",
            help="The score from which a label of a multi-label task applies. Repeatable. Absent: "
            "0.5.",
        ),
    ] = None,
    reads: Annotated[
        Reads | None,
        typer.Option(
            help="Whether the task reads a single text or a pair of texts; it then refuses the "
            "other. Absent: both."
        ),
    ] = None,
    on_long: Annotated[
        OnLong | None,
        typer.Option(
            help=(
                "Treatment of a text with more tokens than the task reads at once. Absent: "
                "windows, and cut for ranking."
            )
        ),
    ] = None,
    problem_type: Annotated[
        ProblemType | None,
        typer.Option(
            help="How logits become scores: by softmax, by sigmoid, or unchanged. Absent: as "
            "transformers does."
        ),
    ] = None,
    head: Annotated[
        LogitUse | None,
        typer.Option(
            help="Head of a model with one logit. Absent: ranking if the folder is a cross-encoder."
        ),
    ] = None,
    backbone: options.BackboneOption = None,
    allow_other_base: Annotated[
        bool,
        typer.Option(
            "--allow-other-base",
            help="Accept an adapter whose folder names another base model, or none.",
        ),
    ] = False,
    revision: options.RevisionOption = None,
    promote: options.NewAliasOption = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark on the version.")] = "",
    registry: options.RegistryOption = None,
    create: options.CreateOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Publish a model that another program trained, as its difference from the backbone."""
    with needs_extra("model"):
        from nunatak_exchange.checkpoint import Checkpoint
        from nunatak_exchange.checks import ImportChoices
        from nunatak_exchange.hub import fetched
        from nunatak_exchange.importing import FILES, draft_imported, import_folder
        from nunatak_model import load_backbone
    choices = ImportChoices(
        labels=None if labels is None else _labels(labels),
        problem_type=problem_type,
        logit_use=head,
        allows_other_base=allow_other_base,
        default_label=default_label,
        thresholds=_thresholds(threshold),
        reads=reads,
        on_long=on_long,
    )
    with (
        publishing_registry(registry, create=create) as opened,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        check_task_name(task)
        progress.begin(Work(f"import {task}", total=3))
        loaded = load_backbone(backbone or DEFAULT_BACKBONE)
        with fetched(place, revision=revision, files=FILES) as there:
            progress.step(f"found the files of {place}")
            folder = Checkpoint(there.folder)
            imported = import_folder(folder, loaded, kind=kind, choices=choices)
            progress.step(f"compared with the backbone: {imported.source}")
            draft = draft_imported(
                task,
                imported,
                loaded,
                origin=there.origin,
                created_at=datetime.now(UTC),
                note=note,
                choices=choices,
            )
            progress.step("computed the probe's logits")
        progress.end()
        _publish(draft, opened, promote, found=imported.source, as_json=as_json)


def export(
    reference: options.ReferenceArgument,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="New or empty folder to write to.")
    ],
    *,
    wanted: Annotated[
        options.ExportFormat, typer.Option("--format", help="Format of the folder.")
    ] = options.ExportFormat.TRANSFORMERS,
    backbone: options.VersionBackboneOption = None,
    asked: options.RegistryOptions,
) -> None:
    """Write a version as a folder that other programs load."""
    with needs_extra("model"):
        from nunatak_exchange.hub import write_hub_folder
        from nunatak_exchange.peft_folders import export_peft
        from nunatak_exchange.transformers_export import (
            export_sentence_transformers,
            export_transformers,
        )
        from nunatak_model import load_backbone, source_of
        from nunatak_versions import PARAMETERS_ROLE, load_task
    target = folder.expanduser()
    with existing_registry(asked.registry) as opened:
        manifest = opened.resolve(reference)
        writers = {
            options.ExportFormat.TRANSFORMERS: export_transformers,
            options.ExportFormat.SENTENCE_TRANSFORMERS: export_sentence_transformers,
            options.ExportFormat.PEFT: export_peft,
        }
        if (write := writers.get(wanted)) is None:
            write_hub_folder(manifest, _blobs(opened, manifest), target)
        else:
            loaded = load_backbone(backbone or source_of(manifest.backbone.name))
            version = load_task(manifest, opened.read_blob(manifest, PARAMETERS_ROLE), loaded)
            write(version, target, loaded)
    document = {"reference": manifest.reference, "folder": str(folder), "format": wanted}
    line = f"wrote {manifest.reference} to {folder} ({wanted})"
    print_outcome(document, line, as_json=asked.as_json)


def push(
    reference: options.ReferenceArgument,
    place: PlaceArgument,
    *,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    asked: options.RegistryOptions,
) -> None:
    """Write a version with its task card to a folder or to a repository on the hub."""
    with needs_extra("model"):
        from nunatak_exchange.hub import push
    with existing_registry(asked.registry) as opened:
        manifest = opened.resolve(reference)
        blobs = _blobs(opened, manifest)
        pushed = push(manifest, blobs, place, private=not public)
    document = {"reference": manifest.reference, "place": pushed}
    print_outcome(document, f"pushed {manifest.reference} to {pushed}", as_json=asked.as_json)


def pull(  # noqa: PLR0913 - one parameter per option is how typer works
    place: PlaceArgument,
    *,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the task in this registry. Absent: its original name."
        ),
    ] = None,
    revision: options.RevisionOption = None,
    backbone: options.VersionBackboneOption = None,
    promote: options.NewAliasOption = None,
    registry: options.RegistryOption = None,
    create: options.CreateOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Publish a version that was pushed, if it computes its recorded logits here too."""
    with needs_extra("model"):
        from nunatak_exchange.hub import FILES, draft_pulled, fetched, read_hub_folder
        from nunatak_model import load_backbone, source_of
    with publishing_registry(registry, create=create) as opened:
        with fetched(place, revision=revision, files=FILES) as there:
            found = read_hub_folder(there.folder)
            loaded = load_backbone(backbone or source_of(found.manifest.backbone.name))
            draft = draft_pulled(found, loaded, task=task, origin=there.origin)
        there_named = f"{found.manifest.reference} there"
        _publish(draft, opened, promote, found=there_named, as_json=as_json)


def _blobs(registry: "Registry", manifest: "TaskManifest") -> dict[str, bytes]:
    return {blob.role: registry.read_blob(manifest, blob.role) for blob in manifest.blobs}


def _labels(given: str) -> tuple[str, ...]:
    rows = csv.reader(given.splitlines(), skipinitialspace=True)
    return tuple(label.strip() for row in rows for label in row)


def _thresholds(given: Iterable[str] | None) -> dict[str, float]:
    found = dict[str, float]()
    for label, text in options.assignments("--threshold", given).items():
        try:
            found[label] = float(text)
        except ValueError:
            raise invalid_option(
                f"--threshold expects a number from 0 to 1 after =, got {text!r}"
            ) from None
    return found


def _publish(
    draft: "VersionDraft", registry: "Registry", alias: str | None, *, found: str, as_json: bool
) -> None:
    """Publish a version, point the alias at it, and print what was found and published."""
    known = registry.version_of(draft.manifest)
    manifest = registry.publish(draft.manifest, draft.blobs)
    is_new, head = manifest.version != known, manifest.head
    is_single = head.problem_type is ProblemType.SINGLE_LABEL
    lines = [
        found,
        f"method {manifest.method.text}; shared layers {shared_text(manifest)}",
        registries.published_line(manifest.reference, is_new=is_new),
        *([f"default label: {head.default_label or 'none (a guard needs one)'}"] * is_single),
    ]
    lines += registries.promoted(registry, manifest.task, alias, manifest.version)
    document = {
        "reference": manifest.reference,
        "task": manifest.task,
        "version": manifest.version,
        "is_new": is_new,
        "alias": alias,
        "found": found,
        "method": manifest.method.kind,
        "split_depth": manifest.split_depth,
        "labels": list(head.labels),
        "default_label": head.default_label,
        "thresholds": dict(head.thresholds),
        "reads": manifest.reads,
        "max_length": manifest.max_length,
        "on_long": manifest.reads_long,
        "note": manifest.note,
    }
    print_outcome(document, *lines, as_json=as_json)


AddedArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an added backbone, for --backbone.")
]


def add_backbone(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PATH|HUB_ID",
            help="A checkpoint folder, written as a path (./name), or a repository on the hub.",
        ),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name for --backbone. Absent: the last part of the path or hub id."
        ),
    ] = None,
    revision: options.RevisionOption = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Read a checkpoint with transformers, compare its vectors, and keep it for --backbone."""
    with needs_extra("training"):
        from nunatak_exchange import backbones
    with shown_progress(quiet=quiet, as_json=as_json) as progress:
        progress.begin(Work("adding the backbone"))
        progress.tell("reading the checkpoint and comparing its vectors with transformers'")
        added = backbones.add_backbone(place, name=name, revision=revision)
    print_outcome(
        added.model_dump(mode="json"),
        f"added {added.name}: {_shape(added)}\n"
        f"vectors equal transformers' to {added.difference:.1e} of their size\n"
        f"use it with --backbone {added.name}",
        as_json=as_json,
    )


def list_backbones(*, as_json: options.JsonOption = False) -> None:
    """List the added backbones, and name the built-in one."""
    with needs_extra("model"):
        from nunatak_exchange import backbones
    found = backbones.list_backbones()
    table = plain_table("name", "architecture", "layers", "width", "tokens", "digest")
    for it in found:
        numbers = (it.num_layers, it.hidden_width, it.max_tokens)
        table.add_row(it.name, it.model_type, *map(str, numbers), it.digest[:12])
    print_outcome(
        {"backbones": found},
        table,
        f"built in: {DEFAULT_BACKBONE} (all-MiniLM-L6-v2, English); "
        "`nunatak backbone add` adds others",
        as_json=as_json,
    )


def show_backbone(name: AddedArgument, *, as_json: options.JsonOption = False) -> None:
    """Show the origin, the shape and the digest of an added backbone."""
    with needs_extra("model"):
        from nunatak_exchange.backbones import read_backbone
        from nunatak_model.checkpoint import added_backbones
    found = read_backbone(name)
    folder = str(added_backbones() / name)
    facts = {
        "name": found.name,
        "source": found.source,
        "shape": _shape(found),
        "digest": found.digest,
        "difference": f"{found.difference:.1e} of the vectors' size, from transformers",
        "folder": folder,
    }
    print_outcome({**found.model_dump(), "folder": folder}, facts_table(facts), as_json=as_json)


def verify_backbones(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this backbone. Absent: all.")
    ] = None,
    *,
    as_json: options.JsonOption = False,
) -> None:
    """Load the added backbones and compare their digests; exit 1 if one is damaged."""
    with needs_extra("model"):
        from nunatak_exchange import backbones
    names = [it.name for it in backbones.list_backbones()] if name is None else [name]
    problems = {it: backbones.verify_backbone(it) for it in names}
    print_outcome(
        {"backbones": [{"name": it, "problem": found} for it, found in problems.items()]},
        *(f"{it}: {found or 'whole'}" for it, found in problems.items()),
        as_json=as_json,
    )
    if any(problems.values()):
        raise typer.Exit(1)


def _shape(added: "AddedBackbone") -> str:
    return (
        f"{added.model_type}, {added.num_layers} layers of width {added.hidden_width}, up to "
        f"{added.max_tokens} tokens"
    )


backbone_app = options.group(
    "backbone",
    "Add checkpoints as backbones, list them and check them.",
    {
        "add": (
            add_backbone,
            "nunatak backbone add sentence-transformers/all-MiniLM-L6-v2 --name my-minilm",
        ),
        "list": (list_backbones, "nunatak backbone list"),
        "show": (show_backbone, "nunatak backbone show my-minilm"),
        "verify": (verify_backbones, "nunatak backbone verify"),
    },
)
