"""What metrics show, and the share of memory that one trunk saves."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from doubles.backbones import tiny_backbone
from doubles.rendering import STATE, rendered
from doubles.tasks import random_branch
from doubles.watching import watched
from nunatak_contract.methods import QUERY_AND_VALUE, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, Branch, model_size
from nunatak_server.engine.compute import BatchReport
from nunatak_server.http.middleware import prediction_fields
from nunatak_server.scheduler.rows import RowAnswer
from nunatak_server.telemetry.memory import saved_by_formula
from nunatak_server.telemetry.metrics import (
    MAX_LABEL_VALUES,
    Metrics,
    PredictionRecord,
    VersionWork,
)

LOADED, EVICTED, MOVED, HELD = (
    "nunatak_loads_total",
    "nunatak_evictions_total",
    "nunatak_alias_moves_total",
    "nunatak_task_resident_bytes",
)


def by_task(name: str, text: str) -> dict[str, float]:
    """Return a metric summed by task."""
    sums = defaultdict[str, float](float)
    lines = "\n".join(line for line in text.splitlines() if name in line)
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            if sample.name == name:
                sums[sample.labels["task"]] += sample.value
    return dict(sums)


def test_labels_beyond_the_bound_are_one_sum_by_task_and_values_are_no_labels() -> None:
    metrics = Metrics()

    metrics.observe_predicted("tone", ["calm", ("calm", "late"), (), 0.5])
    metrics.observe_predicted("many", [f"label-{it}" for it in range(MAX_LABEL_VALUES)])

    text = rendered(metrics)
    assert 'nunatak_predicted_labels_total{label="calm",task="tone"} 2.0' in text
    assert 'nunatak_predicted_labels_total{label="late",task="tone"} 1.0' in text
    assert 'nunatak_predicted_labels_total{label="other",task="many"} 2.0' in text
    assert text.count("nunatak_predicted_labels_total{") == MAX_LABEL_VALUES + 1


def record(num_tokens: int) -> PredictionRecord:
    """The record of two versions that answered, and of one whose rows nobody computed."""
    answer = RowAnswer(logits=[], queue_s=0.0, compute_s=0.0, batch_rows=1)
    work = VersionWork(
        task="tone", version=1, outcome="ok", num_rows=1, num_tokens=num_tokens, slowest=answer
    )
    late = replace(work, outcome="deadline_exceeded", slowest=None)
    return PredictionRecord(tokenize_started_at=0.0, tokenize_s=0.0, versions=(work, work, late))


def test_a_log_line_names_a_version_once_however_many_windows_a_stream_had() -> None:
    assert prediction_fields([record(1), record(2)])["tasks"] == ["tone/1"]


def test_only_the_tokens_of_computed_rows_count_for_a_caller() -> None:
    metrics = Metrics()

    metrics.observe_caller("support", status=200, predictions=[record(3), record(4)])

    assert 'nunatak_caller_tokens_total{caller="support"} 14.0' in rendered(metrics)


def test_batches_and_memory_are_shown() -> None:
    metrics = Metrics()
    report = BatchReport(
        number=1,
        num_rows=5,
        rows_of={},
        num_tokens=90,
        num_tasks=3,
        num_shared_rows=4,
        num_padding_saved=30,
        started_at=0.0,
        compute_s=0.002,
        worked_s=0.002,
    )

    metrics.observe_batch(report)
    metrics.observe_batch(replace(report, num_rows=0, num_shared_rows=0))

    text = rendered(metrics)
    assert "nunatak_shared_trunk_rows_total 4.0" in text
    assert "nunatak_batch_rows_sum 5.0" in text
    assert "nunatak_padding_saved_tokens_total 60.0" in text
    assert "nunatak_resident_tasks 2.0" in text
    assert "nunatak_resident_bytes 300.0" in text
    assert 'nunatak_tier_bytes{tier="device"} 200.0' in text
    assert 'nunatak_tier_budget_bytes{tier="device"} 1000.0' in text
    assert 'nunatak_tier_bytes{tier="host"} 700.0' in text
    assert "nunatak_pinned_bytes 50.0" in text
    assert "nunatak_loading_bytes 25.0" in text


def test_tasks_and_callers_beyond_the_bound_are_one_sum_and_nothing_is_lost() -> None:
    metrics = Metrics()
    names = [f"task-{index}" for index in range(MAX_LABEL_VALUES + 500)]

    for name in names:
        metrics.observe_load(name, seconds=0.0, succeeded=True)
        metrics.count_task("alias_moves", name)
        metrics.count_task("evictions", name)
        metrics.observe_caller(name, status=200, predictions=[])

    # The order of versions changes; a task that has a label keeps the label.
    state = replace(STATE, task_bytes=dict.fromkeys(reversed(names), 3))
    text = rendered(metrics, state)
    for name, each in ((LOADED, 1), (EVICTED, 1), (MOVED, 1), (HELD, 3)):
        found = by_task(name, text)
        assert found.pop("other") == 500 * each
        assert found == dict.fromkeys(names[:MAX_LABEL_VALUES], each)
    assert text.count('nunatak_task_resident_bytes{task="other"}') == 1
    assert text.count("nunatak_caller_requests_total{") == MAX_LABEL_VALUES + 1
    assert 'nunatak_caller_requests_total{caller="other",status="200"} 500.0' in text


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone()


def branch_of(backbone: Backbone, method: Method) -> Branch:
    return random_branch(backbone, method, num_labels=3)


def test_full_copies_save_nothing(backbone: Backbone) -> None:
    branch = branch_of(backbone, Full())

    assert saved_by_formula((backbone.config, [branch] * 3)) == pytest.approx(0)


def test_one_task_that_adds_to_all_layers_costs_more_than_its_own_model(backbone: Backbone) -> None:
    branch = branch_of(backbone, Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE))

    assert saved_by_formula((backbone.config, [branch])) < 0
    assert saved_by_formula((backbone.config, [branch] * 10)) > 0.5


def test_the_deepest_reader_decides_what_is_shared(backbone: Backbone) -> None:
    top = branch_of(backbone, TopK(num_layers=4))
    head = branch_of(backbone, HeadOnly())
    size = model_size(backbone.config, head.spec.head)

    own = sum(it.branch_parameters + it.head_parameters for it in (top, head))
    shared = size.embedding + size.num_layers * size.per_layer
    assert saved_by_formula((backbone.config, [top, head])) == pytest.approx(
        1 - (shared + own) / (2 * size.total)
    )


def test_a_version_more_costs_the_formula_one_look_at_the_backbone(backbone: Backbone) -> None:
    branch = branch_of(backbone, Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE))

    def looks(num_branches: int) -> int:
        counted = Counter[str]()
        saved_by_formula((watched(backbone.config, counted), [branch] * num_branches))
        return counted.total()

    assert looks(50) - looks(1) == 49
