"""Conditions: a condition holds if it holds in any window, and found words are masked whole."""

import random
import re
import unicodedata
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.policies import (
    classifier,
    decide,
    make_policy,
    make_rule,
    scored,
    span,
    tagger,
    when,
    windowed,
)
from doubles.trained_tokenizers import TokenizerFamily, random_texts, served
from nunatak_contract.enums import ProblemType, UnjudgedPart, VerdictAction
from nunatak_contract.heads import HeadRecord
from nunatak_server.outputs.conditions import FoundSpan, states_of, whole_words
from nunatak_server.outputs.outputs import softmax
from nunatak_server.verdicts.rules import mask

THREE = ("benign", "other", "attack")
HEADS = {
    "no-default": classifier(*THREE),
    "default": classifier(*THREE, default_label="benign"),
    "wrong-default": classifier(*THREE, default_label="attack"),
    "multi-label": classifier(*THREE, problem_type=ProblemType.MULTI_LABEL),
}
CASES = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def test_no_other_window_hides_a_value() -> None:
    head = classifier("toxicity", problem_type=ProblemType.REGRESSION)
    condition = when("guard", "toxicity", threshold=0.8)

    assert windowed(head, [0.95], *[[0.05]] * 9)[condition].holds
    assert not windowed(head, *[[0.7]] * 9)[condition].holds


@given(
    windows=st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=9),
    labels=st.sets(st.sampled_from(THREE), min_size=1),
    threshold=st.none() | st.floats(0.01, 1),
    head=st.sampled_from(list(HEADS.values())),
)
@CASES
def test_a_condition_holds_if_it_holds_in_any_window(
    windows: list[list[float]], labels: set[str], threshold: float | None, head: HeadRecord
) -> None:
    condition = when("guard", *sorted(labels), threshold=threshold)

    alone = [windowed(head, it)[condition] for it in windows]
    together = windowed(head, *windows)[condition]

    assert together.holds is any(it.holds for it in alone)
    assert together.score == max(it.score or 0.0 for it in alone)


@pytest.mark.parametrize("is_let_pass", [False, True], ids=["closed", "let-pass"])
def test_a_task_that_has_not_read_all_characters_decides_only_what_it_finds(
    is_let_pass: bool,  # noqa: FBT001 - a case
) -> None:
    unjudged = frozenset({UnjudgedPart.UNREAD} if is_let_pass else ())
    policy = make_policy(make_rule(when("guard", "attack", threshold=0.8)))
    policy = policy.model_copy(update={"unjudged": unjudged})
    calm, found = (
        decide(policy, {"guard": scored("guard", it, num_unread=3)}, ["text"])[0]
        for it in ({"attack": 0.1, "no": 0.9}, {"attack": 0.9, "no": 0.1})
    )

    assert (found.action, found.is_by_failure) == (VerdictAction.BLOCK, False)
    assert calm.is_by_failure is not is_let_pass
    assert calm.action is (VerdictAction.ALLOW if is_let_pass else VerdictAction.BLOCK)


LABELS = ("O", "B-NAME", "I-NAME", "B-PLACE", "I-PLACE")
FAMILIES = (
    TokenizerFamily.BERT,
    TokenizerFamily.ROBERTA,
    TokenizerFamily.XLM_ROBERTA,
    TokenizerFamily.CAMEMBERT,
    TokenizerFamily.MODERNBERT,
)


@pytest.mark.parametrize("count", [40, pytest.param(700, marks=pytest.mark.slow)])
@pytest.mark.parametrize("threshold", [0.5, 0.2, None])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_character_of_a_found_token_of_any_window_is_masked(
    family: TokenizerFamily, threshold: float | None, count: int
) -> None:
    chance, tokenizer, head = random.Random(7), served(family), tagger(*LABELS)
    condition = when("names", "NAME", threshold=threshold)
    num_found = 0
    for text in random_texts(count, seed=3):
        ((*windows,),) = tokenizer.encode_windows([text], max_length=12, stride=4)
        rows = [[[chance.gauss(0, 2) for _ in LABELS] for _ in it.token_ids] for it in windows]
        logits = [list(chain.from_iterable(row)) for row in rows]
        ((state,),) = (
            it.values() for it in states_of(head, [condition], (text,), [tuple(windows)], logits)
        )

        hidden = {place for it in state.spans for place in range(it.start, it.end)}
        for window, row in zip(windows, rows, strict=True):
            assert window.alignment is not None
            for (start, end), origin, scores in zip(
                window.alignment.offsets, window.alignment.text_ids, map(softmax, row), strict=True
            ):
                likely = scores.index(max(scores)) in {1, 2}
                found = likely if threshold is None else scores[1] + scores[2] >= threshold
                if found and origin is not None:
                    readable = set(range(start, end)) - hidden
                    assert all(text[place].isspace() for place in readable)
                    num_found += 1
        masked = mask(text, state.spans)
        assert masked.count("[NAME]") >= len(state.spans) > 0 or not state.spans
        for it in state.spans:
            assert not text[it.start].isspace()
            assert not text[it.end - 1].isspace()
            assert unicodedata.category(text[it.end : it.end + 1] or " ")[0] != "M"
    assert num_found > 5 * count


WORDS = {
    "word": ("call <Ann>a now", "call [NAME] now"),
    "mail": ("to ivo.<dahl>@example.org.", "to [NAME]."),
    "double name": ("Ann-<Marie> O'Neil", "[NAME] O'Neil"),
    "decomposed": ("Jos<e>\u0301 came", "[NAME] came"),
    "soft hyphen": ("Gar\u00ad<cia> came", "[NAME] came"),
    "zero-width space": ("Jo\u200b<se>\u200b came", "[NAME] came"),
    "control character": ("O\x92<Brien> came", "[NAME] came"),
    "lost character": ("Jos\ufffd Garc\ufffd<a> came", "Jos\ufffd [NAME] came"),
    "no-break space": ("Ann\u00a0<Bell>\u00a0here", "Ann\u00a0[NAME]\u00a0here"),
    "newline and tab": ("a\n<An>n\tb", "a\n[NAME]\tb"),
    "quotes": ("\u201c<An>n\u201d said", "\u201c[NAME]\u201d said"),
    "json": ('{"name":"<An>n","age":3}', '{"name":"[NAME]","age":3}'),
    "comma": ("<An>n, Bob", "[NAME], Bob"),
    "number": ("ring 49-30-<55>5.", "ring [NAME]."),
    "typed dashes": ("ring 49\u201330\u2212<55>5.", "ring [NAME]."),
    "full width": ("to \uff49\uff56\uff4f\uff20<\uff41>\uff0e\uff4f\uff52\uff47", "to [NAME]"),
    "small forms": ("ring 49\ufe63<30>\ufe63555", "ring [NAME]"),
    "link": ("see http://a.org/?<ann>=1 now", "see [NAME] now"),
    "ideographs": ("我叫<张三>丰。", "我叫[NAME]丰。"),
    "thai marks": ("ไป<ก>\u0e34น", "ไป[NAME]น"),
    "hangul": ("어제 <김민수>와 갔다", "어제 [NAME] 갔다"),
}


@pytest.mark.parametrize(("shown", "expected"), WORDS.values(), ids=WORDS)
def test_a_mask_covers_the_whole_word_and_no_more(shown: str, expected: str) -> None:
    before, found, after = re.split("[<>]", shown)
    text = before + found + after

    spans = whole_words(text, [span(len(before), len(before) + len(found))])

    assert mask(text, spans) == expected


@given(
    text=st.text(alphabet=' ab1.@-\u0301\u200b张ก"', min_size=1, max_size=30),
    places=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 4)), max_size=6),
)
@CASES
def test_whole_words_equal_words_grown_one_by_one(text: str, places: list[tuple[int, int]]) -> None:
    spans = [
        span(start, min(start + size, len(text))) for start, size in places if start < len(text)
    ]

    together = {place for it in whole_words(text, spans) for place in range(it.start, it.end)}
    alone = {
        place
        for each in spans
        for it in whole_words(text, [each])
        for place in range(it.start, it.end)
    }

    assert together == alone
    assert {place for it in spans for place in range(it.start, it.end)} <= together


def test_words_of_a_long_text_take_linear_time() -> None:
    text = "a." * 50_000
    spans = [FoundSpan(start=place, end=place + 1, label="NAME") for place in range(0, 100_000, 2)]

    assert list(whole_words(text, spans)) == [span(0, 99_999)]
