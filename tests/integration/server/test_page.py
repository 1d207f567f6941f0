"""The web page in a real browser: its content, its robustness, and its limits."""

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from doubles.backbones import tiny_backbone
from doubles.browsers import CONTRAST, IN_A_BROWSER, guard, open_page
from doubles.drafts import evidence_of
from doubles.policies import make_policy, make_rule, when
from doubles.replicas import NEVER, beat
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task, tiny_task
from nunatak_contract.enums import HeadKind, ProblemType, Reads, VerdictAction
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_contract.names import MAX_NAME_LENGTH
from nunatak_contract.wire import ReplicaLoad
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings

pytestmark = IN_A_BROWSER

HOSTILE = "<img src=x onerror=\"window.broken='label'\">"
TEXT = "\N{SNOW CAPPED MOUNTAIN} ann met bob </p><script>window.broken='text'</script>"
THEMES = tuple(f"theme {number}" for number in range(9))
TASKS: dict[str, tuple[HeadKind, Method, tuple[str, ...], ProblemType | None]] = {
    "topic": (HeadKind.SEQUENCE_CLASSIFICATION, TopK(num_layers=1), (HOSTILE, "calm"), None),
    "stars": (HeadKind.SEQUENCE_CLASSIFICATION, HeadOnly(), ("stars",), ProblemType.REGRESSION),
    "names": (
        HeadKind.TOKEN_CLASSIFICATION,
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        ("I-X", "I-Y"),
        None,
    ),
    "pairs": (HeadKind.SEQUENCE_CLASSIFICATION, HeadOnly(), ("yes", "no"), None),
    "themes": (HeadKind.SEQUENCE_CLASSIFICATION, HeadOnly(), THEMES, ProblemType.MULTI_LABEL),
    "answers": (HeadKind.QUESTION_ANSWERING, Bottleneck(size=4, first_layer=1), (), None),
    "ranks": (HeadKind.RANKING, TopK(num_layers=2), (), None),
}
BUSY = ReplicaLoad(
    ready=True,
    waiting=3,
    running=2,
    versions=7,
    version_bytes=90_000_000,
    process_bytes=1_200_000_000,
)
WAIT_BUCKET = re.compile(
    r"""^(nunatak_http_request_seconds_bucket\{le="(\S+)",route="\S+predict"\}) \S+$""",
    re.MULTILINE,
)
CANDIDATES = {"canary": (2, 0.1), "shadow": (3, 0.005)}
LINES = """(all) => all.map((it) => {
    const range = document.createRange();
    range.selectNodeContents(it);
    return range.getClientRects().length;
})"""
TOO_WIDE = """() => {
    const tables = [...document.querySelectorAll("table:not(.matrix)")];
    for (const it of tables.filter((it) => it.closest("#task-view")))
        it.querySelector("td").textContent = "long_label_".repeat(12);
    return tables.map((it) => it.parentElement).filter((it) => it.scrollWidth > it.clientWidth);
}"""
UNNAMED = """() => [...document.querySelectorAll("input, textarea, button, a, img")]
    .filter((it) => !(it.labels?.length || it.textContent.trim() || it.hasAttribute("alt")))
    .map((it) => it.outerHTML)"""


def publish(opened: Registry, backbone: Backbone) -> None:
    for name, (kind, method, labels, problem) in TASKS.items():
        draft, blobs = tiny_task(
            backbone,
            task=name,
            method=method,
            labels=labels,
            kind=kind,
            problem_type=problem,
            reads=Reads.PAIR if name == "pairs" else None,
            # All labels except one apply. They are more than the page always shows.
            thresholds={label: float(label == THEMES[-1]) for label in THEMES}
            if problem is ProblemType.MULTI_LABEL
            else None,
        )
        opened.publish(evidence_of(draft) if name == "topic" else draft, blobs)
    beat(opened, "old", load=BUSY, seen=NEVER, lease_s=None)
    beat(opened, "ending", load=BUSY.model_copy(update={"ready": False}), address=HOSTILE)
    always = make_rule(when("topic", "calm", threshold=1e-9), message=HOSTILE)
    opened.policies.put(make_policy(always))
    mask = make_rule(when("names", "X"), action=VerdictAction.MASK)
    opened.policies.put(make_policy(mask, name="hide"))
    opened.promote("topic", "prod", 1)
    for version, _ in CANDIDATES.values():
        publish_tiny_task(opened, backbone, task="topic", labels=("a", "b"), seed=version)


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    return make_settings(max_batch_rows=1)


@pytest.fixture
def candidates(page: Page) -> Generator[None]:
    """Run a canary and a shadow next to `prod` of `topic`."""
    for role, (version, share) in CANDIDATES.items():
        body = {"version": version, "share": share}
        assert page.request.put(f"/v1/tasks/topic/aliases/prod/{role}", data=body).ok
    yield
    for role in CANDIDATES:
        page.request.post(f"/v1/tasks/topic/aliases/prod/{role}/end")


ENDS = """(it) => {
    const text = document.createRange();
    text.selectNodeContents(it);
    return [it.getBoundingClientRect().right, text.getBoundingClientRect().right];
}"""
"""The right end of an element, and of the text in it."""


def fill_in(page: Page, *tasks: str, text: str = TEXT) -> None:
    page.goto("/")
    page.wait_for_selector("#chips input")
    for chip in page.locator("#chips input").all():
        chip.set_checked(chip.get_attribute("value") in tasks)
    page.fill("#text", text)


def ask(page: Page, *tasks: str, text: str = TEXT) -> None:
    fill_in(page, *tasks, text=text)
    page.click("#send")


def answered(page: Page) -> list[dict[str, Any]]:
    """Send the filled form, and return the results that the page received."""
    with page.expect_response("**/v1/predict") as sent:
        page.click("#send")
    results: list[dict[str, Any]] = sent.value.json()["results"]
    return results


def card(page: Page, title: str) -> Locator:
    return page.locator(".answer").filter(has=page.get_by_role("heading", name=title))


def test_the_page_shows_tasks_and_memory(page: Page) -> None:
    page.goto("/")

    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#tasks tr")).to_have_count(len(TASKS))
    topic = page.locator("#tasks tr").filter(has_text="topic")
    expect(topic).to_contain_text("prod → 1")
    expect(topic).to_contain_text("sequence classification, 2 labels")
    expect(topic).to_contain_text("topk")
    expect(topic).to_contain_text("3 of 4 shared")
    expect(page.locator("#memory .memory-row")).to_have_count(2)


@pytest.mark.usefixtures("candidates")
def test_candidates_are_shown_until_they_end(page: Page) -> None:
    page.goto("/")

    versions = page.locator("#tasks tr").filter(has_text="topic").locator("td").first
    canary, shadow = versions.locator(".canary"), versions.locator(".shadow")
    expect(canary).to_have_text("canary of prod → 2, 10 %")
    expect(canary).to_have_attribute("title", re.compile("answers"))
    expect(shadow).to_have_text("shadow of prod → 3, 0.5 %")
    expect(shadow).to_have_attribute("title", re.compile("unseen"))

    assert page.request.post("/v1/tasks/topic/aliases/prod/canary/end").ok
    expect(canary).to_have_count(0)
    expect(shadow).to_be_visible()
    assert page.request.post("/v1/tasks/topic/aliases/prod/shadow/end").ok
    expect(shadow).to_have_count(0)
    expect(versions).to_contain_text("prod → 1")


def test_labels_and_texts_are_shown_as_text(page: Page) -> None:
    ask(page, "topic", "names")

    expect(card(page, "topic/1")).to_contain_text(HOSTILE)
    expect(card(page, "names/1")).to_contain_text("<script>")
    assert page.locator("main img, main script, .answer [onerror]").count() == 0


def test_a_text_from_right_to_left_begins_at_the_right(page: Page) -> None:
    ask(page, "names", text="שלום")

    text = card(page, "names/1").locator(".passage")
    expect(text).to_be_visible()
    for it in page.locator("textarea, #question, .passage").all():
        expect(it).to_have_css("unicode-bidi", "plaintext")
    begin, end = text.evaluate(ENDS)
    assert begin - end < 2


def test_spans_are_marked_where_the_server_found_them(page: Page) -> None:
    fill_in(page, "names")

    groups = answered(page)[0]["outputs"]
    marks = card(page, "names/1").locator("mark")
    expect(marks).to_have_count(len(groups))
    for mark, group in zip(marks.all(), groups, strict=True):
        expect(mark).to_have_text(TEXT[group["start"] : group["end"]] + group["entity_group"])


def test_an_answer_is_marked_in_its_context(page: Page) -> None:
    fill_in(page, "answers")
    expect(page.locator("#question-note")).to_contain_text("answers looks for the answer")
    page.fill("#question", "who?")

    found = answered(page)[0]["outputs"][0]
    expect(card(page, "answers/1").locator(".big")).to_have_text(found["answer"])
    expect(card(page, "answers/1").locator("mark")).to_contain_text(
        TEXT[found["start"] : found["end"]]
    )


def test_documents_are_shown_in_the_order_of_their_scores(page: Page) -> None:
    fill_in(page, "ranks", text="ann\nbob and cy\n\nnobody")
    page.fill("#question", "who?")

    order: list[int] = [it["index"] for it in answered(page)[0]["outputs"]]
    documents = ["ann", "bob and cy", "nobody"]
    names = card(page, "ranks/1").locator(".name")
    expect(names).to_have_text([documents[index] for index in order])


def test_a_task_about_pairs_has_a_second_box(page: Page) -> None:
    fill_in(page, "topic", text="it rains")
    expect(page.locator("#pair-field")).to_be_hidden()
    page.locator("#chips input[value=pairs]").check()
    expect(page.locator("#pair-note")).to_have_text("pairs reads both texts together")
    page.fill("#pair", "the street is wet")
    bodies = list[Any]()
    page.on("request", lambda it: bodies.append(it.post_data_json) if it.post_data else None)

    page.click("#send")

    expect(card(page, "topic/1").locator(".score")).to_have_count(2)
    expect(card(page, "pairs/1").locator(".score")).to_have_count(2)
    assert {it["tasks"][0]: it["inputs"] for it in bodies} == {
        "topic": "it rains",
        "pairs": {"text": "it rains", "text_pair": "the street is wet"},
    }


def test_all_labels_that_apply_are_marked(page: Page) -> None:
    fill_in(page, "themes")

    predicted = answered(page)[0]["predicted"]
    assert len(predicted) == len(THEMES) - 1
    expect(card(page, "themes/1").locator(".score.best .name")).to_have_text(predicted)


def test_entities_are_never_cut_within_words(page: Page) -> None:
    text = "annotations bobsledding unbelievably"
    fill_in(page, "names", text=text)

    with page.expect_response("**/v1/predict") as sent:
        page.click("#send")
    groups = sent.value.json()["results"][0]["outputs"]
    asked: Any = sent.value.request.post_data_json
    assert asked["parameters"] == {"aggregation_strategy": "first"}
    assert groups
    assert {word for it in groups for word in text[it["start"] : it["end"]].split()} <= set(
        text.split()
    )


def test_a_regression_is_a_number_without_a_bar(page: Page) -> None:
    ask(page, "stars")

    expect(card(page, "stars/1").locator(".big")).to_contain_text("stars")
    expect(card(page, "stars/1").locator(".bar")).to_have_count(0)
    expect(page.locator("#timing")).to_contain_text("1 task in")


def test_one_task_that_fails_leaves_the_others_their_answers(page: Page) -> None:
    ask(page, "topic", "ranks", text="ann")

    expect(page.locator(".answer.failed")).to_contain_text("Write a query")
    expect(card(page, "topic/1").locator(".score")).to_have_count(2)


@pytest.mark.parametrize("answer", ["problem", "nonsense", "nothing"])
def test_the_page_survives_a_server_error(page: Page, answer: str) -> None:
    problem = {"detail": "the queue is full", "code": "overloaded"}

    def fail(route: Route) -> None:
        match answer:
            case "problem":
                route.fulfill(status=429, json=problem)
            case "nonsense":
                route.fulfill(status=502, body="<html>")
            case _:
                route.abort()

    page.route("**/v1/predict", fail)
    ask(page, "topic")
    expect(page.locator(".answer.failed")).to_be_visible()

    page.unroute("**/v1/predict")
    page.click("#send")
    expect(card(page, "topic/1").locator(".score")).to_have_count(2)


def test_a_key_for_some_tasks_sees_and_asks_those(page: Page) -> None:
    for path in ("**/v1/memory", "**/metrics"):
        page.route(path, lambda route: route.fulfill(status=403, json={"code": "forbidden"}))
    ask(page, "topic")

    expect(card(page, "topic/1").locator(".score")).to_have_count(2)
    expect(page.locator("#tasks tr").filter(has_text="topic")).to_contain_text("1 in memory")
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#memory-panel")).to_be_hidden()


def view_of(page: Page, view: str) -> None:
    """Open the answers of all tasks, or what the page tells about one."""
    if view == "answers":
        ask(page, *TASKS)
        asked = page.locator("#chips input:checked").count()
        expect(page.locator(".answer")).to_have_count(asked)
        expect(page.locator("#replicas-panel")).to_be_visible()
    else:
        page.goto("/#task=topic&version=1")
        expect(page.locator("#task-view [data-part=card]")).to_be_visible()


@pytest.mark.usefixtures("candidates")
@pytest.mark.parametrize("view", ["answers", "task"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_background(page: Page, view: str, scheme: Any) -> None:  # noqa: ANN401 - a literal
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    view_of(page, view)

    assert page.evaluate(CONTRAST) == []


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    ask(page, *TASKS)
    expect(page.locator(".answer")).to_have_count(len(TASKS))

    assert page.evaluate(UNNAMED) == []
    expect(page.locator("#answers")).to_have_attribute("aria-live", "polite")


def test_the_page_is_used_by_keyboard_alone(page: Page) -> None:
    page.goto("/")
    page.wait_for_selector("#chips input")
    reached = list[str]()
    while "send" not in reached and len(reached) < 30:
        page.keyboard.press("Tab")
        reached.append(str(page.evaluate("document.activeElement.id")))
    page.keyboard.press("Enter")

    assert "text" in reached
    expect(page.locator(".answer").first).to_be_visible()


@pytest.mark.usefixtures("candidates")
@pytest.mark.parametrize(
    ("view", "name"),
    [
        ("answers", "topic"),
        pytest.param("answers", "x" * MAX_NAME_LENGTH, id="answers-longest"),
        ("task", "topic"),
    ],
)
def test_a_narrow_screen_needs_no_scrolling_to_the_side(page: Page, view: str, name: str) -> None:
    def rename(route: Route) -> None:
        text = route.fetch().text()
        route.fulfill(body=text.replace("topic", name).replace("prod", name))

    page.set_viewport_size({"width": 360, "height": 700})
    page.route("**/v1/tasks", rename)
    view_of(page, view)

    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(TOO_WIDE) == []


@pytest.mark.usefixtures("candidates")
def test_what_stands_next_to_a_name_leaves_it_whole(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#tasks .shadow")).to_be_visible()

    assert set(page.locator("#tasks th a").evaluate_all(LINES)) == {1}


def test_quantiles_of_the_asked_routes_are_estimated_within_their_bucket(page: Page) -> None:
    page.goto("/")
    counts = {"/v1/tasks": (9, 9, 9), "/v1/predict": (2, 6, 8)}
    text = "\n".join(
        f'x_bucket{{le="{bound}",route="{route}"}} {count}'
        for route, found in counts.items()
        for bound, count in zip(("0.1", "0.2", "+Inf"), found, strict=True)
    )

    middle, last, none = page.evaluate(
        """async (text) => {
            const { gained, parse, quantile } = await import("/page/metrics.js");
            const counts = gained(parse(text), [], "x", /predict/);
            return [0.5, 1].map((it) => quantile(counts, it)).concat(quantile([], 0.5));
        }""",
        text,
    )

    assert middle == pytest.approx(0.15)
    assert last == pytest.approx(0.2)
    assert none is None


def test_a_request_of_many_forwards_is_shown_to_take_longer_than_one(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#state")).to_have_text("ready")
    texts = [f"text {number}" for number in range(64)]

    answer = page.request.post("/v1/predict", data={"inputs": texts, "tasks": ["topic", "stars"]})

    assert answer.ok
    page.wait_for_function(
        """() => {
            const shown = (id) => document.getElementById(id).textContent;
            const ms = (text) => parseFloat(text) * (text.endsWith(" s") ? 1000 : 1);
            return ms(shown("wait")) > 20 * ms(shown("latency"));
        }"""
    )


@pytest.mark.parametrize(
    ("waited", "middle", "high"),
    [
        (2.5, "3.8 s", "99 of 100 within 5.0 s"),
        (10, "over 10 s", "fewer than 99 of 100 within 10 s"),
    ],
)
def test_the_wait_of_callers_is_shown_next_to_the_time_of_a_forward(
    page: Page, waited: float, middle: str, high: str
) -> None:
    # Sets the waiting time in all earlier answers.
    def delay(route: Route) -> None:
        def late(found: re.Match[str]) -> str:
            return f"{found[1]} {8.0 if float(found[2]) > waited else 0.0}"

        text, count = WAIT_BUCKET.subn(late, route.fetch().text())
        route.fulfill(body=text if count else "")

    ask(page, "topic")
    expect(card(page, "topic/1")).to_be_visible()
    page.route("**/metrics", delay)
    page.goto("/")

    expect(page.locator("#wait")).to_have_text(middle)
    expect(page.locator("#wait-note")).to_have_text(high)
    forward, unit = (page.locator("#latency").text_content() or "").split()
    assert (float(forward) < 1000 * waited, unit) == (True, "ms")


def test_every_replica_has_a_row_with_its_state_load_and_memory(
    page: Page, registry: Registry
) -> None:
    beat(registry, "busy", load=BUSY, address="10.0.0.1:8080", lease_s=90.0)
    page.goto("/")
    row = {name: page.locator("#replicas tr").filter(has_text=name) for name in ("busy", "old")}

    expect(row["busy"]).to_contain_text("10.0.0.1:8080")
    expect(row["busy"].locator(".tag")).to_have_text("current")
    expect(row["busy"]).to_contain_text("2 running, 3 waiting")
    expect(row["busy"]).to_contain_text("7 versions, 90.0 MB of 1.2 GB")
    expect(row["busy"]).to_contain_text("90 s")
    expect(row["old"].locator(".tag")).to_have_text("behind")
    expect(row["old"]).to_contain_text("none")


def test_a_replica_that_drains_is_not_ready_and_its_words_are_text(page: Page) -> None:
    page.goto("/")
    ending = page.locator("#replicas tr").filter(has_text="ending")

    expect(ending.locator(".tag")).to_have_text("not ready")
    expect(ending).to_contain_text(HOSTILE)
    assert page.locator("#replicas img").count() == 0


def test_the_rows_stay_with_a_note_while_the_registry_does_not_answer(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#replicas-count")).to_contain_text("ready at revision")

    def refuse(route: Route) -> None:
        route.fulfill(status=503, json={"detail": "the registry does not answer"})

    page.route("**/v1/replicas", refuse)
    expect(page.locator("#replicas-note")).to_contain_text("the registry does not answer")
    expect(page.locator("#state")).to_have_text("ready")
    assert page.locator("#replicas tr").count() > 2


def test_a_policy_is_chosen_and_judges_the_text(page: Page) -> None:
    page.goto("/")
    verdict = page.locator("#verdict")
    expect(page.locator("#policy option")).to_have_text(["guard", "hide"])

    page.get_by_role("button", name="Judge").click()
    expect(verdict.get_by_role("heading")).to_contain_text("block")
    expect(verdict).to_contain_text("guard/1: topic/1")
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


def test_a_key_is_asked_for_and_kept_in_the_session_alone(page: Page) -> None:
    guard(page, "**/info", "**/readyz", "**/v1/**", "**/metrics")
    page.goto("/")
    expect(page.locator("#key-dialog")).to_be_visible()
    expect(page.locator("#refused-key")).to_be_hidden()
    page.fill("#key", "opensesam")
    page.keyboard.press("Enter")
    expect(page.locator("#refused-key")).to_be_visible()
    page.fill("#key", "opensesame")
    page.keyboard.press("Enter")

    expect(page.locator("#state")).to_have_text("ready")
    assert page.evaluate("Object.values(sessionStorage)") == ["opensesame"]
    assert page.evaluate("Object.values(localStorage)") == []
    assert page.evaluate("document.cookie") == ""


def test_a_key_that_no_header_holds_is_not_kept(page: Page) -> None:
    page.goto("/")
    page.click("#key-button")
    page.fill("#key", "\u201copensesame\u201d")
    page.get_by_role("button", name="Use key").click()
    expect(page.locator("#key:invalid")).to_be_visible()
    page.get_by_role("button", name="Forget key").click()

    expect(page.locator("#key-dialog")).to_be_hidden()
    assert page.evaluate("Object.values(sessionStorage)") == []
    expect(page.locator("#state")).to_have_text("ready")


def test_a_port_that_processes_share_is_ready_without_their_counts(page: Page) -> None:
    page.route("**/metrics", lambda route: route.fulfill(status=421, json={"code": "shared_port"}))
    page.goto("/")

    expect(page.locator("#state")).to_have_text("ready")
    with page.expect_response("**/metrics"), page.expect_response("**/readyz"):
        pass
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#notice")).to_be_hidden()


def test_a_server_that_hangs_is_not_shown_as_ready_and_is_read_anew(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#state")).to_have_text("ready")
    page.route("**/readyz", lambda _: None)

    expect(page.locator("#state")).to_have_text("no answer")
    page.unroute("**/readyz")
    with page.expect_response("**/info"):
        expect(page.locator("#state")).to_have_text("ready")


def test_the_api_page_lists_every_route_without_help_from_elsewhere(page: Page) -> None:
    page.goto("/docs")
    schema = page.request.get("/openapi.json").json()

    routes = [(path, verb) for path, verbs in schema["paths"].items() for verb in verbs]
    expect(page.locator("#routes details")).to_have_count(len(routes))
    expect(page.locator("#schemas details")).to_have_count(len(schema["components"]["schemas"]))


def test_the_page_names_all_backbones_and_shows_the_memory_of_each(
    browser: Browser, tmp_path: Path
) -> None:
    first, second = (tiny_backbone(seed=seed) for seed in (1, 2))
    with (
        Registry.open(tmp_path) as registry,
        running_server(first, registry, others=[second]) as address,
        open_page(browser, address) as page,
    ):
        page.goto("/")

        names = f"2 frozen backbones: {first.name}, {second.name}"
        expect(page.locator("#summary")).to_contain_text(names)
        for backbone in (first, second):
            expect(page.get_by_title(f"backbone {backbone.name}")).to_have_count(1)
