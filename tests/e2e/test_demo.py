"""The demo, with less training: everything it shows comes from real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_demo_ends_by_itself_and_shows_its_four_tables(tmp_path: Path) -> None:
    finished = subprocess.run(  # noqa: S603 - our own interpreter and file; no shell
        [
            *(sys.executable, str(ROOT / "demo" / "gateway.py")),
            *("--epochs", "1", "--registry", str(tmp_path / "registry")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    for task in ("intent/1", "attack/1", "personal_data/1", "tone/1"):
        assert task in finished.stdout
    assert "an attack?" in finished.stdout
    assert "one full model per task" in finished.stdout
    assert "times faster" in finished.stdout
    assert "Go on:" in finished.stdout
