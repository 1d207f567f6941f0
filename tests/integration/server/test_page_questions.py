"""The web page's form and table of questions, in a real browser."""

from collections.abc import Generator

import httpx
import pytest
from playwright.sync_api import Page, expect

from doubles.backbones import tiny_backbone
from doubles.browsers import IN_A_BROWSER
from doubles.questions import UNKNOWN, URGENT, body, publish_all
from doubles.serving import make_settings, running_server
from doubles.upstreams import noul, running_upstream
from nunatak_contract.questions import QuestionCard
from nunatak_registry import Registry

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    backbone = tiny_backbone()
    with (
        Registry.open(tmp_path_factory.mktemp("registry")) as registry,
        running_upstream(noul(1.0)) as fake,
    ):
        publish_all(registry, backbone, only=["u", "threat"])
        card = registry.questions.get("u").document.model_dump()
        unsure = QuestionCard.model_validate({**card, "ask_upstream_below": 1.0})
        registry.questions.put(unsure)
        settings = make_settings(decisions_unknown="upstream", decisions_upstream=fake.url)
        with running_server(backbone, registry, settings) as url:
            yield url


def test_each_question_shows_what_answered_it(page: Page, address: str) -> None:
    page.goto("/")
    expect(page.locator("#questions-panel")).to_be_visible()
    expect(page.locator("#questions-counts")).to_be_hidden()
    asked = {"u": URGENT, "x": UNKNOWN}
    httpx.post(f"{address}/v1/systemone", json=body(asked), timeout=60).raise_for_status()

    rows = page.locator("#questions tr")
    expect(rows).to_have_count(2, timeout=30_000)
    expect(rows.nth(0)).to_contain_text("without a card")
    expect(rows.nth(0).locator("td").nth(2)).to_have_text("1")
    bound = rows.nth(1).locator("td")
    expect(bound.nth(2)).to_have_text("1")
    expect(bound.nth(4)).to_contain_text("% of 1")
    expect(bound.nth(5)).to_contain_text("ms")


def test_a_card_or_a_question_of_the_reader_is_answered(page: Page) -> None:
    page.goto("/")
    answer, choice = page.locator("#decision"), page.locator("#decide-question")
    expect(choice.locator("option")).to_have_text(
        ["threat: A threat?", "u: Is it urgent?", "another question"]
    )

    choice.select_option("threat")
    page.get_by_role("button", name="Answer").click()
    expect(answer.get_by_role("heading")).to_contain_text("threat/1")
    expect(answer.get_by_role("listitem")).to_have_count(2)

    choice.select_option("another question")
    page.get_by_label("Answered with").select_option("choice")
    page.get_by_label("Your question").fill("Which team?")
    page.get_by_label("One a line").fill("only one")
    page.get_by_role("button", name="Answer").click()
    expect(answer).to_contain_text("2 to 255 options")

    page.get_by_label("Answered with").select_option("noul")
    page.get_by_role("button", name="Answer").click()
    expect(answer.get_by_role("heading")).to_contain_text("upstream")
    expect(answer.get_by_role("listitem")).to_have_text(["yes1.00", "no0.00"])
