"""`nunatak policy check --data`: the decisions of a server about labelled rows, before a put."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from doubles.backbones import save_tiny_backbone
from doubles.examples import write_jsonl
from doubles.policies import make_policy, make_rule, when
from doubles.serving import running_server
from doubles.tasks import publish_names, publish_tiny_task
from doubles.terminals import Ran, nunatak
from nunatak_contract.enums import Combine, OnFailure, PolicyMode, VerdictAction
from nunatak_contract.evidence import wilson_bounds
from nunatak_contract.policies import Pattern, Policy
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry

ACTIONS = ALLOW, FLAG, MASK, BLOCK = tuple(VerdictAction)
WORDS = ("ann", "met", "bob", "in", "oslo", "where", "is", "my", "parcel", "what", "you", "know")
UNREAD = "\U00012000"
"""A letter that the vocabulary lacks, so that no task reads it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checked")
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    with Registry.open(folder / "registry") as registry:
        for seed in (1, 2):
            publish_tiny_task(registry, backbone, labels=("calm", "urgent"), seed=seed)
        publish_names(registry, backbone)
        registry.promote("tone", "prod", 1)
    return folder


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    return load_backbone(folder / "backbone")


def texts(count: int) -> list[str]:
    """Texts of different lengths, some with a letter that no task reads, or a special token."""
    source = random.Random(7)
    drawn = (" ".join(source.choices(WORDS, k=source.randint(1, 60))) for _ in range(count))
    ends = {3: " [SEP] ann", 9: f" {UNREAD}"}
    return [it + ends.get(at % 10, "") for at, it in enumerate(drawn)]


def urgency(client: httpx.Client, asked: Sequence[str]) -> list[float]:
    """The scores of urgent texts, sorted."""
    parts = [asked[at : at + 40] for at in range(0, len(asked), 40)]
    answers = [client.post("/v1/tasks/tone/predict", json={"inputs": it}) for it in parts]
    rows = [row for it in answers for row in it.json()["outputs"]]
    return sorted(it["score"] for row in rows for it in row if it["label"] == "urgent")


def checked(folder: Path, policy: Policy | Mapping[str, object], data: Path, *options: str) -> Ran:
    document = policy.model_dump(mode="json") if isinstance(policy, Policy) else policy
    (file := folder / "policy.json").write_text(json.dumps(document))
    here = ("--registry", str(folder / "registry"), "--backbone", str(folder / "backbone"))
    return nunatak("policy", "check", str(file), "--data", str(data), *here, *options)


GUARD = make_policy(make_rule(when("tone", "urgent")))


@pytest.mark.parametrize("on_failure", OnFailure)
def test_each_row_is_decided_as_a_server_decides(
    on_failure: OnFailure, folder: Path, backbone: Backbone, tmp_path: Path
) -> None:
    asked = texts(66)  # more than one request holds
    with (
        Registry.open(folder / "registry") as registry,
        running_server(backbone, registry) as url,
        httpx.Client(base_url=url) as client,
    ):
        scores = urgency(client, asked)
        # Between two scores, because a score of another batch differs in its last digits.
        places = {share: int(share * len(asked)) for share in (0.2, 0.6, 0.8)}
        least = {share: sum(scores[at - 1 : at + 1]) / 2 for share, at in places.items()}
        few = when("tone", "calm", threshold=1 - least[0.2])
        policy = make_policy(
            make_rule(when("tone", "urgent", threshold=least[0.8]), name="urgent"),
            make_rule(when("names", "X"), few, name="names", action=MASK, combine=Combine.ALL),
            make_rule(when("tone", "urgent", threshold=least[0.6]), name="half", action=FLAG),
            on_failure=on_failure,
        )
        registry.policies.put(policy)
        replies = [client.post("/v1/verdicts/guard", json={"inputs": it}) for it in asked]
        served = [it.json() for it in replies]
    expected = random.Random(1).choices(ACTIONS, k=len(asked))
    rows = [{"text": it, "label": label} for it, label in zip(asked, expected, strict=True)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)

    found = checked(folder, policy, data, "--json").json()["data"]
    printed = checked(folder, policy, data).stdout

    decided = [VerdictAction(it["decided"]) for it in served]
    pairs = Counter(zip(expected, decided, strict=True))
    cells = {(it["expected"], it["decided"]): it["count"] for it in found["decisions"]}
    assert set(decided) == set(ACTIONS)
    assert cells == pairs
    assert found["tasks"] == ["tone/1", "names/1"]
    places = [f"rows.jsonl:{at}" for at in range(1, len(asked) + 1)]
    judged = list(zip(places, expected, decided, served, strict=True))
    weak = [it for it in judged if it[2].strength < it[1].strength]
    alarms = [it for it in judged if it[1] is ALLOW is not it[2]]
    num_harmless = expected.count(ALLOW)
    for name, wrong, of in (
        ("missed", weak, len(rows) - num_harmless),
        ("false_alarms", alarms, num_harmless),
    ):
        assert found[name]["places"] == [it[0] for it in wrong]
        assert (found[name]["num_wrong"], found[name]["num_rows"]) == (len(wrong), of)
        assert found[name]["interval"] == pytest.approx(wilson_bounds(len(wrong) / of, of))
        assert found[name]["num_by_failure"] == sum(it[3]["by_failure"] for it in wrong)
        assert f"{len(wrong) / of:.4f}" in printed
        assert ", ".join(found[name]["places"][:10]) in printed
    assert (found["false_alarms"]["num_by_failure"] > 0) or on_failure is OnFailure.ALLOW
    urgent = sum("urgent" in {rule["rule"] for rule in it[3]["rules"]} for it in alarms)
    assert found["false_alarms_by_rule"]["urgent"] == urgent > 0


def test_labels_of_any_data_say_which_texts_are_harmful(folder: Path, tmp_path: Path) -> None:
    rows = [{"Body": it, "Kind": at % 3} for at, it in enumerate(texts(12))]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    columns = ("--text-column", "Body", "--label-column", "Kind")

    found = checked(
        folder, GUARD, data, *columns, "--harmful", "1", "--harmful", "2", "--json"
    ).json()["data"]

    passed = {it["expected"]: it["count"] for it in found["decisions"] if it["decided"] == "allow"}
    assert {it["expected"] for it in found["decisions"]} == {"0", "1", "2"}
    assert (found["missed"]["num_rows"], found["false_alarms"]["num_rows"]) == (8, 4)
    assert found["missed"]["num_wrong"] == passed.get("1", 0) + passed.get("2", 0)
    assert found["false_alarms"]["num_wrong"] == 4 - passed.get("0", 0)


def test_data_of_one_side_has_no_share_of_the_other(folder: Path, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", [{"text": "ann met bob", "label": "allow"}])

    found = checked(folder, GUARD, data, "--json").json()["data"]
    printed = checked(folder, GUARD, data).stdout

    assert (found["missed"]["num_rows"], found["missed"]["interval"]) == (0, None)
    assert "missed 0 0 - - 0" in " ".join(printed.split())


TEXT = {"text": "ann met bob", "label": "allow"}
REFUSED: Mapping[str, tuple[list[dict[str, str]], tuple[str, ...], str, tuple[str, ...]]] = {
    "no action": ([TEXT, {**TEXT, "label": "bad"}], (), "invalid_option", ("'bad'", "--harmful")),
    "no such label": ([TEXT], ("--harmful", "bad"), "invalid_option", ("'bad'", "'allow'")),
    "no text": ([TEXT, {**TEXT, "text": ""}], (), "invalid_row", ("rows.jsonl:2",)),
    "no label": ([TEXT, {"text": "a"}], (), "missing_column", ("rows.jsonl:2",)),
    "a pair": ([{**TEXT, "text_pair": "b"}], (), "invalid_row", ("rows.jsonl:1", "single texts")),
    "too long": (
        [TEXT] * 70 + [{**TEXT, "text": "a " * 20_000}],
        (),
        "invalid_row",
        ("rows.jsonl:71", "text_too_long"),
    ),
    "none": ([], (), "too_few_examples", ("rows.jsonl",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_cannot_be_judged_are_refused_by_line(
    case: str, folder: Path, tmp_path: Path
) -> None:
    rows, options, code, words = REFUSED[case]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    secrets = make_rule(patterns=(Pattern(pattern="key", label="KEY"),))

    ran = checked(folder, make_policy(secrets, mode=PolicyMode.DRY_RUN), data, *options, "--quiet")

    ran.assert_refused(code, *words)


def test_harmful_labels_need_rows(folder: Path) -> None:
    (file := folder / "policy.json").write_text(GUARD.model_dump_json())
    here = ("--registry", str(folder / "registry"))

    ran = nunatak("policy", "check", str(file), "--harmful", "bad", *here)

    ran.assert_refused("invalid_option", "--data")


def test_a_task_that_fails_gives_its_error_and_no_numbers(
    folder: Path, backbone: Backbone, tmp_path: Path
) -> None:
    with Registry.open(folder / "registry") as registry:
        lost = publish_tiny_task(registry, backbone, task="lost", seed=9)
    for file in (folder / "registry").rglob(f"*{lost.blobs[0].sha256}*"):
        file.unlink()
    data = write_jsonl(tmp_path / "rows.jsonl", [TEXT] * 3)
    policy = make_policy(
        make_rule(when("tone", "urgent")),
        make_rule(when("lost", "urgent"), name="lost"),
        on_failure=OnFailure.ALLOW,
    )

    ran = checked(folder, policy, data, "--quiet")

    ran.assert_refused("corrupt_blob", lost.blobs[0].sha256[:12])
