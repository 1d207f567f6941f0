"""The rows of data sets: a folder for each set, with a compressed file for each part."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def read_part(folder: Path, part: str) -> list[Row]:
    """Return the rows of a part; a set without test examples is tested on its dev examples."""
    file = folder / f"{part}.jsonl.gz"
    if part == "test" and not file.exists():
        file = folder / "dev.jsonl.gz"
    if not file.exists():
        raise SystemExit(f"{file}: no such file; docs/training.md has the layout of a set's folder")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
