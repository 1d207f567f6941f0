"""The figures that the page of the papers names, each from the lines of runs."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from benchmarks.papers.claims import Estimate, estimate
from benchmarks.papers.elsa_memory import MEMORY, Memory, read_memory
from benchmarks.papers.elsa_table import (
    LEFT_OUT,
    TASK_TARGET,
    ElsaTable,
    best_table,
    elsa_tables,
    named,
)
from benchmarks.papers.lines import PaperRun, read_lines
from nunatak_training.sweeps.reporting import num_frozen, regularizer_label
from nunatak_training.sweeps.results import Finished

Lines = Mapping[str, Sequence[PaperRun]]
"""Finished runs by the name of their file."""
Figures = dict[str, Estimate]
SENTENCES = {"ud_ewt_pos": "pos", "wikiann_en": "ner", "conll2003_en": "conll", "xnli_en": "xnli"}
"""The names of the sets of zero-shot transfer in figures."""
LEAST_RESOURCED = ("hi", "sw", "th", "ur")
"""The languages of the sets with the fewest texts in the pretraining of XLM-R and its kin."""
ADAPTERS = "adapters"
SFT, SFT_WITHOUT_DROPOUT = "dropout 0.2", "dropout 0"
"""The sweep's names for standard fine-tuning with dropout at GradDrop's rate, and without."""
By = Mapping[str, Mapping[int, float]]
"""Scores by method and seed."""


def read_all(folder: Path) -> Lines:
    found = dict[str, Sequence[PaperRun]]()
    for file in sorted(folder.glob("*.jsonl")):
        if file.stem != MEMORY:
            found[file.stem] = [it for it in read_lines(file) if isinstance(it.outcome, Finished)]
    return found


def all_figures(folder: Path) -> Figures:
    return figures_of(read_all(folder)) | memory_figures(read_memory(folder))


def figures_of(lines: Lines) -> Figures:
    return {
        **elsa_figures("mpnet", lines.get("elsa-mpnet", ())),
        **elsa_figures("minilm", lines.get("elsa-minilm", ())),
        **adapter_figures(lines.get("adapter", ())),
        **rate_figures(lines.get("robustness", ())),
        **graddrop_figures(lines.get("graddrop", ())),
        **zeroshot_figures(lines.get("zeroshot", ())),
    }


def elsa_figures(model: str, runs: Sequence[PaperRun]) -> Figures:
    """Return the quality kept at each depth, and what the papers say about its course."""
    best = best_table(elsa_tables(runs))
    if best is None:
        return {}
    table, prefix, found = best[1], f"elsa.{model}", Figures()
    for frozen in table.depths:
        over = f"mean of {named(table.learned)}, {table.num_steps} steps"
        average = replace(table.average(frozen), of=over)
        found[f"{prefix}.relative.n{frozen}"] = average
        kept = [list(shares.values()) for shares in table.kept(frozen).values()]
        found[f"{prefix}.tasks90.n{frozen}"] = estimate(
            [mean(it >= TASK_TARGET for it in shares) for shares in kept]
        )
    found[f"{prefix}.point90"] = point90(table)
    lowest, top = table.depths[0], table.num_layers
    fourth = top - top // 4
    if {top - 1, top} <= set(table.depths) and lowest < top - 1:
        steps = [steepness(table, seed, lowest) for seed in seeds_of(table)]
        found[f"{prefix}.steepness"] = estimate(steps)
    if fourth in table.depths and LEFT_OUT in table.learned and len(table.learned) > 1:
        behind = [
            mean(it for task, it in shares.items() if task != LEFT_OUT) - shares[LEFT_OUT]
            for shares in table.kept(fourth).values()
        ]
        found[f"{prefix}.cola_behind"] = estimate(behind)
    return {name: replace(it, num_steps=table.num_steps) for name, it in found.items()}


def seeds_of(table: ElsaTable) -> list[int]:
    """The seeds that every learned task has at every depth."""
    return sorted(set[int].intersection(*(set(table.kept(it)) for it in table.depths)))


def point90(table: ElsaTable) -> Estimate:
    """The most frozen layers at which each task but CoLA keeps 90 %; 0: none.

    A depth without runs may keep them too, so the interval ends before the next depth with runs.
    """
    seeds, depths = seeds_of(table), table.depths
    points = [point_of(table, seed) for seed in seeds]
    following = [
        next((it for it in depths if it > point), table.num_layers + 1) for point in points
    ]
    low, high = estimate(points), estimate([it - 1 for it in following])
    return replace(low, high=high.high, of=f"runs at {named([str(it) for it in depths])}")


def point_of(table: ElsaTable, seed: int) -> int:
    """The deepest of the depths with runs at which each task but CoLA keeps 90 % with a seed."""
    kept = {frozen: table.kept(frozen)[seed] for frozen in table.depths}
    fitting = [
        frozen
        for frozen, shares in kept.items()
        if all(it >= TASK_TARGET for task, it in shares.items() if task != LEFT_OUT)
    ]
    return max(fitting, default=0)


def steepness(table: ElsaTable, seed: int, lowest: int) -> float:
    """The gain of the first own layer minus the mean gain of each further own layer."""
    top = table.num_layers
    none, one, many = (mean(table.kept(it)[seed].values()) for it in (top, top - 1, lowest))
    return (one - none) - (many - one) / (top - 1 - lowest)


def memory_figures(memory: Memory) -> Figures:
    """Return the largest distance of the saved shares from the formula."""
    distances = [abs(memory.saved_private(own) - memory.formula(own)) for own in memory.ours]
    return {"elsa.mpnet.saved.distance": estimate([max(distances)])}


def adapter_figures(runs: Sequence[PaperRun]) -> Figures:
    """Return the gain of adapters over full fine-tuning at 1k examples, and of wide adapters.

    Rate and, in `adapters.gain1k`, width are those with the best dev score; scores are of test, as
    the mean over tasks.
    """
    plain = [it for it in runs if it.run.sweep == "adapter"]
    families, methods = (_by_finished_task(plain, name_of) for name_of in (family_of, method_of))
    pairs = {
        "adapters.gain1k": (families, ADAPTERS, "full"),
        "adapters.width": (methods, "bottleneck 256", "bottleneck 64"),
    }
    found = Figures()
    for name, (tasks, first, second) in pairs.items():
        gains = paired([(it[first], it[second]) for it in tasks if {first, second} <= set(it)])
        if gains:
            found[name] = estimate(gains)
    return found


def rate_figures(runs: Sequence[PaperRun]) -> Figures:
    """Return how many more learning rates suit adapters than full fine-tuning, over tasks.

    A rate suits a method if the run keeps 90 % of the method's best score with the same seed. A
    rate at which training diverges has no finished run.
    """
    by_task = defaultdict[str, dict[str, dict[int, list[float]]]](
        lambda: {ADAPTERS: defaultdict(list), "full": defaultdict(list)}
    )
    for it in runs:
        by_task[it.run.task][family_of(it)][it.run.recipe.seed].append(it.finished.score)
    more = paired([(_suiting(them[ADAPTERS]), _suiting(them["full"])) for them in by_task.values()])
    if not more:
        return {}
    return {"adapters.rates": replace(estimate(more), of=f"mean of {named(sorted(by_task))}")}


def _suiting(scores: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {seed: sum(it >= TASK_TARGET * max(of) for it in of) for seed, of in scores.items()}


def _by_finished_task(runs: Sequence[PaperRun], name_of: Callable[[PaperRun], str]) -> list[By]:
    """The scores of each task that has runs of every method."""
    wanted = {name_of(it) for it in runs}
    found = [
        at_best_rate([it for it in runs if it.run.task == task], name_of)
        for task in sorted({it.run.task for it in runs})
    ]
    return [it for it in found if set(it) == wanted]


def graddrop_figures(runs: Sequence[PaperRun]) -> Figures:
    """Return the gain of each variant over both controls, over the sets that have all variants."""
    by_task = defaultdict[str, dict[str, dict[int, float]]](lambda: defaultdict(dict))
    for it in runs:
        constant = ", constant" if it.run.recipe.schedule == "constant" else ""
        name = f"{regularizer_label(it.run.recipe)}{constant}"
        by_task[it.run.task][name][it.run.recipe.seed] = it.finished.score
    wanted = {name for variants in by_task.values() for name in variants}
    whole = {task: it for task, it in by_task.items() if set(it) == wanted}
    over = f"mean of {named(sorted(whole))}" if whole else ""
    return _gains_over_controls("graddrop.gain", list(whole.values()), over=over)


def _gains_over_controls(prefix: str, tasks: Sequence[By], *, over: str = "") -> Figures:
    found = Figures()
    variants = set[str].intersection(*(set(it) for it in tasks)) if tasks else set[str]()
    for variant in sorted(variants - {SFT, SFT_WITHOUT_DROPOUT, f"{SFT}, constant"}):
        own = f"{SFT}, constant" if variant.endswith(", constant") else SFT
        for control, label in ((own, "dropout"), (SFT_WITHOUT_DROPOUT, "nodropout")):
            if control in variants and (label == "dropout" or own == SFT):
                gains = paired([(it[variant], it[control]) for it in tasks])
                if gains:
                    name = variant.partition(" ")[0].rstrip(",")
                    ending = ".constant" if own != SFT else ""
                    found[f"{prefix}.{name}{ending}.{label}"] = replace(estimate(gains), of=over)
    return found


def zeroshot_figures(runs: Sequence[PaperRun]) -> Figures:
    """Return the gains of adapters and of dropped gradients, as the mean of other languages."""
    found = Figures()
    for task, short in SENTENCES.items():
        ours = [it for it in runs if it.run.task == task and it.transfer]
        tuned = [it for it in ours if it.run.sweep == "zeroshot"]
        families = at_best_rate(tuned, family_of, transferred)
        if {ADAPTERS, "full"} <= set(families):
            gains = paired([(families[ADAPTERS], families["full"])])
            if gains:
                found[f"zeroshot.{short}.gain"] = estimate(gains)
        dropped = [it for it in ours if it.run.sweep == "zeroshot-graddrop"]
        poor = [it for it in dropped if poor_languages(it)]
        for place, them, score_of in (
            ("", dropped, transferred),
            (".least", poor, least_resourced),
        ):
            by_variant = defaultdict[str, dict[int, float]](dict)
            for it in them:
                by_variant[regularizer_label(it.run.recipe)][it.run.recipe.seed] = score_of(it)
            if by_variant:
                found |= _gains_over_controls(f"zeroshot.{short}{place}", [by_variant])
    return found


def transferred(run: PaperRun) -> float:
    return mean(run.transfer.values())


def least_resourced(run: PaperRun) -> float:
    return mean(run.transfer[it] for it in poor_languages(run))


def poor_languages(run: PaperRun) -> list[str]:
    return [it for it in run.transfer if set(it.split("_")) & set(LEAST_RESOURCED)]


def method_of(run: PaperRun) -> str:
    """The method with its size: `full`, `bottleneck 64`, `frozen 9`."""
    frozen, method = num_frozen(run.run), run.run.recipe.method
    if frozen is not None:
        return f"frozen {frozen}"
    return f"{method.kind}" + ("" if method.width is None else f" {method.width}")


def family_of(run: PaperRun) -> str:
    """The method without the width of adapters, which the dev examples then choose."""
    return ADAPTERS if run.run.recipe.method.kind == "bottleneck" else method_of(run)


def best_runs(
    runs: Sequence[PaperRun], name_of: Callable[[PaperRun], str]
) -> dict[str, list[PaperRun]]:
    """Return the runs of each method's setting with the best mean score on dev."""
    groups = defaultdict[tuple[str, str, float], list[PaperRun]](list)
    for it in runs:
        groups[name_of(it), method_of(it), it.run.recipe.learning_rate].append(it)
    chosen: dict[str, list[PaperRun]] = {}
    for (method, _, _), them in groups.items():
        chosen[method] = max(chosen.get(method, them), them, key=_dev_score)
    return chosen


def at_best_rate(
    runs: Sequence[PaperRun],
    name_of: Callable[[PaperRun], str],
    score_of: Callable[[PaperRun], float] = lambda it: it.finished.score,
) -> By:
    """Return the scores by method and seed, of the setting with the best mean score on dev."""
    return {
        method: {it.run.recipe.seed: score_of(it) for it in them}
        for method, them in best_runs(runs, name_of).items()
    }


def paired(pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]]) -> list[float]:
    """Return the mean difference over pairs for each seed that all of them have."""
    seeds = [set(side) for pair in pairs for side in pair]
    shared = sorted(set[int].intersection(*seeds)) if seeds else []
    return [mean(first[seed] - second[seed] for first, second in pairs) for seed in shared]


def _dev_score(runs: Sequence[PaperRun]) -> float:
    return mean(it.finished.scores[it.finished.metric] for it in runs)
