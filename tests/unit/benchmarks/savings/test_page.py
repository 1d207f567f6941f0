"""Laws of the pages."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmarks.savings.page.tables import many_sheet
from benchmarks.savings.page.writing import write_report
from benchmarks.savings.results import (
    FanOutLine,
    FanOutPoint,
    ManyPoint,
    ManyTasks,
    load_results,
    save_result,
)
from doubles.measured import MEMORY, ORIGIN, OURS, SERVER, THEIRS, line, race
from doubles.refusals import raises
from nunatak_loadtest import Job, Scenario
from nunatak_loadtest.memory import MemorySample
from nunatak_loadtest.report import build_report, save_run
from nunatak_loadtest.samples import Sample
from nunatak_loadtest.scenario import Closed, FileTexts, Step

STEPS = Closed(steps=(Step(users=1, seconds=20), Step(users=4, seconds=30)))
SAMPLES = [
    Sample(tasks=("<b>tone",), started_s=number, response_ms=5.0 + number) for number in range(50)
]


class Page(HTMLParser):
    """The foreign files that a page loads, and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = list[str]()
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tables += tag == "table"
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and not (value or "").startswith("#"):
                self.loads.append(value or "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("results")
    texts = FileTexts(path="A & B")
    job = Job(tasks=("<b>tone",), scenario=Scenario(name="smoke", arrivals=STEPS, texts=texts))
    watched = (MemorySample(at_s=0, rss_bytes=9, pss_bytes=5), MemorySample(at_s=1, rss_bytes=9))
    report = build_report(job, SAMPLES, server=SERVER, memory=(MEMORY, MEMORY), watched=watched)
    save_run(tmp_path, report, SAMPLES)
    save_result(tmp_path, "memory-a", line("nunatak", *OURS, counts=(1, 100)))
    save_result(tmp_path, "memory-b", line("full_models", *THEIRS, counts=(1, 32)))
    save_result(tmp_path, "race-single", race(("nunatak", (30.0,)), ("peft", (20.0,))))
    points = (FanOutPoint(tasks=1, speed_up=1, bound=1), FanOutPoint(tasks=8, speed_up=3, bound=4))
    save_result(tmp_path, "fanout", FanOutLine(origin=ORIGIN, title="Fan", points=points))
    many = tuple(
        ManyPoint(
            tasks=tasks,
            popularity="uniform",
            throughput_per_s=90,
            p50_ms=1,
            p99_ms=2,
            cold_share=0,
            pss_bytes=10**9,
            start_s=4,
            fill_s=5,
        )
        for tasks in (5, 10_000)
    )
    save_result(
        tmp_path, "many", ManyTasks(origin=ORIGIN, backbone="minilm", title="Many", points=many)
    )
    return tmp_path


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    write_report(folder, folder / "out", price_per_hour=0.1)
    return folder / "out"


def test_page_needs_nothing_next_to_it_and_runs_no_script(written: Path) -> None:
    html = (written / "report.html").read_text()
    page = Page()
    page.feed(html)
    assert page.loads == []
    assert "<script" not in html
    assert "prefers-color-scheme: dark" in html
    assert page.tables == 7
    assert html.count("<svg") == 10


def test_names_of_tasks_and_titles_are_text_not_markup(written: Path) -> None:
    html = (written / "report.html").read_text()
    assert "A &amp; B" in html
    assert "<b>tone" not in html


def test_markdown_says_the_same_and_shows_the_plots_next_to_it(written: Path) -> None:
    text = (written / "report.md").read_text()

    shown = re.findall(r"!\[(.*?)\]\((.*?)\)", text)
    plots = [plot for _, plot in shown]
    assert len(plots) == 10
    assert len({alt for alt, _ in shown}) == 10
    assert all(" " in alt for alt, _ in shown)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert all((written / name).stat().st_size > 1000 for name in plots)
    assert "**1.50x the throughput**" in text
    names = {path.name for path in written.iterdir()}
    assert names == {*plots, "report.html", "report.md", "report.json"}


def test_a_run_that_does_not_count_looks_so_and_says_why(written: Path) -> None:
    text = (written / "report.md").read_text()

    assert "smoke (DOES NOT COUNT): 1, 4 users in steps for 50 s" in text
    assert "## Scenario smoke (DOES NOT COUNT)" in text
    assert "| counts | NO: 50 answers are too few for a p99 (at least 100); run longer |" in text


def test_steps_of_users_are_told_apart(written: Path) -> None:
    lines = (written / "report.md").read_text().splitlines()

    assert "| 1 | 0 to 20 s | 1.0 | 14.0 | too few | 0 of 20 |" in lines
    assert "| 4 | 20 to 50 s | 1.0 | 39.0 | too few | 0 of 30 |" in lines


def test_fewer_than_a_hundred_requests_give_no_p99_and_no_cost(tmp_path: Path) -> None:
    raced = race(("nunatak", (50.0,)), ("peft", (20.0,)))
    ours, theirs = raced.racers
    (turn,) = ours.rounds
    ours = ours.model_copy(update={"rounds": (turn.model_copy(update={"requests": 100}),)})
    save_result(tmp_path, "race", raced.model_copy(update={"racers": (ours, theirs)}))

    write_report(tmp_path, tmp_path / "out", price_per_hour=0.1)

    lines = (tmp_path / "out" / "report.md").read_text().splitlines()
    (told,) = (line for line in lines if line.startswith("| nunatak |"))
    (untold,) = (line for line in lines if line.startswith("| peft |"))
    assert told.endswith("| 100 | 2 | 1 | 2 | 0.56 |")
    assert untold.endswith("| 10 | 0 | 1 | too few | too few |")
    assert "measured on 10 requests only" in lines[2]


def test_report_among_its_results_is_no_result_and_equal_results_give_equal_pages(
    folder: Path, written: Path
) -> None:
    write_report(folder, folder, price_per_hour=0.1)

    assert "report" not in load_results(folder)
    for name in ("report.html", "report.md", "report.json"):
        assert (folder / name).read_bytes() == (written / name).read_bytes()


def test_every_request_of_a_run_is_kept(folder: Path) -> None:
    lines = (folder / "run-smoke.samples.jsonl").read_text().splitlines()
    assert [Sample.model_validate_json(line) for line in lines] == SAMPLES
    assert set(load_results(folder)) == {
        *("fanout", "many", "memory-a", "memory-b", "race-single", "run-smoke")
    }


def test_folder_without_results_or_with_others_files_is_refused(tmp_path: Path) -> None:
    with raises("invalid_settings", match="holds no results"):
        load_results(tmp_path)
    (tmp_path / "other.json").write_text('{"kind": "weather"}')
    with raises("invalid_settings", match=r"other\.json"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    ("requests", "told"), [(None, "not recorded | 70"), (99, "99 | too few"), (100, "100 | 70")]
)
def test_p99_of_very_many_tasks_stands_next_to_its_requests(
    requests: int | None, told: str
) -> None:
    point = ManyPoint(
        tasks=5,
        popularity="uniform",
        throughput_per_s=90,
        p50_ms=1,
        p99_ms=70,
        cold_share=0,
        pss_bytes=1,
        start_s=1,
        fill_s=1,
        requests=requests,
    )
    many = ManyTasks(origin=ORIGIN, backbone="minilm", title="all in memory", points=(point,))

    sheet = many_sheet(many)

    row = dict(zip(sheet.header, sheet.rows[0], strict=True))
    assert f"{row['requests']} | {row['p99 ms']}" == told
    assert sheet.title == "Very many tasks, all in memory"
