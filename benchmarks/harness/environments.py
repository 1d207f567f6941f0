"""Virtual environments below `.bench`, for packages that the project lacks or pins differently.

The creation of an environment takes some minutes, once.
"""

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.recording import ROOT

ENVIRONMENTS = ROOT / ".bench"


def interpreter(name: str, packages: Sequence[str], *, sees: Sequence[str] = ()) -> Path:
    """Return the Python of an environment, and create a missing or outdated environment first.

    It also imports the packages of the folders `sees`.
    """
    folder, wanted = ENVIRONMENTS / name, "\n".join(packages)
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"making the environment of {name} in {folder}; this takes some minutes, once")
    venv.create(folder, with_pip=True, clear=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text("".join(f"{it}\n" for it in sees))
    install = [str(python), "-m", "pip", "install", "--quiet", *packages]
    subprocess.run(install, check=True)  # noqa: S603 - the caller names the packages
    stamp.write_text(wanted)
    return python
