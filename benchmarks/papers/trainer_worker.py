"""One training by transformers' Trainer: LoRA with `peft`, bottlenecks with `adapters`, or all.

`adapter_speed.py` and `shared_quality.py` start this program in an environment that has the
library of the job. The last line of the output is the result as JSON.
"""
# pyright: basic, reportMissingImports=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# `adapters` is not installed where the project is checked.

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, BertForSequenceClassification, Trainer, TrainingArguments

Job = dict[str, Any]
Row = dict[str, list[int] | int]


def main() -> None:
    """Train the job that a file describes, and print seconds and dev accuracies of all epochs."""
    job: Job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["num_threads"])
    torch.manual_seed(job["seed"])
    tokenizer = AutoTokenizer.from_pretrained(job["backbone"])
    parts: dict[str, Any] = {
        part: rows_of(job[part], tokenizer, job["max_length"]) for part in ("train", "dev")
    }
    # The order of the dev examples is free, and rows of near lengths need the least padding.
    parts["dev"].sort(key=lambda row: len(row["input_ids"]))
    model = BertForSequenceClassification.from_pretrained(
        job["backbone"], num_labels=job["num_labels"]
    )
    add = {"peft": with_lora, "adapters": with_bottlenecks, "transformers": in_full}
    model = add[job["library"]](model, job)
    with tempfile.TemporaryDirectory() as output:
        trainer = Trainer(
            model=model,
            args=arguments(job, output),
            train_dataset=parts["train"],
            eval_dataset=parts["dev"],
            data_collator=padded,
            compute_metrics=accuracy,
            optimizers=(optimizer(model, job), None),
        )
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
    log = trainer.state.log_history
    scores = [entry["eval_accuracy"] for entry in log if "eval_accuracy" in entry]
    print(json.dumps({"seconds": seconds, "scores": scores, "steps": trainer.state.global_step}))


def arguments(job: Job, output: str) -> TrainingArguments:
    """Return the settings of the job; batches have rows of near lengths if the job says so."""
    # Newer versions of transformers have another name for the setting.
    known = TrainingArguments.__dataclass_fields__
    grouped: dict[str, Any] = (
        {"group_by_length": True}
        if "group_by_length" in known
        else {"train_sampling_strategy": "group_by_length"}
    )
    return TrainingArguments(
        output_dir=output,
        num_train_epochs=job["epochs"],
        per_device_train_batch_size=job["batch_size"],
        per_device_eval_batch_size=64,
        learning_rate=job["learning_rate"],
        warmup_steps=job["warmup_steps"],
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        label_names=["labels"],
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=True,
        seed=job["seed"],
        **(grouped if job["grouped"] else {}),
    )


def with_lora(model: BertForSequenceClassification, job: Job) -> nn.Module:
    """Add low-rank updates of query and value to all layers; pooler and classifier are trained."""
    import peft  # noqa: PLC0415 - each environment has one of the libraries

    config = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=job["rank"],
        lora_alpha=job["alpha"],
        target_modules=["query", "value"],
        modules_to_save=["pooler", "classifier"],
    )
    return peft.get_peft_model(model, config)


def with_bottlenecks(model: BertForSequenceClassification, job: Job) -> nn.Module:
    """Add a bottleneck after both blocks of all layers; pooler and classifier are trained."""
    import adapters  # noqa: PLC0415 - the same

    adapters.init(model)
    config = adapters.BnConfig(
        mh_adapter=True,
        output_adapter=True,
        reduction_factor=model.config.hidden_size / job["size"],
        non_linearity="tanh",
        original_ln_before=False,
        residual_before_ln=True,
    )
    model.add_adapter("task", config=config)
    model.train_adapter("task")
    for part in (model.bert.pooler, model.classifier):
        part.requires_grad_(requires_grad=True)
    return model


def in_full(model: BertForSequenceClassification, _: Job) -> nn.Module:
    """Add nothing: all parameters are trained."""
    return model


def optimizer(model: nn.Module, job: Job) -> torch.optim.Optimizer:
    """Return AdamW with a rate of its own for the head, and no decay of vectors."""
    groups = []
    for is_head, rate in ((False, job["learning_rate"]), (True, job["head_learning_rate"])):
        for is_matrix, decay in ((True, job["weight_decay"]), (False, 0.0)):
            members = [
                it
                for name, it in model.named_parameters()
                if it.requires_grad
                and ("pooler" in name or "classifier" in name) is is_head
                and (it.ndim > 1) is is_matrix
            ]
            groups.append({"params": members, "lr": rate, "weight_decay": decay})
    return torch.optim.AdamW([it for it in groups if it["params"]], fused=True)


def rows_of(examples: list[list[Any]], tokenizer: Any, max_length: int) -> list[Row]:  # noqa: ANN401 - of any family
    """Tokenize examples [text, second text or None, number of the label]."""
    return [
        {**tokenizer(text, pair, truncation=True, max_length=max_length), "labels": label}
        for text, pair, label in examples
    ]


def padded(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Pad the rows of a batch with zeros to the longest of them; the padding id of BERT is 0."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    batch = {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True)
        for name in names
    }
    return {**batch, "labels": torch.tensor([row["labels"] for row in rows])}


def accuracy(predictions: Any) -> dict[str, float]:  # noqa: ANN401 - transformers' own
    """Return the share of right answers."""
    logits, labels = predictions
    return {"accuracy": float((logits.argmax(axis=-1) == labels).mean())}


if __name__ == "__main__":
    main()
