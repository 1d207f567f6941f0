"""The papers' tables, figures and claims: committed lines make the committed pages."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from pydantic import JsonValue

from benchmarks.harness.recording import latest
from benchmarks.papers import elsa_page
from benchmarks.papers.claims import Claim, Verdict, estimate, read_claims
from benchmarks.papers.elsa_table import FAIR_STEPS, ElsaTable, best_table
from benchmarks.papers.figures import all_figures, figures_of, point90
from benchmarks.papers.lines import LINES, PaperRun, append_line, read_lines
from benchmarks.papers.render import (
    PAGE,
    claimed,
    graddrop_cells,
    graddrop_markdown,
    page_of,
    undrawn,
)
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_training.sweeps.reporting import cells_of

NOT_RUN = {"zeroshot.xnli.graddrop.dropout", "elsa.minilm.relative.n3"}
"""Figures of claims that no committed line gives yet."""


def made_up(folder: Path, **changes: JsonValue) -> list[PaperRun]:
    """Runs whose scores grow with their number, and no other language of few resources."""
    records = [record_of(it, 0.5 + n / 9) for n, it in enumerate(toy_runs(folder, **changes))]
    more = {"majority": 0.0, "hardware": "a machine", "transfer": {"ud_de_pos": 0.5}}
    return [PaperRun.model_validate({**it.model_dump(), **more}) for it in records]


def renamed(line: PaperRun, task: str) -> PaperRun:
    return line.model_copy(update={"run": line.run.model_copy(update={"task": task})})


def test_lines_are_read_as_they_were_written_and_half_a_line_is_cut_off(tmp_path: Path) -> None:
    first, second = made_up(toy_folder(tmp_path / "toys"), seeds=[0, 1])
    file = tmp_path / "toy.jsonl"

    append_line(file, first)
    file.write_bytes(file.read_bytes() + second.line()[:40].encode())
    append_line(file, second)

    without = [it.model_copy(update={"origin": None}) for it in (first, second)]
    assert read_lines(file) == tuple(without)
    assert "origin" not in first.line()
    assert str(tmp_path) not in file.read_text(encoding="utf-8")


def test_every_figure_of_a_claim_is_one_that_lines_can_give() -> None:
    figures = all_figures(LINES)
    claimed = {it.figure for paper in read_claims() for it in paper.claims} - {None}

    assert claimed - set(figures) == NOT_RUN


FULL: list[JsonValue] = [{"kind": "full"}]
VARIANTS: JsonValue = [
    {"name": "none", "recipe": {"dropout": 0.2}},
    {"name": "none", "recipe": {"dropout": 0.0}},
    {"name": "graddrop"},
]


@pytest.mark.parametrize(
    ("sweep", "changes"),
    [
        ("graddrop", {"methods": FULL, "regularizers": VARIANTS}),
        (
            "adapter",
            {
                "methods": [*FULL, {"kind": "bottleneck", "size": [8]}, {"kind": "head"}],
                "seeds": [0, 1],
            },
        ),
    ],
)
def test_a_set_that_lacks_a_variant_enters_no_average(
    tmp_path: Path, sweep: str, changes: dict[str, JsonValue]
) -> None:
    runs = made_up(toy_folder(tmp_path), name=sweep, **changes)
    more = [*runs, *(renamed(it, "begun") for it in runs[:-2] if it.run.recipe.seed == 0)]

    assert figures_of({sweep: more}) == figures_of({sweep: runs}) != {}
    assert sweep == "adapter" or "of toy |" in graddrop_markdown(graddrop_cells(more))


def test_a_language_of_many_resources_is_not_among_the_least_resourced(tmp_path: Path) -> None:
    runs = made_up(
        toy_folder(tmp_path), name="zeroshot-graddrop", methods=FULL, regularizers=VARIANTS
    )
    found = figures_of({"zeroshot": [renamed(it, "ud_ewt_pos") for it in runs]})

    assert "zeroshot.pos.graddrop.dropout" in found
    assert "zeroshot.pos.least.graddrop.dropout" not in found


def table_of(scores: dict[tuple[str, int | None], dict[int, float]]) -> ElsaTable:
    tasks = {task for task, _ in scores}
    return ElsaTable(
        num_layers=3,
        metrics=dict.fromkeys(tasks, "accuracy"),
        majority=dict.fromkeys(tasks, 0.25),
        num_dev=dict.fromkeys(tasks, 100),
        num_steps=FAIR_STEPS,
        scores=scores,
    )


def test_a_task_at_chance_or_without_a_depth_enters_no_average_and_never_stands_alone() -> None:
    toy = {("toy", None): {0: 0.8, 1: 0.6}, ("toy", 2): {0: 0.69, 1: 0.65}}
    # 0.7 ± 0.14 is three deviations above 0.25, and 0.35 ± 0.07 is not.
    chance = table_of({**toy, ("cola", None): {0: 0.4, 1: 0.3}, ("cola", 2): {0: 0.4, 1: 0.3}})
    begun = table_of({**toy, ("cola", None): {0: 0.8, 1: 0.6}})
    both = table_of({**toy, ("rte", None): {0: 0.8, 1: 0.6}, ("rte", 2): {0: 0.8, 1: 0.6}})

    assert chance.learned == ["toy"]
    assert chance.average(2).mean == pytest.approx(mean((0.69 / 0.8, 0.65 / 0.6)))
    assert (begun.tasks, begun.unfinished) == (["toy"], ["cola"])
    short = replace(both, num_steps=1)
    assert best_table({"z": chance, "a": short}) == ("a", short)
    assert best_table({}) is None


def test_a_depth_without_runs_leaves_the_deepest_that_keeps_90_percent_open() -> None:
    kept = {None: 0.8, 6: 0.79, 9: 0.78, 11: 0.5}
    table = table_of({("toy", depth): {0: it, 1: it} for depth, it in kept.items()})
    found = point90(replace(table, num_layers=12))

    assert (found.low, found.high) == (9.0, 10.0)


def test_a_claim_holds_only_if_its_whole_interval_does() -> None:
    claim = Claim(item="a gain", figure="gain", at_least=0.0)

    verdicts = [
        claim.judged({"gain": estimate(values)})[0]
        for values in ((0.01, 0.011, 0.012), (-0.01, -0.011, -0.012), (-0.01, 0.02), (0.5,))
    ]

    assert verdicts == [Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_SHOWN, Verdict.NOT_SHOWN]


def test_runs_shorter_than_the_papers_decide_nothing_either_way() -> None:
    claim = Claim(item="a share", figure="share", at_least=0.9, fair_steps=467)

    def verdict(*values: float, steps: int) -> Verdict:
        return claim.judged({"share": replace(estimate(values), num_steps=steps)})[0]

    assert verdict(0.5, 0.51, 0.52, steps=189) is Verdict.NOT_FAIRLY_TESTED
    assert verdict(0.5, 0.51, 0.52, steps=467) is Verdict.FAILS
    assert verdict(0.95, 0.951, 0.952, steps=189) is Verdict.NOT_FAIRLY_TESTED
    assert verdict(0.95, 0.951, 0.952, steps=467) is Verdict.HOLDS


def test_students_interval_of_two_values_is_wide() -> None:
    found = estimate([1.0, 2.0])

    assert found.low == pytest.approx(1.5 - 12.706 * 0.5, abs=1e-2)
    assert found.is_above(0.0) is None
    assert estimate([0.5, 0.5]).is_above(0.4) is None


def test_the_committed_page_is_the_one_that_the_committed_lines_make() -> None:
    text, _ = page_of(LINES)

    assert PAGE.read_text(encoding="utf-8") == text, "python -m benchmarks.papers.render"
    assert elsa_page.PAGE.read_text(encoding="utf-8") == elsa_page.made(LINES)[0]


def test_seeds_that_draw_their_own_examples_share_a_row(tmp_path: Path) -> None:
    lines = made_up(toy_folder(tmp_path), seeds=[0, 1])
    drawn = [
        it.model_copy(update={"run": it.run.model_copy(update={"data": data})})
        for it in lines
        for data in [it.run.data.model_copy(update={"train_digest": str(it.run.recipe.seed)})]
    ]

    assert len(cells_of(drawn)) == len(lines)
    assert [len(it.scores) for it in cells_of(undrawn(drawn))] == [2] * (len(lines) // 2)


def test_every_figure_that_the_page_names_is_recorded_as_the_page_has_it() -> None:
    recorded = latest()
    found = claimed(LINES)

    assert found
    assert {name: (recorded[name].value, recorded[name].unit) for name in found} == dict(found), (
        "python -m benchmarks.papers.render --record"
    )


def test_the_folder_of_lines_has_only_lines() -> None:
    assert {it.suffix for it in LINES.iterdir()} == {".jsonl"}
