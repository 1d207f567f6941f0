"""What task versions are chosen and reported by."""

from enum import StrEnum


class Metric(StrEnum):
    """A score; larger is better for each."""

    ACCURACY = "accuracy"
    F1 = "f1"
    F1_MACRO = "f1_macro"
    F1_MICRO = "f1_micro"
    MATTHEWS_CORRELATION = "matthews_correlation"
    PEARSON = "pearson"
    SPEARMAN = "spearman"
    ENTITY_F1 = "entity_f1"
    SPAN_F1 = "span_f1"
    EXACT_MATCH = "exact_match"
    NDCG = "ndcg"
    MRR = "mrr"
