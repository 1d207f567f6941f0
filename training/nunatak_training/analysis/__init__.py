"""Analyses of trained tasks and of sweeps, after the papers' figures."""

from nunatak_training.analysis.curves import analyze_curves
from nunatak_training.analysis.findings import Findings, save_findings
from nunatak_training.analysis.landscape import LinePoint, landscape, line_losses
from nunatak_training.analysis.lowresource import Gain, analyze_lowresource, average_gains, gains
from nunatak_training.analysis.robustness import Box, analyze_robustness, box
from nunatak_training.analysis.rsa import layer_similarities, similarity
from nunatak_training.analysis.trained import analyze_landscape, analyze_rsa, analyze_transfer
from nunatak_training.analysis.transfer import Transfer, transfer

__all__ = [
    "Box",
    "Findings",
    "Gain",
    "LinePoint",
    "Transfer",
    "analyze_curves",
    "analyze_landscape",
    "analyze_lowresource",
    "analyze_robustness",
    "analyze_rsa",
    "analyze_transfer",
    "average_gains",
    "box",
    "gains",
    "landscape",
    "layer_similarities",
    "line_losses",
    "save_findings",
    "similarity",
    "transfer",
]
