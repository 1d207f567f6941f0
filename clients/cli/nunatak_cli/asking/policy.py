"""`nunatak judge`; and `nunatak policy`: its documents, and a check before one is published.

The check names what a policy's tasks cannot decide. With labelled rows, the whole policy judges
them in this process, by the versions that its references mean now.
"""

# ruff: noqa: PLC0415 - the command imports training when it runs, not for --help

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer
from rich.console import RenderableType
from rich.text import Text

from nunatak_cli.asking.predictors import STANDARD_INPUT, open_local, open_predictor, piped_text
from nunatak_cli.options import (
    AskedServerOption,
    JsonOption,
    LabelledRows,
    QuietOption,
    RegistryOption,
    VersionBackboneOption,
    group,
)
from nunatak_cli.output import plain_table, print_outcome, tell_rejected
from nunatak_cli.registry.documents import POLICIES, FileArgument, read_policy
from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.enums import ProblemType, VerdictAction
from nunatak_contract.errors import NunatakError, invalid_option, needs_extra
from nunatak_contract.evidence import wilson_bounds
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.plain_text import counted
from nunatak_contract.policies import Condition, Policy, Rule
from nunatak_contract.progress import Progress, Work, shown_progress
from nunatak_rows import RowFormat
from nunatak_rows.inputs import bad_row

if TYPE_CHECKING:
    from nunatak_contract.wire import PolicyVerdict
    from nunatak_server.local import LocalPredictor
    from nunatak_server.verdicts.rules import TextDecision
    from nunatak_training.data.examples import ReadExample

SHOWN_PLACES = 10
"""Places of wrong rows that people see; JSON has all."""
STATUSES: Final = {VerdictAction.BLOCK: 3, VerdictAction.MASK: 4}
"""Exit statuses of texts that may not pass as they are; 1 is an error."""


def judge(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Name of the policy.")],
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT|-", help="The texts to judge; - is all of standard input, as one text."
        ),
    ],
    *,
    server: AskedServerOption = None,
    registry: RegistryOption = None,
    backbone: VersionBackboneOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a policy about texts; exit 0 if they may pass as they are.

    The exit status is 3 for block, 4 for mask, and 1 for an error, which is to be treated like a
    block.
    """
    sent = [piped_text() if it == STANDARD_INPUT else it for it in texts]
    asked: Sequence[str] = ()
    if server is None:
        with existing_registry(registry) as opened:
            asked = opened.policies.get(policy).document.references
    with open_predictor(server, asked, registry=registry, backbone=backbone) as predictor:
        verdict = predictor.answers.judge(policy, sent)
    print_outcome(verdict.model_dump(mode="json"), *_verdict_parts(verdict), as_json=as_json)
    if verdict.action in STATUSES:
        raise typer.Exit(STATUSES[verdict.action])


def _verdict_parts(verdict: "PolicyVerdict") -> list[RenderableType]:
    dry = f" (a dry run of {verdict.decided})" if verdict.action is not verdict.decided else ""
    said = verdict.message or f"{verdict.policy}/{verdict.version}"
    rules = plain_table("rule", "action", "text", "score", right=("text", "score"))
    for it in verdict.rules:
        place = "" if it.input is None else str(it.input + 1)
        rules.add_row(it.rule, it.action, place, f"{it.score:.4f}")
    failures = plain_table("no answer from", "because")
    for it in verdict.failures:
        failures.add_row(it.reference, f"[{it.error.code}] {it.error.detail}")
    masked = [Text(it) for it in verdict.texts or ()]
    return [Text(f"{verdict.action}{dry}: {said}"), rules, failures, *masked]


def check_policy(  # noqa: PLR0913 - one parameter per option is how typer works
    file: FileArgument,
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Judge these rows. Each has a text and, as its label, the expected action: allow, "
            "flag, mask or block. Absent: only check the conditions.",
        ),
    ] = None,
    harmful: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL",
            help="The labels of --data are no actions: the texts of this label must not be "
            "allowed, and those of other labels must be. Repeatable.",
        ),
    ] = None,
    rows: LabelledRows,
    registry: RegistryOption = None,
    backbone: VersionBackboneOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a policy against the tasks of the registry, without publishing it.

    Says how many dev examples each label of a condition would have caught. With --data, judges
    labelled rows by the whole policy, and counts the missed rows and the false alarms.
    """
    if harmful and data is None:
        raise invalid_option("--harmful names labels of the rows of --data; name the file, too")
    policy = read_policy(file)
    with existing_registry(registry) as opened:
        opened.policies.check(policy)
        manifests = {it: opened.resolve(it) for it in policy.references}
    document, parts = _conditions_report(policy, manifests)
    if data is not None:
        spelt = rows.spelt_in(str(data))
        read, least = _read_expected(data, harmful or (), spelt)
        fixed = _fixed(policy, manifests)
        with (
            open_local(fixed.references, registry=registry, backbone=backbone) as (_, local),
            shown_progress(quiet=quiet, as_json=as_json) as progress,
        ):
            decisions = _judge(fixed, read, local, progress)
        tell_rejected(spelt)
        judged, tables = _judged_report(read, decisions, least)
        document["data"] = {"tasks": fixed.references, "num_rows": len(read), **judged}
        asked = ", ".join(fixed.references) or "no task"
        told = f"{data.name}: {counted(len(read), 'row')}, asking {asked}"
        parts += [Text(told), *tables]
    print_outcome(document, *parts, as_json=as_json)


def _conditions_report(
    policy: "Policy", manifests: "Mapping[str, TaskManifest]"
) -> tuple[dict[str, object], list[RenderableType]]:
    rows = [
        {"rule": rule.name, "task": manifests[it.task].reference, "label": label}
        | {"threshold": it.threshold, **_caught(it, label, manifests[it.task])}
        for rule in policy.rules
        for it in rule.conditions
        for label in it.labels
    ]
    table = plain_table("rule", "task", "label", "threshold", "dev examples", "caught", "right")
    for row in rows:
        shown = row if row["threshold"] is not None else row | {"threshold": "own"}
        table.add_row(*("-" if it is None else str(it) for it in shown.values()))
    line = f"{policy.name}: its tasks can decide every condition"
    remark = (
        "own: the task decides. caught: at least so many. -: the version has no record; train it "
        "with --calibrate"
    )
    return {"policy": policy.name, "conditions": rows}, [line, table, remark]


def _read_expected(
    data: Path, harmful: Sequence[str], spelt: RowFormat
) -> "tuple[list[ReadExample], dict[str, VerdictAction]]":
    """Return labelled rows, and the weakest right action of each label, the weakest first."""
    with needs_extra("training"):
        from nunatak_training.data.sources import load_test_rows
        from nunatak_training.kinds import TaskKind
    read = load_test_rows(data, kind=TaskKind.SINGLE_LABEL, labels=(), spelt=spelt)
    pair = next((it for it in read if it.example.text_pair is not None), None)
    if pair is not None:
        raise bad_row(pair.where, "a policy judges single texts, and this row has a pair")
    labels = list(dict.fromkeys(str(it.example.label) for it in read))
    shown = f"its labels: {', '.join(map(repr, labels[:20]))}"
    if missing := [it for it in harmful if it not in labels]:
        raise invalid_option(f"--harmful: {data.name} has no label {missing[0]!r}; {shown}")
    if not harmful and not {*labels} <= {*VerdictAction}:
        known = ", ".join(VerdictAction)
        raise invalid_option(
            f"--data: expected the labels {known} in {data.name}; {shown}. Name those of harmful "
            "texts with --harmful LABEL"
        )
    two = VerdictAction.ALLOW, VerdictAction.FLAG
    least = {it: two[it in harmful] if harmful else VerdictAction(it) for it in labels}
    return read, dict(sorted(least.items(), key=lambda it: it[1].strength))


def _fixed(policy: "Policy", manifests: "Mapping[str, TaskManifest]") -> "Policy":
    """Return a policy that asks the versions that its references mean now, until the end."""

    def fixed(rule: "Rule") -> "Rule":
        tasks = ((it, {"task": manifests[it.task].reference}) for it in rule.conditions)
        conditions = tuple(it.model_copy(update=task) for it, task in tasks)
        return rule.model_copy(update={"conditions": conditions})

    return policy.model_copy(update={"rules": tuple(map(fixed, policy.rules))})


def _judge(
    policy: "Policy", read: "Sequence[ReadExample]", local: "LocalPredictor", progress: Progress
) -> "list[TextDecision]":
    progress.begin(Work(f"judging by {policy.name}", unit="row", total=len(read)))
    decisions = list["TextDecision"]()
    try:
        for decision in local.judge_all(policy, [it.example.text for it in read]):
            decisions.append(decision)
            progress.advance()
    except NunatakError as error:
        if error.position is None:
            raise  # A version fails, whatever the row is.
        told = f"a task refuses it: [{error.code}] {error}"
        raise bad_row(read[error.position].where, told) from error
    return decisions


def _judged_report(
    read: "Sequence[ReadExample]",
    decisions: "Sequence[TextDecision]",
    least: "Mapping[str, VerdictAction]",
) -> tuple[dict[str, object], list[RenderableType]]:
    """Count decisions by label, rows with a weaker action than expected, and false alarms."""
    judged = [(it, str(it.example.label), own) for it, own in zip(read, decisions, strict=True)]
    counts = Counter((label, own.action) for _, label, own in judged)
    cells = plain_table("expected \\ decided", *VerdictAction, right=list(VerdictAction))
    for label in least:
        cells.add_row(label, *(str(counts[label, it]) for it in VerdictAction))
    harmless = [it for it in judged if least[it[1]] is VerdictAction.ALLOW]
    weak = [it for it in judged if it[2].action.strength < least[it[1]].strength]
    alarms = [it for it in harmless if it[2].action is not VerdictAction.ALLOW]
    missed = WrongRows.of(weak, len(judged) - len(harmless))
    alarmed = WrongRows.of(alarms, len(harmless))
    numbers = ("rows", "of", "share", "by failure")
    shares = plain_table("", *numbers[:3], "95 %", numbers[3], "the first", right=numbers)
    shares.add_row("missed", *missed.cells)
    shares.add_row("false alarms", *alarmed.cells)
    fired = Counter(it.rule.name for *_, own in alarms for it in own.applied)
    rules = plain_table("rule", "false alarms", right=["false alarms"])
    for name, count in fired.most_common():
        rules.add_row(name, f"{count:,}")
    document: dict[str, object] = {
        "decisions": [
            {"expected": label, "decided": action, "count": count}
            for (label, action), count in counts.items()
        ],
        "missed": missed,
        "false_alarms": alarmed,
        "false_alarms_by_rule": dict(fired),
    }
    return document, [cells, shares, rules]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRows:
    """Rows with a wrong decision, out of all rows that could have one."""

    num_wrong: int
    num_rows: int
    interval: tuple[float, float] | None
    """Wilson's interval of the share; None without rows."""
    num_by_failure: int
    """The wrong rows about which `on_failure` has decided."""
    places: Sequence[str]

    @classmethod
    def of(cls, wrong: "Sequence[tuple[ReadExample, str, TextDecision]]", num_rows: int) -> Self:
        return cls(
            num_wrong=len(wrong),
            num_rows=num_rows,
            interval=wilson_bounds(len(wrong) / num_rows, num_rows) if num_rows else None,
            num_by_failure=sum(own.is_by_failure for *_, own in wrong),
            places=[it.where for it, *_ in wrong],
        )

    @property
    def cells(self) -> tuple[str, ...]:
        share = extent = "-"
        if self.interval is not None:
            share = f"{self.num_wrong / self.num_rows:.4f}"
            extent = "{:.4f} to {:.4f}".format(*self.interval)
        first = ", ".join(self.places[:SHOWN_PLACES])
        numbers = f"{self.num_wrong:,}", f"{self.num_rows:,}"
        return *numbers, share, extent, f"{self.num_by_failure:,}", first


def _caught(condition: "Condition", label: str, manifest: "TaskManifest") -> dict[str, int | None]:
    head, calibration, confusion = manifest.head, manifest.calibration, manifest.confusion
    threshold = condition.threshold
    if threshold is None and head.problem_type is ProblemType.MULTI_LABEL:
        threshold = head.threshold(label)
    if threshold is not None and calibration is not None:
        curve = next(it for it in calibration.curves if it.label == label)
        point = curve.at(threshold)
        found, right = (0, 0) if point is None else (point.num_found, point.num_right)
        num_examples = calibration.dev.num_examples
    elif threshold is None and confusion is not None and label in head.labels:
        counts = confusion.counts
        found = sum(count for (_, predicted), count in counts.items() if predicted == label)
        right, num_examples = counts.get((label, label), 0), sum(counts.values())
    else:
        return dict.fromkeys(("num_examples", "num_found", "num_right"))
    return {"num_examples": num_examples, "num_found": found, "num_right": right}


policy_app = group(
    "policy",
    "Publish and check policies, which turn the answers of tasks into one decision.",
    {
        "put": (POLICIES.put, "nunatak policy put guard.json"),
        "list": (POLICIES.list, "nunatak policy list"),
        "show": (POLICIES.show, "nunatak policy show guard/2 > guard.json"),
        "check": (check_policy, "nunatak policy check guard.yaml"),
        "history": (POLICIES.history, "nunatak policy history guard"),
        "rollback": (POLICIES.rollback, "nunatak policy rollback guard"),
    },
)
