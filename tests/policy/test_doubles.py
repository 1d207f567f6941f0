"""The index of the test doubles is complete."""

import re
from pathlib import Path

DOUBLES = Path(__file__).parents[1] / "doubles"


def test_the_index_of_the_doubles_names_every_file_once_in_order() -> None:
    index = (DOUBLES / "README.md").read_text(encoding="utf-8")

    named = re.findall(r"^\| `(\w+\.py)` \| \S.* \|$", index, flags=re.MULTILINE)

    assert named == sorted(path.name for path in DOUBLES.glob("*.py"))
