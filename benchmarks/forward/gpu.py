"""The mixed forward on a CUDA device: first whether it is right, then how fast it is.

The backbone has the shape of RoBERTa base, in bfloat16, with random weights; speed does not depend
on their values. Each part runs in a process of its own under a time limit. All parts end within
eight minutes, and a failed part does not stop the others. Without a device the benchmark measures
nothing and prints so.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    Encoding,
    Row,
    TrunkGraphs,
    build_branch,
    convert_branch,
    forward,
    load_backbone,
    pack_backbone,
    trunk_graphs,
)

NUM_TASKS, DRAWN_TASKS = 64, 8
"""Tasks of a batch; and the number of distinct tasks, where drawing all of them takes too long."""
MEAN_LENGTH, LENGTH_DEVIATION = 32, 8
DTYPE = torch.bfloat16
CEILING_WIDTH, CEILING_REPEATS = 8192, 20
MODULE = "benchmarks.forward.gpu"
TESTS = ROOT / "tests" / "gpu"


CHECKS_LIMIT_S, MEASURE_LIMIT_S = 170.0, 140.0
"""Seconds that the checks, and each measurement, may take from start to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The backbone as a server on the device holds it, and where tasks are drawn."""

    folder: Path
    host: Backbone
    served: Backbone
    graphs: TrunkGraphs | None


def main() -> None:
    """Run all parts, or measure one."""
    parser = figures_parser(__doc__, rounds=15)
    parser.add_argument("--part", choices=list(MEASURES), help="measure this alone, without limit")
    options, sheet = open_sheet(parser)
    if not torch.cuda.is_available():
        print("nothing was measured: torch finds no CUDA device here")
        return
    if options.part is None:
        sys.exit(run_parts(options.rounds, options.figures))
    with_setting(partial(MEASURES[options.part], sheet))


def run_parts(rounds: int, figures: Path) -> int:
    """Check, then measure, each under its limit; return 1 if any failed."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    failed = run_part("checks", ["-m", "pytest", "-q", str(TESTS)], limit_s=CHECKS_LIMIT_S)
    for name in MEASURES:
        options = ["--part", name, "--rounds", str(rounds), "--figures", str(figures)]
        failed |= run_part(name, ["-m", MODULE, *options], limit_s=MEASURE_LIMIT_S)
    return failed


def run_part(name: str, arguments: Sequence[str], *, limit_s: float) -> int:
    """Run python with these arguments, and end it at its limit; return 1 if it failed."""
    started = time.perf_counter()
    try:
        result = subprocess.run([sys.executable, *arguments], check=False, timeout=limit_s)  # noqa: S603
        outcome, failed = f"ended with {result.returncode}", int(result.returncode != 0)
    except subprocess.TimeoutExpired:
        outcome, failed = f"was ended at its limit of {limit_s:g} s", 1
    print(f"-- {name} {outcome} after {time.perf_counter() - started:.0f} s", flush=True)
    return failed


def with_setting(measure: Callable[[Setting], None]) -> None:
    """Load the backbone and transformers' encoder, and measure."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = backbone_folder(Shape.ROBERTA_BASE, Path(name))
        served = pack_backbone(load_backbone(folder, dtype=DTYPE, device="cuda"))
        setting = Setting(
            folder=folder,
            host=load_backbone(folder, dtype=DTYPE),
            served=served,
            graphs=trunk_graphs(served),
        )
        measure(setting)


def measure_mixed(sheet: Sheet, setting: Setting) -> None:
    """64 texts, each to a low-rank task of its own, against peft; and the trunk alone."""
    encodings = random_encodings(
        normal_lengths(NUM_TASKS), vocabulary=setting.host.config.vocab_size
    )
    tasks = [
        random_task(setting.host, Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE), seed=seed)
        for seed in range(NUM_TASKS)
    ]
    rows = rows_of(encodings, [on_device(task, setting) for task in tasks])
    adapted = peft_model(load_encoder(setting.folder), tasks).to("cuda")  # pyright: ignore[reportArgumentType]
    named = moved(padded_batch(encodings, tasks, range(NUM_TASKS)))
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


def measure_trunk(sheet: Sheet, setting: Setting, encodings: Sequence[Encoding]) -> None:
    """Speed of the trunk on the same texts, as a share of the device's matrix products."""
    (task,) = drawn_tasks(setting, HeadOnly(), 1)
    rows = rows_of(encodings, [on_device(task, setting)] * len(encodings))
    systems = [system("nunatak", partial(mixed, setting, rows))]
    if setting.graphs is not None:
        replayed = partial(mixed, setting, rows, graphs=setting.graphs)
        systems.append(system("nunatak.graphs", replayed))
    clocks = {"products": partial(products_seconds, setting, sum(map(len_of, encodings)))}
    times = race(systems, rounds=sheet.rounds, clocks=clocks)
    check_replayed(setting)
    prefix = "gpu.forward.trunk64.bf16"
    sheet.record_times(prefix, times)
    peak = ceiling_flops()
    sheet.record(f"{prefix}.peak", [peak / 1e12], unit="TFLOP/s of one large product")
    flops = product_flops(setting.served, sum(map(len_of, encodings)))
    for name in (it.name for it in systems):
        samples = ratios(times, "products", name)
        sheet.record(f"{prefix}.ceiling.{name}", samples, unit="of the speed of its products")
        shares = [flops / one / peak for one in times[name]]
        sheet.record(f"{prefix}.share.{name}", shares, unit="of the speed of one large product")


def check_replayed(setting: Setting) -> None:
    """Raise if replays were turned off: the measured times would then be times of launches."""
    if setting.graphs is not None and not setting.graphs.can_run([1]):
        raise RuntimeError("a recording failed or differed: the warning above says why")


def measure_fanout(sheet: Sheet, setting: Setting) -> None:
    """One text to 64 top-1 tasks, against one dedicated forward of transformers."""
    (encoding,) = random_encodings([MEAN_LENGTH], vocabulary=setting.host.config.vocab_size)
    tasks = drawn_tasks(setting, TopK(num_layers=1), DRAWN_TASKS)
    branches = [on_device(tasks[index % len(tasks)], setting) for index in range(NUM_TASKS)]
    rows = rows_of([encoding] * NUM_TASKS, branches)
    (alone,) = drawn_tasks(setting, HeadOnly(), 1)
    encoder = load_encoder(setting.folder)
    encoder.to("cuda")  # pyright: ignore[reportArgumentType, reportUnknownMemberType] - untyped
    batch = moved(padded_batch([encoding], [alone], [0]))
    dedicated = partial(answer_dedicated, encoder, batch)
    systems = [system("nunatak", partial(mixed, setting, rows))]
    if setting.graphs is not None:
        replayed = partial(mixed, setting, rows, graphs=setting.graphs)
        systems.append(system("nunatak.graphs", replayed))
    own = partial(mixed, setting, rows_of([encoding], [on_device(alone, setting)]))
    with torch.inference_mode():
        agree(own(), dedicated())
    times = race(systems, rounds=sheet.rounds, clocks={"dedicated": partial(seconds, dedicated)})
    check_replayed(setting)
    unit = "times one dedicated forward"
    for identifier, name in (("", "nunatak"), (".graphs", "nunatak.graphs")):
        if name in times:
            samples = ratios(times, name, "dedicated")
            sheet.record(f"gpu.forward.fanout64{identifier}", samples, unit=unit, goal="<= 1.5")
    sheet.record_times("gpu.forward.fanout64", times)


def mixed(setting: Setting, rows: Sequence[Row], *, graphs: TrunkGraphs | None = None) -> Tensor:
    """One mixed forward, answers on the host."""
    return torch.stack(forward(setting.served, rows, graphs=graphs)).cpu()


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


def moved(batch: PaddedBatch) -> PaddedBatch:
    """The batch on the device."""
    return PaddedBatch(
        indices=batch.indices,
        inputs={name: tensor.cuda() for name, tensor in batch.inputs.items()},
        tasks=batch.tasks,
        head_weight=batch.head_weight.cuda(),
        head_bias=batch.head_bias.cuda(),
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
    narrow = torch.randn(num_tokens, config.hidden_width, device="cuda", dtype=DTYPE)
    wide = torch.randn(num_tokens, config.intermediate_width, device="cuda", dtype=DTYPE)

    def run() -> None:
        for layer in setting.served.layers:
            for linear in (layer.qkv, layer.attention_output, layer.feedforward_in):
                functional.linear(narrow, linear.weight, linear.bias)
            functional.linear(wide, layer.feedforward_out.weight, layer.feedforward_out.bias)
        torch.cuda.synchronize()

    run()
    return seconds(run)


def ceiling_flops() -> float:
    """Operations per second of one large product."""
    x, y = (torch.randn(CEILING_WIDTH, CEILING_WIDTH, device="cuda", dtype=DTYPE) for _ in "xy")

    def run() -> None:
        functional.linear(x, y)
        torch.cuda.synchronize()

    samples = [seconds(run, 1) for _ in range(CEILING_REPEATS)]
    return 2.0 * CEILING_WIDTH**3 / median(samples[CEILING_REPEATS // 2 :])


def load_encoder(folder: Path) -> RobertaModel:
    """The encoder of transformers, ready for inference."""
    model = RobertaModel.from_pretrained(folder, add_pooling_layer=False, dtype=DTYPE)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped options
    return model.eval()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


MEASURES = {"mixed": measure_mixed, "fanout": measure_fanout}


if __name__ == "__main__":
    main()
