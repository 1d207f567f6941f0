"""Measures the memory that a registry's tasks add to a process: shared, or one model per task.

The script loads the tasks in one of the two ways and prints the growth of its memory in bytes.
"""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Literal

import psutil

from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_versions import LoadedTask, load_task

Way = Literal["shared", "dedicated"]


def measure_growth(registry: Path, way: Way) -> int:
    """Load all tasks of a registry in a new process; return the growth of the process in bytes."""
    finished = subprocess.run(  # noqa: S603 - our own interpreter and file; no shell
        [sys.executable, __file__, str(registry), way],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(finished.stdout)


def load_tasks(registry: Registry, way: Way) -> list[tuple[Backbone, LoadedTask]]:
    """Load every task on one backbone, or each task on its own backbone."""
    loaded = list[tuple[Backbone, LoadedTask]]()
    for summary in registry.tasks():
        backbone = loaded[0][0] if loaded and way == "shared" else load_backbone()
        data = registry.read_blob(summary.manifest)
        loaded.append((backbone, load_task(summary.manifest, data, backbone)))
    return loaded


def proportional_bytes() -> int:
    """Memory of this process: PSS, or RSS if the kernel does not report PSS."""
    full = psutil.Process().memory_full_info()
    return int(getattr(full, "pss", full.rss))


def main() -> None:
    """Print the growth of this process, in bytes, by the loading of the tasks."""
    folder, way = sys.argv[1], sys.argv[2]
    if way not in ("shared", "dedicated"):
        raise SystemExit(f"expected 'shared' or 'dedicated', got {way!r}")
    # The first load also loads code lazily, whose memory belongs to no task.
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
