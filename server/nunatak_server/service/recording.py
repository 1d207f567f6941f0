"""Recording: what each version made of its rows, for those who observe predictions."""

from collections.abc import Sequence

from nunatak_server.batching.planned_rows import VersionRows
from nunatak_server.batching.rows import RowAnswer
from nunatak_server.errors import ServerError
from nunatak_server.observation.records import OK, VersionRecord
from nunatak_server.service.asking import Answers


def record_versions(
    asked: Sequence[VersionRows], answers: Sequence[Answers]
) -> tuple[VersionRecord, ...]:
    """Say what each version made of its rows."""
    return tuple(_record(rows, answer) for rows, answer in zip(asked, answers, strict=True))


def _record(asked: VersionRows, answer: Answers) -> VersionRecord:
    outcomes = answer if isinstance(answer, list) else []
    failures = [it for it in outcomes if isinstance(it, ServerError)]
    computed = [it for it in outcomes if isinstance(it, RowAnswer)]
    failed = failures[0] if isinstance(answer, list) and failures else answer
    return VersionRecord(
        task=asked.manifest.task,
        version=asked.manifest.version,
        outcome=OK if isinstance(failed, list) else failed.code,
        num_rows=len(asked.rows),
        num_tokens=sum(row.trunk_tokens + row.branch_tokens for row in asked.rows),
        slowest=max(computed, key=_total_s, default=None),
    )


def _total_s(answer: RowAnswer) -> float:
    return answer.queue_s + answer.compute_s
