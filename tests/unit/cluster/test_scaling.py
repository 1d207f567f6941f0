"""Laws of the number of replicas."""

from types import SimpleNamespace

import pytest

from nunatak_cluster.scaling import wanted_replicas

TARGET_S = 0.5


@pytest.mark.parametrize(
    ("current", "queued_s", "wanted"),
    [
        pytest.param(2, [], 2, id="no report, no change"),
        pytest.param(2, [0.5, 0.5], 2, id="at the target"),
        pytest.param(2, [0.0, 1.2], 3, id="the mean counts"),
        pytest.param(4, [30.0] * 4, 8, id="at most twice as many"),
        pytest.param(3, [0.2] * 3, 3, id="a short queue is no reason to have fewer"),
        pytest.param(3, [0.0] * 3, 2, id="one fewer at a time"),
        pytest.param(1, [0.0], 1, id="never none"),
    ],
)
def test_replicas_follow_the_seconds_of_work_in_their_queues(
    current: int, queued_s: list[float], wanted: int
) -> None:
    assert wanted_replicas(current=current, queued_s=queued_s, target_s=TARGET_S) == wanted


# Ray's own settings use old ways of pydantic.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_a_replica_has_one_backbone_whatever_the_environment_of_its_node_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'nunatak[ray]')")
    from nunatak_cluster.serving import replica_settings  # noqa: PLC0415 - imports Ray Serve

    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="a"))
    monkeypatch.setattr("ray.serve.get_replica_context", lambda: context)
    monkeypatch.setenv("NUNATAK_OTHER_BACKBONES", "bert-base")

    settings = replica_settings({"backbone": "minilm"})

    assert settings.all_backbones() == ("minilm",)
    assert settings.replica_id == "a"
