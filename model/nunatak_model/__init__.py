"""The maths of Nunatak: backbone, branches, heads and the mixed forward. No web, no threads."""

from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_contract.requests import TextInput
from nunatak_model.backbone import (
    INT8_SUFFIX,
    Backbone,
    keep_lowest_layers,
    number_format,
    pack_backbone,
    quantize_backbone,
    quantized_digest,
    with_speeds,
    without_fast_kernels,
)
from nunatak_model.branch import (
    Branch,
    BranchSpec,
    build_branch,
    convert_branch,
    embedding_branch,
    initial_parameters,
    parameter_shapes,
    stored_parameters,
)
from nunatak_model.checkpoint import load_backbone, read_config, source_of
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import CorruptBackboneError, InvalidTensorsError, UnsupportedBackboneError
from nunatak_model.forward import BetweenLayers, Row, forward, run_trunk
from nunatak_model.heads import HeadSpec, default_head, usual_head
from nunatak_model.methods import maths_of
from nunatak_model.ops.device import (
    SideStream,
    compute_with,
    compute_without_helpers,
    has_cuda,
    on_device,
    on_own_thread,
)
from nunatak_model.ops.int8 import count_parameters, floating_parameters
from nunatak_model.savings import (
    ModelSize,
    dedicated_parameters,
    encoder_parameters,
    model_size,
    parameters_saved,
)
from nunatak_model.text.encoding import Alignment, Encoding, Part
from nunatak_model.text.tokenizer import TextTokenizer
from nunatak_model.trunk import TrunkActivations, TrunkCache, TrunkSource, TrunkStates, trunk_source
from nunatak_model.weights import tensors_from_bytes, tensors_to_bytes

__all__ = [
    "DEFAULT_BACKBONE",
    "INT8_SUFFIX",
    "Alignment",
    "Backbone",
    "BackboneConfig",
    "BetweenLayers",
    "Branch",
    "BranchSpec",
    "CorruptBackboneError",
    "Encoding",
    "HeadSpec",
    "InvalidTensorsError",
    "ModelSize",
    "Part",
    "Row",
    "SideStream",
    "TextInput",
    "TextTokenizer",
    "TrunkActivations",
    "TrunkCache",
    "TrunkSource",
    "TrunkStates",
    "UnsupportedBackboneError",
    "build_branch",
    "compute_with",
    "compute_without_helpers",
    "convert_branch",
    "count_parameters",
    "dedicated_parameters",
    "default_head",
    "embedding_branch",
    "encoder_parameters",
    "floating_parameters",
    "forward",
    "has_cuda",
    "initial_parameters",
    "keep_lowest_layers",
    "load_backbone",
    "maths_of",
    "model_size",
    "number_format",
    "on_device",
    "on_own_thread",
    "pack_backbone",
    "parameter_shapes",
    "parameters_saved",
    "quantize_backbone",
    "quantized_digest",
    "read_config",
    "run_trunk",
    "source_of",
    "stored_parameters",
    "tensors_from_bytes",
    "tensors_to_bytes",
    "trunk_source",
    "usual_head",
    "with_speeds",
    "without_fast_kernels",
]
