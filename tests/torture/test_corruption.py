"""Damaged stores are found out, cleaned, and serve the rest."""

from pathlib import Path

from torture.corruption import corrupt_stores


def test_damaged_stores_are_found_out_and_serve_the_rest(tmp_path: Path) -> None:
    tally = corrupt_stores(tmp_path, num_stores=40, seed=30)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == 40
