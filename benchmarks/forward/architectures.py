"""One forward of every architecture, compared with transformers and onnxruntime in float32.

Each encoder has 12 layers of width 768 and random weights; speed does not depend on their values.
32 texts of mixed length run at once, or with `--long`, four texts of 128 to 512 tokens. The rivals
run one padded batch and length-sorted batches of eight, and the faster of the two counts. The head
is one linear map of the mean of the tokens, so that the check of the answers reads every token.
onnxruntime runs what its exporter can export.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModel
from transformers.utils import logging

from benchmarks.forward.worker import Peer, WorkerError, running
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import System, fastest, local, race, ratios
from benchmarks.harness.workload import (
    NUM_LABELS,
    Task,
    lognormal_lengths,
    minilm_folder,
    padded,
    random_encodings,
    served_backbone,
    served_task,
    sorted_batches,
)
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import HeadOnly
from nunatak_model import Backbone, BranchSpec, HeadSpec, Row, forward

SORTED_ROWS, VOCABULARY = 8, 30_522
LONG_LENGTHS = (512, 384, 256, 128)
"""Lengths of the texts that `--long` runs in place of the mixed ones."""
HEAD = HeadSpec(num_labels=NUM_LABELS, pooling=Pooling.MEAN)
BASE: Mapping[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "pad_token_id": 0,
}
SHARED_HEADS: Mapping[str, object] = {"num_key_value_heads": 4, "head_dim": 64}
ENDS: Mapping[str, object] = {"bos_token_id": 1, "eos_token_id": 2}
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "bert": {},
    "distilbert": {"dim": 768, "n_heads": 12, "hidden_dim": 3072},
    "electra": {"embedding_size": 768},
    "deberta-v2": {
        "type_vocab_size": 0,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    },
    "mpnet": {"pad_token_id": 1, "max_position_embeddings": 514},
    "modernbert": {
        "intermediate_size": 1152,
        "cls_token_id": 1,
        "sep_token_id": 2,
        **ENDS,
    },
    "eurobert": {**SHARED_HEADS, **ENDS},
    "nomic_bert": {},
    "gte": {},
    "llama": {**SHARED_HEADS, **ENDS},
    "qwen3": {**SHARED_HEADS, **ENDS},
}
"""The architectures, with the settings of their published base shapes where depth, width and
vocabulary leave them."""


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--long", action="store_true", help="four texts of 128 to 512 tokens")
    parser.add_argument("names", nargs="*", default=[*SETTINGS])
    options, sheet = open_sheet(parser)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    lengths = LONG_LENGTHS if options.long else lognormal_lengths(options.texts)
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            write_encoder(name, Path(folder), num_layers=options.layers)
            suffix = ".long" if options.long else ""
            compare(sheet, f"forward.architecture.{name}{suffix}", Path(folder), lengths)


def write_encoder(name: str, folder: Path, *, num_layers: int) -> None:
    """Write a random encoder of an architecture as transformers does."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType] - torch leaves the type open
    fields = {**BASE, **SETTINGS[name], "num_hidden_layers": num_layers}
    if name == "distilbert":
        fields = {"vocab_size": VOCABULARY, **SETTINGS[name], "n_layers": num_layers}
    config = cast("Any", AutoConfig).for_model(name, **fields)
    cast("Any", AutoModel).from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((minilm_folder() / "tokenizer.json").read_bytes())
    settings = {"tokenizer_class": "TokenizersBackend"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def compare(sheet: Sheet, prefix: str, folder: Path, lengths: Sequence[int]) -> None:
    """Race the forward against both rivals, or against transformers alone."""
    backbone = served_backbone(folder, dtype=torch.float32)
    encodings = random_encodings(lengths, vocabulary=VOCABULARY)
    task = mean_task(backbone)
    rows = [Row(encoding=it, branch=task.branch) for it in encodings]
    batches = {
        "padded": [[*range(len(lengths))]],
        "sorted": sorted_batches(lengths, SORTED_ROWS if len(lengths) > SORTED_ROWS else 1),
    }
    model = cast("Any", AutoModel).from_pretrained(folder, dtype=torch.float32).eval()
    systems = [local("nunatak", lambda: torch.stack(forward(backbone, rows)))]
    for name, parts in batches.items():
        inputs = [(part, *padded([encodings[it] for it in part])) for part in parts]
        run = cast("Callable[[], Tensor]", partial(answer, model, task, inputs))
        systems.append(local(f"transformers.{name}", run))
    job = {"backbone": str(folder), "batches": batches, "texts": [it.token_ids for it in encodings]}
    weight, bias = task.head
    tensors = {"head.weight": weight, "head.bias": bias}
    try:
        with running(Peer.ONNX_ENCODERS, job, tensors) as worker:
            others = [worker.system(f"onnxruntime.{name}") for name in batches]
            record(sheet, prefix, [*systems, *others])
    except WorkerError:
        print(f"{prefix}: onnxruntime's exporter has no such encoder; the reason is above")
        record(sheet, prefix, systems)


def mean_task(backbone: Backbone) -> Task:
    """Return a task with a random linear map of the mean."""
    spec = BranchSpec(method=HeadOnly(), head=HEAD)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(NUM_LABELS, backbone.config.hidden_width, generator=generator)
    parameters = {"head.output.weight": weight, "head.output.bias": torch.zeros(NUM_LABELS)}
    return served_task(spec, parameters, backbone)


def answer(
    model: Callable[..., Any], task: Task, inputs: Sequence[tuple[Sequence[int], Tensor, Tensor]]
) -> Tensor:
    """Logits by transformers' encoder, in the order of the texts."""
    order, logits = list[int](), list[Tensor]()
    for indices, ids, mask in inputs:
        # A batch without padding needs no mask, and is faster without a mask.
        masked = {} if bool(mask.all()) else {"attention_mask": mask}
        hidden = model(input_ids=ids, **masked).last_hidden_state
        shares = mask.unsqueeze(-1) / mask.sum(1).view(-1, 1, 1)
        logits.append(functional.linear((hidden * shares).sum(1), *task.head))
        order += indices
    return torch.cat(logits)[torch.tensor(order).argsort()]


def record(sheet: Sheet, prefix: str, systems: Sequence[System]) -> None:
    """Race the systems and record how many times faster the forward is than each rival."""
    times = race(systems, rounds=sheet.rounds)
    for rival in ("transformers", "onnxruntime"):
        names = [it for it in times if it.startswith(rival)]
        if names:
            samples = ratios(times, fastest(times, names), "nunatak")
            sheet.record(f"{prefix}.{rival}", samples, unit=f"times faster than {rival}")
    sheet.record_times(prefix, times)


if __name__ == "__main__":
    main()
