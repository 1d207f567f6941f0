"""The mixed forward on a CUDA device, by parts: how fast it is.

The backbone has the shape of RoBERTa base, in bfloat16, with random weights; speed does not depend
on their values. `make gpu` first checks whether the forward is right, and gives each part a process
of its own under a time limit. Without a device the benchmark measures nothing and prints so;
`--dry` tries everything out on the CPU, with a tiny backbone, and records no figure elsewhere.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist

import torch
from torch import Tensor

from benchmarks.forward.rivals import (
    PaddedBatch,
    answer_by_adapter_names,
    load_encoder,
    padded_batch,
    peft_model,
)
from benchmarks.harness.makers import BOTTLENECK, LORA
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import (
    BF16_TOLERANCE,
    System,
    check_agreement,
    local,
    race,
    ratios,
    seconds,
)
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import Task, mixed_run, random_encodings, random_tasks
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import (
    Backbone,
    Encoding,
    build_branch,
    convert_branch,
    load_backbone,
    pack_backbone,
    without_fast_kernels,
)
from nunatak_model.ops.grouped import padded_groups

NUM_TASKS, NUM_DRY_TASKS, DRAWN_TASKS = 64, 4, 8
"""Tasks of a batch; the same without a device; and the number of distinct tasks, where drawing all
of them takes too long."""
MEAN_LENGTH, LENGTH_DEVIATION = 32, 8
DTYPE = torch.bfloat16
FORMS: dict[str, Method] = {"lora": LORA, "bottleneck": BOTTLENECK}
RIVAL = "peft.adapter_names"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The backbone as a server on the device holds it, and where tasks are drawn."""

    folder: Path
    host: Backbone
    served: Backbone
    num_tasks: int

    @property
    def device(self) -> torch.device:
        return self.served.device

    def texts(self) -> list[Encoding]:
        """A text for each task; the lengths are the quantiles of their normal distribution."""
        normal = NormalDist(mu=MEAN_LENGTH, sigma=LENGTH_DEVIATION)
        ranks = ((rank + 0.5) / self.num_tasks for rank in range(self.num_tasks))
        lengths = [max(2, round(normal.inv_cdf(it))) for it in ranks]
        return random_encodings(lengths, vocabulary=self.host.config.vocab_size)

    def on_device(self, task: Task) -> Task:
        stored = build_branch(task.branch.spec, self.host.config, task.parameters)
        return replace(task, branch=convert_branch(stored, self.served))

    def tasks(self, method: Method, distinct: int = DRAWN_TASKS) -> list[Task]:
        """Tasks on the device, each with its own copy of one of the distinct tasks."""
        drawn = random_tasks(self.host, [method] * distinct)
        return [self.on_device(drawn[index % distinct]) for index in range(self.num_tasks)]


def main() -> None:
    parser = figures_parser(__doc__, rounds=15, parts=MEASURES)
    parser.add_argument("--dry", action="store_true", help="try everything out on the CPU")
    options, sheet = open_sheet(parser)
    device = torch.device("cpu" if options.dry else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print("nothing was measured: torch finds no CUDA device here")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = backbone_folder(
            Shape.TINY_ROBERTA if options.dry else Shape.ROBERTA_BASE, Path(name)
        )
        setting = Setting(
            folder=folder,
            host=load_backbone(folder, dtype=DTYPE),
            served=pack_backbone(load_backbone(folder, dtype=DTYPE, device=device)),
            num_tasks=NUM_DRY_TASKS if options.dry else NUM_TASKS,
        )
        print(f"fast kernels: {', '.join(setting.served.fast_kernels) or 'none'}", flush=True)
        for part in options.parts:
            nowhere = replace(sheet, file=Path(os.devnull))
            MEASURES[part](nowhere if options.dry else sheet, setting)


def measure_mixed(sheet: Sheet, setting: Setting) -> None:
    """64 texts, each to a low-rank task of its own, against peft."""
    texts, tasks = setting.texts(), random_tasks(setting.host, [LORA] * setting.num_tasks)
    own = [setting.on_device(task) for task in tasks]
    adapted = peft_model(load_encoder(setting.folder, DTYPE), tasks).to(setting.device)
    named = moved(padded_batch(texts, tasks, range(setting.num_tasks)), setting.device)
    systems = [
        system("nunatak", mixed_run(setting.served, texts, own)),
        system(RIVAL, lambda: answer_by_adapter_names(adapted, [named]).cpu()),
    ]
    times = race(systems, rounds=sheet.rounds)
    prefix = "gpu.forward.mixed64.bf16"
    samples = ratios(times, RIVAL, "nunatak")
    sheet.record(prefix, samples, unit="times faster than peft adapter_names", goal=">= 8")
    sheet.record_times(prefix, times)


def measure_forms(sheet: Sheet, setting: Setting) -> None:
    """64 texts, each to a task of its own, by each form of the products and task by task."""
    texts, served = setting.texts(), setting.served
    forms = {
        "served": served,
        "padded": replace(served, ops=replace(served.ops, groups=padded_groups)),
        "alone": without_fast_kernels(served),
    }
    for name, method in FORMS.items():
        tasks = setting.tasks(method)
        systems = [
            system(f"nunatak.{form}", mixed_run(backbone, texts, tasks))
            for form, backbone in forms.items()
        ]
        times = race(systems, rounds=sheet.rounds)
        prefix = f"gpu.forward.{name}64.bf16"
        for form in ("served", "padded"):
            samples = ratios(times, "nunatak.alone", f"nunatak.{form}")
            sheet.record(f"{prefix}.{form}", samples, unit="times faster than task by task")
        sheet.record_times(prefix, times)


def measure_fanout(sheet: Sheet, setting: Setting) -> None:
    """One text to 64 top-1 tasks, against one dedicated forward of transformers."""
    (text,) = random_encodings([MEAN_LENGTH], vocabulary=setting.host.config.vocab_size)
    (alone,) = random_tasks(setting.host, [HeadOnly()])
    encoder = load_encoder(setting.folder, DTYPE)
    encoder.to(setting.device)  # pyrefly: ignore[bad-argument-type] - untyped
    batch = moved(padded_batch([text], [alone], [0]), setting.device)

    def dedicated() -> Tensor:
        return batch.logits(encoder(**batch.inputs).last_hidden_state).float().cpu()

    with torch.inference_mode():
        own = mixed_run(setting.served, [text], [setting.on_device(alone)])
        check_agreement([system("nunatak", own), system("dedicated", dedicated)])
    ours = mixed_run(setting.served, [text] * setting.num_tasks, setting.tasks(TopK(num_layers=1)))
    clocks = {"dedicated": partial(seconds, dedicated)}
    times = race([system("nunatak", ours)], rounds=sheet.rounds, clocks=clocks)
    samples, name = ratios(times, "nunatak", "dedicated"), "gpu.forward.fanout64"
    sheet.record(name, samples, unit="times one dedicated forward", goal="<= 1.5")
    sheet.record_times(name, times)


def system(name: str, answer: Callable[[], Tensor]) -> System:
    return local(name, answer, tolerance=BF16_TOLERANCE)


def moved(batch: PaddedBatch, device: torch.device) -> PaddedBatch:
    return replace(
        batch,
        inputs={name: tensor.to(device) for name, tensor in batch.inputs.items()},
        head_weight=batch.head_weight.to(device),
        head_bias=batch.head_bias.to(device),
    )


MEASURES = {"mixed": measure_mixed, "forms": measure_forms, "fanout": measure_fanout}


if __name__ == "__main__":
    main()
