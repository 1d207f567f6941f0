"""The page and the plot of the race of gateways, from the newest figures."""
# pyright: reportUnknownMemberType=false
# matplotlib leaves the keyword arguments of its methods untyped.

from pathlib import Path
from statistics import mean

from matplotlib import pyplot as plt
from matplotlib.figure import Figure as Drawing

from benchmarks.harness.palette import LOOKS, OURS
from benchmarks.harness.plots import Figures, points
from benchmarks.harness.recording import FIGURES, Figure
from benchmarks.savings.systems import System
from nunatak_registry.cards import markdown_table

PREFIX = "race."
PLOT = "race.svg"
SHAPES = {
    "modernbert": "The shape of mmBERT base (ModernBERT, 22 layers, 307 million parameters)",
    "minilm": "MiniLM (6 layers, 22 million parameters)",
}
"""Titles of the sections; the weights of the first shape are random."""
MEASURES = {
    "sequential_per_s": "alone, requests/s",
    "sequential_p50_ms": "p50, ms",
    "sequential_p95_ms": "p95, ms",
    "c16_per_s": "16 clients, requests/s",
    "c16_p50_ms": "p50 of 16, ms",
    "c16_p95_ms": "p95 of 16, ms",
    "pss_mib": "PSS, MiB",
    "rss_mib": "RSS, MiB",
}
WAYS = {
    "full": "full fine-tune",
    "top-3": "three top layers",
    "lora-middle": "LoRA from the middle",
    "head": "head alone",
    "shared": "shared, chosen",
}
TOP = """# Five classifiers about every text

A gateway asks several questions about each text: which intent, an attack, which topic. This race
compares one server whose five tasks share a frozen trunk with servers that hold five full models.
All systems serve the same five tasks and give the same answers. `make race` repeats the speeds.

- **Nunatak** serves a mix: two tasks with three own top layers, one with low-rank updates (rank 16,
  all maps) in the upper half of the layers, and two heads.
- **Packed linears, one full model per task**: transformers' models in one process. Each model has a
  scheduler that batches up to 8 waiting rows. Its linear layers are packed by oneDNN. Encoder
  runtimes of gateways, such as the one of vLLM's semantic router, are built this way. That runtime
  is in no package index, so its architecture races in its place.
- **Nunatak, one full model per task**: our engine with five `full` tasks, which share nothing.
- **transformers** and **onnxruntime** as they come, one model after another.
- Text Embeddings Inference does not race: no package index has its binary.

Texts have 32 words in the mean, and no text comes twice. Each system runs alone on all cores; the
client is a process of its own on the same cores. Ratios are over the better of the two systems of
five packed full models, in each measure and within a round.

**What limits the ratios.** Five full models compute 30 layers of MiniLM for a text, and the mix
computes 15: three shared layers, three frozen layers of the heads, three with low-rank updates, and
two times three own layers. So the count of layers allows a ratio of 2.0 on MiniLM, and of 2.8 on
ModernBERT (39 of 110 layers). On MiniLM five copies of the weights are only 430 MiB. The
interpreter, its libraries and our trunk cache take as much memory with one task as with five.
"""
QUALITY = """## Speed and quality

Sharing is worth its speed only if the answers stay good. Five sets of the kinds that gateways ask
about are trained on MiniLM, each way with the same examples and epochs. A full fine-tune tries two
learning rates. *Shared, chosen* is the better of three top layers and LoRA from the middle. Dev
examples alone choose, and test examples score. The gap is full fine-tunes minus *shared, chosen*.
"""


def write_race(figures: Figures, folder: Path = FIGURES.parent) -> None:
    """Write the page and its plot, if there are figures."""
    if not any(name.startswith(PREFIX) for name in figures):
        return
    drawing = draw(figures)
    if drawing is not None:
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        drawing.savefig(folder / "plots" / PLOT, metadata={"Date": None})
        plt.close(drawing)
    text = page(figures, has_plot=drawing is not None)
    (folder / "race.md").write_text(text, encoding="utf-8")


def page(figures: Figures, *, has_plot: bool) -> str:
    """Return the whole page; sections without figures are left out."""
    parts = [TOP, *(_shape(figures, name, title) for name, title in SHAPES.items())]
    quality = _quality(figures)
    if quality:
        parts += [QUALITY, quality]
    if has_plot:
        alt = "Requests per second over the mean macro F1, of each way to serve five tasks"
        parts.append(f"![{alt}](plots/{PLOT})\n")
    ours = [it for name, it in figures.items() if name.startswith(PREFIX)]
    if not any(name.endswith(".bf16") for name in figures if name.startswith(PREFIX)):
        parts.append(
            "bfloat16 was not measured: this CPU has no bfloat16 products. The option is\n"
            "`--dtype bfloat16`.\n"
        )
    parts.append("Made by:\n\n" + "".join(f"- {it}\n" for it in sorted(set(map(_maker, ours)))))
    return "\n".join(part for part in parts if part)


def _maker(figure: Figure) -> str:
    return f"`{figure.command}`, {figure.hardware}, {figure.date}"


def _shape(figures: Figures, shape: str, title: str) -> str:
    parts = ("sequential", "c16.p95", "memory")
    names = [f"race.five.{part}.{shape}{it}" for it in ("", ".bf16") for part in parts]
    goals = [figures[name] for name in names if name in figures]
    if not goals:
        return ""
    rows = (
        (f"`{it.id}`", f"{it.value:.3g} {it.unit}", _deciles(it), it.goal or "", _mark(it))
        for it in goals
    )
    ratios = markdown_table(("figure", "median", "deciles (rounds)", "goal", "met"), rows)
    reasons = "".join(f"- `{it.id}` misses: {it.reason}\n" for it in goals if it.reason)
    return f"## {title}\n\n{ratios}\n{_systems(figures, shape)}" + (
        f"\n{reasons}" if reasons else ""
    )


def _systems(figures: Figures, shape: str) -> str:
    found = points(figures, rf"race\.five\.{shape}\.([a-z_]+)\.([a-z0-9_]+)")
    systems = [system for system in System if any(name == system for name, _ in found)]
    rows = ([name.heading, *(_value(found.get((name, it))) for it in MEASURES)] for name in systems)
    return markdown_table(("system", *MEASURES.values()), rows)


def _quality(figures: Figures) -> str:
    scores = f1_scores(figures)
    if not scores:
        return ""
    rows = [
        [name, *(f"{of_set[way]:.3f}" for way in WAYS)] for name, of_set in sorted(scores.items())
    ]
    rows.append(["**mean**", *(f"**{it:.3f}**" for it in mean_f1(figures).values())])
    rows.append(["five tasks, requests/s", *map(_speed, speeds(figures).values()), ""])
    gap = figures["race.five.f1_gap"]
    reason = f" {gap.reason}." if gap.reason else ""
    text = (
        f"`race.five.f1_gap` is {gap.value:.4f} ({_deciles(gap)}), goal {gap.goal}: "
        f"{_mark(gap)}.{reason}\n"
    )
    against = figures.get("race.five.full_against_trainer")
    if against is not None:
        text += (
            f"\nOur full fine-tune against transformers' Trainer, same settings: {against.unit}, "
            f"{against.value:.4f} ({_deciles(against)}).\n"
        )
    return f"{markdown_table(('set, macro F1', *WAYS.values()), rows)}\n{text}"


def f1_scores(figures: Figures) -> dict[str, dict[str, float]]:
    """Return the test score of each way, by set."""
    scores = dict[str, dict[str, float]]()
    for (name, way), figure in points(figures, r"race\.five\.f1\.([a-z0-9_]+)\.(.+)").items():
        scores.setdefault(name, {})[way] = figure.value
    return scores


def mean_f1(figures: Figures) -> dict[str, float]:
    """Return the mean of the sets, by way; empty without figures."""
    scores = f1_scores(figures)
    return {way: mean(of_set[way] for of_set in scores.values()) for way in WAYS if scores}


def speeds(figures: Figures) -> dict[str, float | None]:
    """Return the requests per second on MiniLM of five tasks of each way.

    The speed of full models is that of the faster system that holds five with packed layers.
    """
    found = {name: it.value for name, it in figures.items()}
    start = "race.five.minilm"
    full = [
        found.get(f"{start}.{system}.sequential_per_s", 0.0)
        for system in (System.PACKED_MODELS, System.NUNATAK_FULL)
    ]
    ours = {
        way: found.get(f"{start}.{System.NUNATAK}.sequential_per_s.{way}")
        for way in ("top-3", "lora-middle", "head")
    }
    return {"full": max(full) or None, **ours}


def draw(figures: Figures) -> Drawing | None:
    """Draw requests per second over macro F1, one point for each way on MiniLM."""
    scores = mean_f1(figures)
    found = {way: it for way, it in speeds(figures).items() if it is not None and way in scores}
    if not found:
        return None
    drawing, axes = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
    for way, per_s in found.items():
        look = LOOKS["full_models"] if way == "full" else OURS
        axes.scatter([scores[way]], [per_s], color=look.colour, marker=look.marker, s=70)
        name = "five full models, packed" if way == "full" else f"Nunatak, {WAYS[way]}"
        axes.annotate(name, (scores[way], per_s), xytext=(0, 9), textcoords="offset points",
                      ha="center", fontsize=9)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.margins(x=0.25, y=0.2)
    axes.set_xlabel("macro F1, mean of five sets")
    axes.set_ylabel("requests/s, five tasks each, one after another")
    axes.set_title("Five classifiers about every text, MiniLM, fp32")
    return drawing


def _deciles(figure: Figure) -> str:
    return f"{figure.low:.3g} to {figure.high:.3g}, {figure.runs} runs"


def _mark(figure: Figure) -> str:
    return {None: "", True: "met", False: "**missed**"}[figure.met]


def _value(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:.4g}"


def _speed(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s:.4g}"
