"""`nunatak train`, `adopt`, `train-all`, `multitask`: their options; and `cache`, which they share.

`adopt` is `train` on texts whose probabilities a teacher gives. `runs` does the work of `train` and
`train-all`; it imports torch. The cache keeps files on disk so that later runs do less work.
"""

# ruff: noqa: PLC0415 - the command imports torch when training starts, not for --help

from functools import cache, partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import JsonValue
from rich.filesize import decimal
from rich.table import Table

from nunatak_cli import options
from nunatak_cli.output import facts_table, plain_table, print_outcome, print_part, tell_rejected
from nunatak_cli.registry.documents import read_question
from nunatak_cli.registry.registries import publishing_registry
from nunatak_contract.errors import MissingExtraError, NunatakError, needs_extra
from nunatak_contract.progress import shown_progress
from nunatak_rows.files import check_is_there

if TYPE_CHECKING:
    from nunatak_training.cache import CacheContents
    from nunatak_training.multitask import MultitaskOutcome
    from nunatak_training.teachers import TeacherChoice

METHOD, RECIPE = "Method", "Recipe (absent: the default of the method)"
SETTINGS = (
    *("method", "layers", "frozen", "size", "rank", "first_layer", "default_label", "max_length"),
    *("on_long", "epochs", "patience", "learning_rate", "calibrate", "seed"),
)
"""The settings that have an option; `--set` sets the others."""

CHOICE = "nunatak.teacher"
"""The place of the choice of a teacher in the context of a command; there is none to train."""


@cache
def options_of(*names: str) -> tuple[Any, ...]:
    with needs_extra("training"):
        from nunatak_training.recipes import recipe_settings
        from nunatak_training.run_settings import all_settings
    wanted = dict[str, tuple[Any, Any]]()
    for setting in all_settings():
        if setting.name in names:
            is_flag = setting.values == "true|false"
            metavar = "VALUE" if " " in setting.values else setting.values
            default = f" ({setting.default})" * (setting.default not in {"null", "not set"})
            wanted[setting.name] = (
                bool | None if is_flag else str | None,
                typer.Option(
                    f"--{setting.name.replace('_', '-')}",
                    metavar="" if is_flag else metavar,
                    help=setting.description + default * (not is_flag),
                    rich_help_panel=RECIPE if setting.name in recipe_settings() else METHOD,
                ),
            )
    return options.made_options(wanted)


class TrainCommand(options.SettingsCommand):
    """A command with options of settings, whose help lists every setting of `--set`."""

    setting_options = staticmethod(partial(options_of, *SETTINGS))

    # Typer hands in a typer.Context, but names its own private base class here.
    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # pyrefly: ignore[bad-override] - see above
        super().format_help(ctx, formatter)  # pyrefly: ignore[bad-argument-type] - the same
        try:
            with needs_extra("training"):
                from nunatak_training.run_settings import all_settings
        except MissingExtraError as error:
            print_part(f"Settings of --set: {error}")
            return
        table = Table("--set", "is", "default", "", box=None, header_style="bold", pad_edge=False)
        table.columns[0].no_wrap, table.columns[1].overflow = True, "fold"
        for setting in all_settings():
            values = setting.values.replace("|", " | ")
            table.add_row(setting.name, values, setting.default, setting.description)
        print_part(table)


def train(  # noqa: PLR0913 - one parameter per option is how typer works
    context: typer.Context,
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="Name of the task.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Examples: JSONL, CSV, TSV or Parquet; a folder with train.*, dev.* and "
            "maybe test.*; or datasets:NAME, a data set of the hub. Columns: see --kind.",
        ),
    ],
    dev: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Examples that choose the best epoch. Absent: a tenth of the data."
        ),
    ] = None,
    kind: options.KindOption = None,
    rows: options.LabelledRows,
    strict: options.StrictOption = False,
    registry: options.RegistryOption = None,
    create: options.CreateOption = False,
    promote: options.NewAliasOption = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A remark on the version.")] = "",
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    cache: options.CacheOption = True,
    resume: options.ResumeOption = True,
    compute: options.ComputeOptions,
    backbone: options.BackboneOption = None,
    settings: options.SetOption = None,
) -> None:
    """Train a task on your examples and publish it as a new version."""
    named = options.settings_given(settings, context.obj)
    check_is_there(data, dev)
    with needs_extra("training"):
        from nunatak_cli.training.runs import outcome_json, outcome_table, train_and_promote
        from nunatak_training.kinds import kind_named
        from nunatak_training.run_settings import read_settings
        from nunatak_training.train import TrainSettings
        from nunatak_training.trunk import DiskTrunkStore
    choice: TeacherChoice | None = context.meta.get(CHOICE)
    request = TrainSettings(
        task=task,
        data=data,
        teacher=choice,
        kind=kind_named(kind),
        dev=dev,
        note=note,
        settings=read_settings(named),
        promote=promote,
        spelt=rows.spelt_in(data),
        strict=strict,
    )
    compute.prepare()
    with (
        publishing_registry(registry, create=create) as opened,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        outcome, lines = train_and_promote(
            request,
            opened,
            compute.backbone(backbone),
            progress,
            trunks=DiskTrunkStore() if cache else None,
            resume=resume,
        )
    tell_rejected(request.spelt)
    print_outcome(
        outcome_json(outcome, alias=promote), outcome_table(outcome), *lines, as_json=as_json
    )


FILE_ENDS: Final = (".json", ".yaml", ".yml", ".toml")


def _option(metavar: str, told: str, *name: str) -> Any:  # noqa: ANN401 - typer.Option has this type
    panel = "Teacher (absent: the texts have the column `probabilities`)"
    return typer.Option(*name, metavar=metavar, help=told, rich_help_panel=panel)


def adopt(  # noqa: PLR0913 - one parameter per option is how typer works
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new task.")],
    *,
    texts: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Texts as for `train --data`, whose own labels may be absent. The column "
            "`probabilities` is an object of numbers by label.",
        ),
    ],
    of_task: Annotated[str | None, _option("REF", "A task of the registry.", "--from")] = None,
    teacher_backbone: Annotated[
        str | None, _option("BACKBONE", "Backbone of that task. Absent: the new task's.")
    ] = None,
    upstream: Annotated[
        str | None,
        _option("URL", "A server of decisions: .../v1/systemone (default) or .../v1/decisions."),
    ] = None,
    question: Annotated[
        str | None,
        _option(
            "FILE|CARD", "The question for --upstream: its file, or a card (as a file or by name)."
        ),
    ] = None,
    upstream_key: Annotated[
        Path | None, _option("FILE", "File with the key of --upstream.")
    ] = None,
    upstream_model: Annotated[
        str | None, _option("NAME", "Model of --upstream. Absent: jev-latest.")
    ] = None,
    **of_train: Any,  # noqa: ANN401 - values of options
) -> None:
    """Train a task on what a teacher says about your texts, and publish it as a new version."""
    with needs_extra("training"):
        from nunatak_training.teachers import TeacherChoice
    # The name of a card may have a dot, and never a slash.
    is_file = "/" in (question or "") or Path(question or "").suffix in FILE_ENDS
    context.meta[CHOICE] = TeacherChoice(
        task=of_task,
        backbone=teacher_backbone,
        upstream=upstream,
        question=read_question(Path(question)) if question and is_file else question,
        key=upstream_key,
        model=upstream_model,
    )
    train(context, task=name, data=texts, **of_train)


OF_ADOPT: Final = [
    it for it in signature(adopt).parameters.values() if it.kind is not Parameter.VAR_KEYWORD
]
GIVEN: Final = {"context", "task", "data"}
OF_TRAIN: Final = [it for it in signature(train).parameters.values() if it.name not in GIVEN]
adopt.__signature__ = Signature([*OF_ADOPT, *OF_TRAIN])  # pyrefly: ignore[missing-attribute] - Typer reads it


def train_all(  # noqa: PLR0913 - one parameter per option is how typer works
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML or TOML: tasks by name, each with settings of `train`."
        ),
    ],
    *,
    settings: Annotated[
        list[str] | None, options.file_set_option("shared.epochs=3 or tasks.tone.layers=1")
    ] = None,
    registry: options.RegistryOption = None,
    create: options.CreateOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    cache: options.CacheOption = True,
    resume: options.ResumeOption = True,
    compute: options.ComputeOptions,
    strict: options.StrictOption = False,
) -> None:
    """Train and publish all tasks of a file; a task that fails does not stop the others."""
    with needs_extra("training"):
        from nunatak_cli.training.runs import (
            in_order,
            read_task_file,
            results_json,
            results_table,
            runs_of,
            train_in_turn,
        )
    listed = read_task_file(file, options.assignments("--set", settings))
    compute.prepare()
    runs = runs_of(listed, file, strict=strict)
    backbone = compute.backbone(listed.backbone)
    ordered = in_order(runs, file, backbone)
    with (
        publishing_registry(registry, create=create) as opened,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        results = train_in_turn(ordered, opened, backbone, progress, cache=cache, resume=resume)
    print_outcome(results_json(results), results_table(results), as_json=as_json)
    if any(isinstance(found, NunatakError) for _, found in results):
        raise typer.Exit(1)


class MultitaskCommand(options.SettingsCommand):
    setting_options = staticmethod(partial(options_of, "epochs", "learning_rate", "seed"))


def multitask(  # noqa: PLR0913 - one parameter per option is how typer works
    context: typer.Context,
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder of the backbone.")],
    *,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH", help="A task and its examples, as for `train`; give two or more."
        ),
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND",
            help="The kind of a task, as for `train --kind`. Absent: by the first row.",
        ),
    ] = None,
    backbone: options.BackboneOption = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    settings: options.SetOption = None,
    resume: options.ResumeOption = True,
    compute: options.ComputeOptions,
) -> None:
    """Train one encoder on several tasks (MT-DNN) and write it as a new backbone."""
    sources, kinds = options.assignments("--data", data), options.assignments("--kind", kind)
    options.check_names("--kind", kinds, sources)
    for source in sources.values():
        check_is_there(source)
    changes: dict[str, JsonValue] = dict(options.settings_given(settings, context.obj))
    with needs_extra("training"):
        from nunatak_contract.methods import Full
        from nunatak_training.cache import default_cache_folder
        from nunatak_training.kinds import kind_named
        from nunatak_training.multitask import train_backbone
        from nunatak_training.recipes import default_recipe
        from nunatak_training.report import Report
    default_recipe(Full(), changes=changes)  # refuse wrong settings before loading the backbone
    compute.prepare()
    base = compute.backbone(backbone)
    recipe = default_recipe(Full(), backbone=base.name, changes=changes)
    with shown_progress(quiet=quiet, as_json=as_json) as progress:
        outcome = train_backbone(
            sources,
            recipe,
            output,
            base,
            kinds={name: kind_named(it) for name, it in kinds.items()},
            report=Report(", ".join(sources), progress),
            checkpoints=default_cache_folder() if resume else None,
        )
    line = f"wrote {outcome.folder}; train on it with --backbone {outcome.folder}"
    print_outcome(_outcome_json(outcome), _outcome_table(outcome), line, as_json=as_json)


def _outcome_table(outcome: "MultitaskOutcome") -> Table:
    fitted = outcome.fitted
    scores = {
        f"dev {name}": ", ".join(f"{metric} {value:.4f}" for metric, value in it.metrics.items())
        for name, it in fitted.scores.items()
    }
    return facts_table(
        {
            **scores,
            "best epoch": f"{fitted.best_epoch} of {fitted.history[-1].epoch}",
            "backbone": f"{outcome.digest[:12]}...",
            "time": f"{outcome.seconds:.1f} s",
        }
    )


def _outcome_json(outcome: "MultitaskOutcome") -> dict[str, object]:
    fitted = outcome.fitted
    return {
        "folder": str(outcome.folder),
        "digest": outcome.digest,
        "scores": {name: dict(scores.metrics) for name, scores in fitted.scores.items()},
        "best_epoch": fitted.best_epoch,
        "seconds": outcome.seconds,
    }


def show_cache(*, as_json: options.JsonOption = False) -> None:
    """Show the trunk states of data sets, and the checkpoints of killed runs."""
    with needs_extra("training"):
        from nunatak_training.cache import cache_contents
    contents = cache_contents()
    document = {
        "folder": str(contents.folder),
        "num_bytes": contents.num_bytes,
        "states": [{"used_at": it.used_at, **it.facts.model_dump()} for it in contents.states],
        "checkpoints": [
            {"written_at": it.written_at, "num_bytes": it.num_bytes} for it in contents.checkpoints
        ],
    }
    print_outcome(document, _contents_table(contents), _total_line(contents), as_json=as_json)


def clear_kept() -> None:
    """Remove every file that no running process needs."""
    with needs_extra("training"):
        from nunatak_training.cache import clear_cache
    print_part(_total_line(clear_cache()))


def _contents_table(contents: "CacheContents") -> Table:
    """Return one row per file, the least recently used first."""
    table = plain_table("what", "backbone", "depth", "texts", "tokens", "size", "last used")
    for stored in contents.states:
        facts = stored.facts
        counts = (str(facts.depth), f"{facts.num_inputs:,}", f"{facts.num_tokens:,}")
        size, used = decimal(facts.num_bytes), f"{stored.used_at:%Y-%m-%d %H:%M}"
        table.add_row("trunk states", facts.backbone, *counts, size, used)
    for stored in contents.checkpoints:
        written = f"{stored.written_at:%Y-%m-%d %H:%M}"
        table.add_row("checkpoint", "", "", "", "", decimal(stored.num_bytes), written)
    return table


def _total_line(contents: "CacheContents") -> str:
    return f"{decimal(contents.num_bytes)} in {contents.folder}"


cache_app = options.group(
    "cache",
    "Show and clear the cache of training on disk (folder: NUNATAK_CACHE).",
    {"show": (show_cache, "nunatak cache show"), "clear": (clear_kept, "nunatak cache clear")},
)
