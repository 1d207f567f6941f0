"""Verdicts: wrong decisions while tasks change and fail, and the time that other protocols add.

Decisions: the judge and the service are the real ones, on an engine without a model that draws
answers, so that every right decision is known. Tasks and policies get new versions, versions are
evicted and cannot be loaded, and some answers fail or never come.

Overhead: a real server process with a tiny random backbone answers one caller. Each protocol asks
the same task or policy about the same text, in turns with the native route.

    PYTHONPATH=tests python -m benchmarks.server.verdicts
"""

import asyncio
import time
from collections.abc import Mapping
from statistics import median

import httpx

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.server.abuse import served
from doubles.policies import make_policy, make_rule, when
from doubles.verdict_campaign import Campaign

TEXT = "Where is my parcel? I have been waiting for two weeks."
Call = tuple[str, dict[str, object]]
NATIVE: Mapping[str, Call] = {
    "prediction": ("/v1/tasks/tone/predict", {"inputs": TEXT}),
    "verdict": ("/v1/verdicts/guard", {"inputs": TEXT}),
}
PROTOCOLS: Mapping[str, tuple[str, Call]] = {
    "tei": ("prediction", ("/tei/tasks/tone/predict", {"inputs": TEXT})),
    "hugging_face": ("prediction", ("/hf/tasks/tone", {"inputs": TEXT})),
    "vllm": ("prediction", ("/classify", {"model": "tone", "input": TEXT})),
    "semantic_router": (
        "prediction",
        ("/srun/v1/classify", {"model": "tone", "input": [{"text": TEXT}]}),
    ),
    "kserve": ("prediction", ("/v1/models/tone:predict", {"instances": [TEXT]})),
    "open_inference": (
        "prediction",
        (
            "/v2/models/tone/infer",
            {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]},
        ),
    ),
    "litellm": (
        "verdict",
        (
            "/v1/verdicts/guard/beta/litellm_basic_guardrail_api",
            {
                "input_type": "request",
                "texts": [TEXT],
                "structured_messages": [{"role": "user", "content": TEXT}],
                "request_data": {},
                "additional_provider_specific_params": {},
            },
        ),
    ),
    "portkey": (
        "verdict",
        (
            "/v1/verdicts/guard/portkey",
            {
                "eventType": "beforeRequestHook",
                "request": {"text": TEXT, "json": {"messages": [{"content": TEXT}]}},
                "response": {},
            },
        ),
    ),
    "moderations": ("verdict", ("/v1/moderations", {"model": "guard", "input": TEXT})),
}
"""The protocols, each with the native route that gives the same answer."""
WARM_UP = 20


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=2000)
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("parts", nargs="*", default=["decisions", "overhead"])
    options, sheet = open_sheet(parser)
    if "decisions" in options.parts:
        decide(sheet, options.decisions)
    if "overhead" in options.parts:
        compare(sheet)


def decide(sheet: Sheet, count: int) -> None:
    """Run the campaign and record wrong decisions."""
    tally = asyncio.run(Campaign().run(count))
    print(*tally.wrong[:20], sep="\n")
    unit = (
        f"of {tally.decisions} decisions, {tally.by_failure} of them by failure, under "
        f"{tally.promotions} promotions and {tally.evictions} evictions"
    )
    sheet.record("verdict.wrong", [len(tally.wrong)], unit=unit, goal="<= 0")
    sheet.record("verdict.let_through", [tally.let_through], unit=unit, goal="<= 0")


def compare(sheet: Sheet) -> None:
    """Ask by every protocol in turns, and record the difference of the medians."""
    policy = make_policy(make_rule(when("tone", "calm", threshold=1.0)))
    calls = {**NATIVE, **{name: call for name, (_, call) in PROTOCOLS.items()}}
    times = {name: list[float]() for name in calls}
    with served(policy=policy) as address, httpx.Client(base_url=address) as client:
        for number in range(sheet.rounds + WARM_UP):
            for name, (path, body) in calls.items():
                started = time.perf_counter()
                client.post(path, json=body).raise_for_status()
                if number >= WARM_UP:
                    times[name].append(time.perf_counter() - started)
    for name, (native, _) in PROTOCOLS.items():
        added = 1e3 * (median(times[name]) - median(times[native]))
        identifier, unit = f"gateway.overhead.p50_ms.{name}", "ms over the native route"
        sheet.record(identifier, [added], unit=unit, goal="<= 0.3")


if __name__ == "__main__":
    main()
