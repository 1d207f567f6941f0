"""Renders the figures of the mixed forward as docs/results/forward.md and its plots."""

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.plots import draw_all
from benchmarks.harness.recording import FIGURES, Figure
from nunatak_registry.cards import markdown_table

PREFIX, POINTS = "forward.", re.compile(r"\.(ms|curve|activations)\.|\.n\d+$")
"""Figures that are points of plots have no line in the tables."""
TOP = """# The mixed forward compared with its rivals

`make figures` renders this page from `figures.jsonl`: the newest figure of each identifier, as a
median with the first and last decile. In a race every system runs once a round, in shuffled
order, so that all systems see the same machine. Ratios are taken within a round. Before a race
all systems must give the same answers. Rivals whose versions clash with the project's run in
virtual environments of their own (`.bench`), as processes that take turns with the others and use
as many threads.

Each rival gets its best reasonable use: `torch.inference_mode`, inputs padded beforehand, no mask
where nothing is padded, and heads as one batched product. A rival runs one padded batch and
length-sorted batches of eight, and the faster of the two counts.
"""
SECTIONS = {
    "forward.fanout.": (
        "Fan-out",
        """One 32-token text on the shape of BERT base, 8 tasks with their own top 3 layers.
`transformers` runs 8 models of equal weights. `onnxruntime` runs one model 8 times, in float32 and
with dynamic int8 quantization; the int8 answers are only close. `bottleneck8` runs 8 tasks with
adapters in the top 3 layers, compared with `Parallel` of `adapters`, which shares its trunk too.

The bound counts layers: `T L / ((L - k) + T k)`. Batching can beat the bound. A run can
miss the bound where the weights do not fit the caches. In the curve, T dedicated forwards take T
times as long as one forward of `transformers`, which is slower than ours already at one task. The
dashed lines are therefore the bound times the measured ratio at one task, so that they show the
effect of sharing alone. A line above its dashed line gains more by sharing than the count of layers
predicts.
""",
        ("fanout-rivals.svg", "fanout-curve.svg"),
    ),
    "forward.ragged.": (
        "Ragged mixed batches",
        """32 texts on MiniLM. Their lengths are the quantiles of a log-normal distribution (median
20, sigma 0.6, at most 128 tokens). Each text is for another task: rank-8 LoRA on query and value,
or bottlenecks of 64. `transformers` runs one model per task with merged updates. The goals were
set for one padded batch (`peft.adapter_names`, `adapters.batch_split`). The headline compares
with the sorted batches, which a user has to write.

**Why figures miss.** The cause is work that hardly uses the second core: a low-rank product or an
adapter of one task has some twenty tokens, and attention runs row by row. The names of figures with
native operators ([decision 19](../decisions/0019-a-native-operator-for-cpus.md)) end in `.native`.
The ceiling is the time of the frozen linear products alone, the best of ten runs with plain and
with packed weights. The ceiling leaves out low-rank products and attention.

`all32` holds 8 rows each of `head`, `topk` (2 layers), `lora` and `bottleneck`. No peer runs such a
batch, so the rival runs one forward per text, and bottleneck tasks run without their adapters.
""",
        ("ragged-rivals.svg",),
    ),
    "forward.flat.": (
        "Flat in the number of tasks",
        """The same 32 texts, divided among 1 to 32 tasks. **Why figures miss:** each task's own
parameters run task by task on one core, while the frozen products use both cores. In bfloat16 the
products take half the time, and the calls take as long as before. Bottlenecks also read 32 times
the weights. Other forms in torch are no faster
([decision 6](../decisions/0006-packed-weights-and-attention-by-rows.md)). The
names of figures with native operators
([decision 19](../decisions/0019-a-native-operator-for-cpus.md)) end in `.native`.
""",
        ("flat.svg",),
    ),
    "forward.trunkcache.": ("Trunk cache", "A hit compared with a miss.\n", ()),
    "forward.int8.": (
        "The backbone in integers",
        """`+int8` ([decision 12](../decisions/0012-the-backbone-in-integers.md)) compared with the
same forward in floating point: 32 texts on MiniLM, 16 on the shape of BERT base. Task parameters,
norms, attention and non-linearities stay in float32. Their share of the time grows as the width
shrinks.
""",
        (),
    ),
    "forward.architecture.": (
        "Every architecture",
        """One forward of an encoder with 12 layers of width 768: 32 texts with the lengths of the
ragged batches, or (`long`) four texts of 128 to 512 tokens. `onnxruntime` runs the encoders that
torch's exporter by tracing can write. [The page about
architectures](../architecture/05-architectures.md) has the same figures.
""",
        (),
    ),
    "forward.bytes_per_task.": (
        "Memory",
        """Bytes that one more task takes, as a multiple of the bytes of its parameters. Each figure
is a slope over many tasks in a fresh process; each task is loaded from bytes as a server loads
it, and asked once. The figures with a goal count the live tensors, that is, what lies on the
device. `resident` counts the whole process: the Python objects around a tensor matter more for
small tensors. torch's profiler counts the peak activations, with half of the rows `head` and half
`lora`. They depend only on the tokens of a batch, so the lines of short and long rows coincide in
the plot.
""",
        ("activations.svg",),
    ),
    "forward.overhead.": (
        "Overhead",
        """Clocks around the functions that plan and pack, with [profiles](forward-profile.md) of
the same forward. `single` compares one request of 16 tokens with its task's own transformers model.
""",
        (),
    ),
}
"""The start of an identifier -> title, text and plots of its section."""
ALTS = {
    "fanout-rivals.svg": "Milliseconds for one text and 8 tasks, of every system",
    "fanout-curve.svg": "How many times faster than dedicated forwards, over the number of tasks",
    "ragged-rivals.svg": "Milliseconds for 32 texts of 32 LoRA tasks, of every system",
    "flat.svg": "Cost of a batch over the number of its tasks, with the goal",
    "activations.svg": "Peak memory of activations over the tokens of a batch",
}
"""The content of a plot in words."""


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
