"""Names of modules in the classes of transformers: layers, blocks, norms, maps and heads."""

from doubles.backbones import BYTES, LLAMA_LIKE, NOMIC_LIKE, Family
from nunatak_contract.enums import HeadKind, LinearMap

LAYERS: dict[Family, str] = {
    "bert": "bert.encoder.layer",
    "roberta": "roberta.encoder.layer",
    "distilbert": "distilbert.transformer.layer",
    "electra": "electra.encoder.layer",
    "deberta-v2": "deberta.encoder.layer",
    "mpnet": "mpnet.encoder.layer",
    "nomic_bert": "nomic_bert.layers",
    "gte": "gte.layers",
    **dict.fromkeys(BYTES, "model.layers"),
}
BLOCKS: dict[Family, tuple[str, str]] = {
    "bert": ("attention.output", "output"),
    "roberta": ("attention.output", "output"),
    "distilbert": ("attention", "ffn"),
    "electra": ("attention.output", "output"),
    "deberta-v2": ("attention.output", "output"),
    "mpnet": ("attention.attn", "output"),
    "modernbert": ("attn", "mlp"),
    **dict.fromkeys((*LLAMA_LIKE, *NOMIC_LIKE), ("self_attn", "mlp")),
}
"""The modules that give the output of the attention and of the feed-forward block."""
OTHER_NORMS: dict[Family, tuple[str, ...]] = {
    "distilbert": ("sa_layer_norm", "output_layer_norm"),
    "mpnet": ("attention.LayerNorm",),
    "modernbert": ("attn_norm", "mlp_norm"),
    **dict.fromkeys(LLAMA_LIKE, ("input_layernorm", "post_attention_layernorm")),
    **dict.fromkeys(NOMIC_LIKE, ("post_attention_layernorm", "post_mlp_layernorm")),
}
"""Norms of a layer that are no part of these modules."""
WITHOUT_TYPES: tuple[Family, ...] = ("distilbert", "mpnet", *BYTES)
"""Families whose classes take no token types."""
FINAL_NORMS: dict[Family, str] = {
    "modernbert": "model.final_norm",
    **dict.fromkeys(LLAMA_LIKE, "model.norm"),
}
"""The norm over the output of all layers."""
ANSWERS: dict[str, str] = {"model": "transformer"}
"""The encoder's name in most classes of decoders, and in the class that answers questions."""
PEFT_TASKS = {
    HeadKind.SEQUENCE_CLASSIFICATION: "SEQ_CLS",
    HeadKind.TOKEN_CLASSIFICATION: "TOKEN_CLS",
    HeadKind.QUESTION_ANSWERING: "QUESTION_ANS",
    HeadKind.RANKING: "SEQ_CLS",
}
BERT_TARGETS = {
    LinearMap.QUERY: "attention.self.query",
    LinearMap.KEY: "attention.self.key",
    LinearMap.VALUE: "attention.self.value",
    LinearMap.ATTENTION_OUTPUT: "attention.output.dense",
    LinearMap.FEEDFORWARD_IN: "intermediate.dense",
    LinearMap.FEEDFORWARD_OUT: "output.dense",
}
LLAMA_TARGETS = {
    LinearMap.QUERY: "self_attn.q_proj",
    LinearMap.KEY: "self_attn.k_proj",
    LinearMap.VALUE: "self_attn.v_proj",
    LinearMap.ATTENTION_OUTPUT: "self_attn.o_proj",
    LinearMap.FEEDFORWARD_IN: "mlp.gate_proj|mlp.up_proj",
    LinearMap.FEEDFORWARD_OUT: "mlp.down_proj",
}
FUSED = (LinearMap.QUERY, LinearMap.KEY, LinearMap.VALUE)
PEFT_TARGETS: dict[Family, dict[LinearMap, str]] = {
    "bert": BERT_TARGETS,
    "roberta": BERT_TARGETS,
    "distilbert": {
        LinearMap.QUERY: "attention.q_lin",
        LinearMap.KEY: "attention.k_lin",
        LinearMap.VALUE: "attention.v_lin",
        LinearMap.ATTENTION_OUTPUT: "attention.out_lin",
        LinearMap.FEEDFORWARD_IN: "ffn.lin1",
        LinearMap.FEEDFORWARD_OUT: "ffn.lin2",
    },
    "electra": BERT_TARGETS,
    "deberta-v2": {
        **BERT_TARGETS,
        LinearMap.QUERY: "attention.self.query_proj",
        LinearMap.KEY: "attention.self.key_proj",
        LinearMap.VALUE: "attention.self.value_proj",
    },
    "mpnet": {
        **BERT_TARGETS,
        LinearMap.QUERY: "attention.attn.q",
        LinearMap.KEY: "attention.attn.k",
        LinearMap.VALUE: "attention.attn.v",
        LinearMap.ATTENTION_OUTPUT: "attention.attn.o",
    },
    "modernbert": {
        **dict.fromkeys(FUSED, "attn.Wqkv"),
        LinearMap.ATTENTION_OUTPUT: "attn.Wo",
        LinearMap.FEEDFORWARD_IN: "mlp.Wi",
        LinearMap.FEEDFORWARD_OUT: "mlp.Wo",
    },
    "eurobert": LLAMA_TARGETS,
    "llama": LLAMA_TARGETS,
    "qwen3": LLAMA_TARGETS,
    "nomic_bert": LLAMA_TARGETS,
    "gte": {**LLAMA_TARGETS, LinearMap.FEEDFORWARD_IN: "mlp.up_proj|mlp.gate_proj"},
}
"""Paths of the modules of a map; two modules with a bar between them."""
ROBERTA_HEAD = {"dense": "classifier.dense", "output": "classifier.out_proj"}
HEADS: dict[Family, dict[str, str]] = {
    "bert": {"dense": "bert.pooler.dense", "output": "classifier"},
    "deberta-v2": {"dense": "pooler.dense", "output": "classifier"},
    "distilbert": {"dense": "pre_classifier", "output": "classifier"},
    "roberta": ROBERTA_HEAD,
    "electra": ROBERTA_HEAD,
    "mpnet": ROBERTA_HEAD,
    "modernbert": {"dense": "head.dense", "norm": "head.norm", "output": "classifier"},
    "eurobert": {"dense": "dense", "output": "classifier"},
    "llama": {"output": "score"},
    "qwen3": {"output": "score"},
    "nomic_bert": {"dense": "nomic_bert.pooler.dense", "output": "classifier"},
    "gte": {"dense": "gte.pooler.dense", "output": "classifier"},
}
"""The modules of a head that reads a pooled state."""
