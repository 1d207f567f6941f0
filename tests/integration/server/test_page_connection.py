"""The web page's key and its line of state, in a real browser."""

from playwright.sync_api import Page, Route, expect

from doubles.browsers import IN_A_BROWSER
from doubles.tasks import publish_tiny_task

pytestmark = IN_A_BROWSER
publish = publish_tiny_task


def test_a_key_is_asked_for_and_kept_in_the_session_alone(page: Page) -> None:
    def guard(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer opensesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "a key is needed", "code": "unauthorized"})

    for path in ("**/info", "**/readyz", "**/v1/**", "**/metrics"):
        page.route(path, guard)
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
