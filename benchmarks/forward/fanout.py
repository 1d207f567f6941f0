"""Fan-out: one text for many tasks, in one mixed forward and with one dedicated model per task.

The backbone has the shape of BERT base and random weights; speed does not depend on their values.
The rivals at 8 tasks are transformers, onnxruntime in float32 and in 8-bit integers, and for
bottleneck tasks the `Parallel` block of `adapters`, which shares its trunk too.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.forward.rivals import answer_alone, dedicated_model, load_encoder, own_weights
from benchmarks.forward.worker import race_adapters, running
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import (
    System,
    Times,
    clock_name,
    in_turns,
    race,
    ratios,
    require_one_thread,
    tolerance,
)
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import (
    HEAD,
    NATIVE,
    Setting,
    Task,
    dtypes,
    mixed_run,
    random_encodings,
    random_tasks,
    served_forms,
    served_integers,
    served_task,
)
from nunatak_contract.methods import Bottleneck, TopK
from nunatak_model import Backbone, BranchSpec, Encoding, parameter_shapes

NUM_LAYERS, TOP_LAYERS, NUM_TASKS, NUM_TOKENS = 12, 3, 8, 32
TOP = TopK(num_layers=TOP_LAYERS)
BOTTLENECK = Bottleneck(size=64, first_layer=NUM_LAYERS - TOP_LAYERS)
CURVE_TASKS, CURVE_LAYERS = (1, 2, 4, 8, 16, 32, 64), (1, 2, 3, 4, 5, 6)
CURVE_ROUNDS = 3
INTEGER_TOKENS = (15, 32, 128)
INTEGER_GOALS = {("int8", "onnxruntime.int8"): ">= 2.5", ("int8", "transformers.fp32"): ">= 9"}
REASONS = {
    ("int8", "onnxruntime.int8"): "sharing is bounded by 96 / 27 layers, and attention, norms and "
    "heads gain nothing from integers"
}
"""Why a goal may be missed."""
GOALS = {"": ">= 2.7", NATIVE: ">= 6"}
TIMES_FASTER = "times faster than dedicated forwards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Setting):
    """The backbone, transformers' encoder of the same weights, and the text."""

    encoder: PreTrainedModel
    encoding: Encoding


def main() -> None:
    parser = figures_parser(__doc__, rounds=15)
    parser.add_argument("--part", choices=("integers",), help="on one thread; absent: the others")
    options, sheet = open_sheet(parser)
    with tempfile.TemporaryDirectory() as name:
        folder = backbone_folder(Shape.BERT_BASE, Path(name))
        if options.part is not None:
            require_one_thread(parser)
            race_integers(sheet, folder)
            return
        settings = [read_setting(folder, name, dtype=dtype) for name, dtype in dtypes().items()]
        race_eight_tasks(sheet, settings)
        race_bottlenecks(sheet, folder, settings[0])
        for setting in settings:
            draw_curve(sheet, setting)


def read_setting(folder: Path, name: str, *, dtype: torch.dtype) -> Asked:
    forms = served_forms(folder, dtype=dtype)
    (encoding,) = random_encodings([NUM_TOKENS], vocabulary=forms[""].config.vocab_size)
    encoder = load_encoder(folder, dtype)
    return Asked(name=name, forms=forms, encoder=encoder, encoding=encoding)


def race_eight_tasks(sheet: Sheet, settings: Sequence[Asked]) -> None:
    systems = [system for setting in settings for system in local_systems(setting)]
    times = race(systems, rounds=sheet.rounds)
    prefix = f"forward.fanout.t{NUM_TASKS}.k{TOP_LAYERS}"
    for setting in settings:
        for form in setting.forms:
            ours, identifier = setting.label(f"nunatak{form}"), f"{prefix}.{setting.name}{form}"
            samples = ratios(times, setting.label("transformers"), ours)
            sheet.record(identifier, samples, unit=TIMES_FASTER, goal=GOALS[form])
    sheet.record_times(prefix, times)


def race_integers(sheet: Sheet, folder: Path) -> None:
    """Compare the mixed forward, also in integers, with dedicated models of other runtimes."""
    exact = read_setting(folder, "fp32", dtype=torch.float32)
    if NATIVE not in exact.forms:
        raise RuntimeError("the race needs nunatak-ops: build the operators (`make ops`)")
    exact = replace(exact, forms={NATIVE: exact.forms[NATIVE]})
    integers = served_integers(folder)
    if integers.ops.integers is None:
        raise RuntimeError("the native product of integers is not proven here, see the warning")
    rounded = replace(exact, name="int8", forms={"": integers})
    (task,) = random_tasks(exact.backbone, [TOP])
    weight, bias = task.head
    tensors = {**own_weights(exact.encoder, task), "head.weight": weight, "head.bias": bias}
    texts = {
        length: random_encodings([length], vocabulary=exact.backbone.config.vocab_size)[0]
        for length in INTEGER_TOKENS
    }
    job = {
        "backbone": str(folder),
        "times": NUM_TASKS,
        "texts": {length: text.token_ids for length, text in texts.items()},
    }
    with running(job, tensors, peer="onnxruntime") as worker:
        for length, text in texts.items():
            asked = [replace(it, encoding=text) for it in (exact, rounded)]
            runs = asked[1].runs([text] * NUM_TASKS, [TOP] * NUM_TASKS)
            systems = local_systems(asked[0])
            systems += [asked[1].system(name, run) for name, run in runs.items()]
            for name in ("fp32", "int8"):
                case = f"onnxruntime.{name}.{length}"
                systems.append(worker.system(case, tolerance=tolerance(name)))
            record_integers(sheet, length, race(systems, rounds=sheet.rounds))


def record_integers(sheet: Sheet, length: int, times: Times) -> None:
    """Record our speed over that of each rival on a text of `length` tokens."""
    prefix = f"forward.fanout.t{NUM_TASKS}.k{TOP_LAYERS}.len{length}"
    rivals = {
        "transformers.fp32": "transformers.fp32",
        "onnxruntime.fp32": f"onnxruntime.fp32.{length}",
        "onnxruntime.int8": f"onnxruntime.int8.{length}",
    }
    ours = {("fp32", f"fp32{NATIVE}"): f"nunatak{NATIVE}.fp32", ("int8", "int8"): "nunatak.int8"}
    for (numbers, form), own in ours.items():
        for name, system in rivals.items():
            sheet.record(
                f"{prefix}.{form}.vs.{name}",
                ratios(times, system, own),
                unit=f"times faster than {name}, 8 dedicated models, {clock_name()}",
                goal=INTEGER_GOALS.get((numbers, name)),
                reason=REASONS.get((numbers, name)),
            )
    sheet.record_times(prefix, {it.removesuffix(f".{length}"): times[it] for it in times})


def local_systems(setting: Asked) -> list[System]:
    """The mixed forward, and 8 dedicated transformers models with the same weights."""
    texts, methods = [setting.encoding] * NUM_TASKS, [TOP] * NUM_TASKS
    models = [
        dedicated_model(setting.encoder, task) for task in random_tasks(setting.backbone, methods)
    ]
    runs = {**setting.runs(texts, methods), "transformers": partial(answer_alone, models, texts)}
    return [setting.system(name, run) for name, run in runs.items()]


def race_bottlenecks(sheet: Sheet, folder: Path, setting: Asked) -> None:
    """Compare the same fan-out, with adapters in the top layers, with `Parallel`."""
    methods = [BOTTLENECK] * NUM_TASKS
    tasks, text = random_tasks(setting.backbone, methods), [setting.encoding]
    cases = {"adapters.parallel": {"composition": "parallel", "batches": [[0]]}}
    runs = setting.runs(text * NUM_TASKS, methods)
    times = race_adapters(folder, BOTTLENECK, tasks, runs, text, cases, rounds=sheet.rounds)
    prefix = f"forward.fanout.bottleneck{NUM_TASKS}.k{TOP_LAYERS}.{setting.name}"
    for form in setting.forms:
        samples = ratios(times, "adapters.parallel", f"nunatak{form}")
        sheet.record(f"{prefix}{form}", samples, unit="times faster than adapters Parallel")
    sheet.record_times(prefix, times)


def draw_curve(sheet: Sheet, setting: Asked) -> None:
    """Record the speed-up for several numbers of tasks and of own layers.

    T dedicated forwards count as T times the time of one, because they share nothing.
    """
    # The layers of eight tasks exceed every cache, so further tasks may reuse the same layers.
    deepest = TopK(num_layers=max(CURVE_LAYERS))
    pool = random_tasks(setting.backbone, [deepest] * NUM_TASKS)
    model = dedicated_model(setting.encoder, pool[0])
    alone = partial(answer_alone, [model], [setting.encoding])
    for num_tasks in CURVE_TASKS:
        runs: dict[str, Callable[[], object]] = {"alone": alone}
        for top_layers in CURVE_LAYERS:
            tasks = shallower_tasks(setting.backbone, pool, top_layers, num_tasks)
            texts = [setting.encoding] * num_tasks
            runs[f"k{top_layers}"] = mixed_run(setting.backbone, texts, tasks)
        times = in_turns(runs, CURVE_ROUNDS, 1)
        for top_layers in CURVE_LAYERS:
            samples = [num_tasks * it for it in ratios(times, "alone", f"k{top_layers}")]
            identifier = f"forward.fanout.curve.t{num_tasks}.k{top_layers}.{setting.name}"
            sheet.record(identifier, samples, unit=TIMES_FASTER)


def shallower_tasks(
    backbone: Backbone, pool: Sequence[Task], top_layers: int, num_tasks: int
) -> list[Task]:
    """Return `num_tasks` tasks with the highest layers of the tasks of the pool."""
    spec = BranchSpec(method=TopK(num_layers=top_layers), head=HEAD)
    names = parameter_shapes(spec, backbone.config)
    cut = [
        served_task(spec, {name: task.parameters[name] for name in names}, backbone)
        for task in pool
    ]
    taken = [cut[index % len(cut)] for index in range(num_tasks)]
    # A copy is a task of its own, although it holds the same tensors.
    return [replace(task, branch=replace(task.branch)) for task in taken]


if __name__ == "__main__":
    main()
