"""Spans: the entities in the tags of words, and the match of an answer with the right answers.

Entities: the scheme is BIO, as CoNLL-2003 and its `conlleval` read it. `B-X` begins an entity.
`I-X` continues an entity of the same type, and begins an entity if there is none to continue.

Answers: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text"
(arXiv:1606.05250), sec. 6.1: punctuation, case and articles are ignored, the best of the right
answers counts. For a question without an answer, only an empty answer is right (Rajpurkar et al.
2018).
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

Entity = tuple[str, int, int]
"""An entity: its type, its first word, and the position after its last word."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def uses_bio(tags: Sequence[str]) -> bool:
    """Whether a set of tags marks entities, and not single words."""
    return any(tag.startswith("B-") for tag in tags)


def entities_in(tags: Sequence[str]) -> list[Entity]:
    """Return the entities in the tags of a sentence, in order."""
    found: list[Entity] = []
    for position, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark not in {"B", "I"} or not kind:
            continue
        goes_on = mark == "I" and bool(found) and found[-1][0] == kind and found[-1][2] == position
        begin = found.pop()[1] if goes_on else position
        found.append((kind, begin, position + 1))
    return found


def exact_match(predicted: str, expected: Sequence[str]) -> float:
    """1 if the answer is one of the right ones, else 0."""
    words = _words(predicted)
    return float(any(words == _words(answer) for answer in expected or ("",)))


def overlap_f1(predicted: str, expected: Sequence[str]) -> float:
    """F1 of the words of the answer and of the best right answer."""
    return max(_f1(_words(predicted), _words(answer)) for answer in expected or ("",))


def _f1(predicted: list[str], expected: list[str]) -> float:
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2 * shared / (len(predicted) + len(expected))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()
