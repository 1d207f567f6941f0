"""`adapter_config.json` of peft: what is handed to peft, and what is refused before.

peft itself interprets the settings. Its code matches regular expressions of the file with the names
of modules. A pattern from a stranger's file can keep `re` busy for years, so every pattern that is
more than a plain name first runs in a process of its own with a time limit. A few settings make
peft import modules or open other files; these settings are refused.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import JsonValue

from nunatak_contract.enums import HeadKind
from nunatak_contract.errors import needs_extra
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.transformers_layout import kind_of_class
from nunatak_model.tokenizer_folder import quiet

if TYPE_CHECKING:
    from peft import PeftConfig

CONFIG_FILE, WEIGHTS_STEM = "adapter_config.json", "adapter_model"
NATIVE: Final[Mapping[str, str]] = {"LORA": "LoRA", "IA3": "IA3"}
"""Methods that have a method here with the same maths, with their usual names."""
MERGED: Final[Mapping[str, str]] = {
    "ADALORA": "AdaLoRA",
    "FOURIERFT": "FourierFT",
    "HRA": "HRA",
    "LN_TUNING": "LN tuning",
    "LOHA": "LoHa",
    "LOKR": "LoKr",
    "OFT": "OFT",
    "VERA": "VeRA",
}
"""Methods that peft merges into the weights, so that a task owns whole layers."""
PROMPTS: Final = frozenset(
    {"PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT", "CARTRIDGE"}
)
"""Methods that put trained vectors in front of every text."""
TASK_KINDS: Final[Mapping[str, HeadKind]] = {
    "SEQ_CLS": HeadKind.SEQUENCE_CLASSIFICATION,
    "TOKEN_CLS": HeadKind.TOKEN_CLASSIFICATION,
    "QUESTION_ANS": HeadKind.QUESTION_ANSWERING,
}
"""peft's `task_type`s for which there is a head here."""
REFUSED: Final[Mapping[str, str]] = {
    "megatron_config": "Megatron layers (megatron_config)",
    "layer_replication": "replicated layers (layer_replication)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "arrow_config": "Arrow routing (arrow_config)",
}
"""Settings of LoRA that no merged weight can express, or that make peft import modules."""
PLAIN_STARTS: Final = frozenset({"true", "false", "gaussian", "eva", "orthogonal"})
"""Values of `init_lora_weights` that leave the base weights alone; others (PiSSA, OLoRA, CorDA,
LoftQ, LoRA-GA) subtract from them, so that the adapter fits only a changed base."""
START: Final = "init_lora_weights"
START_SETTINGS: Final = frozenset({"eva_config", "corda_config", "lora_ga_config", "loftq_config"})
"""Read only at the start of training."""
ELSEWHERE: Final = frozenset({"base_model_name_or_path", "revision", "runtime_config"})
"""Settings that peft must not follow to other places."""

TIME_LIMIT_SECONDS = 10.0
"""Time limit of the process. A normal pattern takes milliseconds, mostly to start the process."""
_PLAIN = re.compile(r"[\w.-]*")
_FORMS = ("{}", r"(.*\.)?({})$", r"(^|.*\.){}($|\..*)", r"(?:^|.*?\.){}\.(\d+)\.")
"""The patterns that peft makes of a pattern of the file."""
_PROGRAM = """
import json, re, sys
patterns, names = json.load(sys.stdin)
for it in patterns:
    compiled = re.compile(it)
    for name in names:
        compiled.fullmatch(name), compiled.match(name)
"""
_PATTERN_FIELDS = re.compile(r"module|pattern|target|layers")


def read_fields(checkpoint: Checkpoint) -> dict[str, JsonValue]:
    fields = checkpoint.fields(CONFIG_FILE)
    kind = fields.get("peft_type")
    if not isinstance(kind, str):
        raise checkpoint.corrupt(CONFIG_FILE, "names no peft_type")
    if kind in PROMPTS:
        raise checkpoint.refuse(
            f"it is a peft adapter of type {kind}, which puts trained vectors in front of every "
            "text",
            "no weights can hold these vectors; train the task again with LoRA or IA3",
        )
    if kind not in {**NATIVE, **MERGED}:
        raise checkpoint.refuse(
            f"it is a peft adapter of type {kind[:80]}",
            f"expected one of {', '.join({**NATIVE, **MERGED})}; merge the adapter "
            "(merge_and_unload) and import the whole model",
        )
    for name, found in REFUSED.items():
        if fields.get(name):
            raise checkpoint.refuse(f"it uses {found}", "train it again without")
    start = str(fields.get(START, True)).lower()
    if start not in PLAIN_STARTS and kind == "LORA":
        raise checkpoint.refuse(
            f"it fits a base changed at the start ({START}={start!r})",
            "merge the adapter (merge_and_unload) and import the whole model, or convert it to "
            "plain LoRA (save_pretrained with path_initial_model_for_weight_conversion)",
        )
    return fields


def peft_config(checkpoint: Checkpoint, fields: Mapping[str, JsonValue]) -> "PeftConfig":
    with needs_extra("training"):
        from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING  # noqa: PLC0415 - takes seconds
        from peft.utils import PeftType  # noqa: PLC0415 - takes seconds
    config_class = PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(fields["peft_type"])]
    known = {it.name for it in fields_of(config_class)}
    for name, value in fields.items():
        if value and name not in known:
            raise checkpoint.refuse(
                f"it uses the setting {name[:80]} = {str(value)[:80]!r}, which the installed peft "
                "does not know",
                "install a newer peft, or train it again without",
            )
    kept = known - START_SETTINGS - ELSEWHERE
    # Older releases write null for some defaults.
    given = {name: value for name, value in fields.items() if name in kept and value is not None}
    with checkpoint.refused_by("peft", f"read its {CONFIG_FILE}"), quiet():
        return cast("Any", config_class)(**given)


def head_kind(checkpoint: Checkpoint, fields: Mapping[str, JsonValue]) -> HeadKind:
    task_type, mapping = fields.get("task_type"), fields.get("auto_mapping")
    model_class = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    kind = TASK_KINDS.get(str(task_type))
    if task_type is None:
        kind = kind_of_class(str(model_class))
    if kind is not None:
        return kind
    raise checkpoint.refuse(
        f"its task_type is {task_type!r} and its model {model_class!r}",
        f"expected a task_type out of {', '.join(TASK_KINDS)}: an adapter without such a head "
        "answers nothing",
    )


def check_patterns(
    checkpoint: Checkpoint,
    fields: Mapping[str, JsonValue],
    names: Sequence[str],
    *,
    time_limit: float = TIME_LIMIT_SECONDS,
) -> None:
    """Refuse patterns that are no regular expressions, or that take too long over these names."""
    found = {
        it for name, value in fields.items() if _PATTERN_FIELDS.search(name) for it in _texts(value)
    }
    patterns = sorted(it for it in found if not _PLAIN.fullmatch(it))
    if not patterns:
        return
    forms = [form.replace("{}", it) for it in patterns for form in _FORMS]
    try:
        subprocess.run(  # noqa: S603 - our own interpreter and program; patterns are data
            [sys.executable, "-I", "-c", _PROGRAM],
            input=json.dumps([[*patterns, *forms], list(names)]),
            capture_output=True,
            text=True,
            check=True,
            timeout=time_limit,
        )
    except subprocess.TimeoutExpired as error:
        problem = f"holds a pattern that takes over {time_limit:g} s to match"
        raise checkpoint.corrupt(CONFIG_FILE, problem) from error
    except subprocess.CalledProcessError as error:
        reason = str(error.stderr).strip().rpartition("\n")[2][:200]
        problem = f"holds a pattern that is no regular expression ({reason})"
        raise checkpoint.corrupt(CONFIG_FILE, problem) from error


def _texts(value: JsonValue) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for it in value:
            yield from _texts(it)
    elif isinstance(value, dict):
        yield from value
