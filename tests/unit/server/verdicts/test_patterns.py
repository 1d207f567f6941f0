"""Patterns of a policy: regular expressions beside the tasks, or alone, also in streams."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from doubles.policies import UNREAD_PASSES, decide, make_policy, scored, when
from doubles.refusals import raises
from doubles.streams import Said, StreamBench, by_word, divided, guard
from doubles.trained_tokenizers import TokenizerFamily
from nunatak_contract.enums import Combine, OnFailure, PolicyMode, VerdictAction
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.policies import MAX_CONDITIONS, MAX_RULES, Pattern, Regex, Rule, compiled
from nunatak_registry.documents import check_policy
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.outputs.conditions import UNKNOWN, ConditionState, FoundSpan
from nunatak_server.scheduler.turns import Turns
from nunatak_server.verdicts import patterns
from nunatak_server.verdicts.patterns import (
    MAX_IN_ONE,
    MAX_MATCH,
    MAX_STEPS_ON_LOOP,
    GrowingMatches,
    matches_in,
    matches_in_all,
)
from nunatak_server.verdicts.rules import mask
from nunatak_server.verdicts.stream import StreamedVerdict

ALLOW, FLAG, MASK = VerdictAction.ALLOW, VerdictAction.FLAG, VerdictAction.MASK
BLOCK, BERT = VerdictAction.BLOCK, TokenizerFamily.BERT
CARD = Pattern(pattern=r"\b\d{4}-\d{4}\b", label="CARD")
NAME = Pattern(pattern=r"(?i)\bé?ann{0,3}\b", label="NAME")
SLOW = Pattern(pattern="a[^b]*c|a", label="SLOW")
HARD = "a" * 30_000
"""Takes this pattern the square of the length."""
FEW = 20
"""Characters of the longest match of these patterns, and of the hold of their streams."""
TEXTS = ("a 1234-5678", "a 1234")
PARTS = (
    "ann",
    "ÉANN",
    "anna",
    "1234-5678",
    "91234-5678",
    "1234",
    "-",
    *("x7",) * 2,
    "end",
    *(" ",) * 3,
    "  ",
    "\n",
    "zyzzyzy",
    "\u200b",
    "end " + "\u200b" * FEW,
    "12\u200b34",
    "\uff11\uff12\uff13\uff14",
    "a\u00adnn",
    "e\u0301",
    "\ufb00",
    "\u0301" * FEW,
)


def never_called(reference: str) -> TaskManifest:
    raise AssertionError(reference)


def rule(
    *found: Pattern,
    action: VerdictAction,
    name: str = "patterns",
    combine: Combine = Combine.ANY,
    tasks: Sequence[str] = (),
) -> Rule:
    conditions = tuple(when(it, "yes", threshold=0.5) for it in tasks)
    return Rule(name=name, conditions=conditions, patterns=found, action=action, combine=combine)


PAIR = Pattern(pattern=r"end {1,2}1234", label="PAIR")
RUN = Pattern(pattern="[yz]{5}", label="RUN")
BY_PATTERNS = (
    rule(CARD, NAME, PAIR, RUN, action=MASK),
    rule(Pattern(pattern=r"^ann", label="X"), action=FLAG, name="begin"),
    rule(Pattern(pattern=r"end$", label="X"), action=BLOCK, name="end"),
    rule(Pattern(pattern=r"x7 {1,3}x", label="X"), action=BLOCK, name="block"),
)


@pytest.mark.parametrize(
    ("rules", "most_steps", "num_texts"),
    [
        (BY_PATTERNS, MAX_STEPS_ON_LOOP, 80),
        (BY_PATTERNS, 0, 40),
        ((*guard().rules, *BY_PATTERNS), MAX_STEPS_ON_LOOP, 80),
    ],
    ids=["alone", "on-threads", "all"],
)
async def test_any_division_has_the_verdict_of_the_whole_text_and_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch, rules: tuple[Rule, ...], most_steps: int, num_texts: int
) -> None:
    monkeypatch.setattr(patterns, "MAX_STEPS_ON_LOOP", most_steps)
    monkeypatch.setattr(patterns, "MAX_MATCH", FEW)
    # Tasks also decide about texts with hidden characters, so that not all of them are blocked.
    policy = make_policy(*rules, unjudged=UNREAD_PASSES)
    bench, chance = StreamBench(BERT, policy), random.Random(7)
    actions = set[VerdictAction]()
    for _ in range(num_texts):
        text = "".join(chance.choices(PARTS, k=chance.randrange(1, 30))) + "a"
        whole = await bench.whole(text)
        actions.add(whole.action)
        for mean in (1, 6):
            found = await bench.streamed(divided(text, chance, mean=mean))

            said = [
                it.judgement.decisions[0] for it in found.events if isinstance(it, StreamedVerdict)
            ]
            # A certain block waits for no other task, so it may name fewer rules.
            rules_so_far = [
                {it.rule.name for it in each.applied} for each in said if each.action is not BLOCK
            ]
            assert all(before <= after for before, after in pairwise(rules_so_far))
            found.check(whole, text)
    assert actions >= {MASK, BLOCK}


async def test_a_text_that_grows_has_the_matches_of_the_whole_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patterns, "MAX_MATCH", FEW)
    searched = [
        Pattern(pattern=it, label="X")
        for it in (
            r"(?m)^an+",
            r"\bkey\d\b",
            r"\W\d",
            "z{3}",
            "\ud55c",
            "f+|i[an]",
            "\u00e9\u00e9?.",
            "if|f.",
            r"z{20}\b",
        )
    ]
    parts = (
        "an",
        "x\u200ban",
        "key1",
        "k\u2060ey1",
        "\u200b",
        "\u200b" * FEW,
        "\uff11",
        *"efi\u0301\u0302\u1112\u1161\u11ab\U000e0065\ufb03\ufb00",
        "e" + "\u0302" * FEW,
        "\ud800",
        " ",
        "\n",
        "zz",
        "z" * FEW + "e",
    )
    chance, pace = random.Random(2), Turns().pace("ann")
    for _ in range(600):
        text = "".join(chance.choices(parts, k=chance.randrange(1, 40)))
        growing, end = GrowingMatches(searched), 0
        found = dict.fromkeys(searched, UNKNOWN)
        while end < len(text):
            end += chance.randrange(1, 12)
            before = found
            found = await growing.grow(text[:end], pace, released=0, takes_open=end >= len(text))
            assert all(set(before[it].spans) <= set(found[it].spans) for it in searched)
        assert found == matches_in(searched, text)


async def test_a_stream_blocks_once_a_match_is_certain_and_not_at_its_end() -> None:
    policy = make_policy(rule(Pattern(pattern="forbidden", label="X"), action=BLOCK))
    bench = StreamBench(BERT, policy)
    chunks = ["some text, forbidden "] + ["and so on "] * 200
    said = Said(bench.admission)

    found = await bench.streamed(said.recorded(chunks))

    assert (found.final.action, found.text) == (BLOCK, "")
    assert len(said.arrived) < 2 * MAX_MATCH


async def test_a_match_that_begins_in_released_text_blocks_the_rest() -> None:
    policy = make_policy(rule(Pattern(pattern=r"<[^>]*>", label="TAG"), action=MASK))
    bench = StreamBench(BERT, policy)
    text = "a < " + "b " * 400 + "> c"

    found = await bench.streamed(by_word(text))

    assert (await bench.whole(text)).decisions[0].masked == "a [TAG] c"
    assert (found.final.action, found.final.is_by_failure) == (BLOCK, True)
    assert ">" not in found.text


async def test_characters_that_show_nothing_make_no_match_too_long_for_the_hold() -> None:
    policy = make_policy(rule(Pattern(pattern=r"(?:\d{4} ?){4}", label="CARD"), action=MASK))
    text = "card " + "1234 5678 1234 5678".replace(" ", " " + "\u200b" * MAX_MATCH) + "; end "

    found = await StreamBench(BERT, policy).streamed(
        [text[it : it + 100] for it in range(0, len(text), 100)]
    )

    assert found.text == "card [CARD]; end "
    assert (found.final.action, found.final.is_by_failure) == (MASK, False)


@pytest.mark.parametrize(
    ("action", "combine", "score", "expected", "by_failure"),
    [
        (MASK, Combine.ALL, 0.9, [MASK, ALLOW], [False, False]),
        (MASK, Combine.ALL, 0.1, [ALLOW, ALLOW], [False, False]),
        (MASK, Combine.ALL, None, [BLOCK, ALLOW], [True, False]),
        (MASK, Combine.ANY, 0.1, [MASK, ALLOW], [False, False]),
        (MASK, Combine.ANY, None, [BLOCK, BLOCK], [True, True]),
        (BLOCK, Combine.ANY, None, [BLOCK, BLOCK], [False, True]),
    ],
)
def test_patterns_and_conditions_of_a_rule_combine(
    action: VerdictAction,
    combine: Combine,
    score: float | None,
    expected: list[VerdictAction],
    by_failure: list[bool],
) -> None:
    policy = make_policy(rule(CARD, action=action, combine=combine, tasks=["attack"]))
    scores = [{"yes": score, "no": 1 - score}] * 2 if score is not None else []

    found = decide(policy, {"attack": scored("attack", *scores)} if scores else {}, TEXTS)

    assert [it.action for it in found] == expected
    assert [it.is_by_failure for it in found] == by_failure
    assert [it.masked for it in found if it.action is MASK] == ["a [CARD]"] * expected.count(MASK)


EDGES = ("", "^", "$", r"\b", r"\B", r"\A", r"\z", "(?m)^", "(?m)$", "(?i)", "(?U)", "(?s)", r"\Q")
BODIES = (
    "a",
    "k+",
    ".",
    "[^b]",
    r"\w",
    r"\W",
    r"\pL{2}",
    "f.*b",
    "(?P<it>b)",
    "\u00e9|-",
    "a.{3}b",
)
LETTERS = st.text("abkKf -\n\u00e9\u0301\ufb01\u200b\u212a\U0001f600\U000e0061\ud800", max_size=30)
WRITTEN = st.tuples(*map(st.sampled_from, (EDGES, BODIES, EDGES[:-1]))).map("".join)


@settings(deadline=None)
@example(written=[r"\Qa", r"\Qb\E", "k", "f", "z"], text="a")
@given(written=st.lists(WRITTEN, min_size=5, max_size=40, unique=True), text=LETTERS)
def test_many_patterns_find_what_each_of_them_finds_alone(written: list[str], text: str) -> None:
    found = [Pattern(pattern=it, label="X") for it in written]

    assert matches_in(found, text) == {it: matches_in([it], text)[it] for it in found}


@pytest.mark.parametrize("window", [r"\w{0,50}?", "(?i).{0,40}", r"\pL+"])
@pytest.mark.usefixtures("uncollected")
def test_patterns_that_are_hard_to_read_as_one_cost_no_more_than_each_alone(window: str) -> None:
    text, times = "some words of a long text " * 400, dict[int, float]()
    for most in (1, MAX_IN_ONE) * 2:
        found = [Pattern(pattern=f"{window}key{it}", label=str(most)) for it in range(96)]
        begun = time.thread_time()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(patterns, "MAX_IN_ONE", most)
            matches_in(found, text)
        times[most] = time.thread_time() - begun

    assert times[MAX_IN_ONE] < 3 * times[1]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(?=a)", "RE2 cannot read the pattern '\\(\\?=a\\)': invalid perl operator"),
        (r"(a)\1", "RE2 cannot read"),
        ("a*", "matches the empty text"),
        (r"\b|foo", "matches the empty text"),
        (r"\b^a?", "matches the empty text"),
        (r"x?\b$", "matches the empty text"),
        (r"sk-\C", "reads single bytes"),
        ("a(?:[ax]{0,1000}" + "[az]{0,1000}" * 60 + "b)?", "pattern too large"),
    ],
)
def test_a_policy_with_a_pattern_that_cannot_serve_is_refused(pattern: str, problem: str) -> None:
    policy = make_policy(rule(Pattern(pattern=pattern, label="X"), action=FLAG, name="odd"))

    with raises("invalid_policy", match=f"rule 'odd': .*{problem}"):
        check_policy(policy, never_called)


def test_a_rule_without_conditions_and_patterns_is_refused() -> None:
    with pytest.raises(ValidationError, match="a rule needs a condition or a pattern"):
        rule(action=FLAG)


def test_a_rule_that_masks_with_patterns_alone_is_accepted() -> None:
    for combine in Combine:
        check_policy(make_policy(rule(CARD, action=MASK, combine=combine)), never_called)


def test_the_patterns_of_the_largest_policy_are_compiled_once() -> None:
    num_patterns, before = MAX_RULES * MAX_CONDITIONS, compiled.cache_info().misses
    found = [Pattern(pattern=f"key-{it}", label="X") for it in range(num_patterns)]

    for _ in range(2):
        matches_in(found, "key-7")

    num_groups = num_patterns // MAX_IN_ONE
    assert num_groups <= compiled.cache_info().misses - before - num_patterns < 2 * num_groups


async def test_patterns_read_no_text_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = StreamBench(BERT, make_policy(rule(CARD, action=MASK)))
    monkeypatch.setattr(patterns, "compiled", never_called)

    with raises("text_too_long"):
        await bench.whole("a" * 20_000)
    with raises("text_too_long"):
        await bench.streamed(["a" * 20_000, " b"])
    policy = make_policy(rule(CARD, action=MASK), mode=PolicyMode.DRY_RUN)
    found = await StreamBench(BERT, policy).whole("a" * 20_000)
    assert (found.decided, found.message) == (BLOCK, "no answer from its patterns")


@pytest.mark.parametrize("text", ["a" * 20_000 + "!", "a" + "\u0301" * 9999 + "\u0323" * 9999])
@pytest.mark.usefixtures("uncollected")
def test_no_match_takes_exponential_time(text: str) -> None:
    hard = Pattern(pattern="(?:a|aa|a+)+$", label="X")
    began = time.process_time()

    assert not matches_in([hard], text)[hard].holds
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("pattern", "text", "masked"),
    [
        *(
            (CARD.pattern, *it)
            for it in (
                ("a 12\u200b34-\u206056\ufe0f78\u200b b", "a [X]\u200b b"),
                ("\uff11\uff12\uff13\uff14\uff0d5678", "[X]"),
                ("12\x0034-5678", "[X]"),
                ("12\U000e003434-5678", "[X]"),
                ("1\x1f234-56\u206578 1234-\ufff35678", "[X] [X]"),
                ("1234-\U000e00805\U000e0fff678", "[X]"),
                ("1\u20e32\ufe0f\u20e33\u03364\u2011\u0665\u0666\u24fb\u248f", "[X]"),
                ("1234\u20135678 1234\u22125678 1234\u30fb5678", "[X] [X] 1234\u30fb5678"),
                ("1234\x0c-5678", "1234\x0c-5678"),
                ("\ufb03 \u2460234-5678", "\ufb03 [X]"),
                ("\u246b34-5678, 123\u24c1", "[X], 123\u24c1"),
                # Places count characters, and halves of pairs are read.
                ("\U0001f600\ud800 é 1234-5678", "\U0001f600\ud800 é [X]"),
            )
        ),
        ("caf\u00e9s", "a cafe\u0301s", "a [X]"),
        ("cafe\u0301?s", "a cafes", "a [X]"),
        ("[\u4e00-\u9fff\uf900-\ufaff]", "\ud55c\u4e00", "\ud55c[X]"),
        ("\\bVi\u1ec7t\\b", "Vie\u0302\u0323t Vie\u0323\u0302", "[X] Vie\u0323\u0302"),
        ("\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af", "[X]"),
        ("\\boffice 12\\b", "o\ufb03ce \u246b", "[X]"),
        ("ice", "o\ufb03ce", "o[X]"),
        ("\\bfalcon\\b", "fal\u200bcon\u2122", "[X]\u2122"),
        ("a\u00e9", "\U000e0061e\u0301.", "[X]."),
        ("\uff11+", "1 \uff11\uff11", "1 [X]"),
    ],
)
def test_no_other_form_of_a_character_hides_a_match(pattern: str, text: str, masked: str) -> None:
    found = Pattern(pattern=pattern, label="X")

    assert mask(text, matches_in([found], text)[found].spans) == masked


@pytest.mark.parametrize("space", list("\x0b\x85\xa0\u1680\u2003\u2028\u2029\u2800\u3000"))
def test_no_form_of_white_space_and_of_letters_hides_a_match(space: str) -> None:
    found = Pattern(pattern=r"(?i)\bproject\s+no 12\b", label="X")

    for project in ("project", "\u24df\u24e1\u24de\u24d9\u24d4\u24d2\u24e3"):
        assert matches_in([found], f"a {project}{space}no 12")[found].holds
    for begin in (0x249C, 0x1F110, 0x1F130, 0x1F150, 0x1F170, 0x1F1E6):
        project = "".join(chr(begin + ord(it) - ord("a")) for it in "project")
        assert matches_in([found], f"a {project}{space}no 12")[found].holds
    small = "\u1d18\u0280\u1d0f\u1d0a\u1d07\u1d04\u1d1b"
    assert matches_in([found], f"{small}{space}no 12")[found].holds
    quoted = Pattern(pattern="""it's "x\"""", label="X")
    assert matches_in([quoted], "it\u2019s \u201cx\u201d")[quoted].holds
    for letters, one in (("\U0001f15f\U0001f161", "\u2776"), ("\U0001f17f\U0001f181", "\u278a")):
        assert matches_in([found], f"{letters}oject{space}no{space}{one}\u2461")[found].holds


def test_the_letters_of_tags_are_read_and_hide_none_of_the_text() -> None:
    found = Pattern(pattern=r"\bproject falcon\b", label="X")
    tagged = "".join(chr(0xE0000 + ord(it)) for it in "project falcon")

    for text in (f"hi {tagged} ho", "hi project fal" + tagged[10:] + "con ho"):
        assert matches_in([found], text)[found].spans[0].start == 3
    assert matches_in([found], "hi " + tagged[:8] + "falcon")[found].spans == (
        FoundSpan(start=3, end=17, label="X"),
    )


@pytest.mark.parametrize(
    ("found", "text", "is_on_loop"),
    [
        (CARD, "1234-5678 " * 10, True),
        (CARD, "1234-5678 " * 200, False),
        (Pattern(pattern="a(?:[ax]{0,999}[ay]{0,999}b)?", label="X"), "a" * 100, False),
    ],
    ids=["short", "long", "large"],
)
async def test_what_may_take_long_is_read_on_a_thread(
    monkeypatch: pytest.MonkeyPatch, found: Pattern, text: str, *, is_on_loop: bool
) -> None:
    used = list[int]()

    def noted(pattern: str) -> Regex:
        regex = compiled(pattern)

        def find(text: str, begin: int) -> Iterator[tuple[int, int]]:
            used.append(threading.get_ident())
            return regex.find(text, begin)

        return regex._replace(find=find)

    def said(**values: Any) -> ConditionState:  # noqa: ANN401
        used.append(threading.get_ident())
        return ConditionState(**values)

    monkeypatch.setattr(patterns, "compiled", noted)
    monkeypatch.setattr(patterns, "ConditionState", said)
    turns = Turns()

    (matches,) = await matches_in_all([found], [text], turns.pace("ann"))

    turns.close()
    assert matches[found].holds
    assert [it == threading.get_ident() for it in used] == [is_on_loop] * 2


async def test_a_long_search_leaves_the_thread_to_other_callers() -> None:
    turns, done = Turns(), list[str]()

    async def search() -> None:
        with pytest.raises(DeadlineExceededError):
            await matches_in_all([SLOW], [HARD], turns.pace("ann", deadline=time.monotonic() + 0.5))
        done.append("ann")

    async def other() -> None:
        await turns.pace("bob").on_thread(lambda _: done.append("bob"))

    await asyncio.gather(search(), other())

    turns.close()
    assert done == ["bob", "ann"]


@pytest.mark.usefixtures("uncollected")
async def test_many_patterns_for_many_texts_take_no_time_of_the_event_loop() -> None:
    found = [Pattern(pattern=f"key-{it}", label="X") for it in range(MAX_RULES * MAX_CONDITIONS)]
    matches_in(found, "key-7")
    begun = time.thread_time()

    with pytest.raises(DeadlineExceededError):
        await matches_in_all(found, list(map(str, range(64))), Turns().pace("ann", deadline=0))

    assert time.thread_time() - begun < 0.5


@pytest.mark.parametrize("on_failure", OnFailure)
async def test_what_patterns_could_not_read_in_time_is_decided_by_on_failure(
    on_failure: OnFailure,
) -> None:
    policy = make_policy(rule(CARD, SLOW, action=MASK), on_failure=on_failure, deadline_ms=50)
    bench = StreamBench(BERT, policy)
    text = "1234-5678 " + HARD[:9000]

    whole = await bench.whole(text)
    streamed = await bench.streamed([text, " b"])

    for it in (whole, streamed.final):
        assert it.is_by_failure
        assert it.action is (BLOCK if on_failure is OnFailure.BLOCK else ALLOW)
        assert it.message == "no answer in time from its patterns"
    assert (streamed.text == "") is (on_failure is OnFailure.BLOCK)


async def test_what_a_stream_has_found_outlives_patterns_that_are_late() -> None:
    found, fields = rule(CARD, SLOW, action=MASK), {"on_failure": OnFailure.ALLOW}
    bench = StreamBench(BERT, make_policy(found, deadline_ms=50, **fields))
    begin = "1234-5678 " + "b " * MAX_MATCH

    streamed = await bench.streamed([begin, HARD[:9000], " b"])

    assert streamed.text == begin.replace("1234-5678", "[CARD]") + HARD[:9000] + " b"
    assert (streamed.final.action, streamed.final.is_by_failure) == (MASK, True)
