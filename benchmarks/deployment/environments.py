"""Environments of the baselines whose packages the project does not have.

Each lies below `.bench`, sees the packages of the interpreter that runs this, torch among them, and
adds its own. Making one takes a minute or two, once.
"""

import subprocess
import sys
import venv
from pathlib import Path

from worker import ENVIRONMENTS

PACKAGES = {"litserve": "litserve==0.2.19", "ray": "ray[serve]==2.60.0"}


def interpreter(name: str) -> Path:
    """The Python of an environment, which is made if it is not there or outdated.

    Raises:
        subprocess.CalledProcessError: pip could not install its packages; its messages say why.
    """
    folder, wanted = ENVIRONMENTS / name, PACKAGES[name]
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"making the environment of {wanted} in {folder}; this takes a minute or two, once")
    venv.create(folder, with_pip=True, clear=True)
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    link = Path(found.stdout.strip()) / "shared.pth"
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    link.write_text("\n".join(shared) + "\n")
    install = [str(python), "-m", "pip", "install", "--quiet", wanted]
    subprocess.run(install, check=True)  # noqa: S603 - ours
    stamp.write_text(wanted)
    return python
