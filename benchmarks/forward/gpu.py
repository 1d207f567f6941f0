"""The mixed forward on a CUDA device: first whether it is right, then how fast it is.

The backbone has the shape of RoBERTa base, in bfloat16, with random weights; speed does not depend
on their values. Each part runs in a process of its own under a time limit. All parts end within
eight minutes, and a failed part does not stop the others. `--out` names a folder for the figures
and for the output of each part. Without a device the benchmark measures nothing and prints so;
`--dry` tries everything out on the CPU, with a tiny backbone, and records no figure elsewhere.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist, median

import torch
from torch import Tensor
from torch.nn import functional
from transformers import RobertaModel
from transformers.utils import logging

from benchmarks.forward.rivals import PaddedBatch, answer_by_adapter_names, padded_batch, peft_model
from benchmarks.harness.recording import ROOT, Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import BF16_TOLERANCE, System, local, race, ratios, seconds
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import Task, random_encodings, random_task
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    Encoding,
    Row,
    build_branch,
    convert_branch,
    forward,
    load_backbone,
    pack_backbone,
    without_fast_kernels,
)
from nunatak_model.ops.grouped import padded_groups
from nunatak_model.ops.linear import plain

NUM_TASKS, NUM_DRY_TASKS, DRAWN_TASKS = 64, 4, 8
"""Tasks of a batch; the same without a device; and the number of distinct tasks, where drawing all
of them takes too long."""
MEAN_LENGTH, LENGTH_DEVIATION = 32, 8
DTYPE = torch.bfloat16
CEILING_WIDTH, CEILING_REPEATS = 8192, 20
FORMS: dict[str, Method] = {
    "lora": Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE),
    "bottleneck": Bottleneck(size=64),
}
MODULE = "benchmarks.forward.gpu"
TESTS = ROOT / "tests" / "gpu"
DEVICE_VARIABLE = "NUNATAK_TEST_DEVICE"
"""Names the device of the checks, `cuda` or `cpu`."""


CHECKS_LIMIT_S, MEASURE_LIMIT_S = 170.0, 100.0
"""Seconds that the checks, and each measurement, may take from start to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The backbone as a server on the device holds it, and where tasks are drawn."""

    folder: Path
    host: Backbone
    served: Backbone
    num_tasks: int

    @property
    def device(self) -> torch.device:
        """Where the systems compute."""
        return self.served.device

    def finish(self) -> None:
        """Wait until the device has computed everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def main() -> None:
    """Run all parts, or measure one."""
    parser = figures_parser(__doc__, rounds=15)
    parser.add_argument("--part", choices=list(MEASURES), help="measure this alone, without limit")
    parser.add_argument("--out", type=Path, help="folder for figures and the output of each part")
    parser.add_argument("--dry", action="store_true", help="try everything out on the CPU")
    options, sheet = open_sheet(parser)
    device = torch.device("cpu" if options.dry else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print("nothing was measured: torch finds no CUDA device here")
        return
    if options.part is not None:
        with_setting(partial(MEASURES[options.part], sheet), device)
        return
    with tempfile.TemporaryDirectory() as scratch:
        figures: Path = options.figures
        if options.out is not None or options.dry:
            figures = (options.out or Path(scratch)) / "figures.jsonl"
        run = Run(figures=figures, rounds=options.rounds, out=options.out, device=device)
        sys.exit(run.all_parts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of all parts."""

    figures: Path
    rounds: int
    out: Path | None
    device: torch.device

    def all_parts(self) -> int:
        """Check, then measure, each under its limit; return 1 if any failed."""
        is_dry = self.device.type == "cpu"
        name = "the CPU" if is_dry else torch.cuda.get_device_name()
        print(f"{name}, torch {torch.__version__}", flush=True)
        failed = self._part("checks", ["-m", "pytest", "-q", "-n", "0", str(TESTS)], CHECKS_LIMIT_S)
        common = ["--rounds", str(self.rounds), "--figures", str(self.figures)]
        common += ["--dry"] if is_dry else []
        for part in MEASURES:
            failed |= self._part(part, ["-m", MODULE, "--part", part, *common], MEASURE_LIMIT_S)
        return failed

    def _part(self, name: str, arguments: Sequence[str], limit_s: float) -> int:
        """Run python with these arguments, and end it at its limit; return 1 if it failed."""
        started, output = time.perf_counter(), b""
        environment = {**os.environ, DEVICE_VARIABLE: self.device.type}
        try:
            result = subprocess.run(  # noqa: S603 - our own modules
                [sys.executable, *arguments],
                check=False,
                timeout=limit_s,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            outcome, failed = f"ended with {result.returncode}", int(result.returncode != 0)
            output = result.stdout
        except subprocess.TimeoutExpired as late:
            outcome, failed = f"was ended at its limit of {limit_s:g} s", 1
            output = late.stdout or b""
        text = output.decode(errors="replace")
        print(text, end="", flush=True)
        print(f"-- {name} {outcome} after {time.perf_counter() - started:.0f} s", flush=True)
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / f"{name}.txt").write_text(f"{text}{outcome}\n", encoding="utf-8")
        return failed


def with_setting(measure: Callable[[Setting], None], device: torch.device) -> None:
    """Load the backbone and transformers' encoder, and measure."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    is_dry = device.type == "cpu"
    shape = Shape.TINY_ROBERTA if is_dry else Shape.ROBERTA_BASE
    with tempfile.TemporaryDirectory() as name:
        folder = backbone_folder(shape, Path(name))
        served = pack_backbone(load_backbone(folder, dtype=DTYPE, device=device))
        print(f"fast kernels: {', '.join(served.fast_kernels) or 'none'}", flush=True)
        setting = Setting(
            folder=folder,
            host=load_backbone(folder, dtype=DTYPE),
            served=served,
            num_tasks=NUM_DRY_TASKS if is_dry else NUM_TASKS,
        )
        measure(setting)


def measure_mixed(sheet: Sheet, setting: Setting) -> None:
    """64 texts, each to a low-rank task of its own, against peft; and the trunk alone."""
    encodings = random_encodings(
        normal_lengths(setting.num_tasks), vocabulary=setting.host.config.vocab_size
    )
    tasks = [
        random_task(setting.host, Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE), seed=seed)
        for seed in range(setting.num_tasks)
    ]
    rows = rows_of(encodings, [on_device(task, setting) for task in tasks])
    adapted = peft_model(load_encoder(setting.folder), tasks).to(setting.device)  # pyrefly: ignore[bad-argument-type]
    named = moved(padded_batch(encodings, tasks, range(setting.num_tasks)), setting.device)
    systems = [
        system("nunatak", partial(mixed, setting, rows)),
        system("peft.adapter_names", lambda: answer_by_adapter_names(adapted, [named]).cpu()),
    ]
    times = race(systems, rounds=sheet.rounds)
    prefix = "gpu.forward.mixed64.bf16"
    samples = ratios(times, "peft.adapter_names", "nunatak")
    sheet.record(prefix, samples, unit="times faster than peft adapter_names", goal=">= 8")
    sheet.record_times(prefix, times)
    measure_trunk(sheet, setting, encodings)


def measure_forms(sheet: Sheet, setting: Setting) -> None:
    """64 texts, each to a task of its own, by each form of the products and task by task."""
    encodings = random_encodings(
        normal_lengths(setting.num_tasks), vocabulary=setting.host.config.vocab_size
    )
    alone = without_fast_kernels(setting.served)
    padded = replace(setting.served, ops=replace(setting.served.ops, groups=padded_groups))
    for name, method in FORMS.items():
        tasks = drawn_tasks(setting, method, DRAWN_TASKS)
        branches = [
            on_device(tasks[index % len(tasks)], setting) for index in range(setting.num_tasks)
        ]
        rows = rows_of(encodings, branches)
        systems = [
            system(f"nunatak.{form}", partial(mixed, replace(setting, served=served), rows))
            for form, served in (("served", setting.served), ("padded", padded), ("alone", alone))
        ]
        times = race(systems, rounds=sheet.rounds)
        prefix = f"gpu.forward.{name}64.bf16"
        for form in ("served", "padded"):
            samples = ratios(times, "nunatak.alone", f"nunatak.{form}")
            sheet.record(f"{prefix}.{form}", samples, unit="times faster than task by task")
        sheet.record_times(prefix, times)


def measure_trunk(sheet: Sheet, setting: Setting, encodings: Sequence[Encoding]) -> None:
    """Speed of the trunk on the same texts, as a share of the device's matrix products."""
    (task,) = drawn_tasks(setting, HeadOnly(), 1)
    rows = rows_of(encodings, [on_device(task, setting)] * len(encodings))
    systems = [system("nunatak", partial(mixed, setting, rows))]
    clocks = {"products": partial(products_seconds, setting, sum(map(len_of, encodings)))}
    times = race(systems, rounds=sheet.rounds, clocks=clocks)
    prefix = "gpu.forward.trunk64.bf16"
    sheet.record_times(prefix, times)
    peak = ceiling_flops(setting)
    sheet.record(f"{prefix}.peak", [peak / 1e12], unit="TFLOP/s of one large product")
    flops = product_flops(setting.served, sum(map(len_of, encodings)))
    for name in (it.name for it in systems):
        samples = ratios(times, "products", name)
        sheet.record(f"{prefix}.ceiling.{name}", samples, unit="of the speed of its products")
        shares = [flops / one / peak for one in times[name]]
        sheet.record(f"{prefix}.share.{name}", shares, unit="of the speed of one large product")


def measure_fanout(sheet: Sheet, setting: Setting) -> None:
    """One text to 64 top-1 tasks, against one dedicated forward of transformers."""
    (encoding,) = random_encodings([MEAN_LENGTH], vocabulary=setting.host.config.vocab_size)
    tasks = drawn_tasks(setting, TopK(num_layers=1), DRAWN_TASKS)
    branches = [on_device(tasks[index % len(tasks)], setting) for index in range(setting.num_tasks)]
    rows = rows_of([encoding] * setting.num_tasks, branches)
    (alone,) = drawn_tasks(setting, HeadOnly(), 1)
    encoder = load_encoder(setting.folder)
    encoder.to(setting.device)  # pyrefly: ignore[bad-argument-type] - untyped
    batch = moved(padded_batch([encoding], [alone], [0]), setting.device)
    dedicated = partial(answer_dedicated, encoder, batch)
    systems = [system("nunatak", partial(mixed, setting, rows))]
    own = partial(mixed, setting, rows_of([encoding], [on_device(alone, setting)]))
    with torch.inference_mode():
        agree(own(), dedicated())
    times = race(systems, rounds=sheet.rounds, clocks={"dedicated": partial(seconds, dedicated)})
    unit = "times one dedicated forward"
    samples = ratios(times, "nunatak", "dedicated")
    sheet.record("gpu.forward.fanout64", samples, unit=unit, goal="<= 1.5")
    sheet.record_times("gpu.forward.fanout64", times)


def mixed(setting: Setting, rows: Sequence[Row]) -> Tensor:
    """One mixed forward, answers on the host."""
    return torch.stack(forward(setting.served, rows)).cpu()


def answer_dedicated(encoder: RobertaModel, batch: PaddedBatch) -> Tensor:
    """One forward of transformers, answers on the host."""
    return batch.logits(encoder(**batch.inputs).last_hidden_state).float().cpu()


def agree(ours: Tensor, theirs: Tensor) -> None:
    """Stop unless the dedicated model gives the same answer as the mixed forward."""
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    if not difference <= BF16_TOLERANCE:
        raise SystemExit(f"the dedicated model differs by {difference:.2g} of its largest logit")


def system(name: str, answer: Callable[[], Tensor]) -> System:
    """A system at the number format of this benchmark."""
    return local(name, answer, tolerance=BF16_TOLERANCE)


def rows_of(encodings: Sequence[Encoding], branches: Sequence[Branch]) -> list[Row]:
    """Each text to its own task."""
    return [
        Row(encoding=encoding, branch=branch)
        for encoding, branch in zip(encodings, branches, strict=True)
    ]


def drawn_tasks(setting: Setting, method: Method, count: int) -> list[Task]:
    """Random tasks on the host."""
    return [random_task(setting.host, method, seed=seed) for seed in range(count)]


def on_device(task: Task, setting: Setting) -> Branch:
    """Return a further task on the device with a copy of the parameters of `task`."""
    stored = build_branch(task.branch.spec, setting.host.config, task.parameters)
    return convert_branch(stored, setting.served)


def moved(batch: PaddedBatch, device: torch.device) -> PaddedBatch:
    """The batch on the device."""
    return PaddedBatch(
        indices=batch.indices,
        inputs={name: tensor.to(device) for name, tensor in batch.inputs.items()},
        tasks=batch.tasks,
        head_weight=batch.head_weight.to(device),
        head_bias=batch.head_bias.to(device),
    )


def normal_lengths(count: int) -> list[int]:
    """Quantiles of the normal distribution of lengths, from short to long."""
    normal = NormalDist(mu=MEAN_LENGTH, sigma=LENGTH_DEVIATION)
    return [max(2, round(normal.inv_cdf((rank + 0.5) / count))) for rank in range(count)]


def len_of(encoding: Encoding) -> int:
    """Tokens of a text."""
    return encoding.num_tokens


def product_flops(backbone: Backbone, num_tokens: int) -> float:
    """Operations of the frozen products of all layers, without the operations of attention."""
    config = backbone.config
    by_token = 4 * config.hidden_width**2 + 2 * config.hidden_width * config.intermediate_width
    return 2.0 * num_tokens * by_token * config.num_layers


def products_seconds(setting: Setting, num_tokens: int) -> float:
    """Time of the frozen products alone, layer by layer."""
    config = setting.served.config
    narrow = torch.randn(num_tokens, config.hidden_width, device=setting.device, dtype=DTYPE)
    wide = torch.randn(num_tokens, config.intermediate_width, device=setting.device, dtype=DTYPE)

    def run() -> None:
        for layer in setting.served.layers:
            for linear in (layer.qkv, layer.attention_output, layer.feedforward_in):
                functional.linear(narrow, plain(linear.weight), linear.bias)
            last = layer.feedforward_out
            functional.linear(wide, plain(last.weight), last.bias)
        setting.finish()

    run()
    return seconds(run)


def ceiling_flops(setting: Setting) -> float:
    """Operations per second of one large product."""
    width = CEILING_WIDTH if setting.device.type == "cuda" else CEILING_WIDTH // 32
    x, y = (torch.randn(width, width, device=setting.device, dtype=DTYPE) for _ in "xy")

    def run() -> None:
        functional.linear(x, y)
        setting.finish()

    samples = [seconds(run, 1) for _ in range(CEILING_REPEATS)]
    return 2.0 * width**3 / median(samples[CEILING_REPEATS // 2 :])


def load_encoder(folder: Path) -> RobertaModel:
    """The encoder of transformers, ready for inference."""
    model = RobertaModel.from_pretrained(folder, add_pooling_layer=False, dtype=DTYPE)
    return model.eval()


MEASURES = {"mixed": measure_mixed, "forms": measure_forms, "fanout": measure_fanout}


if __name__ == "__main__":
    main()
