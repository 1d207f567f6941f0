"""Ragged mixed batches: 32 texts of different lengths, each for another task, on MiniLM.

Each rival runs one padded batch and length-sorted batches of eight, and the faster of the two
counts. Its heads are one batched product, and its inputs are made before the measurement. With
nunatak-ops installed, its operators run in turns with torch's own operations.
"""

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.forward.rivals import (
    answer_alone,
    answer_by_adapter_names,
    answer_by_set_adapter,
    dedicated_model,
    load_encoder,
    padded_batch,
    peft_model,
)
from benchmarks.forward.worker import race_adapters
from benchmarks.harness.makers import BOTTLENECK, LORA
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import System, Times, fastest, race, ratios, seconds
from benchmarks.harness.workload import (
    NATIVE,
    Setting,
    Task,
    dtypes,
    lognormal_lengths,
    minilm_folder,
    product,
    random_encodings,
    random_tasks,
    run_products,
    served_forms,
    sorted_batches,
    states_of_layers,
)
from nunatak_contract.methods import Method
from nunatak_model import Backbone, Encoding, load_backbone

NUM_ROWS, SORTED_ROWS = 32, 8
CEILING_RUNS = 5
NAMED, SORTED = "peft.adapter_names", "peft.adapter_names.sorted"
SPLIT, SPLIT_SORTED = "adapters.batch_split", "adapters.batch_split.sorted"
PREFIX = "forward.ragged"
GOALS = {"": ">= 2.3", NATIVE: ">= 2.6"}
CEILING_GOALS = {
    ("", "fp32"): ">= 0.9",
    ("", "bf16"): ">= 0.75",
    (NATIVE, "fp32"): ">= 0.85",
    (NATIVE, "bf16"): ">= 0.8",
}


def main() -> None:
    _, sheet = open_sheet(figures_parser(__doc__, rounds=15))
    settings = [
        Setting(name=name, forms=served_forms(dtype=dtype)) for name, dtype in dtypes().items()
    ]
    race_lora(sheet, settings)
    race_bottlenecks(sheet, settings[0])


def race_lora(sheet: Sheet, settings: Sequence[Setting]) -> None:
    """Race 32 low-rank tasks: peft in all its modes, one model per task, the products alone."""
    systems = [system for setting in settings for system in lora_systems(setting)]
    ceilings = dict[str, Callable[[], float]]()
    for it in settings:
        forms = (it.backbone, load_backbone(dtype=it.backbone.dtype))
        ceilings[it.label("ceiling")] = partial(ceiling_seconds, forms)
    times = race(systems, rounds=sheet.rounds, clocks=ceilings)
    for setting in settings:
        record_lora(sheet, setting, times)
    if len(settings) > 1:
        named = fastest(times, [settings[0].label(NAMED), settings[0].label(SORTED)])
        samples = ratios(times, named, settings[1].label("nunatak"))
        unit = "times faster in bf16 than peft adapter_names in fp32"
        sheet.record(f"{PREFIX}.lora32.bf16_vs_peft_fp32", samples, unit=unit, goal=">= 3.5")
    sheet.record_times(f"{PREFIX}.lora32", times)


def record_lora(sheet: Sheet, setting: Setting, times: Times) -> None:
    named = fastest(times, [setting.label(NAMED), setting.label(SORTED)])
    for form in setting.forms:
        prefix, ours = f"{PREFIX}.lora32.{setting.name}{form}", setting.label(f"nunatak{form}")
        unit = "times faster than peft adapter_names"
        sheet.record(prefix, ratios(times, named, ours), unit=unit, goal=GOALS[form])
        for rival in (NAMED, SORTED, "peft.set_adapter", "transformers"):
            samples = ratios(times, setting.label(rival), ours)
            sheet.record(f"{prefix}.vs.{rival}", samples, unit=f"times faster than {rival}")
        samples, unit = (
            ratios(times, setting.label("ceiling"), ours),
            "of the speed of its products",
        )
        goal = CEILING_GOALS[form, setting.name]
        sheet.record(f"{PREFIX}.ceiling.{setting.name}{form}", samples, unit=unit, goal=goal)


def lora_systems(setting: Setting) -> list[System]:
    """Return the mixed forward, peft in three modes, and one transformers model per task."""
    methods = [LORA] * NUM_ROWS
    encodings, tasks = random_requests(setting.backbone, methods)
    batch = partial(padded_batch, encodings, tasks)
    lengths = [encoding.num_tokens for encoding in encodings]
    one = [batch(range(NUM_ROWS))]
    several = [batch(indices) for indices in sorted_batches(lengths, SORTED_ROWS)]
    alone = [batch([index]) for index in range(NUM_ROWS)]
    encoder = load_encoder(minilm_folder(), setting.backbone.dtype)
    models = [dedicated_model(encoder, task) for task in tasks]
    # peft changes the encoder that it wraps, so peft gets its own encoder.
    adapted = peft_model(load_encoder(minilm_folder(), setting.backbone.dtype), tasks)
    answers = {
        **setting.runs(encodings, methods),
        NAMED: partial(answer_by_adapter_names, adapted, one),
        SORTED: partial(answer_by_adapter_names, adapted, several),
        "peft.set_adapter": partial(answer_by_set_adapter, adapted, alone),
        "transformers": partial(answer_alone, models, encodings),
    }
    return [setting.system(name, answer) for name, answer in answers.items()]


def race_bottlenecks(sheet: Sheet, setting: Setting) -> None:
    encodings, tasks = random_requests(setting.backbone, [BOTTLENECK] * NUM_ROWS)
    runs = setting.runs(encodings, [BOTTLENECK] * NUM_ROWS)
    batches = {
        SPLIT: [list(range(NUM_ROWS))],
        SPLIT_SORTED: sorted_batches([text.num_tokens for text in encodings], SORTED_ROWS),
    }
    cases = {
        name: {"composition": "batch_split", "batches": each} for name, each in batches.items()
    }
    job = (minilm_folder(), BOTTLENECK, tasks, runs, encodings, cases)
    times = race_adapters(*job, rounds=sheet.rounds)
    prefix = f"{PREFIX}.bottleneck32.{setting.name}"
    for form in setting.forms:
        ours = f"nunatak{form}"
        samples = ratios(times, fastest(times, batches), ours)
        unit = "times faster than adapters BatchSplit"
        sheet.record(f"{prefix}{form}", samples, unit=unit, goal=GOALS[form])
        for rival in batches:
            samples, unit = ratios(times, rival, ours), f"times faster than {rival}"
            sheet.record(f"{prefix}{form}.vs.{rival}", samples, unit=unit)
    sheet.record_times(prefix, times)


def random_requests(
    backbone: Backbone, methods: Sequence[Method]
) -> tuple[list[Encoding], list[Task]]:
    lengths = lognormal_lengths(len(methods))
    encodings = random_encodings(lengths, vocabulary=backbone.config.vocab_size)
    return encodings, random_tasks(backbone, methods)


def ceiling_seconds(forms: Sequence[Backbone]) -> float:
    """Return the time of the frozen products alone: the fastest run of several of each form.

    Low-rank products and attention are left out, so the mixed forward is slower.
    """
    states = states_of_layers(forms[0], lognormal_lengths(NUM_ROWS))
    runs = [partial(run_products, it, *states, apply=product) for it in forms]
    return min(seconds(run, 1) for run in runs for _ in range(CEILING_RUNS))


if __name__ == "__main__":
    main()
