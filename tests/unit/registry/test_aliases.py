from datetime import UTC, datetime

import pytest

from nunatak_registry.aliases import AliasEvent, AliasEventKind, rollback_target

ALL = range(1, 10)


def history(*moves: str) -> list[AliasEvent]:
    events: list[AliasEvent] = []
    for move in moves:
        kind = AliasEventKind.ROLLBACK if move.startswith("r") else AliasEventKind.PROMOTE
        events.append(
            AliasEvent(
                task="intent",
                alias="prod",
                kind=kind,
                from_version=events[-1].to_version if events else None,
                to_version=int(move[1:]),
                at=datetime(2026, 1, 1, tzinfo=UTC),
                by="ada",
            )
        )
    return events


@pytest.mark.parametrize(
    ("moves", "target"),
    [
        ((), None),
        (("p1",), None),
        (("p1", "p2"), 1),
        (("p1", "p2", "r1"), None),
        (("p1", "p2", "p3"), 2),
        (("p1", "p2", "p3", "r2"), 1),
        (("p1", "p2", "p3", "r2", "r1"), None),
        (("p1", "p2", "r1", "p3"), 1),
        (("p1", "p2", "p1"), 2),
        (("p1", "p2", "p1", "r2"), 1),
        (("p3", "p1", "p2", "p1", "r2", "r1"), 3),
    ],
)
def test_rollback_goes_back_one_promotion(moves: tuple[str, ...], target: int | None) -> None:
    assert rollback_target(history(*moves), ALL) == target


@pytest.mark.parametrize(
    ("moves", "available", "target"),
    [
        (("p1", "p2", "p3"), {1, 3}, 1),
        (("p1", "p2", "p3"), {3}, None),
        (("p1", "p2", "p1"), {1}, None),
        (("p1", "p3", "p2", "p3"), {1, 3}, 1),
        (("p1", "p3", "p2", "p3", "r1"), {1, 3}, None),
        (("p1", "p2", "p3", "r1"), {1, 3}, None),
    ],
)
def test_rollback_skips_deleted_versions_and_the_current_one(
    moves: tuple[str, ...], available: set[int], target: int | None
) -> None:
    assert rollback_target(history(*moves), available) == target
