"""Every kind of index: aliases and their histories, canaries and shadows."""

import getpass

import pytest

from doubles.drafts import make_draft, publish_many, publish_one
from doubles.postgres import ANYWHERE
from doubles.refusals import raises
from nunatak_contract.enums import ProblemType, Reads
from nunatak_contract.errors import InvalidNameError
from nunatak_contract.names import TaskReference
from nunatak_registry import (
    Candidate,
    CandidateEventKind,
    CandidateRole,
    Registry,
    VersionNotFoundError,
)

PROD = TaskReference(task="intent")


def candidate(
    version: int, share: float = 0.1, role: CandidateRole = CandidateRole.CANARY
) -> Candidate:
    return Candidate(task="intent", alias="prod", role=role, version=version, share=share)


@pytest.fixture
def promoted(registry: Registry) -> Registry:
    """A registry whose task has versions 1 to 4, and an alias that went from 1 to 2."""
    publish_many(registry, 4)
    registry.promote("intent", "prod", 1)
    registry.promote("intent", "prod", 2)
    return registry


@pytest.mark.each
@pytest.mark.parametrize("role", CandidateRole)
def test_a_candidate_runs_next_to_the_alias_and_not_in_its_place(
    promoted: Registry, role: CandidateRole
) -> None:
    promoted.rollouts.set(candidate(3, 0.25, role))

    traffic = promoted.traffic(PROD)
    others = {CandidateRole.CANARY: traffic.canary, CandidateRole.SHADOW: traffic.shadow}
    found = others.pop(role)
    assert (traffic.manifest.version, found and found.share) == (2, 0.25)
    assert found is not None
    assert found.manifest.version == 3
    assert list(others.values()) == [None]
    assert promoted.resolve("intent").version == 2
    assert promoted.task("intent").candidates == (candidate(3, 0.25, role),)


def test_only_the_alias_and_the_bare_name_that_stands_for_it_have_its_candidates(
    promoted: Registry,
) -> None:
    promoted.promote("intent", "other", 2)
    promoted.rollouts.set(candidate(3))

    assert promoted.traffic(TaskReference(task="intent", alias="prod")) == promoted.traffic(PROD)
    for reference in ("intent/2", "intent/3", "intent@other"):
        assert promoted.traffic(TaskReference.parse(reference)).canary is None, reference


@pytest.mark.each
@pytest.mark.parametrize("moves", ["promote", "rollback"])
def test_a_move_of_the_alias_ends_its_candidates_in_the_same_change(
    promoted: Registry, moves: str
) -> None:
    promoted.rollouts.set(candidate(3))
    promoted.rollouts.set(candidate(4, 1.0, CandidateRole.SHADOW))

    if moves == "promote":
        promoted.promote("intent", "prod", 3)
    else:
        promoted.rollback("intent", "prod")

    traffic = promoted.traffic(PROD)
    assert (traffic.canary, traffic.shadow) == (None, None)
    assert [
        (event.kind, event.candidate.version)
        for event in promoted.rollouts.history("intent", "prod")
    ] == [
        (CandidateEventKind.SET, 3),
        (CandidateEventKind.SET, 4),
        (CandidateEventKind.END, 3),
        (CandidateEventKind.END, 4),
    ]


def test_a_refused_move_leaves_the_candidates(promoted: Registry) -> None:
    promoted.rollouts.set(candidate(3))

    with pytest.raises(VersionNotFoundError):
        promoted.promote("intent", "prod", 9)
    promoted.promote("intent", "prod", 2)

    assert promoted.traffic(PROD).canary is not None


def test_candidates_change_by_compare_and_swap(promoted: Registry) -> None:
    first = promoted.rollouts.set(candidate(3), expected_version=0)

    with raises("candidate_conflict") as conflict:
        promoted.rollouts.set(candidate(4), expected_version=0)
    fields = conflict.value.fields
    assert (fields["expected"], fields["actual"]) == ("none", "version 3")
    with raises("candidate_conflict"):
        promoted.rollouts.end("intent", "prod", CandidateRole.CANARY, expected_version=4)
    second = promoted.rollouts.set(candidate(4), expected_version=3)
    third = promoted.rollouts.end("intent", "prod", CandidateRole.CANARY, expected_version=4)

    assert promoted.rollouts.history("intent", "prod") == [first, second, third]
    with raises("candidate_not_found"):
        promoted.rollouts.end("intent", "prod", CandidateRole.CANARY)


def test_an_equal_candidate_changes_nothing_and_another_share_and_an_end_do(
    promoted: Registry,
) -> None:
    before = promoted.generation().number
    first = promoted.rollouts.set(candidate(3, 0.1))
    generation = promoted.generation()

    assert promoted.rollouts.set(candidate(3, 0.1)) == first
    assert promoted.generation() == generation
    assert generation.number == before + 1
    promoted.rollouts.set(candidate(3, 0.5))
    assert promoted.generation().number == before + 2
    assert promoted.rollouts.get("intent", "prod", CandidateRole.CANARY).share == 0.5
    promoted.rollouts.end("intent", "prod", CandidateRole.CANARY)
    assert promoted.generation().number == before + 3
    assert promoted.verify() == []


@pytest.mark.each
@pytest.mark.parametrize("role", CandidateRole)
def test_a_candidate_cannot_be_deleted(promoted: Registry, role: CandidateRole) -> None:
    promoted.rollouts.set(candidate(3, 0.1, role))

    with raises("version_in_use", match=f"the {role} of alias prod") as refused:
        promoted.delete("intent", 3)

    assert refused.value.fields["holders"] == f"the {role} of alias prod (end it first)"
    promoted.rollouts.end("intent", "prod", role)
    promoted.delete("intent", 3)


@ANYWHERE
def test_a_share_lies_above_none_and_up_to_all(promoted: Registry) -> None:
    for share in (0.0, -0.1, 1.01, float("nan"), float("inf")):
        with raises("invalid_candidate", match="share"):
            promoted.rollouts.set(candidate(3, share))


@ANYWHERE
def test_what_the_alias_points_to_is_no_candidate(promoted: Registry) -> None:
    with raises("invalid_candidate", match="itself"):
        promoted.rollouts.set(candidate(2))


@ANYWHERE
def test_a_candidate_answers_the_same_kind_of_question(promoted: Registry) -> None:
    draft, blobs = make_draft(seed=7)
    head = draft.head.model_copy(update={"problem_type": ProblemType.MULTI_LABEL})
    other = promoted.publish(draft.model_copy(update={"head": head}), blobs)

    with raises("invalid_candidate", match="multi_label"):
        promoted.rollouts.set(candidate(other.version))


@ANYWHERE
def test_a_canary_may_run_on_another_backbone_and_a_shadow_may_not(promoted: Registry) -> None:
    draft, blobs = make_draft(seed=7)
    backbone = draft.backbone.model_copy(update={"name": "large", "digest": "e" * 64})
    other = promoted.publish(draft.model_copy(update={"backbone": backbone}), blobs)

    with raises("invalid_candidate", match="runs on the backbone large"):
        promoted.rollouts.set(candidate(other.version, role=CandidateRole.SHADOW))
    canary = candidate(other.version)
    assert promoted.rollouts.set(canary).candidate == canary


@ANYWHERE
def test_a_candidate_reads_all_that_the_version_of_the_alias_reads(registry: Registry) -> None:
    # Two versions for each, so that no version is the candidate of itself.
    published = list[tuple[int, Reads | None]]()
    for seed, reads in enumerate((*Reads, None) * 2):
        draft, blobs = make_draft(seed=seed)
        manifest = registry.publish(draft.model_copy(update={"reads": reads}), blobs)
        published.append((manifest.version, reads))

    for version, base in published[:3]:
        registry.promote("intent", "prod", version)
        for other, reads in published[3:]:
            if reads in {base, None}:
                assert registry.rollouts.set(candidate(other)).candidate == candidate(other)
            else:
                with raises("invalid_candidate", match="would refuse what callers send"):
                    registry.rollouts.set(candidate(other))


def test_a_candidate_needs_its_alias_and_its_version(promoted: Registry) -> None:
    with pytest.raises(VersionNotFoundError):
        promoted.rollouts.set(candidate(9))
    publish_one(promoted, task="bare")
    with raises("alias_not_found"):
        promoted.rollouts.set(
            Candidate(task="bare", alias="prod", role=CandidateRole.CANARY, version=1, share=0.5)
        )


def test_the_next_rollback_is_where_the_rollback_goes(promoted: Registry) -> None:
    assert promoted.next_rollback("intent", "prod") == (2, 1)

    moved = promoted.rollback("intent", "prod")

    assert (moved.from_version, moved.to_version) == (2, 1)
    with raises("no_previous_version"):
        promoted.next_rollback("intent", "prod")


def test_every_change_of_a_candidate_says_by_whom(promoted: Registry) -> None:
    promoted.rollouts.set(candidate(3), by="key ops")
    promoted.rollouts.end("intent", "prod", CandidateRole.CANARY)
    promoted.rollouts.set(candidate(4), by="key ops")
    promoted.promote("intent", "prod", 1, by="key night")

    found = [event.by for event in promoted.rollouts.history("intent", "prod")]
    assert found == ["key ops", getpass.getuser(), "key ops", "key night"]


def test_every_move_says_by_whom(registry: Registry) -> None:
    publish_many(registry, 2)

    registry.promote("intent", "prod", 1)
    registry.promote("intent", "prod", 2, by="key ops")
    registry.rollback("intent", "prod", by="key night")

    found = [event.by for event in registry.history("intent", "prod")]
    assert found == [getpass.getuser(), "key ops", "key night"]
    for name in ("", "x" * 201, "two\nlines"):
        with pytest.raises(InvalidNameError):
            registry.promote("intent", "prod", 2, by=name)
    assert registry.resolve("intent").version == 1


def test_promotion_to_a_missing_version_is_refused(registry: Registry) -> None:
    publish_one(registry)

    for version in (0, -1, 2, 2**31, 2**70):
        with pytest.raises(VersionNotFoundError):
            registry.promote("intent", "prod", version)
    with raises("alias_not_found"):
        registry.history("intent", "prod")
