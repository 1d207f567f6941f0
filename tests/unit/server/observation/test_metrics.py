from dataclasses import replace

from doubles.rendering import rendered
from nunatak_server.batching.batch_report import BatchReport
from nunatak_server.observation.metrics import MAX_TASK_LABELS, Metrics


def test_requests_are_counted_by_task_and_outcome() -> None:
    metrics = Metrics()

    metrics.observe_request("tone", "ok")
    metrics.observe_request("tone", "ok")
    metrics.observe_request(None, "overloaded")

    text = rendered(metrics)
    assert 'nunatak_requests_total{outcome="ok",task="tone"} 2.0' in text
    assert 'nunatak_requests_total{outcome="overloaded",task="unknown"} 1.0' in text


def test_task_labels_are_bounded() -> None:
    metrics = Metrics()

    for index in range(MAX_TASK_LABELS + 500):
        metrics.observe_request(f"task-{index}", "ok")

    text = rendered(metrics)
    assert text.count("nunatak_requests_total{") == MAX_TASK_LABELS + 1
    assert 'nunatak_requests_total{outcome="ok",task="other"} 500.0' in text


def test_batches_and_memory_are_shown() -> None:
    metrics = Metrics()
    report = BatchReport(
        number=1,
        num_rows=5,
        num_tokens=90,
        num_tasks=3,
        num_shared_rows=4,
        num_padding_saved=30,
        started_at=0.0,
        compute_s=0.002,
        has_overtaken=True,
    )

    metrics.observe_batch(report)
    metrics.observe_batch(replace(report, has_overtaken=False, num_rows=0, num_shared_rows=0))

    text = rendered(metrics)
    assert "nunatak_shared_trunk_rows_total 4.0" in text
    assert "nunatak_batch_rows_sum 5.0" in text
    assert "nunatak_padding_saved_tokens_total 60.0" in text
    assert "nunatak_overtaking_rows_total 5.0" in text
    assert "nunatak_resident_tasks 2.0" in text
    assert "nunatak_resident_bytes 300.0" in text
    assert 'nunatak_tier_bytes{tier="device"} 200.0' in text
    assert 'nunatak_tier_budget_bytes{tier="device"} 1000.0' in text
    assert 'nunatak_tier_bytes{tier="host"} 700.0' in text
    assert "nunatak_pinned_bytes 50.0" in text
    assert "nunatak_loading_bytes 25.0" in text


def test_loads_waits_and_evictions_are_counted() -> None:
    metrics = Metrics()

    metrics.observe_load(seconds=0.3, succeeded=True)
    metrics.observe_load_wait(0.7)
    metrics.observe_evictions(2)

    text = rendered(metrics)
    assert 'nunatak_loads_total{outcome="ok"} 1.0' in text
    assert "nunatak_load_seconds_sum 0.3" in text
    assert "nunatak_load_wait_seconds_sum 0.7" in text
    assert "nunatak_evictions_total 2.0" in text


def test_two_applications_in_one_process_keep_their_own_metrics() -> None:
    first, second = Metrics(), Metrics()

    first.observe_request("tone", "ok")

    assert "tone" not in rendered(second)
