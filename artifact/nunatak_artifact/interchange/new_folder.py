"""Writing a folder whole or not at all."""

import json
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nunatak_artifact.errors import FolderInUseError


def check_new(target: Path) -> None:
    """Raise `FolderInUseError` if there is a file, or a folder that holds something."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FolderInUseError(str(target))


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """Yield a folder to fill, which takes its place at `target` if nothing goes wrong.

    Raises:
        FolderInUseError: `target` is a file, or a folder that holds something.
    """
    check_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside its target, so that the move at the end stays within one file system.
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield made
        for path in made.iterdir():
            path.chmod(0o644)
        made.chmod(0o755)
        made.replace(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write_json(folder: Path, name: str, fields: Mapping[str, object]) -> None:
    """Write a JSON file that reads well."""
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / name).write_text(text + "\n", encoding="utf-8")
