"""The web page's section to try a policy, in a real browser."""

from playwright.sync_api import Page, expect

from doubles.browsers import IN_A_BROWSER
from doubles.policies import make_policy, make_rule, when
from doubles.tasks import publish_names, publish_tiny_task
from nunatak_contract.enums import VerdictAction
from nunatak_model import Backbone
from nunatak_registry import Registry

pytestmark = IN_A_BROWSER

HOSTILE = "<img src=x onerror=\"window.broken='rule'\">"


def publish(opened: Registry, backbone: Backbone) -> None:
    publish_tiny_task(opened, backbone, task="tone", labels=("calm", "urgent"))
    publish_names(opened, backbone)
    always = make_rule(when("tone", "urgent", threshold=1e-9), message=HOSTILE)
    opened.policies.put(make_policy(always))
    mask = make_rule(when("names", "X"), action=VerdictAction.MASK)
    opened.policies.put(make_policy(mask, name="hide"))


def test_a_policy_is_chosen_and_judges_the_text(page: Page) -> None:
    page.goto("/")
    verdict = page.locator("#verdict")
    expect(page.locator("#policy option")).to_have_text(["guard", "hide"])

    page.get_by_role("button", name="Judge").click()
    expect(verdict.get_by_role("heading")).to_contain_text("block")
    expect(verdict).to_contain_text("guard/1: tone/1")
    expect(verdict.get_by_role("listitem")).to_contain_text("first: block, score 0.")
    expect(verdict).to_contain_text(HOSTILE)

    page.get_by_label("Policy").select_option("hide")
    page.get_by_label("Text to judge").fill("ann met bob in oslo.")
    page.get_by_role("button", name="Judge").click()
    expect(verdict.get_by_role("heading")).to_contain_text("mask")
    expect(verdict.locator(".passage")).to_contain_text("[X]")

    page.get_by_label("Text to judge").fill(" ")
    page.get_by_role("button", name="Judge").click()
    expect(verdict).to_contain_text("input 0: the text is empty or only white space")
    assert page.evaluate("window.broken") is None
