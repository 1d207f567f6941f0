"""What adoption costs: macro F1 of students less that of their teachers, on MiniLM.

For each set, a full fine-tune learns from labelled examples and is published. It then teaches other
texts, whose labels nobody reads, to tasks that share the backbone: `nunatak adopt`. Both are scored
on the same test examples. What the registry holds is not trained again, and finished students stay
in the work folder. Other numbers of examples have a registry and students of their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time

from pydantic import BaseModel, ConfigDict, JsonValue

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.sets import Row, read_part
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry, TaskNotFoundError
from nunatak_training.kinds import Metric
from nunatak_training.run_settings import read_settings
from nunatak_training.scoring.evaluation import label_pair_statistics
from nunatak_training.scoring.statistics import Statistic, Statistics, bootstrap_intervals
from nunatak_training.teachers import TeacherChoice
from nunatak_training.train import TrainOutcome, TrainSettings, train
from nunatak_training.trunk import DiskTrunkStore

WORK = Path(".bench/adopt")
PREFIX = "decisions.adopt"
SETS = ("trec", "snips_intent", "sst2", "cola", "subj")
DEV_ROWS = 300
Named = Mapping[str, JsonValue]
Parts = Mapping[str, Sequence[Row]]
COMMON: Named = {"max_length": 64, "metric": "f1_macro"}
TEACHER: Named = {"method": "full", "learning_rate": 2e-4, "epochs": 3}
WAY = "top-3"
STUDENT: Named = {"method": "topk", "layers": 3}


class Student(BaseModel):
    """A task that a teacher has taught."""

    model_config = ConfigDict(frozen=True)

    teacher: float
    own: float
    """Macro F1 on the test examples, as the teacher's."""
    agreement: float
    gap: tuple[float, float]
    """The bounds at 95 % of `own` less `teacher`, by a paired bootstrap of the test examples."""
    seconds: float
    """CPU time of the whole adoption, with asking and publishing."""


def main() -> None:
    parser = figures_parser(__doc__, data=True)
    parser.add_argument("sets", nargs="*", default=list(SETS), help="sets to adopt")
    parser.add_argument("--rows", type=int, default=1000, help="labelled examples of a teacher")
    parser.add_argument("--texts", type=int, default=2000, help="texts without labels")
    parser.add_argument("--test", type=int, default=1500, help="most test examples")
    options, sheet = open_sheet(parser)
    backbone, sizes = load_backbone(), (options.rows, options.texts, options.test)
    work = WORK / "-".join(map(str, sizes))
    with Registry.open(work / "registry") as registry:
        for name in options.sets:
            parts, file = parts_of(options.data / name, *sizes), work / f"{name}-{WAY}.json"
            record_set(f"{name}.{WAY}", student_of(name, parts, file, registry, backbone), sheet)


def parts_of(folder: Path, rows: int, texts: int, test: int) -> dict[str, Sequence[Row]]:
    """Return labelled rows, dev rows, texts without labels, and test rows, all of them apart."""
    listed = read(folder, "train")
    return {
        "train": listed[:rows],
        "texts": [{"text": row["text"]} for row in listed[rows : rows + texts]],
        "dev": listed[-DEV_ROWS:],
        "test": read(folder, "test")[:test],
    }


def read(folder: Path, part: str) -> Sequence[Row]:
    return [{"text": row["text"], "label": row["label"]} for row in read_part(folder, part)]


def student_of(
    name: str, parts: Parts, file: Path, registry: Registry, backbone: Backbone
) -> Student:
    """Return the student in the file, or a new one; its teacher is trained if there is none."""
    task = name.replace("_", "-")
    if file.exists():
        return Student.model_validate_json(file.read_text(encoding="utf-8"))
    try:
        teacher = registry.resolve(f"{task}-full").reference
    except TaskNotFoundError:
        labelled = {it: parts[it] for it in ("train", "dev", "test")}
        teacher = run(f"{task}-full", labelled, TEACHER, registry, backbone).manifest.reference
    given = {"train": parts["texts"], "test": parts["test"]}
    started = process_time()
    choice = TeacherChoice(task=teacher)
    manifest = run(f"{task}-{WAY}", given, STUDENT, registry, backbone, choice).manifest
    record, seconds = manifest.teacher, process_time() - started
    if record is None or record.score is None or record.own_score is None:
        raise ValueError(f"{name} has no labelled test examples")
    student = Student(
        teacher=record.score.value,
        own=record.own_score.value,
        agreement=record.agreement.value,
        gap=gap_interval(parts["test"], (manifest.reference, teacher), registry, backbone),
        seconds=seconds,
    )
    file.write_text(student.model_dump_json(), encoding="utf-8")
    return student


def gap_interval(
    rows: Sequence[Row], references: tuple[str, str], registry: Registry, backbone: Backbone
) -> tuple[float, float]:
    """Return the bounds of the first version's macro F1 less the second's, on the same rows."""
    texts, expected = ([str(row[it]) for row in rows] for it in ("text", "label"))

    def score_of(reference: str) -> Statistic:
        asked = TeacherChoice(task=reference).teacher(registry, backbone)
        if asked is None:
            raise ValueError(f"{reference} gives no answers")
        said = [max(it, key=it.__getitem__) for it in asked.ask(texts) if isinstance(it, Mapping)]
        return label_pair_statistics(asked.labels, expected, said).by_metric[Metric.F1_MACRO]

    own, teacher = map(score_of, references)
    gap = Statistics(
        num_units=len(rows),
        by_metric={Metric.F1_MACRO: lambda weights: own(weights) - teacher(weights)},
    )
    return bootstrap_intervals(gap, [Metric.F1_MACRO], seed=0)[Metric.F1_MACRO]


def run(
    task: str,
    data: Parts,
    named: Named,
    registry: Registry,
    backbone: Backbone,
    teacher: TeacherChoice | None = None,
) -> TrainOutcome:
    settings = read_settings({**COMMON, **named})
    chosen = TrainSettings(task=task, data=data, settings=settings, teacher=teacher)
    return train(
        chosen, registry=registry, backbone=backbone, trunks=DiskTrunkStore(WORK / "states")
    )


def record_set(place: str, found: Student, sheet: Sheet) -> None:
    sheet.record(
        f"{PREFIX}.gap.{place}",
        [found.own - found.teacher],
        unit=f"macro F1 of the student less the teacher's {found.teacher:.3f}, test examples; "
        f"at 95 % {found.gap[0]:.3f} to {found.gap[1]:.3f}",
        goal=">= -0.01",
    )
    unit = "of the test examples have the teacher's label"
    sheet.record(f"{PREFIX}.agreement.{place}", [found.agreement], unit=unit)
    unit = "s of CPU time for the adoption, with asking and publishing, one thread"
    sheet.record(f"{PREFIX}.seconds.{place}", [found.seconds], unit=unit, goal="<= 600")


if __name__ == "__main__":
    main()
