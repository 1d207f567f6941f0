"""Folders in the layouts that releases 2 to 6 of sentence-transformers write."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from doubles.backbones import Family, save_tiny_backbone

MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
NEWEST = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}
"""Where release 6 keeps its modules; older releases name `sentence_transformers.models`."""
TOKENIZERS = {
    "bert": {"tokenizer_class": "BertTokenizer"},
    "roberta": {"tokenizer_class": "TokenizersBackend", "pad_token": "<pad>"},
    "qwen3": {
        "tokenizer_class": "Qwen2Tokenizer",
        "pad_token": "<|pad|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "padding_side": "left",
    },
}
RELEASES = (2, 3, 4, 5, 6)


def save_sentence_folder(
    folder: Path,
    *,
    release: int,
    modes: Sequence[str] = ("mean",),
    modules: Sequence[str] = ("Transformer", "Pooling"),
    max_length: int | None = None,
    family: Family = "bert",
    lowercases: bool = False,
) -> Path:
    """Write a tiny embedding model in the layout of a release."""
    save_tiny_backbone(folder, family=family)
    paths = ["", *(f"{index}_{name}" for index, name in enumerate(modules) if index)]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": _type(name, release)}
        for index, (name, path) in enumerate(zip(modules, paths, strict=True))
    ]
    write(folder / "modules.json", listed)
    write(folder / "config_sentence_transformers.json", _general(release))
    write(folder / "sentence_bert_config.json", _encoder(release, max_length, lowercases))
    length = {"model_max_length": max_length} if release == 6 and max_length else {}
    write(folder / "tokenizer_config.json", {**TOKENIZERS[family], **length})
    if "Pooling" in modules:
        path = paths[list(modules).index("Pooling")]
        write(folder / path / "config.json", _pooling(release, modes))
    return folder


def write(path: Path, fields: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fields))


def edit(path: Path, changes: Mapping[str, object]) -> None:
    """Change fields of a JSON file, which may be new; `...` removes one."""
    fields: dict[str, object] = json.loads(path.read_bytes()) if path.exists() else {}
    merged = {**fields, **changes}
    path.write_text(json.dumps({name: it for name, it in merged.items() if it is not ...}))


def their_vectors(folder: Path, texts: list[str]) -> Tensor:
    peer = SentenceTransformer(str(folder), device="cpu")
    return torch.as_tensor(peer.encode(texts, convert_to_tensor=True))


def _type(module: str, release: int) -> str:
    return NEWEST[module] if release >= 6 else f"sentence_transformers.models.{module}"


def _general(release: int) -> dict[str, object]:
    general: dict[str, object] = {"__version__": {"sentence_transformers": f"{release}.0.0"}}
    if release >= 3:
        general |= {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": None}
    if release >= 5:
        general |= {"model_type": "SentenceTransformer"}
    return general


def _encoder(release: int, max_length: int | None, lowercases: bool) -> dict[str, object]:  # noqa: FBT001 - a field of the file
    if release < 6:
        return {"max_seq_length": max_length, "do_lower_case": lowercases}
    method = {"method": "forward", "method_output_name": "last_hidden_state"}
    return {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": method},
        "module_output_name": "token_embeddings",
    }


def _pooling(release: int, modes: Sequence[str]) -> dict[str, object]:
    if release >= 6:
        mode = modes[0] if len(modes) == 1 else list(modes)
        return {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": True}
    known = list(MODES)[: 4 if release == 2 else 6]
    flags = {MODES[mode]: mode in modes for mode in {*known, *modes}}
    return {"word_embedding_dimension": 32, **flags, "include_prompt": True}
