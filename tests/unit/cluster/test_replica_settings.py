"""The settings of a replica on Ray Serve."""

from types import SimpleNamespace

import pytest


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
