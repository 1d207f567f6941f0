"""Laws of `benchmarks.papers.analyze`, as its command line."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import JsonValue
from torch import Tensor

from benchmarks.papers.analyze import main
from benchmarks.papers.model_findings import (
    hidden_states,
    landscape,
    layer_similarities,
    line_losses,
    sampled_tokens,
    similarity,
)
from doubles.backbones import FAMILIES, Family, tiny_backbone
from doubles.examples import toy_data
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, Lora, Method, TopK
from nunatak_model import (
    BranchSpec,
    HeadSpec,
    Row,
    build_branch,
    forward,
    initial_parameters,
    run_trunk,
)
from nunatak_training.fitting import fit_task
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_training.sweeps.results import ResultsFolder

SWEEP = """
name: small
tasks: [{name: toy}, {name: other, data: toy}]
methods: [{kind: head}]
recipe: {epochs: 1, max_length: 32}
"""
THREE_TEXTS = ("abc de", "f", "ghij klm no")
QUICK = {"epochs": 4, "max_length": 32, "dropout": 0.0}
BACKBONE = tiny_backbone(num_layers=3)
TEXTS = ["abc de", "f", "ghij klm no", "zz yx"]
INPUTS = [it for (it,) in BACKBONE.tokenizer.encode_windows(TEXTS, max_length=32, stride=0)]


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = toy_folder(tmp_path_factory.mktemp("sweep"))
    (folder / "small.yaml").write_text(f"{SWEEP}backbones: [{folder / 'backbone'}]\n")
    return folder


def states(rows: int, width: int, *, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def cosine(first: Tensor, second: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(first, second, dim=0).item()


def test_analysis_of_results_writes_table_and_plot(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ResultsFolder(tmp_path / "results")
    for run in toy_runs(folder):
        results.add(record_of(run, 0.5))

    main(["robustness", str(tmp_path / "results"), "--out", str(tmp_path / "out")])

    assert (tmp_path / "out" / "robustness.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "out" / "robustness.png").exists()


@pytest.mark.parametrize("name", ["rsa", "landscape"])
def test_analysis_of_trained_tasks_trains_the_runs_of_the_file(
    folder: Path, tmp_path: Path, name: str
) -> None:
    file, root = str(folder / "small.yaml"), str(folder)

    main([name, file, "--data-root", root, "--task", "toy", "--out", str(tmp_path)])

    assert (tmp_path / f"{name}.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("robustness", "nowhere"), r"error \[invalid_sweep\]"),
        (("rsa", "{file}", "--task", "gone"), "expected one of toy, other, got 'gone'"),
    ],
)
def test_what_cannot_be_analyzed_is_refused_in_one_line(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    given = [it.format(file=folder / "small.yaml") for it in arguments]

    with pytest.raises(SystemExit, match=problem):
        main([*given, "--out", str(tmp_path)])


@pytest.mark.parametrize("family", FAMILIES)
def test_states_of_the_backbone_match_the_trunk_at_every_depth(family: Family) -> None:
    backbone = tiny_backbone(num_layers=3, family=family)
    inputs = backbone.tokenizer.encode(THREE_TEXTS, max_length=32)

    states = hidden_states(backbone, inputs)

    assert len(states) == 3
    for depth, state in enumerate(states, start=1):
        rows = run_trunk(backbone, inputs, depth=depth).hidden
        torch.testing.assert_close(state, torch.cat([rows[encoding] for encoding in inputs]))


@pytest.mark.parametrize(
    "method",
    [
        Full(),
        TopK(num_layers=2),
        Bottleneck(size=4),
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    ],
    ids=["full", "topk", "bottleneck", "lora"],
)
def test_last_state_of_a_branch_is_what_its_head_reads(method: Method) -> None:
    backbone = tiny_backbone(num_layers=3)
    width = backbone.config.hidden_width
    head = HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=width)
    spec = BranchSpec(method=method, head=head)
    generator = torch.Generator().manual_seed(1)
    parameters = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial_parameters(spec, backbone, generator=generator).items()
    }
    # A head that returns its input.
    parameters |= {"head.output.weight": torch.eye(width), "head.output.bias": torch.zeros(width)}
    branch = build_branch(spec, backbone.config, parameters)
    inputs = backbone.tokenizer.encode(THREE_TEXTS, max_length=32)

    last = hidden_states(backbone, inputs, branch=branch)[-1]

    shown = forward(backbone, [Row(encoding=encoding, branch=branch) for encoding in inputs])
    torch.testing.assert_close(last, torch.cat(shown))
    assert not torch.allclose(last, hidden_states(backbone, inputs)[-1])


def test_line_is_twenty_even_steps_from_minus_two_to_two_and_both_models() -> None:
    points = line_losses({"w": torch.tensor(0.0)}, {"w": torch.tensor(1.0)}, lambda _: 0.0)

    expected = sorted([*np.linspace(-2, 2, 20).tolist(), 0.0, 1.0])
    assert [it.alpha for it in points] == pytest.approx(expected)


def test_loss_is_taken_at_the_start_plus_a_times_the_way() -> None:
    start = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    end = {"w": torch.tensor([2.0, 0.0]), "b": torch.tensor(5.0)}

    points = line_losses(
        start, end, lambda found: float(found["w"].sum() * 10 + found["b"]), num_points=5
    )

    for it in points:
        a = it.alpha
        assert it.loss == pytest.approx(10 * (1 + a * 1 + 2 - a * 2) + 3 + a * 2)


def test_line_begins_where_tuning_began_after_pretraining() -> None:
    backbone = tiny_backbone(num_layers=2)
    data = toy_data(num_train=32, num_dev=16)
    # At this small rate, tuning does not move the pretrained parameters.
    changes: dict[str, JsonValue] = {
        **QUICK,
        "learning_rate": 1e-12,
        "head_learning_rate": 1e-12,
        "min_steps": 0,
    }
    changes["tapt"] = {"epochs": 3, "learning_rate": 1e-2}
    recipe = default_recipe(TopK(num_layers=1), changes=changes)
    trained = fit_task(data, recipe, backbone, report=Report())

    losses = [it.loss for it in landscape(trained, backbone, data.dev)]

    assert losses == pytest.approx([losses[0]] * len(losses), abs=1e-4)


def test_similarity_is_its_definition_by_loops() -> None:
    before, after = states(9, 5, seed=1), states(9, 7, seed=2)
    pairs = list(combinations(range(9), 2))

    expected = np.corrcoef(
        [cosine(before[i], before[j]) for i, j in pairs],
        [cosine(after[i], after[j]) for i, j in pairs],
    )[0, 1]

    assert similarity(before, after) == pytest.approx(expected, abs=1e-6)


def test_special_tokens_are_never_drawn() -> None:
    drawn = sampled_tokens(INPUTS, num_tokens=1000, seed=0).tolist()
    ids = [token for encoding in INPUTS for token in encoding.token_ids]
    special = {INPUTS[0].token_ids[0], INPUTS[0].token_ids[-1]}

    assert special.isdisjoint(ids[position] for position in drawn)
    assert len(drawn) == len(ids) - 2 * len(INPUTS)


def test_layers_below_the_split_depth_are_the_backbones() -> None:
    head = HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=2)
    spec = BranchSpec(method=TopK(num_layers=1), head=head)
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: tensor + torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial_parameters(spec, BACKBONE, generator=generator).items()
    }

    lower, middle, upper = layer_similarities(
        BACKBONE, build_branch(spec, BACKBONE.config, parameters), INPUTS
    )

    assert (lower, middle) == pytest.approx((1.0, 1.0))
    assert upper < 0.99
