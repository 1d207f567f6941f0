"""Entities: the spans that tags of words spell.

The scheme is BIO, as CoNLL-2003 and its `conlleval` read it: `B-X` begins an entity, `I-X` goes on
with one of the same type and begins one where there is none to go on with.
"""

from collections.abc import Sequence

Entity = tuple[str, int, int]
"""Its type, its first word, and one past its last."""


def uses_bio(tags: Sequence[str]) -> bool:
    """Whether a set of tags marks entities, rather than words one by one."""
    return any(tag.startswith("B-") for tag in tags)


def entities_in(tags: Sequence[str]) -> list[Entity]:
    """Return the entities that the tags of a sentence spell, in order."""
    found: list[Entity] = []
    for position, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark not in {"B", "I"} or not kind:
            continue
        goes_on = mark == "I" and bool(found) and found[-1][0] == kind and found[-1][2] == position
        begin = found.pop()[1] if goes_on else position
        found.append((kind, begin, position + 1))
    return found
