"""Writing of folders for other programs: whole or not at all."""

import json
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nunatak_contract.errors import NunatakError


def check_new(target: Path) -> None:
    """Raise `folder_in_use` if there is a file, or a folder that holds something."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise NunatakError("folder_in_use", folder=str(target))


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """Yield a folder to fill, and move it to `target` if the block succeeds.

    Raises:
        NunatakError: `folder_in_use`, `target` is a file, or a folder that is not empty.
    """
    check_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the move at the end stays within one file system.
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield made
        for path in (made, *made.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        made.replace(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write_json(folder: Path, name: str, fields: Mapping[str, object]) -> None:
    """Write an indented JSON file."""
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / name).write_text(text + "\n", encoding="utf-8")
