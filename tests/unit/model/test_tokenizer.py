from concurrent.futures import ThreadPoolExecutor

from doubles.backbones import tiny_backbone

TOKENIZER = tiny_backbone(num_layers=1).tokenizer


def test_texts_are_cut_at_the_length_asked_for() -> None:
    for max_length in (3, 8, 20):
        (encoding,) = TOKENIZER.encode(
            ["a long text, longer than any limit"], max_length=max_length
        )
        assert encoding.num_tokens == max_length


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    (encoding,) = TOKENIZER.encode([("ab", "c" * 40)], max_length=12)

    assert encoding.type_ids == (0,) * 4 + (1,) * 8


def test_callers_with_different_lengths_do_not_disturb_one_another() -> None:
    def encode(max_length: int) -> set[int]:
        texts = ["x" * 60] * 20
        return {e.num_tokens for e in TOKENIZER.encode(texts, max_length=max_length)}

    with ThreadPoolExecutor(4) as pool:
        lengths = list(range(3, 40)) * 3
        assert list(pool.map(encode, lengths)) == [{length} for length in lengths]


def test_equal_texts_give_equal_encodings_and_others_do_not() -> None:
    first, again, other = TOKENIZER.encode(["hello", "hello", "hellp"], max_length=16)

    assert first == again
    assert hash(first) == hash(again)
    assert first != other
