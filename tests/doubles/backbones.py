"""Tiny random backbones: the real code paths in milliseconds."""

import json
import random
import tempfile
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, SupportsIndex, get_args, overload

import torch
from safetensors.torch import save
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import NFC, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from nunatak_contract.enums import Pooling
from nunatak_model import Backbone, BackboneConfig, Encoding, load_backbone
from nunatak_model.architectures import architecture_of, config_from, encoder_shapes, source_rows
from nunatak_model.checkpoint import GIVES_TYPES, RECORD
from nunatak_model.sentence_folder import POOLINGS
from nunatak_model.weights import LayerWeights

Family = Literal[
    "bert", "roberta", "distilbert", "electra", "deberta-v2", "mpnet", "modernbert",
    "llama", "qwen3", "eurobert", "nomic_bert", "gte",
]  # fmt: skip
FAMILIES: tuple[Family, ...] = get_args(Family)
"""Values of `model_type`, one for each architecture, and two for those of BERT, Llama and Nomic."""
NOMIC_LIKE: tuple[Family, ...] = ("nomic_bert", "gte")
"""Families with the layers of NomicBERT."""
ANSWERING: tuple[Family, ...] = tuple(it for it in FAMILIES if it not in {"eurobert", *NOMIC_LIKE})
"""Families with a class that answers questions."""
DECODERS: tuple[Family, ...] = ("llama", "qwen3")
LLAMA_LIKE: tuple[Family, ...] = (*DECODERS, "eurobert")
"""Families with the layers of Llama."""
BYTES: tuple[Family, ...] = ("modernbert", *LLAMA_LIKE)
"""Families whose tokens are bytes."""

WIDTH, NUM_HEADS, INTERMEDIATE_WIDTH, NUM_POSITIONS = 32, 4, 48, 66
WINDOW = 8
"""Number of other tokens that a token of a local layer sees."""
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
LIKE_ROBERTA: tuple[Family, ...] = ("roberta", "mpnet")
SPECIAL: dict[Family, tuple[str, ...]] = {
    **dict.fromkeys(FAMILIES, BERT_TOKENS),
    **dict.fromkeys(LIKE_ROBERTA, ROBERTA_TOKENS),
    "llama": ("<pad>", "<s>", "</s>", "<unk>", "<mask>"),
    "eurobert": ("<|pad|>", "<|begin|>", "<|end|>", "<|unknown|>", "<|mask|>"),
    "qwen3": ("<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim|>"),
}
DENSE: dict[str, str] = {
    "bert": "pooler.dense",
    "roberta": "pooler.dense",
    "distilbert": "pre_classifier",
    "electra": "classifier.dense",
    "deberta-v2": "pooler.dense",
    "mpnet": "pooler.dense",
    "modernbert": "head.dense",
    "eurobert": "dense",
    **dict.fromkeys(NOMIC_LIKE, "pooler.dense"),
}
"""The stored dense layer from which heads start; decoders have none."""
PREFIXES = {"distilbert": "distilbert.", "electra": "electra.", "deberta-v2": "deberta."}
"""Prefixes of encoders that are stored with the dense layer of a head next to them."""
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Qwen2Tokenizer in transformers."""
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-:;()@#"


def tiny_backbone(*, dtype: torch.dtype = torch.float32, **options: Any) -> Backbone:  # noqa: ANN401 - of `save_tiny_backbone`
    """A random backbone of width 32; the same arguments give the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        return load_backbone(save_tiny_backbone(Path(folder), **options), dtype=dtype)


def save_tiny_backbone(
    folder: Path,
    *,
    num_layers: int = 4,
    seed: int = 0,
    family: Family = "bert",
    pooling: Pooling | None = None,
    tokenizer: Tokenizer | None = None,
    is_added: bool = True,
) -> Path:
    """Write a random backbone in transformers' layout; returns the folder.

    An added one has the record by which its tokenizer is read without transformers. Without
    `pooling`, the backbone has the pooling of its family.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or tiny_tokenizer(family)
    raw = tiny_config(num_layers=num_layers, family=family)
    raw["vocab_size"] = tokenizer.get_vocab_size()
    (folder / "config.json").write_text(json.dumps(raw))
    save_tokenizer(folder, family, tokenizer)
    if is_added:
        (folder / RECORD).write_text(json.dumps({GIVES_TYPES: gives_types(family)}))
    weights = _random_weights(config_from(raw), seed)
    (folder / "model.safetensors").write_bytes(save(weights))
    if pooling is not None:
        name = {it: name for name, it in POOLINGS.items()}[pooling]
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": name}))
    return folder


DISENTANGLED: dict[str, object] = {
    "layer_norm_eps": 1e-7,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 8,
    "max_relative_positions": 20,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
"""The settings of DeBERTa-v3, with buckets that short texts leave."""
OWN_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}
"""DistilBERT's names for the settings of all families."""
BERT: dict[str, object] = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
ROBERTA: dict[str, object] = {**BERT, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
LLAMA: dict[str, object] = {
    "num_key_value_heads": NUM_HEADS // 2,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
MORE: dict[str, dict[str, object]] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": {"activation": "gelu"},
    "electra": {**BERT, "embedding_size": WIDTH // 2},
    "deberta-v2": {**BERT, "type_vocab_size": 0, **DISENTANGLED},
    "mpnet": {**ROBERTA, "relative_attention_num_buckets": 32},
    "nomic_bert": {**BERT, "hidden_act": "silu"},
    "gte": {**BERT, "type_vocab_size": 1},
    "modernbert": {
        "local_attention": WINDOW,
        "global_attn_every_n_layers": 2,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    "llama": LLAMA,
    # Wider than the hidden width divided by the heads, as in small Qwen3 models.
    "qwen3": {**LLAMA, "head_dim": 2 * WIDTH // NUM_HEADS},
    "eurobert": {**LLAMA, "classifier_pooling": "bos"},
}
"""The own settings of each family."""


def encoded(token_ids: Iterable[int]) -> Encoding:
    ids = tuple(token_ids)
    return Encoding(token_ids=ids, type_ids=(0,) * len(ids))


def random_text(chance: random.Random, num_tokens: int) -> Encoding:
    return encoded(chance.randint(5, 99) for _ in range(num_tokens))


def rope(rope_type: str, **settings: object) -> dict[str, object]:
    """The fields of a `config.json` that turn positions, as transformers 5 names them."""
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 500.0, **settings}}


def tiny_config(*, num_layers: int, family: Family) -> dict[str, object]:
    common = {
        "vocab_size": len(_vocabulary(family)),
        "hidden_size": WIDTH,
        "num_hidden_layers": num_layers,
        "num_attention_heads": NUM_HEADS,
        "intermediate_size": INTERMEDIATE_WIDTH,
        "max_position_embeddings": NUM_POSITIONS,
        "pad_token_id": int(family in LIKE_ROBERTA),
    }
    names = OWN_NAMES if family == "distilbert" else {}
    own = {names.get(name, name): value for name, value in common.items()}
    return {"model_type": family, **own, **MORE[family]}


def save_tokenizer(folder: Path, family: Family, tokenizer: Tokenizer | None = None) -> None:
    """Write a tokenizer of transformers' general class; any other would build it anew."""
    (tokenizer or tiny_tokenizer(family)).save(str(folder / "tokenizer.json"))
    types = ["token_type_ids"] if gives_types(family) else []
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "model_input_names": ["input_ids", "attention_mask", *types],
        "pad_token": next(it for it in SPECIAL[family] if "pad" in it.lower()),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def gives_types(family: Family) -> bool:
    return family not in {*LIKE_ROBERTA, *BYTES, "gte"}


def tiny_tokenizer(family: Family, *, finds_special: bool = True) -> Tokenizer:
    """A tokenizer with one token per character, or per byte in ModernBERT.

    Without `finds_special`, a special token that a text spells is no token.
    """
    made = _byte_tokenizer(family) if family in BYTES else _word_tokenizer(family)
    if finds_special:
        made.add_special_tokens(list(SPECIAL[family]))
    return made


def _word_tokenizer(family: Family) -> Tokenizer:
    padding_first = family not in LIKE_ROBERTA
    start, end = ("[CLS]", "[SEP]") if padding_first else ("<s>", "</s>")
    vocabulary = _vocabulary(family)
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]" if padding_first else "<unk>"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    pair = f"{start} $A {end} $B:1 {end}:1" if padding_first else f"{start} $A {end} {end} $B {end}"
    tokenizer.post_processor = TemplateProcessing(
        single=f"{start} $A {end}",
        pair=pair,
        special_tokens=[(start, vocabulary[start]), (end, vocabulary[end])],
    )
    return tokenizer


TEMPLATES: dict[str, tuple[str, str]] = {
    "modernbert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"),
    "eurobert": ("<|begin|> $A <|end|>", "<|begin|> $A <|end|> $B <|end|>"),
    "llama": ("<s> $A", "<s> $A <s> $B"),
    "qwen3": ("$A <|endoftext|>", "$A $B <|endoftext|>"),
}
"""Special tokens around a text and around a pair, in families whose tokens are bytes."""


def _byte_tokenizer(family: Family) -> Tokenizer:
    vocabulary = _vocabulary(family)
    tokenizer = Tokenizer(BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    if family == "qwen3":
        # As transformers' Qwen2Tokenizer, which builds these parts itself.
        words = Split(Regex(QWEN_WORDS), behavior="isolated")
        tokenizer.normalizer = NFC()
        tokenizer.pre_tokenizer = PreTokenizers(
            [words, ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    single, pair = TEMPLATES[family]
    special = [it for it in SPECIAL[family] if it in single]
    tokenizer.post_processor = TemplateProcessing(
        single=single, pair=pair, special_tokens=[(it, vocabulary[it]) for it in special]
    )
    return tokenizer


def _vocabulary(family: Family) -> dict[str, int]:
    if family in BYTES:
        tokens = [*SPECIAL[family], *sorted(ByteLevel.alphabet())]
        return {token: index for index, token in enumerate(tokens)}
    tokens = [*SPECIAL[family], *CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    return {token: index for index, token in enumerate(tokens)}


def _random_weights(config: BackboneConfig, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    stored, prefix = dict[str, Tensor](), PREFIXES.get(config.model_type, "")
    for target, shape in encoder_shapes(config).items():
        names = architecture_of(config).source_names(target)
        stored_names = [f"{prefix}{it}" for it in names]
        for name, rows in zip(stored_names, source_rows(target, shape[0], config), strict=True):
            tensor = torch.randn((rows, *shape[1:]), generator=generator) * 0.3
            # Gains of norms are near one, so that signals stay finite and visible through all
            # layers.
            is_gain = name.endswith("weight") and tensor.dim() == 1
            stored[name] = 1.0 + 0.1 * tensor if is_gain else tensor
    dense = DENSE.get(config.model_type)
    if dense is None:
        return stored
    stored[f"{dense}.weight"] = torch.randn(WIDTH, WIDTH, generator=generator) * 0.2
    other = "head.norm.weight" if config.model_type == "modernbert" else f"{dense}.bias"
    stored[other] = torch.randn(WIDTH, generator=generator) * 0.2
    return stored


class OddLayers(tuple[LayerWeights, ...]):
    """A backbone's layers, on a device with a fault."""

    __slots__ = ()

    def before_each(self) -> None:
        """Do what the device does before it computes a layer."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LayerWeights, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> LayerWeights | tuple[LayerWeights, ...]:
        self.before_each()
        return super().__getitem__(index)


class HeldLayers(OddLayers):
    """Layers that are not computed while a test holds them."""

    __slots__ = ()
    may_compute = threading.Event()
    may_compute.set()

    def before_each(self) -> None:
        HeldLayers.may_compute.wait(timeout=60)

    @classmethod
    @contextmanager
    def held(cls) -> Generator[None]:
        cls.may_compute.clear()
        try:
            yield
        finally:
            cls.may_compute.set()
