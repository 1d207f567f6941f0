"""Measures the memory that a registry's tasks add to a process: shared, or one model per task.

Run as a script, it loads in one of the two ways and prints the growth of its own memory in bytes.
"""

# psutil carries no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import gc
import subprocess
import sys
from pathlib import Path
from typing import Literal

import psutil

from nunatak_artifact import LoadedTask, load_task
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry

Way = Literal["shared", "dedicated"]


def measure_growth(registry: Path, way: Way) -> int:
    """Load all tasks of a registry in a process of its own; returns its growth in bytes."""
    finished = subprocess.run(  # noqa: S603 - our own interpreter and file; no shell
        [sys.executable, __file__, str(registry), way],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(finished.stdout)


def load_tasks(registry: Registry, way: Way) -> list[tuple[Backbone, LoadedTask]]:
    """Load every task on one backbone, or each on a backbone of its own."""
    loaded = list[tuple[Backbone, LoadedTask]]()
    for summary in registry.tasks():
        backbone = loaded[0][0] if loaded and way == "shared" else load_backbone()
        data = registry.read_blob(summary.manifest)
        loaded.append((backbone, load_task(summary.manifest, data, backbone)))
    return loaded


def proportional_bytes() -> int:
    """Memory of this process: PSS, or RSS where the kernel does not tell it."""
    full = psutil.Process().memory_full_info()
    return int(getattr(full, "pss", full.rss))


def main() -> None:
    """Print how many bytes this process has grown by loading the tasks."""
    folder, way = sys.argv[1], sys.argv[2]
    if way not in ("shared", "dedicated"):
        raise SystemExit(f"expected 'shared' or 'dedicated', got {way!r}")
    # The first load pays for lazily loaded code too; that is no task's memory.
    warm = load_backbone()
    warm.tokenizer.encode(["warm"], max_length=8)
    del warm
    gc.collect()
    before = proportional_bytes()
    with Registry.open(folder) as registry:
        loaded = load_tasks(registry, way)
        gc.collect()
        grown = proportional_bytes() - before
    print(grown)
    del loaded


if __name__ == "__main__":
    main()
