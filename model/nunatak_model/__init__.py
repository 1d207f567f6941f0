"""The maths of Nunatak: backbone, branches, heads and the mixed forward. No web, no threads."""

from nunatak_model.backbone import Backbone
from nunatak_model.branch import (
    Branch,
    BranchSpec,
    build_branch,
    convert_branch,
    initial_parameters,
    parameter_shapes,
)
from nunatak_model.checkpoint import DEFAULT_BACKBONE, load_backbone
from nunatak_model.config import Activation, BackboneConfig, Pooling
from nunatak_model.encoding import Alignment, Encoding, TextInput
from nunatak_model.errors import (
    BackboneNotFoundError,
    CorruptBackboneError,
    InvalidHeadError,
    InvalidMethodError,
    InvalidTensorsError,
    ModelError,
    NonFiniteParameterError,
    ParameterMismatchError,
    UnsupportedBackboneError,
)
from nunatak_model.forward import Row, TrunkActivations, forward, run_trunk
from nunatak_model.heads import HeadKind, HeadSpec
from nunatak_model.methods import (
    AdaptedBlocks,
    AdapterActivation,
    AdapterInput,
    Bottleneck,
    Full,
    HeadOnly,
    Lora,
    LoraTarget,
    Method,
    MethodKind,
    Norms,
    TopK,
)
from nunatak_model.savings import (
    ModelSize,
    dedicated_parameters,
    model_size,
    parameters_saved,
)
from nunatak_model.tensors import tensors_from_bytes, tensors_to_bytes
from nunatak_model.tokenizer import TextTokenizer

__all__ = [
    "DEFAULT_BACKBONE",
    "Activation",
    "AdaptedBlocks",
    "AdapterActivation",
    "AdapterInput",
    "Alignment",
    "Backbone",
    "BackboneConfig",
    "BackboneNotFoundError",
    "Bottleneck",
    "Branch",
    "BranchSpec",
    "CorruptBackboneError",
    "Encoding",
    "Full",
    "HeadKind",
    "HeadOnly",
    "HeadSpec",
    "InvalidHeadError",
    "InvalidMethodError",
    "InvalidTensorsError",
    "Lora",
    "LoraTarget",
    "Method",
    "MethodKind",
    "ModelError",
    "ModelSize",
    "NonFiniteParameterError",
    "Norms",
    "ParameterMismatchError",
    "Pooling",
    "Row",
    "TextInput",
    "TextTokenizer",
    "TopK",
    "TrunkActivations",
    "UnsupportedBackboneError",
    "build_branch",
    "convert_branch",
    "dedicated_parameters",
    "forward",
    "initial_parameters",
    "load_backbone",
    "model_size",
    "parameter_shapes",
    "parameters_saved",
    "run_trunk",
    "tensors_from_bytes",
    "tensors_to_bytes",
]
