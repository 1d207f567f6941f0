"""Every planted bug is caught by its check."""

from pathlib import Path

import pytest

from torture.controls import is_caught
from torture.fork_server import ForkServer
from torture.mutants import Mutant


@pytest.mark.parametrize("mutant", Mutant)
def test_planted_bug_is_caught(mutant: Mutant, tmp_path: Path, faulty_forks: ForkServer) -> None:
    assert is_caught(mutant, tmp_path, faulty_forks)
