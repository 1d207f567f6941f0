"""The tokens that stand for words and for answers, in every family of tokenizers."""

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.examples import name_questions
from doubles.trained_tokenizers import TokenizerFamily, served
from nunatak_training.data import (
    Answers,
    AnswerSpan,
    Example,
    ExampleSet,
    TaggedWords,
    TaskData,
    Word,
)
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.objectives import objective_of
from nunatak_training.objectives.windows import (
    MAX_ANSWER_TOKENS,
    NO_TARGET,
    NOWHERE,
    answer_tokens,
    best_span,
    first_tokens,
    log_probabilities,
)

TOKENIZER = tiny_backbone(num_layers=1).tokenizer
CONTEXT = "ab cd ef gh"


def sentence(*words: tuple[str, str]) -> Example:
    text = " ".join(word for word, _ in words)
    found: list[Word] = []
    begin = 0
    for word, tag in words:
        found.append(Word(begin=begin, end=begin + len(word), tag=tag))
        begin += len(word) + 1
    return Example(text=text, label=TaggedWords(words=tuple(found)))


def sentences(*sentences: Example, labels: tuple[str, ...]) -> TaskData:
    examples = ExampleSet(examples=sentences)
    kind = TaskKind.TOKEN_CLASSIFICATION
    return TaskData(name="toy", kind=kind, train=examples, dev=examples, labels=labels)


SENTENCE = sentence(("ab", "B-X"), ("c.d", "I-X"), ("e", "O"))
TASK = sentences(SENTENCE, labels=("B-X", "I-X", "O"))


def example(context: str, *answers: tuple[str, int]) -> Example:
    spans = tuple(AnswerSpan(text=text, begin=begin) for text, begin in answers)
    return Example(text="x?", text_pair=context, label=Answers(spans=spans))


def answers(*examples: Example) -> TaskData:
    found = ExampleSet(examples=examples)
    kind = TaskKind.QUESTION_ANSWERING
    return TaskData(name="toy", kind=kind, train=found, dev=found, labels=())


def perfect_logits(data: TaskData, *, max_length: int) -> list[torch.Tensor]:
    """Ones at the targets, and zeros elsewhere."""
    encoded = objective_of(data).encode(data.dev, TOKENIZER, max_length=max_length)
    rows: list[torch.Tensor] = []
    for encoding, target in zip(encoded.encodings, encoded.targets, strict=True):
        row = torch.zeros(encoding.num_tokens, 2)
        row[target[0], 0] = row[target[1], 1] = 1.0
        rows.append(row)
    return rows


def test_first_token_of_a_word_has_its_tag_and_no_other_token_has_one() -> None:
    encoded = objective_of(TASK).encode(TASK.train, TOKENIZER, max_length=32)

    # [CLS] a ##b c . d e [SEP]
    skip = NO_TARGET
    assert encoded.targets[0].tolist() == [skip, 0, skip, 1, skip, skip, 2, skip]


def test_every_word_of_a_long_text_is_tagged_once() -> None:
    words = [("ab", "B-X"), ("c", "O")] * 20
    data = sentences(sentence(*words), labels=("B-X", "O"))

    encoded = objective_of(data).encode(data.train, TOKENIZER, max_length=16)

    tagged = [int(it) for target in encoded.targets for it in target if it != NO_TARGET]
    assert len(encoded.encodings) > 1
    assert encoded.sizes == (len(encoded.encodings),)
    assert tagged == [0, 1] * 20


def test_word_whose_first_character_the_tokenizer_drops_is_tagged() -> None:
    data = sentences(sentence(("ab", "O"), ("\u200bcd", "B-X"), (" e", "O")), labels=("B-X", "O"))

    encoded = objective_of(data).encode(data.train, TOKENIZER, max_length=32)

    # [CLS] a ##b c ##d e [SEP]
    skip = NO_TARGET
    assert encoded.targets[0].tolist() == [skip, 1, skip, 0, skip, 1, skip]


def test_word_that_two_windows_share_is_tagged_in_the_first_alone() -> None:
    data = sentences(sentence(("a", "O"), ("bcdefg", "B-X"), ("h", "O")), labels=("B-X", "O"))

    encoded = objective_of(data).encode(data.train, TOKENIZER, max_length=5)

    # [CLS] a b ##c [SEP] | [CLS] ##d ##e ##f [SEP] | [CLS] ##g h [SEP]
    skip = NO_TARGET
    assert [target.tolist() for target in encoded.targets] == [
        [skip, 1, 0, skip, skip],
        [skip, skip, skip, skip, skip],
        [skip, skip, 1, skip],
    ]


def test_entities_are_scored_only_where_tags_mark_them() -> None:
    plain = sentences(sentence(("a", "NOUN"), ("b", "VERB")), labels=("NOUN", "VERB"))

    assert objective_of(TASK).reported == (Metric.ENTITY_F1, Metric.ACCURACY)
    assert objective_of(plain).reported == (Metric.ACCURACY,)
    assert Metric.ENTITY_F1 not in objective_of(plain).metrics


@pytest.mark.parametrize("family", TokenizerFamily)
def test_every_answer_has_tokens_that_spell_it(family: TokenizerFamily) -> None:
    tokenizer = served(family)
    for example in name_questions().train.examples:
        assert isinstance(example.label, Answers)
        ((window,),) = tokenizer.encode_windows([example.model_input], max_length=64, stride=0)

        first, last = answer_tokens(window, example.label.spans)

        assert (first, last) != NOWHERE
        assert window.alignment is not None
        begin, end = window.alignment.offsets[first][0], window.alignment.offsets[last][1]
        # ModernBERT counts the space before a word as the word's.
        assert (example.text_pair or "")[begin:end].strip() == example.label.spans[0].text
        row = torch.zeros(window.num_tokens, 2)
        row[first, 0] = row[last, 1] = 1.0
        assert best_span(window, log_probabilities(window, row))[1:] == (begin, end)


@pytest.mark.parametrize("family", TokenizerFamily)
def test_every_word_has_a_token_of_its_own(family: TokenizerFamily) -> None:
    words = ["I", "saw", "a", "report", ",", "x", "é", "大", "🙂", "&", "O'Neil"]
    text = " ".join(words)
    begins = [sum(len(word) + 1 for word in words[:number]) for number in range(len(words))]
    label = tuple(
        Word(begin=begin, end=begin + len(word), tag="O")
        for begin, word in zip(begins, words, strict=True)
    )
    ((window,),) = served(family).encode_windows([text], max_length=64, stride=0)

    (found,) = first_tokens([window], label)

    assert window.alignment is not None
    assert list(found) == list(range(len(words)))
    for number, token in found.items():
        begin, end = window.alignment.offsets[token]
        spelt = text[begin:end].strip()
        assert spelt
        assert words[number].startswith(spelt)


@pytest.mark.parametrize("max_length", [14, 32])
@pytest.mark.parametrize("answer", [("ab", 0), ("cd ef", 3), ("h", 10)])
def test_answer_is_found_again_in_any_window(answer: tuple[str, int], max_length: int) -> None:
    data = answers(example(CONTEXT, answer))
    objective = objective_of(data)
    encoded = objective.encode(data.dev, TOKENIZER, max_length=max_length)

    found = objective.statistics(data.dev, encoded, perfect_logits(data, max_length=max_length))

    assert found.value(Metric.EXACT_MATCH) == 1.0
    assert found.value(Metric.SPAN_F1) == 1.0


def test_window_without_the_answer_points_to_the_first_token() -> None:
    (windows,) = TOKENIZER.encode_windows([("x?", CONTEXT)], max_length=11, stride=0)

    targets = [answer_tokens(it, (AnswerSpan(text="gh", begin=9),)) for it in windows]

    assert targets[0] == (0, 0)
    assert targets[-1] != (0, 0)


def test_question_without_an_answer_is_answered_by_none() -> None:
    data = answers(example(CONTEXT), example(CONTEXT, ("ab", 0)))
    objective = objective_of(data)
    encoded = objective.encode(data.dev, TOKENIZER, max_length=32)

    found = objective.statistics(data.dev, encoded, perfect_logits(data, max_length=32))

    assert found.value(Metric.EXACT_MATCH) == 1.0


@pytest.mark.parametrize(("more", "right"), [((), 1.0), ((example(CONTEXT),), 0.5)])
def test_none_competes_where_the_scored_examples_have_such_questions_as_in_an_evaluation(
    more: tuple[Example, ...], right: float
) -> None:
    objective = objective_of(answers(example(CONTEXT), example(CONTEXT, ("ab", 0))))
    scored = ExampleSet(examples=(example("b", ("b", 0)), *more))
    encoded = objective.encode(scored, TOKENIZER, max_length=32)
    none = [torch.zeros(it.num_tokens, 2) for it in encoded.encodings]
    for row in none:
        row[0] = 9.0

    found = objective.statistics(scored, encoded, none)

    assert found.value(Metric.EXACT_MATCH) == right


def test_span_never_ends_before_it_begins_nor_is_too_long() -> None:
    (windows,) = TOKENIZER.encode_windows([("x?", "a " * 20)], max_length=48, stride=0)
    (window,) = windows
    for seed in range(20):
        row = torch.randn(window.num_tokens, 2, generator=torch.Generator().manual_seed(seed))

        score, begin, end = best_span(window, row)

        assert begin < end
        assert len(("a " * 20)[begin:end].split()) <= MAX_ANSWER_TOKENS
        assert score <= float(row[:, 0].max() + row[:, 1].max())
