"""Writes the base models of the fixtures: the tiny backbones that the tests build again."""

import sys
from pathlib import Path

from doubles.backbones import Family, save_tiny_backbone

NUM_LAYERS = 2

if __name__ == "__main__":
    families: tuple[Family, ...] = ("bert", "roberta")
    for family in families:
        save_tiny_backbone(Path(sys.argv[1]) / family, family=family, num_layers=NUM_LAYERS)
