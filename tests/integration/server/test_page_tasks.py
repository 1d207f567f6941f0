"""The web page's list of tasks, and its view of one task, in a real browser."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from doubles.browsers import IN_A_BROWSER, guard
from doubles.drafts import NOTE, evidence_of
from doubles.tasks import publish_tiny_task, tiny_task
from nunatak_contract.enums import CandidateRole, HeadKind, ProblemType
from nunatak_model import Backbone
from nunatak_registry import Candidate, Registry

pytestmark = IN_A_BROWSER

MANY = 1000
WIDE = (*(f"theme {number}" for number in range(19)), "constructor")
HEADS = ("sequence_classification", "token_classification")


def publish(opened: Registry, backbone: Backbone) -> None:
    draft, blobs = tiny_task(backbone, task="tone")
    opened.publish(evidence_of(draft), blobs)
    publish_tiny_task(opened, backbone, task="tone", seed=2)
    opened.promote("tone", "prod", 1, by="Ann")
    opened.promote("tone", "prod", 2, by="key deploy")
    opened.rollback("tone", "prod", by="Bob")
    trial = Candidate(task="tone", alias="prod", role=CandidateRole.CANARY, version=2, share=0.25)
    opened.rollouts.set(trial, by="key deploy")
    publish_tiny_task(
        opened,
        backbone,
        task="themes",
        labels=WIDE,
        problem_type=ProblemType.MULTI_LABEL,
        thresholds={WIDE[0]: 0.75},
    )
    publish_tiny_task(
        opened, backbone, task="names", labels=("I-X", "I-Y"), kind=HeadKind.TOKEN_CLASSIFICATION
    )


@pytest.fixture
def crowd(page: Page) -> None:
    """Let the server list a thousand tasks, each tenth in memory."""

    def multiply(route: Route) -> None:
        answer = route.fetch()
        first = answer.json()["tasks"][0]
        tasks = [
            {
                **first,
                "name": f"task-{number:04}",
                "head": HEADS[number % 2],
                "labels": [f"label {number}", "other"],
                "candidates": [],
                "resident_versions": [] if number % 10 else [1],
            }
            for number in range(MANY)
        ]
        route.fulfill(json={"tasks": tasks})

    page.route("**/v1/tasks", multiply)


def names(page: Page) -> Locator:
    return page.locator("#tasks th")


def part(page: Page, name: str) -> Locator:
    return page.locator(f"#task-view [data-part={name}]")


@pytest.mark.usefixtures("crowd")
def test_a_thousand_tasks_make_a_short_page(page: Page) -> None:
    page.goto("/")

    expect(page.locator("#find-count")).to_have_text("1000 tasks")
    expect(names(page)).to_have_count(20)
    expect(page.locator("#chips input")).to_have_count(24)
    assert page.evaluate("document.documentElement.scrollHeight") < 2600
    assert page.evaluate("document.querySelectorAll('*').length") < 2000

    page.get_by_role("button", name="Show 100 of 980 more").click()
    expect(names(page)).to_have_count(120)


@pytest.mark.usefixtures("crowd")
def test_tasks_are_found_by_words_kind_and_state(page: Page) -> None:
    page.goto("/")
    expect(names(page)).to_have_count(20)

    page.fill("#find", "label 77")
    expect(page.locator("#find-count")).to_have_text("19 of 1000 tasks")
    page.fill("#find", "TASK-0770 other")
    expect(names(page)).to_have_text(["task-0770"])
    page.fill("#find", "nothing of this name")
    expect(names(page)).to_have_count(0)
    page.fill("#find", "")
    page.select_option("#find-state", "memory")
    expect(page.locator("#find-count")).to_have_text("100 of 1000 tasks")
    page.select_option("#find-head", "token_classification")
    expect(page.locator("#find-count")).to_have_text("0 of 1000 tasks")
    page.select_option("#find-state", "store")
    expect(page.locator("#find-count")).to_have_text("500 of 1000 tasks")


def test_tasks_on_trial_are_found(page: Page) -> None:
    page.goto("/")
    page.select_option("#find-state", "trial")

    expect(names(page)).to_have_text(["tone"])


@pytest.mark.usefixtures("crowd")
def test_a_task_of_many_is_found_and_stays_chosen(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#chips-note")).to_contain_text("and 976 more")
    page.click("#choose-none")
    page.fill("#choose-find", "task-0815")

    page.locator("#chips input[value=task-0815]").check()
    page.fill("#choose-find", "task-0042")
    page.locator("#chips input[value=task-0042]").check()
    page.fill("#choose-find", "")

    checked = page.locator("#chips input:checked")
    assert [it.get_attribute("value") for it in checked.all()] == ["task-0042", "task-0815"]
    with page.expect_request("**/v1/predict") as sent:
        page.click("#send")
    body: Any = sent.value.post_data_json
    assert body["tasks"] == ["task-0042", "task-0815"]


def test_a_list_that_did_not_change_is_not_drawn_again(page: Page) -> None:
    page.goto("/")
    link = names(page).get_by_role("link", name="tone")
    link.focus()
    page.evaluate("document.querySelector('#tasks tr').marked = true")

    for _ in range(2):
        with page.expect_response("**/v1/tasks"):
            pass

    assert page.evaluate("document.querySelector('#tasks tr').marked") is True
    expect(link).to_be_focused()


def test_a_task_is_opened_by_a_link_and_left_by_the_back_button(page: Page) -> None:
    page.goto("/")
    names(page).get_by_role("link", name="tone").click()

    expect(page.locator("#task-title")).to_have_text("tone")
    expect(page.locator("#task-title")).to_be_focused()
    expect(page.locator("#overview")).to_be_hidden()
    expect(page).to_have_url(re.compile("#task=tone$"))
    expect(page).to_have_title(re.compile("^tone"))

    page.go_back()
    expect(page.locator("#overview")).to_be_visible()
    expect(page.locator("#task-view")).to_be_hidden()

    page.go_forward()
    expect(page.locator("#task-title")).to_have_text("tone")


def test_a_shared_link_opens_the_task_and_the_version(page: Page) -> None:
    page.goto("/#task=tone&version=2")

    expect(page.locator("#task-view")).to_contain_text("Version 2 of 2")
    expect(part(page, "scores")).to_have_text("No scores are recorded for this version.")
    expect(part(page, "confusion")).to_contain_text("No confusion matrix is recorded")
    expect(part(page, "card")).to_contain_text("not recorded")

    part(page, "versions").get_by_role("link", name="version 1").click()
    expect(page.locator("#task-view")).to_contain_text("Version 1 of 2")
    page.go_back()
    expect(page.locator("#task-view")).to_contain_text("Version 2 of 2")


def test_a_task_shows_its_scores_on_dev_and_test_examples(page: Page) -> None:
    page.goto("/#task=tone")

    rows = part(page, "scores").locator("tbody tr")
    expect(rows).to_have_text(
        [
            "testaccuracy0.9000 [0.8800, 0.9200] (wilson)1,200",
            "devaccuracy0.91001,200",
            "devmacro F10.87501,200",
        ]
    )


def test_a_task_shows_its_confusion_matrix_and_its_card(page: Page) -> None:
    page.goto("/#task=tone")

    rows = part(page, "confusion").locator("tbody tr")
    expect(rows).to_have_text(["calm9070", "urgent0310", "other000"])
    card = part(page, "card")
    expect(card).to_contain_text("topk, num layers 1")
    expect(card).to_contain_text("tickets: 5,000 train and 1,200 dev examples")
    expect(card).to_contain_text("48 tokens; longer inputs are read in overlapping windows")
    expect(page.locator("#task-view")).to_contain_text(NOTE)
    assert page.locator("#task-view b").count() == 0


def test_a_task_shows_its_versions_and_who_moved_its_aliases(page: Page) -> None:
    page.goto("/#task=tone")

    expect(part(page, "versions").locator("tbody tr")).to_have_text(
        [re.compile("version 2.*canary of prod"), re.compile("version 1.*shown.*prod")]
    )
    events = part(page, "history").locator("tbody tr")
    expect(events).to_have_text(
        [
            re.compile(r"canary of prod: version 2, 25 %key deploy$"),
            re.compile(r"prod rolled back from 2 to 1Bob$"),
            re.compile(r"prod moved from 1 to 2key deploy$"),
            re.compile(r"prod set to 1Ann$"),
        ]
    )


def test_a_task_shows_the_threshold_of_each_label(page: Page) -> None:
    page.goto("/#task=themes")

    rows = part(page, "labels").locator("tbody tr")
    expect(rows).to_have_count(len(WIDE))
    expect(rows.nth(0)).to_have_text("theme 00.75")
    expect(rows.nth(1)).to_have_text("theme 10.5not recorded: the default")
    expect(rows.last).to_have_text("constructor0.5not recorded: the default")
    expect(part(page, "history")).to_contain_text("No alias was ever set")


def test_a_task_that_is_not_there_is_named_in_words(page: Page) -> None:
    page.goto("/#task=nobody")

    expect(page.locator("#task-view .failure")).to_contain_text("no task 'nobody'")
    page.get_by_role("link", name="All tasks").click()
    expect(page.locator("#overview")).to_be_visible()


def test_a_task_is_asked_alone_from_its_view(page: Page) -> None:
    page.goto("/#task=names")
    page.get_by_role("button", name="Ask this task").click()

    expect(page.locator("#chips input:checked")).to_have_count(1)
    expect(page.locator("#text")).to_be_focused()
    page.fill("#text", "ann met bob")
    page.click("#send")
    expect(page.locator(".answer h3")).to_contain_text(["names/1"])


def test_an_empty_text_is_named_and_not_sent(page: Page) -> None:
    asked = list[str]()
    page.on("request", lambda it: asked.append(it.method))
    page.goto("/")
    page.wait_for_selector("#chips input")
    page.fill("#text", "  ")
    page.click("#send")

    expect(page.locator("#timing")).to_contain_text("Write a text first")
    expect(page.locator("#text")).to_be_focused()
    assert "POST" not in asked


def test_an_answer_without_an_explanation_is_explained(page: Page) -> None:
    page.route("**/readyz", lambda route: route.fulfill(status=502, body="<html>"))
    page.goto("/")

    expect(page.locator("#notice")).to_contain_text("status 502 and no explanation")
    expect(page.locator("#state")).to_have_text("refused")


def test_the_wrong_fields_of_a_request_are_named(page: Page) -> None:
    problem = {
        "code": "invalid_request",
        "detail": "the request does not follow its schema",
        "errors": [{"location": "body.inputs", "message": "too long"}],
    }
    page.route("**/v1/predict", lambda route: route.fulfill(status=422, json=problem))
    page.goto("/")
    page.wait_for_selector("#chips input")
    page.click("#send")

    expect(page.locator(".answer.failed").first).to_contain_text("body.inputs: too long")


def opened(page: Page, route: str) -> Locator:
    """Open a route of the API page, and return its form."""
    page.goto("/docs")
    details = page.locator("#routes details").filter(
        has=page.locator("summary", has_text=re.compile(rf"^{re.escape(route)} "))
    )
    details.locator("summary").click()
    return details.locator("form")


def test_a_route_is_tried_with_its_example(page: Page) -> None:
    form = opened(page, "POST/v1/tasks/{task}/predict")
    form.get_by_label(re.compile("^task")).fill("tone@prod")

    with page.expect_response("**/v1/tasks/tone%40prod/predict") as sent:
        form.get_by_role("button", name="Send").click()

    assert sent.value.request.post_data_json == {"inputs": "Where is my parcel?"}
    expect(form.get_by_role("status")).to_contain_text("200 OK")
    expect(form.locator("pre")).to_contain_text('"task": "tone"')


@pytest.mark.parametrize("form_of", ["POST/v1/predict", "PUT/v1/tasks/{task}/aliases/{alias}"])
def test_the_example_of_a_body_follows_its_schema(page: Page, form_of: str) -> None:
    form = opened(page, form_of)
    for name in ("task", "alias"):
        field = form.get_by_label(re.compile(f"^{name} "))
        if field.count():
            field.fill("tone")

    form.get_by_role("button", name="Send").click()

    expect(form.get_by_role("status")).to_contain_text(re.compile(r": (200|404|409) "))


def test_a_call_that_cannot_be_sent_is_explained(page: Page) -> None:
    form = opened(page, "POST/v1/tasks/{task}/predict")
    send, status = form.get_by_role("button", name="Send"), form.get_by_role("status")

    send.click()
    expect(status).to_have_text("Fill in task: the address needs it.")
    expect(form.get_by_label(re.compile("^task"))).to_be_focused()
    form.get_by_label(re.compile("^task")).fill("tone")
    form.get_by_label(re.compile("^Body")).fill('{"inputs": ')
    send.click()
    expect(status).to_contain_text("The body is not JSON")


def test_a_tried_call_sends_the_key(page: Page) -> None:
    keys = guard(page, "**/openapi.json", "**/info")
    page.goto("/docs")
    page.fill("#key", "opensesame")
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_be_hidden()
    page.locator("#routes summary", has_text="/info").first.click()
    form = page.locator("#routes details[open] form")
    form.get_by_role("button", name="Send").click()

    expect(form.locator("pre")).to_contain_text('"backbone"')
    assert keys == [None, "Bearer opensesame", "Bearer opensesame"]
