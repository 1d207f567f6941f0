"""Renders the figures of the mixed forward as docs/results/forward.md and its plots."""

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.plots import draw_all
from benchmarks.harness.recording import FIGURES, Figure
from nunatak_registry.cards.markdown import markdown_table

PREFIX, POINTS = "forward.", re.compile(r"\.(ms|curve|activations)\.|\.n\d+$")
"""Figures that are points of plots have no line in the tables."""
TOP = """# The mixed forward against its rivals

Made by `make figures` from `figures.jsonl`, the newest figure of each identifier. Medians, with
first and last decile. Every system of a race runs once a round, in shuffled order, so that all
see the same machine; ratios are taken within a round. Before a race all systems have to give the
same answers. Rivals in versions that clash with the project's run in virtual environments of
their own (`.bench`), as processes that take turns with the others, with as many threads.

Rivals get their best reasonable use: `torch.inference_mode`, inputs padded beforehand, no mask
where nothing is padded, heads as one batched product; and of one padded batch and length-sorted
batches of eight the one that is faster here counts.
"""
SECTIONS = {
    "forward.fanout.": (
        "Fan-out",
        """One 32-token text on the shape of BERT base, 8 tasks with their own top 3 layers.
`transformers` runs 8 models of equal weights; `onnxruntime` runs one model 8 times, in float32 and
with dynamic int8 quantization, whose answers are only near. `bottleneck8` is the same with
adapters in the top 3 layers, against `Parallel` of `adapters`, which shares its trunk too. The
bound counts layers: `T L / ((L - k) + T k)`; batching can beat it, more weights than the caches
hold can miss it. In the curve T dedicated forwards are T times one of `transformers`, which already
at one task is slower than ours. So that only sharing is held against the bound, the dashed lines
are the bound times what was measured at one task: a line above its own gains more by sharing than
counting layers gives.
""",
        ("fanout-rivals.svg", "fanout-curve.svg"),
    ),
    "forward.ragged.": (
        "Ragged mixed batches",
        """32 texts on MiniLM, their lengths the quantiles of a log-normal distribution (median
20, sigma 0.6, at most 128 tokens), each for a task of its own: rank-8 LoRA on query and value,
or bottlenecks of 64. `transformers` is one model a task with merged updates. The goals were set
against one padded batch (`peft.adapter_names`, `adapters.batch_split`); the headline takes the
sorted batches, which a user has to write. What misses, misses most likely by what hardly uses
the second core: a low-rank product or an adapter of one task has some twenty tokens, and
attention runs row by row. The ceiling is the time of the frozen linear products alone, the best
of ten runs with plain and with packed weights; low-rank products and attention are not in it.
`all32` holds 8 rows each of `head`, `topk` (2 layers), `lora` and `bottleneck`, which no peer
runs in one batch; its rival runs one forward a text, bottleneck tasks without their adapters.
""",
        ("ragged-rivals.svg",),
    ),
    "forward.flat.": (
        "Flat in the number of tasks",
        """The same 32 texts, dealt out to 1 to 32 tasks. What is a task's own runs task by task, on
one core, while the frozen products use both. In bfloat16 the products halve and the calls do
not. Bottlenecks also read 32 times the weights.
""",
        ("flat.svg",),
    ),
    "forward.trunkcache.": ("Trunk cache", "A hit, held against a miss.\n", ()),
    "forward.int8.": (
        "The backbone in integers",
        """`+int8` ([decision 12](../decisions/0012-the-backbone-in-integers.md)) against the same
forward in floating point: 32 texts on MiniLM, 16 on the shape of BERT base. What tasks own, norms,
attention and non-linearities stay in float32, and weigh the more the smaller the width.
""",
        (),
    ),
    "forward.bytes_per_task.": (
        "Memory",
        """Bytes that a further task takes, as a multiple of its parameters' bytes: slopes over many
tasks, each loaded from bytes as a server does and asked once, in a fresh process. The figures with
a goal count the tensors alive, which is what lies on the device; `resident` is the whole process,
where the Python objects around a tensor weigh the more the smaller it is. Peak activations are
counted by torch's profiler, half of the rows `head`, half `lora`; they depend on the tokens of a
batch alone, so that in the plot the lines of short and long rows lie on one another.
""",
        ("activations.svg",),
    ),
    "forward.overhead.": (
        "Overhead",
        """Clocks around the functions that plan and pack; [profiles](forward-profile.md) of the
same forward. `single` is one request of 16 tokens beside its task's own transformers model.
""",
        (),
    ),
}
"""What an identifier starts with: title, text and plots of its section."""
ALTS = {
    "fanout-rivals.svg": "Milliseconds for one text and 8 tasks, of every system",
    "fanout-curve.svg": "How many times faster than dedicated forwards, over the number of tasks",
    "ragged-rivals.svg": "Milliseconds for 32 texts of 32 LoRA tasks, of every system",
    "flat.svg": "Cost of a batch over the number of its tasks, with the goal",
    "activations.svg": "Peak memory of activations over the tokens of a batch",
}
"""What a plot shows, in words."""


def write_forward(figures: Mapping[str, Figure], folder: Path = FIGURES.parent) -> None:
    """Write the page and the plots."""
    drawn = draw_all(figures, folder / "plots")
    (folder / "forward.md").write_text(page(figures, drawn), encoding="utf-8")


def page(figures: Mapping[str, Figure], drawn: list[str]) -> str:
    """The whole page; sections without figures are left out."""
    parts = [TOP]
    for prefix, (title, text, plots) in SECTIONS.items():
        rows = [figures[name] for name in sorted(figures) if name.startswith(prefix)]
        if rows:
            links = "".join(f"\n![{ALTS[it]}](plots/{it})\n" for it in plots if it in drawn)
            parts.append(f"## {title}\n\n{text}\n{table(rows)}{links}")
    hardware = {figure.hardware for name, figure in figures.items() if name.startswith(PREFIX)}
    parts.append(f"Measured on {'; '.join(sorted(hardware))}.\n")
    return "\n".join(parts)


def table(rows: list[Figure]) -> str:
    """Figures as lines of a table, points of plots left out."""
    header = ("figure", "median", "deciles (runs)", "goal", "met", "date")
    return markdown_table(header, (cells(it) for it in rows if not is_point(it)))


def is_point(figure: Figure) -> bool:
    """Whether a figure is shown by a plot alone."""
    return POINTS.search(figure.id) is not None


def cells(figure: Figure) -> tuple[str, ...]:
    """One line of a table."""
    return (
        f"`{figure.id}`",
        f"{figure.value:.3g} {figure.unit}",
        f"{figure.low:.3g} to {figure.high:.3g} ({figure.runs})",
        figure.goal or "",
        {None: "", True: "yes", False: "no"}[figure.met],
        figure.date,
    )
