"""Hostile artefacts. Each breaks one rule, and must be refused with one code."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from doubles.drafts import make_draft
from doubles.hostile_files import HOSTILE_FILES
from doubles.tasks import tiny_task
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import BlobRecord, TaskDraft, TaskManifest
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, Lora, Method, TopK
from nunatak_model import Backbone, tensors_from_bytes, tensors_to_bytes
from nunatak_registry import Registry
from nunatak_versions import load_task
from torture.tally import Tally

LIMIT_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One use of a hostile artefact, and the code of its refusal."""

    name: str
    code: str
    launch: Callable[[], object]


def attacks(registry: Registry, backbone: Backbone) -> Iterator[Attack]:
    """Yield every attack on publishing and on loading."""
    yield from _files(registry)
    yield from _lies(registry)
    yield from _tensors(backbone)
    yield from _idle(backbone)
    yield from _manifests(backbone)


def launch_all(every: list[Attack], watched: Path) -> tuple[Tally, float]:
    """Launch attacks; return their outcomes and the most CPU seconds of an attack."""
    tally = Tally(campaign="hostile artefacts", seed=0)
    longest = 0.0
    # The first load in a process also starts torch's threads and kernels, so it is not measured.
    for attack in every[-1:]:
        _outcome(attack)
    for attack in every:
        before = contents(watched)
        started = time.process_time()
        outcome = _outcome(attack)
        longest = max(longest, time.process_time() - started)
        tally.injected += 1
        if outcome != attack.code:
            tally.wrong += 1
            tally.note(f"{attack.name}: {outcome}, expected {attack.code}")
        elif contents(watched) != before:
            tally.wrong += 1
            tally.note(f"{attack.name}: something was written")
        else:
            tally.survived += 1
    return tally, longest


def contents(folder: Path) -> dict[str, str]:
    """Return every path below a folder with a digest of its content."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        )
        for path in sorted(folder.rglob("*"))
    }


def _outcome(attack: Attack) -> str:
    try:
        attack.launch()
    except NunatakError as error:
        return error.code
    except Exception as error:  # noqa: BLE001 - the campaign counts every error
        return f"{type(error).__name__}: {error}"
    return "accepted"


def _files(registry: Registry) -> Iterator[Attack]:
    draft, _ = make_draft()
    for name, data in HOSTILE_FILES.items():
        record = BlobRecord.model_construct(
            role="parameters", sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data)
        )
        hostile = draft.model_copy(update={"blobs": (record,)})
        # A record with zero bytes would break a rule of the manifest first.
        code = "invalid_artifact" if data else "invalid_manifest"
        yield Attack(name=name, code=code, launch=_publishing(registry, hostile, data))


def _lies(registry: Registry) -> Iterator[Attack]:
    draft, blobs = make_draft()
    (record,) = draft.blobs
    lies: Mapping[str, tuple[str, dict[str, object]]] = {
        "digest-of-other-bytes": ("invalid_manifest", {"sha256": "0" * 64}),
        "digest-as-path": ("invalid_manifest", {"sha256": "../" * 21 + "x"}),
        "size-too-small": ("invalid_manifest", {"size_bytes": 1}),
        "size-beyond-the-cap": ("invalid_artifact", {"size_bytes": 2**60}),
        "role-as-path": ("invalid_manifest", {"role": "../parameters"}),
    }
    for name, (code, update) in lies.items():
        lying = draft.model_copy(update={"blobs": (record.model_copy(update=update),)})
        yield Attack(name=name, code=code, launch=lambda d=lying: registry.publish(d, blobs))
    named = draft.model_copy(update={"task": "../../etc/cron.d/task"})
    yield Attack(
        name="name-as-path", code="invalid_manifest", launch=lambda: registry.publish(named, blobs)
    )


def _tensors(backbone: Backbone) -> Iterator[Attack]:
    draft, blobs = tiny_task(backbone)
    tensors = tensors_from_bytes(blobs["parameters"])
    first = next(iter(tensors))
    head = "head.output.weight"
    changes: Mapping[str, tuple[str, dict[str, Tensor]]] = {
        "nan": ("non_finite_parameter", {**tensors, first: tensors[first] * torch.nan}),
        "infinity": ("non_finite_parameter", {**tensors, first: tensors[first] / 0.0}),
        "missing": ("parameter_mismatch", {k: v for k, v in tensors.items() if k != first}),
        "unused": ("parameter_mismatch", {**tensors, "layers.99.weight": torch.ones(1)}),
        "renamed": (
            "parameter_mismatch",
            {("x" + k if k == first else k): v for k, v in tensors.items()},
        ),
        "transposed": ("parameter_mismatch", {**tensors, head: tensors[head].T.contiguous()}),
        "half-width": ("unservable_task", {k: v.half() for k, v in tensors.items()}),
        "mixed-width": ("unservable_task", {**tensors, first: tensors[first].half()}),
        "permuted-labels": ("probe_failed", {**tensors, head: tensors[head].roll(1, dims=0)}),
        "huge": ("probe_failed", {**tensors, head: torch.full_like(tensors[head], 3e38)}),
    }
    for name, (code, changed) in changes.items():
        data = tensors_to_bytes(changed)
        yield Attack(name=name, code=code, launch=_loading(draft, data, backbone))


def _idle(backbone: Backbone) -> Iterator[Attack]:
    methods: list[Method] = [
        TopK(num_layers=1),
        Bottleneck(size=4),
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        Full(),
    ]
    for method in methods:
        draft, blobs = tiny_task(backbone, method=method)
        idle = {
            name: backbone.parameters[name].clone()
            if name in backbone.parameters
            else (torch.zeros_like(each) if ".up" in name else each)
            for name, each in tensors_from_bytes(blobs["parameters"]).items()
        }
        launch = _loading(draft, tensors_to_bytes(idle), backbone)
        yield Attack(name=f"idle-{method.kind}", code="no_effect", launch=launch)


def _manifests(backbone: Backbone) -> Iterator[Attack]:
    draft, blobs = tiny_task(backbone)
    other = draft.backbone.model_copy(update={"digest": "0" * 64})
    changes: Mapping[str, tuple[str, dict[str, object]]] = {
        "other-backbone": ("backbone_mismatch", {"backbone": other}),
        "other-tokenizer": ("backbone_mismatch", {"tokenizer_digest": "0" * 64}),
        "other-split-depth": ("unservable_task", {"split_depth": 0}),
        "too-long-inputs": ("unservable_task", {"max_length": 100_000}),
    }
    for name, (code, update) in changes.items():
        changed = draft.model_copy(update=update)
        yield Attack(name=name, code=code, launch=_loading(changed, blobs["parameters"], backbone))


def _publishing(registry: Registry, draft: TaskDraft, data: bytes) -> Callable[[], object]:
    return lambda: registry.publish(draft, {"parameters": data})


def _loading(draft: TaskDraft, data: bytes, backbone: Backbone) -> Callable[[], object]:
    manifest = TaskManifest.model_validate({**draft.model_dump(), "version": 1})
    return lambda: load_task(manifest, data, backbone)
