"""Tokenizers of every family, in the layout of transformers' own classes, trained at once."""

import random
from enum import StrEnum
from functools import cache
from typing import Any

from tokenizers import Tokenizer, normalizers, processors
from transformers import BertTokenizer, CamembertTokenizer, RobertaTokenizer, XLMRobertaTokenizer

from nunatak_model import TextTokenizer

VOCABULARY_SIZE = 420
SENTENCES = (
    "The report was written by Ada Lovelace in London in 1843, and I saw a copy.",
    "Ann-Marie O'Neil met Bob at St. John's; both said: nobody knows (yet)!",
    "  two   spaces, a tab\tand a line\nend here  ",
    "Été à la plage: où est-ce que l'on va? Ça coûte 12,50 €.",
    "東京は日本の首都です。 北京是中国的首都。",
    "Москва и Санкт-Петербург, Αθήνα, 서울",
)
PIECES = (
    *" ".join(SENTENCES).split(" "),
    *(" ", " ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b", "\u00ad"),
    *("a", "I", "x", "é", "e\u0301", "o\u0308\u0323", "n\u0303o", "ﬁ", "½", "Ⅷ", "ß", "İ"),
    *("🙂", "👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "👍🏽", "1\ufe0f\u20e3", "🇫🇷"),
    *("東京", "大", "𠮷野家", "한국어", "가", "हिन्दी", "ไทย", "مرحبا"),
    *("[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<mask>", "<pad>", "[PAD]", "[UNK]"),
    *(".", ",", "!?", "...", "-", "'", "''", "(", ")", "@", "#", "\u2014", "\u0000"),
)


class TokenizerFamily(StrEnum):
    """The family of the tokenizer."""

    BERT = "bert"
    ROBERTA = "roberta"
    ROBERTA_PREFIXED = "roberta-prefixed"
    XLM_ROBERTA = "xlm-roberta"
    CAMEMBERT = "camembert"
    MODERNBERT = "modernbert"


@cache
def published(family: TokenizerFamily) -> Any:  # noqa: ANN401 - untyped there
    """The tokenizer as transformers runs it."""
    match family:
        case TokenizerFamily.BERT:
            return _trained(BertTokenizer())
        case TokenizerFamily.ROBERTA | TokenizerFamily.MODERNBERT:
            trained = _trained(RobertaTokenizer())
        case TokenizerFamily.ROBERTA_PREFIXED:
            return _trained(RobertaTokenizer(add_prefix_space=True))
        case TokenizerFamily.XLM_ROBERTA:
            return _trained(XLMRobertaTokenizer(), normalizer=normalizers.NFKC())
        case TokenizerFamily.CAMEMBERT:
            return _trained(CamembertTokenizer())
    if family is TokenizerFamily.MODERNBERT:
        _as_modernbert(trained.backend_tokenizer)
    return trained


def served(family: TokenizerFamily) -> TextTokenizer:
    """The same tokenizer, run by the project."""
    definition = published(family).backend_tokenizer.to_str()
    return TextTokenizer(definition.encode(), num_token_types=2)


def random_texts(number: int, *, seed: int = 0, longest: int = 40) -> list[str]:
    """Texts of every kind of character, space and special token; never empty."""
    chance = random.Random(seed)
    return [
        "".join(
            chance.choice(PIECES) + chance.choice(("", " ", " ", " "))
            for _ in range(chance.randint(1, longest))
        )
        for _ in range(number)
    ]


def _trained(
    tokenizer: Any,  # noqa: ANN401 - untyped there
    *,
    normalizer: normalizers.Normalizer | None = None,
) -> Any:  # noqa: ANN401 - untyped there
    if normalizer is not None:
        tokenizer.backend_tokenizer.normalizer = normalizer
    return tokenizer.train_new_from_iterator(SENTENCES, VOCABULARY_SIZE)


def _as_modernbert(backend: Tokenizer) -> None:
    """A byte-level tokenizer like RoBERTa's, with composed characters and a template."""
    backend.normalizer = normalizers.NFC()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("<s>", "</s>")],
    )
