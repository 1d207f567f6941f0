"""Typed questions: one request for many, no answer by a foreign task, and the cascade.

The server runs in its own process, behind real HTTP, with random but valid tasks on the embedded
backbone. Compared requests take turns, each with new texts, so that no cache holds them and other
work on the machine slows both. The cascade needs the registries of a trained task and of its
teacher; both are asked over HTTP, the teacher as the upstream.
"""

import random
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import httpx

from benchmarks.harness.makers import LABELS, publish
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import interleave, ratios
from benchmarks.harness.sets import Row, read_part
from demo.server_process import ServerProcess
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry

WORDS = ("where", "is", "my", "parcel", "late", "lost", "green", "and", "who", "can", "tell", "it")
NUM_WORDS = 40
FEW, MANY = 5, 50
WARM_UP, PAIRS = 10, 60
QUIET = ("--no-access-log",)
NO_CACHE = ("--trunk-cache-bytes", "0")
PARTS: Mapping[str, tuple[Method, int, tuple[str, ...]]] = {
    "": (TopK(num_layers=1), FEW, NO_CACHE),
    ".cached": (TopK(num_layers=1), FEW, ()),
    ".head": (HeadOnly(), MANY, NO_CACHE),
}
"""Method and number of tasks, and the server's options, by the end of the figures' names."""
NUM_TASKS, NUM_VERSIONS, NUM_QUESTIONS = 12, 3, 16
POINTS = 0.005
"""How much more error than the teacher's the cascade may have on the texts of the choice."""
TOLERANCE = 1e-4
"""How far the scores of one version may be apart in different batches."""
Body = dict[str, Any]


def main() -> None:
    """Measure and record the requested parts."""
    parser = figures_parser(__doc__, rounds=5)
    parser.add_argument("parts", nargs="*", default=["speed", "wrong"])
    parser.add_argument("--seconds", type=float, default=120, help="of the part `wrong`")
    parser.add_argument("--own", help="registry and task, such as FOLDER:trec")
    parser.add_argument("--teacher", help="registry and task of the teacher")
    parser.add_argument("--data", type=Path, help="the data set, a folder")
    options, sheet = open_sheet(parser)
    for part in options.parts:
        match part:
            case "speed":
                speed(sheet)
            case "wrong":
                wrong(sheet, options.seconds)
            case "cascade":
                cascade(sheet, options.own, options.teacher, options.data)
            case other:
                raise SystemExit(f"there is no part {other!r}")


def question(number: int, labels: Sequence[str] = LABELS) -> Body:
    """Return one choice of labels; each number is another question."""
    criteria = dict.fromkeys(labels)
    return {"type": "choice", "instructions": f"What is it, number {number}?", "criteria": criteria}


def put(registry: Registry, name: str, asked: Body, **fields: object) -> str:
    """Publish a card for a question; return its reference."""
    card = {"name": name, "task": name, "question": asked, **fields}
    return registry.questions.put(QuestionCard.model_validate(card)).reference


def speed(sheet: Sheet) -> None:
    """Record one request for five questions over five requests, and fifty questions over five."""
    draw = random.Random(1)
    texts = (" ".join(draw.choices(WORDS, k=NUM_WORDS)) for _ in iter(int, 1))
    backbone = load_backbone(DEFAULT_BACKBONE)
    for suffix, (method, count, options) in PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            with Registry.open(folder) as registry:
                for number in range(count):
                    publish(registry, backbone, f"task-{number}", number, method=method)
                    put(registry, f"task-{number}", question(number))
            with (
                ServerProcess(folder, options=(*QUIET, *options)) as server,
                httpx.Client(base_url=server.url) as client,
            ):
                found = [measure(client, texts, count) for _ in range(sheet.rounds)]
        times = {name: [one[name] for one in found] for name in found[0]}
        cache = "without a trunk cache" if options else "with the trunk cache"
        of = f"of the p50 of five requests to one task each {cache}"
        over, goal = ratios(times, "five", "apart"), None if suffix else "<= 0.45"
        name = "decisions.five"
        sheet.record(f"{name}.p50_ms{suffix}", over, unit=f"{of}, in turn", goal=goal)
        over = ratios(times, "five", "at once")
        sheet.record(f"{name}.at_once{suffix}", over, unit=f"{of}, at the same time")
        if count == MANY:
            over, unit = ratios(times, "every", "five"), "of the p50 of five heads"
            sheet.record("decisions.fifty_over_five", over, unit=unit, goal="<= 1.5")
        unit = "ms, five questions in one request"
        sheet.record(f"{name}.ms{suffix}", times["five"], unit=unit)


def measure(client: httpx.Client, texts: Iterator[str], count: int) -> dict[str, float]:
    """Return p50 in ms: five questions together, apart in turn, apart at once, and all of them."""
    asked = {f"task-{it}": question(it) for it in range(count)}
    few = dict(list(asked.items())[:FEW])

    def together(questions: Mapping[str, Body]) -> None:
        body = {"model": "nunatak", "state": next(texts), "questions": questions}
        answers = checked(client.post("/v1/systemone", json=body))["answers"]
        if answers.keys() != questions.keys():
            raise SystemExit("a question has no answer")

    def apart(pool: ThreadPoolExecutor | None) -> None:
        text = next(texts)

        def one(task: str) -> None:
            checked(client.post(f"/v1/tasks/{task}/predict", json={"inputs": text}))

        list(map(one, few) if pool is None else pool.map(one, few))

    def timed(work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - started)

    with ThreadPoolExecutor(FEW) as pool:
        works = {
            "five": partial(together, few),
            "apart": partial(apart, None),
            "at once": partial(apart, pool),
            "every": partial(together, asked),
        }
        runs = {name: partial(timed, work) for name, work in works.items()}
        times = interleave(runs, PAIRS, warm_up=WARM_UP)
    return {name: median(them) for name, them in times.items()}


def checked(reply: httpx.Response) -> Body:
    """Return the body of a success."""
    reply.raise_for_status()
    return reply.json()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An answer, and where it says that it comes from."""

    asked: int
    card: str
    version: str
    shares: Mapping[str, float]


def wrong(sheet: Sheet, seconds: float) -> None:
    """Record how many questions a foreign task answers while cards and versions change."""
    backbone, stop = load_backbone(DEFAULT_BACKBONE), Event()
    questions = [question(it) for it in range(NUM_QUESTIONS)]
    cards, counts = dict[str, QuestionCard](), {"changes": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
        names = [f"task-{it}" for it in range(NUM_TASKS)]
        for seed, name in enumerate(names * NUM_VERSIONS):
            publish(registry, backbone, name, seed, method=HeadOnly())
        for name in names:
            registry.promote(name, "prod", 1)

        def change() -> None:
            draw = random.Random(5)
            while not stop.wait(0.05):
                name = draw.choice(names)
                counts["changes"] += 1
                match draw.randrange(3):
                    case 0:
                        registry.promote(name, "prod", draw.randint(1, NUM_VERSIONS))
                    case 1:
                        with suppress(NunatakError):
                            registry.rollback(name, "prod")
                    case _:
                        # Refused if another card has the question.
                        with suppress(NunatakError):
                            asked = draw.choice(questions)
                            reference = put(registry, name, asked, task=f"{name}@prod")
                            cards[reference] = registry.questions.get(name).document

        with (
            ServerProcess(folder, options=QUIET) as server,
            httpx.Client(base_url=server.url) as client,
        ):
            own = {
                f"{name}/{number}": scores_of(client, f"{name}/{number}")
                for name in names
                for number in range(1, NUM_VERSIONS + 1)
            }
            least = min(
                max(abs(one[it] - other[it]) for it in LABELS)
                for one, other in combinations(own.values(), 2)
            )
            if least < 10 * TOLERANCE:
                raise SystemExit("two versions answer too much alike")
            with ThreadPoolExecutor(1) as pool:
                changing = pool.submit(change)
                seen = list(watch(client, questions, seconds, counts))
                stop.set()
                changing.result()
    foreign = sum(not is_own(it, questions, cards, own) for it in seen)
    unit = (
        f"of {len(seen)} answers ({counts['refused']} more questions refused) during "
        f"{counts['changes']} promotions, rollbacks and new cards"
    )
    sheet.record("decisions.wrong", [foreign], unit=unit, goal="<= 0")


TEXT = "Where is my parcel, and who can tell me more about it?"


def scores_of(client: httpx.Client, version: str) -> Mapping[str, float]:
    """Return the scores of a task version about `TEXT`, as the native route gives them."""
    task, number = version.split("/")
    path = f"/v1/tasks/{task}/predict?version={number}"
    body = {"inputs": TEXT, "parameters": {"top_k": len(LABELS)}}
    found = checked(client.post(path, json=body))["outputs"]
    return {it["label"]: it["score"] for it in found}


def watch(
    client: httpx.Client, questions: Sequence[Body], seconds: float, counts: dict[str, int]
) -> Iterator[Seen]:
    """Ask all questions again and again, in another order each time."""
    end, draw = time.perf_counter() + seconds, random.Random(3)
    while time.perf_counter() < end:
        order = draw.sample(range(len(questions)), len(questions))
        asked = [
            {
                "type": "choice",
                "instructions": questions[it]["instructions"],
                "choices": [{"value": label} for label in questions[it]["criteria"]],
            }
            for it in order
        ]
        body = {"model": "nunatak", "input": TEXT, "questions": asked}
        reply = client.post("/v1/decisions", json=body)
        # Without any answer, a failure is that of the request.
        answers = reply.json().get("answers", [{"type": "refusal"}] * len(order))
        for at, answer in zip(order, answers, strict=True):
            if answer["type"] == "refusal":
                counts["refused"] += 1
                continue
            source = answer["x_source"]
            shares = {it["value"]: it["probability"] for it in answer["probabilities"]}
            yield Seen(asked=at, card=source["card"], version=source["task"], shares=shares)


def is_own(
    seen: Seen,
    questions: Sequence[Body],
    cards: Mapping[str, QuestionCard],
    own: Mapping[str, Mapping[str, float]],
) -> bool:
    """Return whether the card has the question, names the task, and the version has the scores."""
    card, scores = cards[seen.card], own[seen.version]
    task = seen.version.partition("/")[0]
    return (
        card.question == TypedQuestion.model_validate(questions[seen.asked])
        and card.task == f"{task}@prod"
        and all(abs(scores[it] - share) < TOLERANCE for it, share in seen.shares.items())
    )


def cascade(sheet: Sheet, own: str, teacher: str, data: Path) -> None:
    """Record the share of test texts that the own task answers, at about the teacher's error.

    The confidence below which the teacher is asked is chosen on the dev texts.
    """
    dev, test = (read_part(data, it) for it in ("dev", "test"))
    # Without test examples, one half of the dev texts chooses, and the other half is scored.
    if dev == test:
        dev, test = dev[::2], dev[1::2]
    labels = sorted({it["label"] for it in (*dev, *test)})
    asked = question(0, labels)
    with ExitStack() as running:
        their_url = running.enter_context(serving(teacher, asked))
        their = running.enter_context(httpx.Client(base_url=their_url, timeout=60))
        options = ("--decisions-upstream", f"{their_url}/v1/systemone")
        url = running.enter_context(serving(own, asked, options))
        client = running.enter_context(httpx.Client(base_url=url, timeout=60))
        sides = [[ask(each, it, asked) for it in dev] for each in (client, their)]
        below = threshold_of(dev, *sides)
        with opened(own) as registry:
            task = own.partition(":")[2]
            put(registry, "question", asked, task=task, ask_upstream_below=below)
        time.sleep(1)
        answers = [ask(client, it, asked) for it in test]
        taught = [ask(their, it, asked) for it in test]
    here = [it["x_source"]["kind"] == "task" for it in answers]
    error, their_error = (errors(test, it) / len(test) for it in (answers, taught))
    name = f"decisions.cascade.{task}"
    gap = 100 * (error - their_error)
    unit = f"of {len(test)} test texts, below {below:.3f} the teacher is asked"
    sheet.record(name, [sum(here) / len(here)], unit=unit, goal=">= 0.8")
    unit = f"points of error above the teacher's {100 * their_error:.1f} %"
    sheet.record(f"{name}.error", [gap], unit=unit, goal="<= 0.5")


def threshold_of(rows: Sequence[Row], own: Sequence[Body], their: Sequence[Body]) -> float:
    """Return the least confidence with at most `POINTS` more error than the teacher's."""
    most = errors(rows, their) + POINTS * len(rows)
    for below in sorted({1e-6, *(it["confidence"] + 1e-6 for it in own)}):
        pairs = zip(own, their, strict=True)
        mixed = [mine if mine["confidence"] >= below else other for mine, other in pairs]
        if errors(rows, mixed) <= most:
            return min(1.0, below)
    return 1.0


def errors(rows: Sequence[Row], answers: Sequence[Body]) -> int:
    """Return how many answers are not the label of their row."""
    return sum(it["choice"] != row["label"] for row, it in zip(rows, answers, strict=True))


def ask(client: httpx.Client, row: Row, asked: Body) -> Body:
    """Return the answer to a question about the text of a row."""
    body = {"model": "nunatak", "state": row["text"], "questions": {"it": asked}}
    return checked(client.post("/v1/systemone", json=body))["answers"]["it"]


def opened(place: str) -> Registry:
    """Open the registry of a place such as `FOLDER:TASK`."""
    return Registry.open(place.partition(":")[0], create=False)


@contextmanager
def serving(place: str, asked: Body, options: tuple[str, ...] = ()) -> Generator[str]:
    """Run a server in which the task of a place answers the question; give its address."""
    folder, _, task = place.partition(":")
    with opened(place) as registry:
        put(registry, "question", asked, task=task)
    with ServerProcess(folder, options=(*QUIET, *options)) as server:
        yield server.url


if __name__ == "__main__":
    main()
