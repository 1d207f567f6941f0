"""The parity probe of stored versions: does each still compute what its publisher recorded?"""

from collections.abc import Collection

from nunatak_artifact import ArtifactError, load_task
from nunatak_cli.views.checks import Check
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_model import DEFAULT_BACKBONE, Backbone, ModelError, load_backbone
from nunatak_registry import Registry, RegistryError


def prove_version(registry: Registry, reference: TaskReference, *, source: str | None) -> None:
    """Load one version as a server would; return only if it may be served.

    Raises:
        RegistryError: there is no such version, or its bytes are damaged.
        ModelError: the backbone cannot be loaded, or the parameters do not fit it.
        ArtifactError: it is of another backbone, has no effect, or fails its probe.
    """
    manifest = registry.resolve(reference)
    data = registry.read_blob(manifest)
    load_task(manifest, data, load_backbone(source or DEFAULT_BACKBONE))


def probe_versions(
    registry: Registry, task: str | None, *, skipped: Collection[str], source: str | None
) -> list[Check]:
    """Load every version but the `skipped` ones as a server would, and report what fails.

    Raises:
        ModelError: the backbone cannot be loaded.
    """
    backbone = load_backbone(source or DEFAULT_BACKBONE)
    names = [summary.name for summary in registry.tasks()] if task is None else [task]
    manifests = [manifest for name in names for manifest in registry.versions(name)]
    checks = (
        _probe(registry, manifest, backbone)
        for manifest in manifests
        if manifest.reference not in skipped
    )
    return [check for check in checks if check is not None]


def _probe(registry: Registry, manifest: TaskManifest, backbone: Backbone) -> Check | None:
    if manifest.backbone.digest != backbone.digest:
        return Check(
            subject=manifest.reference,
            kind="not_probed",
            is_error=False,
            message=f"trained on backbone {manifest.backbone.name!r}; name it with --backbone",
        )
    try:
        load_task(manifest, registry.read_blob(manifest), backbone)
    except (RegistryError, ModelError, ArtifactError) as error:
        return Check(subject=manifest.reference, kind=error.code, is_error=True, message=str(error))
    return None
