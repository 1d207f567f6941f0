"""The tokens that stand for words."""

# torch types some of its methods partly.
# pyright: reportUnknownMemberType=false

from doubles.backbones import tiny_backbone
from nunatak_model import Alignment, Encoding
from nunatak_training.data import Example, ExampleSet, TaggedWords, TaskData, Word
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.objectives import objective_of
from nunatak_training.objectives.tagging import NO_TARGET, first_tokens


def sentence(*words: tuple[str, str]) -> Example:
    text = " ".join(word for word, _ in words)
    found: list[Word] = []
    begin = 0
    for word, tag in words:
        found.append(Word(begin=begin, end=begin + len(word), tag=tag))
        begin += len(word) + 1
    return Example(text=text, label=TaggedWords(words=tuple(found)))


def task(*sentences: Example, labels: tuple[str, ...]) -> TaskData:
    examples = ExampleSet(examples=sentences)
    kind = TaskKind.TOKEN_CLASSIFICATION
    return TaskData(name="toy", kind=kind, train=examples, dev=examples, labels=labels)


SENTENCE = sentence(("ab", "B-X"), ("c.d", "I-X"), ("e", "O"))
TASK = task(SENTENCE, labels=("B-X", "I-X", "O"))
TOKENIZER = tiny_backbone(num_layers=1).tokenizer


def test_first_token_of_a_word_has_its_tag_and_no_other_token_has_one() -> None:
    encoded = objective_of(TASK).encode(TASK.train, TOKENIZER, max_length=32)

    # [CLS] a ##b c . d e [SEP]
    skip = NO_TARGET
    assert encoded.targets[0].tolist() == [skip, 0, skip, 1, skip, skip, 2, skip]


def test_every_word_of_a_long_text_is_tagged_once() -> None:
    words = [("ab", "B-X"), ("c", "O")] * 20
    data = task(sentence(*words), labels=("B-X", "O"))

    encoded = objective_of(data).encode(data.train, TOKENIZER, max_length=16)

    tagged = [int(it) for target in encoded.targets for it in target if it != NO_TARGET]
    assert len(encoded.encodings) > 1
    assert encoded.sizes == (len(encoded.encodings),)
    assert tagged == [0, 1] * 20


def test_token_that_counts_the_space_before_a_word_is_its_first() -> None:
    alignment = Alignment(
        tokens=("<s>", "ab", " c", "d"),
        offsets=((0, 0), (0, 2), (2, 4), (4, 5)),
        text_ids=(None, 0, 0, 0),
        word_ids=(None, 0, 1, 1),
        continues_word=(False, False, False, True),
    )
    window = Encoding(token_ids=(0, 1, 2, 3), type_ids=(0,) * 4, alignment=alignment)
    words = (Word(begin=0, end=2, tag="O"), Word(begin=3, end=5, tag="O"))

    assert first_tokens([window], words) == ({0: 1, 1: 2},)


def test_word_whose_first_character_the_tokenizer_drops_is_tagged() -> None:
    data = task(sentence(("ab", "O"), ("\u200bcd", "B-X"), (" e", "O")), labels=("B-X", "O"))

    encoded = objective_of(data).encode(data.train, TOKENIZER, max_length=32)

    # [CLS] a ##b c ##d e [SEP]
    skip = NO_TARGET
    assert encoded.targets[0].tolist() == [skip, 1, skip, 0, skip, 1, skip]


def test_word_that_two_windows_share_is_tagged_in_the_first_alone() -> None:
    data = task(sentence(("a", "O"), ("bcdefg", "B-X"), ("h", "O")), labels=("B-X", "O"))

    encoded = objective_of(data).encode(data.train, TOKENIZER, max_length=5)

    # [CLS] a b ##c [SEP] | [CLS] ##d ##e ##f [SEP] | [CLS] ##g h [SEP]
    skip = NO_TARGET
    assert [target.tolist() for target in encoded.targets] == [
        [skip, 1, 0, skip, skip],
        [skip, skip, skip, skip, skip],
        [skip, skip, 1, skip],
    ]


def test_entities_are_scored_only_where_tags_mark_them() -> None:
    plain = task(sentence(("a", "NOUN"), ("b", "VERB")), labels=("NOUN", "VERB"))

    assert objective_of(TASK).reported == (Metric.ENTITY_F1, Metric.ACCURACY)
    assert objective_of(plain).reported == (Metric.ACCURACY,)
    assert Metric.ENTITY_F1 not in objective_of(plain).metrics
