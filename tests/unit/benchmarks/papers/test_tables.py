"""Laws of the papers' tables, figures and claims, on lines made up for them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from pydantic import JsonValue

from benchmarks.harness.recording import latest
from benchmarks.papers import elsa_page
from benchmarks.papers.claims import Claim, Verdict, read_claims
from benchmarks.papers.elsa_memory import Memory
from benchmarks.papers.elsa_page import page_text
from benchmarks.papers.elsa_table import FAIR_STEPS, ElsaTable, best_table, elsa_tables
from benchmarks.papers.estimate import estimate
from benchmarks.papers.figures import Figures, figures_of, method_of, point90
from benchmarks.papers.graddrop_table import graddrop_cells, graddrop_markdown
from benchmarks.papers.lines import LINES, PaperRun, append_line, read_lines
from benchmarks.papers.render import PAGE, claimed, page_of
from benchmarks.savings.systems import System
from doubles.backbones import save_tiny_backbone
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_contract.methods import Bottleneck
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.reporting import cells_of, num_frozen
from nunatak_training.sweeps.results import RunRecord

ELSA: JsonValue = [{"kind": "full"}, {"kind": "topk", "frozen": [1, 2, 3]}]
DEEP: JsonValue = [{"kind": "full"}, {"kind": "topk", "frozen": [6, 9, 11]}, {"kind": "head"}]
QUALITY = {None: (0.8, 0.6), 1: (0.7, 0.7), 2: (0.69, 0.65), 3: (0.3, 0.1)}
"""Scores of the seeds by frozen layers, on the task `toy`; half of that on `cola`."""
DEEP_QUALITY = {None: QUALITY[None], 6: QUALITY[1], 9: QUALITY[2], 11: (0.5, 0.5), 12: QUALITY[3]}
SFT: JsonValue = {"name": "none", "recipe": {"dropout": 0.2}}
SFT_WITHOUT: JsonValue = {"name": "none", "recipe": {"dropout": 0.0}}
CONSTANT: JsonValue = {"name": "none", "recipe": {"dropout": 0.2, "schedule": "constant"}}
EPOCH_CONSTANT: JsonValue = {"name": "graddrop-epoch", "recipe": {"schedule": "constant"}}
MEMORY = Memory(
    backbone="toy",
    embedding=20e6,
    per_layer=10e6,
    output=0.0,
    num_layers=12,
    ours={3: [0, 0, 0, int(4 * (20e6 + 90e6 + 4 * 30e6)) + 100]},
    private={1: 0, 4: int(4 * 4 * 140e6) + 50},
    mapped={4: int(3 * 4 * 140e6) + 50},
    runtime={
        str(System.NUNATAK): 100,
        str(System.FULL_MODELS_PRIVATE): 50,
        str(System.FULL_MODELS): 50,
    },
    ledger={3: 0.58},
    hardware="a machine",
    date="2026-01-01",
)


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("sweep"))


def line_of(
    run: Run, score: float, *, majority: float = 0.0, transfer: dict[str, float] | None = None
) -> PaperRun:
    """A line of a run; the epoch before the last one is better."""
    record = record_of(run, score + 0.05, score).model_dump()
    return PaperRun.model_validate(
        {**record, "majority": majority, "hardware": "a machine", "transfer": transfer or {}}
    )


def widened(line: PaperRun) -> PaperRun:
    """The line with adapters of the papers' widths, which a tiny backbone cannot have."""
    method = line.run.recipe.method
    if not isinstance(method, Bottleneck):
        return line
    wide = method.model_copy(update={"size": {8: 64, 16: 256}[method.size]})
    recipe = line.run.recipe.model_copy(update={"method": wide})
    return line.model_copy(update={"run": line.run.model_copy(update={"recipe": recipe})})


def elsa_lines(
    folder: Path, *, majority: float = 0.0, methods: JsonValue = ELSA, backbone: str = "backbone"
) -> list[PaperRun]:
    tasks: JsonValue = [
        {"name": "toy"},
        {"name": "cola", "data": "toy", "recipe": {"batch_size": 4}},
    ]
    backbones: JsonValue = [str(folder / backbone)]
    runs = toy_runs(folder, tasks=tasks, methods=methods, backbones=backbones, seeds=[0, 1])
    quality = QUALITY if methods is ELSA else DEEP_QUALITY
    return [
        line_of(
            run,
            quality[num_frozen(run.description)][run.description.recipe.seed]
            / (1 if run.description.task == "toy" else 2),
            majority=majority,
        )
        for run in runs
    ]


def only(lines: Sequence[PaperRun]) -> ElsaTable:
    (table,) = elsa_tables(lines).values()
    return table


def test_relative_performance_is_of_the_last_epoch_and_averaged_over_tasks(folder: Path) -> None:
    table = only(elsa_lines(folder))

    assert table.depths == [1, 2, 3]
    for frozen in table.depths:
        expected = mean(QUALITY[frozen]) / mean(QUALITY[None])
        assert table.relative("cola", frozen) == pytest.approx(expected)
        by_seed = [low / full for low, full in zip(QUALITY[frozen], QUALITY[None], strict=True)]
        assert table.average(frozen).mean == pytest.approx(mean(by_seed))


def test_a_task_that_is_not_above_the_best_constant_answer_enters_no_average(folder: Path) -> None:
    table = only(elsa_lines(folder, majority=0.25))

    # 0.7 ± 0.14 is three deviations above 0.25, and 0.35 ± 0.07 is not.
    assert table.learned == ["toy"]
    assert "cola (at chance)" in table.markdown()
    assert table.average(2).mean == pytest.approx(mean((0.69 / 0.8, 0.65 / 0.6)))
    assert "0.250" in table.markdown()


def test_the_two_operating_points_are_of_the_average_and_of_each_task(folder: Path) -> None:
    table = only(elsa_lines(folder))
    weak = {**table.scores, ("toy", 2): {0: 0.6, 1: 0.6}}

    assert table.operating_point() == 2
    assert table.operating_point_by_task() == 2
    assert replace(table, scores=weak).operating_point_by_task() == 1


def test_the_setting_that_stands_for_all_has_enough_steps_and_several_tasks(folder: Path) -> None:
    short = only(elsa_lines(folder))
    fair = replace(short, num_steps=FAIR_STEPS)
    lonely = replace(fair, scores={it: s for it, s in fair.scores.items() if it[0] == "toy"})

    assert best_table({"short": short, "fair": fair, "lonely": lonely}) == ("fair", fair)
    assert best_table({"short": short, "lonely": lonely}) == ("short", short)
    assert best_table({"lonely": lonely}) == ("lonely", lonely)
    assert best_table({}) is None


def test_a_task_without_every_depth_is_named_and_left_out(folder: Path) -> None:
    lines = elsa_lines(folder)
    some = [it for it in lines if it.run.task == "toy" or num_frozen(it.run) is not None]

    assert only(some).tasks == ["toy"]
    assert only(some).unfinished == ["cola"]


def test_lines_are_read_as_they_were_written_and_half_a_line_is_cut_off(
    folder: Path, tmp_path: Path
) -> None:
    first, second = elsa_lines(folder)[:2]
    file = tmp_path / "toy.jsonl"

    append_line(file, first)
    file.write_bytes(file.read_bytes() + second.line()[:40].encode())
    append_line(file, second)

    without = [it.model_copy(update={"origin": None}) for it in (first, second)]
    assert read_lines(file) == tuple(without)
    assert "origin" not in first.line()
    assert str(folder) not in file.read_text(encoding="utf-8")


def test_variants_stand_by_their_average_and_constant_rates_apart(folder: Path) -> None:
    regularizers: JsonValue = [SFT, SFT_WITHOUT, {"name": "graddrop"}, CONSTANT]
    runs = toy_runs(folder, methods=[{"kind": "full"}], regularizers=regularizers)
    scores = [0.5, 0.4, 0.9, 0.2]
    records = [record_of(run, score) for run, score in zip(runs, scores, strict=True)]

    lines = graddrop_markdown(graddrop_cells(records)).splitlines()

    assert len(cells_of(records)) == 4
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| graddrop 0.2", "| SFT", "| dropout 0", "| dropout 0.2, constant rate",
    ]  # fmt: skip


def test_a_variant_has_the_mean_of_the_seeds_that_all_have_whose_examples_differ(
    folder: Path,
) -> None:
    regularizers: JsonValue = [SFT, {"name": "graddrop"}]
    runs = toy_runs(folder, methods=[{"kind": "full"}], regularizers=regularizers, seeds=[0, 1])
    records = list[RunRecord]()
    for run, score in zip(runs, (0.5, 0.7, 0.9, 0.6), strict=True):
        record = record_of(run, score)
        data = record.run.data.model_copy(update={"train_digest": f"{record.run.recipe.seed:064}"})
        records.append(
            record.model_copy(update={"run": record.run.model_copy(update={"data": data})})
        )

    def averages(records: Sequence[RunRecord]) -> list[str]:
        lines = graddrop_markdown(graddrop_cells(records)).splitlines()[2:]
        return [line.split(" | ")[-1] for line in lines]

    assert averages(records) == ["0.7500 |", "0.6000 |"]
    assert averages(records[:3]) == ["0.9000 |", "0.5000 |"]


def test_a_set_that_lacks_a_variant_enters_no_average(made_up: dict[str, list[PaperRun]]) -> None:
    runs = made_up["graddrop"]
    begun = runs[0].run.model_copy(update={"task": "begun"})
    more = [*runs, runs[0].model_copy(update={"run": begun})]

    lines = graddrop_markdown(graddrop_cells(more)).splitlines()

    assert figures_of({"graddrop": more}, None) == figures_of({"graddrop": runs}, None)
    assert lines[0].split(" | ")[1:] == ["begun", "toy", "average of toy |"]
    assert len(lines) == 2 + 7


@pytest.fixture(name="made_up", scope="module")
def make_up(folder: Path) -> dict[str, list[PaperRun]]:
    """Made-up runs of every sweep of the plan."""
    full: JsonValue = [{"kind": "full"}]
    adapters: JsonValue = [{"kind": "full"}, {"kind": "bottleneck", "size": [8, 16]}]
    adapter: JsonValue = [{"kind": "full"}, {"kind": "bottleneck", "size": [8]}]
    variants: JsonValue = [
        SFT,
        SFT_WITHOUT,
        {"name": "graddrop"},
        {"name": "layer-graddrop"},
        {"name": "graddrop-epoch"},
    ]
    constant: JsonValue = [*variants, CONSTANT, EPOCH_CONSTANT]  # pyrefly: ignore[not-iterable]
    sets = {"ud_ewt_pos": "ud_hi_pos", "wikiann_en": "wikiann_ur", "xnli_en": "xnli_sw",
            "conll2003_en": "conll2002_es"}  # fmt: skip
    tasks: JsonValue = [
        {"name": name, "data": "toy", "recipe": {"max_length": 20 + number}}
        for number, name in enumerate(sets)
    ]

    def lines(**changes: JsonValue) -> list[PaperRun]:
        found = list[PaperRun]()
        for number, run in enumerate(toy_runs(folder, seeds=[0, 1], **changes)):
            other = sets.get(run.description.task, "ud_hi_pos")
            languages = {other: number / 100, "ud_de_pos": number / 200}
            found.append(widened(line_of(run, 0.5 + number / 1000, transfer=languages)))
        return found

    save_tiny_backbone(folder / "deep", num_layers=12)
    return {
        "elsa-mpnet": elsa_lines(folder, methods=DEEP, backbone="deep"),
        "elsa-minilm": elsa_lines(folder),
        "adapter": lines(name="adapter", methods=adapters),
        "graddrop": lines(name="graddrop", methods=full, regularizers=constant),
        "zeroshot": [
            *lines(name="zeroshot", tasks=tasks, methods=adapters),
            *lines(name="zeroshot-graddrop", tasks=tasks, methods=full, regularizers=variants),
        ],
        "robustness": lines(name="robustness", methods=adapter, learning_rates=[1e-4, 1e-3]),
    }


@pytest.fixture(name="figures", scope="module")
def make_figures(made_up: dict[str, list[PaperRun]]) -> Figures:
    return figures_of(made_up, MEMORY)


def test_the_page_has_every_part_that_has_lines(
    made_up: dict[str, list[PaperRun]], tmp_path: Path
) -> None:
    for name, lines in made_up.items():
        for line in lines:
            append_line(tmp_path / f"{name}.jsonl", line)

    text, drawings = page_of(tmp_path)

    assert ": not run\n" not in text
    assert len(drawings) == 5
    assert "| method | rate | English | mean of others | de | hi |" in text
    assert page_of(tmp_path)[0] == text


def test_every_figure_of_a_claim_is_one_that_lines_can_give(figures: Figures) -> None:
    claims = [it for paper in read_claims() for it in paper.claims]

    assert {it.figure for it in claims if it.figure is not None} <= set(figures)
    assert {it.judged({})[0] for it in claims if it.figure is not None} == {Verdict.NOT_RUN}


def test_gains_are_of_the_same_seed_and_over_both_controls(figures: Figures) -> None:
    # Runs come in the order of methods or variants, and a run's score grows with its number.
    assert figures["graddrop.gain.graddrop.dropout"].mean == pytest.approx(0.004)
    assert figures["graddrop.gain.graddrop.nodropout"].mean == pytest.approx(0.002)
    assert figures["graddrop.gain.graddrop-epoch.constant.dropout"].mean == pytest.approx(0.002)
    assert figures["zeroshot.pos.graddrop.dropout"].mean == pytest.approx(0.03)
    assert figures["zeroshot.pos.least.graddrop.dropout"].mean == pytest.approx(0.04)
    assert figures["adapters.gain1k"].mean == pytest.approx(0.0035)
    assert figures["adapters.width"].mean == pytest.approx(0.001)


def test_a_rate_suits_a_method_that_keeps_90_percent_of_its_own_best_score(folder: Path) -> None:
    methods: JsonValue = [{"kind": "full"}, {"kind": "bottleneck", "size": [8]}]
    scores = {("full", 1e-4): 0.9, ("full", 1e-3): 0.8, ("bottleneck", 1e-4): 0.55}

    def line(run: Run) -> PaperRun:
        recipe = run.description.recipe
        return line_of(run, scores.get((recipe.method.kind, recipe.learning_rate), 0.6))

    runs = toy_runs(
        folder, name="robustness", seeds=[0, 1], methods=methods, learning_rates=[1e-4, 1e-3]
    )
    lines = [line(it) for it in runs]
    stable = [it for it in lines if it.run.recipe.learning_rate != 1e-3 or "8" in method_of(it)]

    for found in (lines, stable):  # A rate without a run is one at which training diverged.
        assert figures_of({"robustness": found}, None)["adapters.rates"].mean == 1.0


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


def test_a_depth_without_runs_leaves_the_deepest_that_keeps_90_percent_open(
    made_up: dict[str, list[PaperRun]],
) -> None:
    # With seed 0 no depth keeps 90 %, and with seed 1 nine layers do; ten have no runs.
    (table,) = elsa_tables(made_up["elsa-mpnet"]).values()
    both = replace(table, scores={key: {0: it[1], 1: it[1]} for key, it in table.scores.items()})
    deep = {(task, 10): {0: 0.1, 1: 0.1} for task, depth in table.scores if depth is None}

    assert (point90(both).low, point90(both).high) == (9.0, 10.0)
    assert point90(both).is_above(10) is None
    assert point90(replace(both, scores={**both.scores, **deep})).high == 9.0


def test_cola_stands_behind_at_the_papers_depth_whatever_other_depths_have_run(
    made_up: dict[str, list[PaperRun]],
) -> None:
    lines = made_up["elsa-mpnet"]
    some = [it for it in lines if num_frozen(it.run) not in {11, 12}]
    none = [it for it in lines if num_frozen(it.run) != 9]

    found = [figures_of({"elsa-mpnet": it}, None) for it in (lines, some, none)]

    name = "elsa.mpnet.cola_behind"
    assert found[0][name] == found[1][name]
    assert name not in found[2]


def test_students_interval_of_two_values_is_wide() -> None:
    found = estimate([1.0, 2.0])

    assert found.low == pytest.approx(1.5 - 12.706 * 0.5, abs=1e-2)
    assert found.is_above(0.0) is None
    assert estimate([0.5, 0.5]).is_above(0.4) is None


def test_the_shares_saved_are_of_growth_and_the_page_says_them() -> None:
    assert MEMORY.saved_private(3) == pytest.approx(1 - 230 / 560)
    assert MEMORY.formula(3) == pytest.approx(1 - 230 / 560)
    assert MEMORY.saved_mapped(3) == pytest.approx(1 - 230 / 420)
    text = page_text(MEMORY, None)
    assert "this saves 58.9% or 45.2%; the formula says 58.9%" in text
    assert "| 9 | 120.0 | 58.9% | 58.0% | 58.9% | 45.2% |  |  |" in text
    assert "Nothing is measured yet" in page_text(None, None)


def test_the_committed_page_is_the_one_that_the_committed_lines_make() -> None:
    text, _ = page_of(LINES)

    assert PAGE.read_text(encoding="utf-8") == text, "python -m benchmarks.papers.render"
    assert elsa_page.PAGE.read_text(encoding="utf-8") == elsa_page.made(LINES)[0]


def test_every_figure_that_the_page_names_is_recorded_as_the_page_has_it() -> None:
    recorded = latest()
    found = claimed(LINES)

    assert found
    assert {name: (recorded[name].value, recorded[name].unit) for name in found} == dict(found), (
        "python -m benchmarks.papers.render --record"
    )


def test_the_folder_of_lines_has_only_lines() -> None:
    assert {it.suffix for it in LINES.iterdir()} == {".jsonl"}
