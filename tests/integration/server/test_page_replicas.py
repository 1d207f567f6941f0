"""The web page's section of the replicas of a registry, in a real browser."""

from playwright.sync_api import Page, Route, expect

from doubles.browsers import IN_A_BROWSER
from doubles.replicas import NEVER, beat
from doubles.tasks import publish_tiny_task
from nunatak_contract.wire import ReplicaLoad
from nunatak_model import Backbone
from nunatak_registry import Registry

pytestmark = IN_A_BROWSER

HOSTILE = "<img src=x onerror=\"window.broken='replica'\">"
BUSY = ReplicaLoad(
    ready=True,
    waiting=3,
    running=2,
    versions=7,
    version_bytes=90_000_000,
    process_bytes=1_200_000_000,
)
DRAINING = BUSY.model_copy(update={"ready": False, "process_bytes": 600_000_000})


def publish(opened: Registry, backbone: Backbone) -> None:
    publish_tiny_task(opened, backbone, task="tone")
    beat(opened, "busy", load=BUSY, address="10.0.0.1:8080", lease_s=90.0)
    beat(opened, "old", load=BUSY, seen=NEVER, lease_s=None)
    beat(opened, "ending", load=DRAINING, address=HOSTILE)


def test_every_replica_has_a_row_with_its_state_load_and_memory(page: Page) -> None:
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
