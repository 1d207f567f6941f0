"""Real server processes that are stopped or killed while they answer requests."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from doubles.backbones import save_tiny_backbone
from doubles.processes import FAULTY_SCRIPT, ServerProcess, server_process
from doubles.tasks import LABELS, logits_alone, publish_tiny_task
from nunatak_model import load_backbone
from nunatak_registry import Registry

TEXTS = ["where is my parcel?", "hi", "please call me back, it is urgent", "x" * 60]
TASKS = {"tone": 11, "mood": 22}
TOLERANCE = 1e-4
POLL_S = 0.02
LIMIT_S = 60
ANSWERED = 200

Oracle = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A backbone and a registry on disk, and the expected answers of its tasks."""

    registry: Path
    backbone: Path
    faults: Path
    oracle: Oracle

    def server(
        self, *, log: Path | None = None, **settings: object
    ) -> AbstractContextManager[ServerProcess]:
        script = FAULTY_SCRIPT.format(faults=str(self.faults))
        return server_process(
            registry=self.registry, backbone=self.backbone, script=script, log=log, **settings
        )

    def hold(self, *, is_held: bool) -> None:
        _put(self.faults / "held", is_there=is_held)

    def mute(self) -> None:
        """Let the registry give no answer from now on."""
        _put(self.faults / "mute", is_there=True)

    def lose(self) -> None:
        """Let the device be lost from now on."""
        _put(self.faults / "lost", is_there=True)


def make_site(folder: Path) -> Site:
    for name in ("backbone", "registry", "faults"):
        (folder / name).mkdir()
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    oracle = dict[tuple[str, str], dict[str, float]]()
    with Registry.open(folder / "registry") as registry:
        for task, seed in TASKS.items():
            publish_tiny_task(registry, backbone, task=task, seed=seed)
            for text, row in zip(TEXTS, logits_alone(backbone, TEXTS, seed=seed), strict=True):
                oracle[task, text] = dict(zip(LABELS, row, strict=True))
    return Site(
        registry=folder / "registry",
        backbone=folder / "backbone",
        faults=folder / "faults",
        oracle=oracle,
    )


@dataclass(slots=True, kw_only=True)
class Tally:
    """The results of the calls."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    num_cut: int = 0
    """Calls that ended without any answer."""
    num_wrong: int = 0


async def call(client: httpx.AsyncClient, site: Site, index: int, tally: Tally) -> None:
    """Ask one task about one text, and compare the answer with the oracle."""
    task, text = list(TASKS)[index % len(TASKS)], TEXTS[index % len(TEXTS)]
    parameters = {"function_to_apply": "none", "on_long": "cut"}
    body = {"inputs": text, "parameters": parameters}
    try:
        answer = await client.post(f"/v1/tasks/{task}/predict", json=body)
    except httpx.TransportError:
        tally.num_cut += 1
        return
    tally.statuses[answer.status_code] += 1
    if answer.status_code == ANSWERED:
        found = {item["label"]: item["score"] for item in answer.json()["outputs"]}
        expected = site.oracle[task, text]
        is_right = found.keys() == expected.keys() and all(
            abs(found[label] - expected[label]) <= TOLERANCE for label in expected
        )
        tally.num_wrong += not is_right


def terminate_with_calls_in_flight(site: Site, num_calls: int) -> tuple[Tally, int]:
    """Send SIGTERM while `num_calls` requests are being answered; also return the exit status."""
    site.hold(is_held=False)
    with site.server(access_log=False) as server:

        async def scenario() -> Tally:
            tally = Tally()
            async with open_client(server) as client:
                # The first calls load the tasks into memory. All later calls wait for the device.
                await asyncio.gather(*(call(client, site, i, Tally()) for i in range(len(TASKS))))
                site.hold(is_held=True)
                calls = [
                    asyncio.create_task(call(client, site, index, tally))
                    for index in range(num_calls)
                ]
                await wait_for_admitted(client, num_calls)
                server.send(signal.SIGTERM)
                await wait_until_refused(server)
                site.hold(is_held=False)
                await asyncio.gather(*calls)
            return tally

        tally = asyncio.run(scenario())
        return tally, server.wait(timeout=LIMIT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlasted:
    """The results of a request and of a stream that took longer than the grace time."""

    answer: httpx.Response
    lines: list[str]
    """Lines of the stream."""
    is_cut: bool
    """Whether the stream ended before its answer was whole."""
    status: int
    """Exit status of the process."""


def outlast_the_grace(site: Site, *, log: Path) -> Outlasted:
    """Send SIGTERM while a request and a stream wait for a blocked device."""
    site.hold(is_held=False)
    body = {"inputs": "hi", "tasks": ["nope", "tone"]}
    headers = {"accept": "application/x-ndjson"}
    with site.server(log=log, log_format="json", grace_s=1) as server:

        async def scenario() -> tuple[httpx.Response, list[str], bool]:
            async with open_client(server) as client:
                await call(client, site, 0, Tally())
                site.hold(is_held=True)
                asked = asyncio.create_task(
                    client.post("/v1/tasks/tone/predict", json={"inputs": "hi"})
                )
                await wait_for_admitted(client, 1)
                async with client.stream(
                    "POST", "/v1/predict", json=body, headers=headers
                ) as streamed:
                    received = streamed.aiter_lines()
                    lines, is_cut = [await anext(received)], False
                    server.send(signal.SIGTERM)
                    try:
                        lines += [line async for line in received]
                    except httpx.RemoteProtocolError:
                        is_cut = True
                return await asked, lines, is_cut

        answer, lines, is_cut = asyncio.run(scenario())
        # The device is blocked until the end.
        status = server.wait(timeout=LIMIT_S)
        site.hold(is_held=False)
    return Outlasted(answer=answer, lines=lines, is_cut=is_cut, status=status)


def open_client(server: ServerProcess) -> httpx.AsyncClient:
    """A client that opens as many connections as it has calls."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=server.address, timeout=LIMIT_S, limits=limits)


async def wait_for_admitted(client: httpx.AsyncClient, num_requests: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await _admitted(client) < num_requests:  # noqa: ASYNC110 - the connections of another process
            await asyncio.sleep(POLL_S)


async def wait_until_refused(server: ServerProcess) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                async with open_client(server) as client:
                    await client.get("/readyz")
            except httpx.TransportError:
                return
            await asyncio.sleep(POLL_S)


async def _admitted(client: httpx.AsyncClient) -> int:
    text = (await client.get("/metrics")).text
    found = re.findall(r"^nunatak_(?:waiting|running)_requests (\S+)$", text, flags=re.MULTILINE)
    assert len(found) == 2
    return int(sum(map(float, found)))


def _put(file: Path, *, is_there: bool) -> None:
    if is_there:
        file.touch()
    else:
        file.unlink(missing_ok=True)
