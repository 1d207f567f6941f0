"""Laws of `nunatak task thresholds`, and of the calibration in `nunatak task show`."""

import re
from pathlib import Path

import pytest

from doubles.drafts import CALIBRATION, make_draft
from doubles.terminals import nunatak
from nunatak_contract.evidence import wilson_bounds
from nunatak_registry import Registry


@pytest.fixture(name="calibrated")
def publish_calibrated(folder: Path) -> tuple[str, str]:
    draft, blobs = make_draft()
    with Registry.open(folder) as registry:
        registry.publish(draft.model_copy(update={"calibration": CALIBRATION}), blobs)
    return ("--registry", str(folder))


def lines(printed: str) -> list[str]:
    """The lines with one space between words."""
    return [" ".join(line.split()) for line in printed.splitlines()]


def test_each_label_has_the_threshold_of_its_largest_f1(calibrated: tuple[str, str]) -> None:
    header, first, second, *_ = lines(nunatak("task", "thresholds", "intent", *calibrated).stdout)

    assert header == "label threshold precision recall found right labelled"
    assert first == "no 0.7 0.900 [0.74, 0.97] 0.675 [0.52, 0.80] 30 27 40"
    assert second == "yes no dev example 0"


@pytest.mark.parametrize(
    ("wish", "threshold"),
    [
        (("--precision", "0.95"), 0.9),
        (("--recall", "0.9"), 0.2),
        (("--precision", "0.5", "--recall", "0.5"), 0.7),
    ],
)
def test_a_wish_gives_the_threshold_that_reaches_it(
    calibrated: tuple[str, str], wish: tuple[str, ...], threshold: float
) -> None:
    found = nunatak("task", "thresholds", "intent", *wish, "--json", *calibrated).json()

    first, second = found["labels"]
    (point,) = first["points"]
    assert point["threshold"] == threshold
    (expected,) = (it for it in CALIBRATION.curves[0].operating_points if it.threshold == threshold)
    assert point["precision_interval"] == list(
        wilson_bounds(expected.precision, expected.num_found)
    )
    assert second["points"] == []


def test_a_wish_out_of_reach_is_said(calibrated: tuple[str, str]) -> None:
    wish = ("--precision", "0.5", "--recall", "0.9")

    _, first, *_ = lines(nunatak("task", "thresholds", "intent", *wish, *calibrated).stdout)

    assert first == "no not reached 40"


def test_a_named_label_has_all_its_thresholds(calibrated: tuple[str, str]) -> None:
    printed = nunatak("task", "thresholds", "intent", "--label", "no", *calibrated).stdout

    found = [line.split()[:2] for line in lines(printed)[1:4]]
    assert found == [["no", "0.9"], ["no", "0.7"], ["no", "0.2"]]


def test_an_unknown_label_and_an_uncalibrated_version_are_refused(
    calibrated: tuple[str, str], folder: Path
) -> None:
    with Registry.open(folder) as registry:
        registry.publish(*make_draft("plain"))

    unknown = nunatak("task", "thresholds", "intent", "--label", "maybe", *calibrated)
    plain = nunatak("task", "thresholds", "plain", *calibrated)

    unknown.assert_refused("invalid_option", "--label expects one of 'no', 'yes', got 'maybe'")
    plain.assert_refused("invalid_option", "trained with --calibrate")


def test_show_says_temperature_and_errors_and_draws_the_reliability(
    calibrated: tuple[str, str],
) -> None:
    shown = " ".join(nunatak("task", "show", "intent", *calibrated).stdout.split())
    card = nunatak("task", "show", "intent", "--markdown", *calibrated).stdout

    assert "temperature 2.500; expected calibration error dev 0.250 -> 0.050" in shown
    assert "| dev | 200 | 0.2500 | 0.0500 |" in card
    bars = re.findall(r"^ *(0\.\d+)  ([#| ]{41})  (0\.\d+) +(\d+)$", card, re.MULTILINE)
    assert [(score, right, count) for score, _, right, count in bars] == [
        ("0.950", "0.700", "200"),
        ("0.600", "0.500", "50"),
        ("0.750", "0.800", "150"),
    ]
    for score, bar, right, _ in bars:
        assert bar.index("|") == round(float(score) * 40)
        assert bar.replace("|", "#").rstrip().startswith("#" * round(float(right) * 40))
    assert "| no | 0.7 | 0.900 | 0.675 | 0.771 | 40 |" in card
