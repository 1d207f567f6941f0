"""Every reason for which Nunatak refuses or fails: its code, its HTTP status and its message.

Codes are stable: callers decide by them. Fields in a message are filled where the error is raised.
A reason that no route can meet has status 500.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final


@dataclass(frozen=True, slots=True)
class Reason:
    """The template of a reason's message, and the HTTP status of answers with this reason."""

    message: str
    status: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR


def names_of(code: str) -> dict[str, str]:
    """Return the type and the title of a problem (RFC 9457)."""
    return {"type": f"urn:nunatak:problem:{code}", "title": code.replace("_", " ").capitalize()}


_BAD_GATEWAY: Final = HTTPStatus.BAD_GATEWAY
_BAD_REQUEST: Final = HTTPStatus.BAD_REQUEST
_CONFLICT: Final = HTTPStatus.CONFLICT
_FORBIDDEN: Final = HTTPStatus.FORBIDDEN
_INVALID: Final = HTTPStatus.UNPROCESSABLE_ENTITY
_LATE: Final = HTTPStatus.GATEWAY_TIMEOUT
_NOT_FOUND: Final = HTTPStatus.NOT_FOUND
_TOO_MANY: Final = HTTPStatus.TOO_MANY_REQUESTS
_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE

REASONS: Final[Mapping[str, Reason]] = {
    # The registry.
    "registry_missing": Reason(
        "there is no registry at {location}; check the given place, or NUNATAK_REGISTRY. To make a "
        "new registry there, give --create to `nunatak train`, `serve` or `registry copy`"
    ),
    "invalid_manifest": Reason("{problem}", _UNAVAILABLE),
    "invalid_artifact": Reason("{problem}", _UNAVAILABLE),
    "task_not_found": Reason(
        "no task {task!r} in this registry; `nunatak task list` shows the tasks there are",
        _NOT_FOUND,
    ),
    "version_not_found": Reason(
        "task {task!r} has no version {version}; versions: {known}", _NOT_FOUND
    ),
    "alias_not_found": Reason("task {task!r} has no alias {alias!r}; aliases: {known}", _NOT_FOUND),
    "alias_conflict": Reason(
        "alias {alias!r} of task {task!r} points to {actual}, expected {expected}; look again and "
        "retry",
        _CONFLICT,
    ),
    "replicas_behind": Reason(
        "the change is made, but after {seconds:g} s these replicas had not confirmed it: "
        "{replicas}; each of them may answer as before, or was killed less than two minutes ago. "
        "`nunatak replicas` shows when they follow",
        _LATE,
    ),
    "no_previous_version": Reason("{subject} has no earlier version to go back to", _CONFLICT),
    "version_in_use": Reason("version {version} of task {task!r} is held by {holders}", _CONFLICT),
    "invalid_candidate": Reason(
        "version {version} of task {task!r} cannot be its {role}: {reason}", _INVALID
    ),
    "candidate_not_found": Reason(
        "alias {alias!r} of task {task!r} has no {role}; `nunatak task {role} {task}/N` sets one",
        _NOT_FOUND,
    ),
    "candidate_conflict": Reason(
        "the {role} of alias {alias!r} of task {task!r} is {actual}, expected {expected}; look "
        "again and retry",
        _CONFLICT,
    ),
    "corrupt_blob": Reason(
        "blob {digest:.12}...{of} {reason}; restore it or publish the version again", _UNAVAILABLE
    ),
    "copy_conflict": Reason(
        "{what} cannot be copied: {reason}; copy into another registry, or make both registries "
        "agree first"
    ),
    "registry_in_use": Reason(
        "the registry cannot be upgraded while these readers use it: {readers}; stop the servers "
        "of the older release first. The entry of a killed server ends after 120 s"
    ),
    "policy_not_found": Reason(
        "no policy {policy!r} in this registry; `nunatak policy list` shows the policies there "
        "are, and `nunatak policy history` the versions of one",
        _NOT_FOUND,
    ),
    "invalid_policy": Reason("{problem}", _UNAVAILABLE),
    "question_not_found": Reason(
        "no question card {question!r} in this registry; `nunatak question list` shows the cards "
        "there are, and `nunatak question history` the versions of one",
        _NOT_FOUND,
    ),
    "invalid_question": Reason("{problem}", _UNAVAILABLE),
    "store_unavailable": Reason("{problem}", _UNAVAILABLE),
    "store_read_only": Reason("the registry takes no changes: {reason}; {remedy}", _UNAVAILABLE),
    # The backbone and what runs on it.
    "backbone_not_found": Reason(
        "no backbone at {source!r}: {reason}; expected 'minilm', the name of an added backbone, a "
        "folder or a hub id",
        _UNAVAILABLE,
    ),
    "unsupported_backbone": Reason("{problem}", _UNAVAILABLE),
    "corrupt_backbone": Reason("{problem}", _UNAVAILABLE),
    "invalid_method": Reason("{problem}", _UNAVAILABLE),
    "invalid_head": Reason("{problem}", _UNAVAILABLE),
    "parameter_mismatch": Reason(
        "parameters do not fit their method and head: {found}", _UNAVAILABLE
    ),
    "non_finite_parameter": Reason(
        "parameter {name!r} holds NaN or infinity; train the task again", _UNAVAILABLE
    ),
    "invalid_tensors": Reason("{problem}", _UNAVAILABLE),
    "layer_not_held": Reason(
        "backbone layer {index} is needed (counted from 0), and only lower layers are in memory; "
        "start the server with a larger backbone_layers, or without this setting",
        _CONFLICT,
    ),
    # Task versions, and folders of other programs.
    "backbone_mismatch": Reason(
        "{reference} was trained on {part} {wanted}, and here is only {served}; serve that one "
        "(option `backbone`), or train the task again on a backbone that is here",
        _CONFLICT,
    ),
    "unservable_task": Reason(
        "{reference} cannot be served: {reason}; publish the task again", _UNAVAILABLE
    ),
    "no_effect": Reason(
        "{reference} must change the backbone's results, but its {method} parameters change no "
        "layer; check that the trained weights were exported, or publish the task as method 'head'",
        _UNAVAILABLE,
    ),
    "probe_failed": Reason(
        "{reference} fails its parity probe at input {number}: {reason}", _UNAVAILABLE
    ),
    "invalid_folder": Reason("cannot import {folder!r}: {reason}"),
    "corrupt_file": Reason("cannot import {folder!r}: {file} {problem}; save or download it again"),
    "escaping_file": Reason(
        "cannot import {folder!r}: {file} is a link out of the folder; if you trust it, copy the "
        "folder with its links followed (cp -rL) and import the copy"
    ),
    "tensor_mismatch": Reason(
        "cannot import {folder!r}: its tensors do not fit its configuration: {found}; name the "
        "backbone it was trained from, or save it again"
    ),
    "unknown_labels": Reason(
        "cannot import {folder!r}: expected {num_labels} different texts as labels, one for each "
        "logit from 0 on, {found}; put the config.json of the trained model into the folder, or "
        "name the labels in the order of the logits with --labels a,b,c"
    ),
    "unsupported_import": Reason("cannot import {folder!r}: {found}; {advice}"),
    "pickled_weights": Reason(
        "cannot import {folder!r}: {file} is a pickle, and a pickle can run any code when it is "
        "read; {advice}"
    ),
    "foreign_backbone": Reason(
        "cannot import {folder!r} on backbone {backbone!r}: {difference}; {advice}"
    ),
    "unsupported_export": Reason("cannot export {reference}: {part}; {advice}"),
    "folder_in_use": Reason(
        "{folder!r} must be new or an empty folder; choose another or empty it"
    ),
    "hub_unavailable": Reason(
        "cannot {action} {repository!r}: {reason}; check its name, your network and, for a "
        "private repository, your token (HF_TOKEN)"
    ),
    # Training and sweeps.
    "data_not_found": Reason("{where}: {problem}"),
    "unreadable_file": Reason("{where}: {problem}"),
    "missing_column": Reason(
        "{where}: no column {column!r}; found {found}. A {kind} task needs {needed}; {advice}"
    ),
    "invalid_row": Reason("{where}: {problem}"),
    "unknown_label": Reason(
        "{where}: label {label!r} is unknown; the labels of the task are {known}"
    ),
    "too_few_examples": Reason("{where}: {problem}"),
    "teacher_failed": Reason("{problem}"),
    "suspicious_data": Reason("{where}: {problems}. Correct the examples, or train without strict"),
    "invalid_recipe": Reason("{problem}"),
    "training_diverged": Reason(
        "the loss or its gradient is not finite at step {step} (learning rate {learning_rate:g}); "
        "lower the learning rate, or raise warmup_share"
    ),
    "target_missed": Reason("full fine-tuning scores {full_score:.4f}, {found}"),
    "score_lost": Reason(
        "{reference} scores {before:.4f} in {metric} on {data}, and {after:.4f} on {backbone}: "
        "{excess}, and {tolerance:g} are allowed. Train the task on {backbone}, or raise "
        "--tolerance"
    ),
    "unpublishable": Reason(
        "a version cannot be published with {place}: {problem}; change it first"
    ),
    "already_training": Reason(
        "another process trains the same task on the same data with the same recipe (the "
        "checkpoint in {folder} is in use); wait for that process, or train anyway, with another "
        "folder in NUNATAK_CACHE or with `nunatak train --no-resume`"
    ),
    "cache_unusable": Reason(
        "the cache folder {folder} cannot be used: {problem}; free space or allow writing there, "
        "name another folder in NUNATAK_CACHE, or train with `nunatak train --no-cache --no-resume`"
    ),
    "invalid_sweep": Reason("{where}: {problem}"),
    "sweep_running": Reason(
        "another sweep writes to {folder}; wait for its end, or name another folder"
    ),
    "corrupt_result": Reason(
        "{file} is no result of a sweep ({problem}); mend or move the file, and start again"
    ),
    # Requests.
    "unauthenticated": Reason(
        "the request needs a valid API key, or a token if the server takes tokens; send it as "
        "'Authorization: Bearer KEY' (the client and the command read NUNATAK_API_KEY)",
        HTTPStatus.UNAUTHORIZED,
    ),
    "invalid_token": Reason(
        "the token is refused: {reason}; get a new token from the issuer, and send it as "
        "'Authorization: Bearer TOKEN'",
        HTTPStatus.UNAUTHORIZED,
    ),
    "insufficient_scope": Reason(
        "the request needs a key or a token with the scope '{scope}'{extent}; ask the operator of "
        "the server",
        _FORBIDDEN,
    ),
    "cross_site": Reason(
        "pages of other sites have no access to this server; send the request from a program or "
        "from a page of this server, or let the operator name the site in NUNATAK_CORS_ORIGINS",
        _FORBIDDEN,
    ),
    "invalid_http": Reason(
        "the bytes are no HTTP/1.1 request with a head of at most {max_headers} headers "
        "and {max_head_bytes} bytes; the connection is closed",
        _BAD_REQUEST,
    ),
    "invalid_json": Reason(
        "the body must be JSON in UTF-8 (RFC 8259: no NaN, no Infinity, no lone surrogates), "
        "and no object may name a field twice",
        _BAD_REQUEST,
    ),
    "invalid_name": Reason("{kind} must be {expected}, got {value!r}", _INVALID),
    "invalid_request": Reason("{problem}", _INVALID),
    "body_too_large": Reason(
        "the body may have at most {limit_bytes} bytes; send fewer texts",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ),
    "receive_timeout": Reason(
        "the body must arrive within {limit_s:g} seconds", HTTPStatus.REQUEST_TIMEOUT
    ),
    "unsupported_stream_type": Reason(
        "the content type must be one of {types}, in UTF-8", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    ),
    "unsupported_media_type": Reason(
        "the body must be declared as 'content-type: application/json'",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    ),
    "compressed_body": Reason(
        "a body must come as it is, without 'content-encoding'; turn the compression of requests "
        "off",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    ),
    "too_many_inputs": Reason(
        "a request may have at most {limit} {of}, got {count}; split the request, or raise the "
        "server's limit",
        _INVALID,
    ),
    "too_many_tasks": Reason(
        "a request may name at most {limit} tasks, got {count}; split the request", _INVALID
    ),
    "request_too_large": Reason(
        "the rows of one request for one {holder} may take {limit:.0f} tokens of the queue, got "
        "{num_tokens:.0f}; send fewer texts or fewer tasks in one request",
        _INVALID,
    ),
    "text_too_long": Reason(
        "the text has {num_chars} characters, and at most {limit_chars} are read; send a part of "
        "the text",
        _INVALID,
    ),
    "too_many_tokens": Reason(
        "the text has {num_tokens} tokens, at most {limit} are read at once, and on_long is "
        "'refuse'; shorten the text, or set on_long to 'windows' or 'cut' (other protocols: "
        "truncation)",
        _INVALID,
    ),
    "empty_text": Reason(
        "the text is empty or only white space; ask only about other texts", _INVALID
    ),
    "invalid_text": Reason("the text contains {reason}; remove it", _INVALID),
    "model_not_found": Reason(
        "this server embeds texts with {served}; name that model, or ask tasks at /v1/tasks",
        _NOT_FOUND,
    ),
    "wrong_input_kind": Reason(
        "the input is a {kind}, and this {head} task reads a {wanted}; send what the task reads, "
        "or ask another task",
        _INVALID,
    ),
    # The server.
    "invalid_settings": Reason("{problem}"),
    "invalid_key_file": Reason("the file of API keys {path}: {reason}"),
    "overloaded": Reason(
        "the queue is full ({limit} {resource}); retry after {retry_after_s} seconds", _TOO_MANY
    ),
    "share_exceeded": Reason(
        "this {holder} holds its share of the queue ({limit} {resource} for all); wait for "
        "answers, or retry after {retry_after_s} seconds",
        _TOO_MANY,
    ),
    "audit_log_failed": Reason(
        "the audit log cannot be written: {reason}; nothing was changed. NUNATAK_AUDIT_LOG must "
        "name a regular file in a folder that is there and has room, which the server may write",
        _UNAVAILABLE,
    ),
    "quota_exceeded": Reason(
        "this caller has spent its quota of {limit} {resource} a {period}; retry after "
        "{retry_after_s} seconds, or ask the operator of the server for more",
        _TOO_MANY,
    ),
    "issuer_unavailable": Reason(
        "the keys of the issuer cannot be read, so no token can be checked; retry later, or use an "
        "API key",
        _UNAVAILABLE,
    ),
    "shared_port": Reason(
        "{processes} processes share this port, and each process has its own counts; ask each "
        "process at its own address, which `nunatak replicas` shows",
        HTTPStatus.MISDIRECTED_REQUEST,
    ),
    "deadline_exceeded": Reason("{problem}", _LATE),
    "deadline_too_short": Reason(
        "the work in the queue takes about {wait_ms:.0f} ms, and the deadline of the request is "
        "{deadline_ms:.0f} ms; allow more time or retry later",
        _LATE,
    ),
    "not_ready": Reason("the server is not ready: {reason}", _UNAVAILABLE),
    "draining": Reason(
        "the server is shutting down; send the request to another server", _UNAVAILABLE
    ),
    "engine_failed": Reason("the server has failed ({reason}); restart the server", _UNAVAILABLE),
    "out_of_memory": Reason(
        "the server had no memory left for the request; retry later, or lower "
        "NUNATAK_MAX_BATCH_TOKENS or NUNATAK_TASK_MEMORY_BYTES",
        _UNAVAILABLE,
    ),
    "backbone_unhealthy": Reason(
        "the backbone {reason}; see the log, or try another NUNATAK_DTYPE", _UNAVAILABLE
    ),
    "task_unhealthy": Reason("{task}/{version} {reason}; roll the task back", _UNAVAILABLE),
    "task_does_not_fit": Reason(
        "{task}/{version} needs {needed_bytes} bytes; of the {budget_bytes} bytes for task "
        "versions, {pinned_bytes} are pinned; raise NUNATAK_TASK_MEMORY_BYTES or unpin versions",
        _UNAVAILABLE,
    ),
    "task_in_use": Reason(
        "{task}/{version} is answering {num_leases} requests; retry after their answers", _CONFLICT
    ),
    "task_pinned": Reason("{task}/{version} is pinned; unpin the version first", _CONFLICT),
    "text_unread": Reason(
        "version {version} of task {task!r} has not read {count} characters of a text, because its "
        "backbone has no token for them; use a backbone that knows the script, or let such "
        "characters pass with unjudged ['unread'] in the policy or card",
        _INVALID,
    ),
    "question_unknown": Reason(
        "no card of the registry has {question}, character by character; "
        "`nunatak question list` shows the questions, and `nunatak question put` adds one",
        _NOT_FOUND,
    ),
    "question_unreadable": Reason(
        "{question} has no answer: the text of its answer {place} {reason}", _INVALID
    ),
    "upstream_failed": Reason("the upstream has no answer to {question}: {reason}", _BAD_GATEWAY),
    "upstream_missing": Reason(
        "card {card!r} lets an upstream answer unsure questions (ask_upstream_below), and this "
        "server has none; set NUNATAK_DECISIONS_UPSTREAM, or publish the card without this field",
        _UNAVAILABLE,
    ),
    "question_unanswerable": Reason(
        "version {version} of task {task!r} cannot answer the question of card {card!r}: {reason}; "
        "roll the version back, or publish a card for it",
        _UNAVAILABLE,
    ),
    "rule_unanswerable": Reason(
        "version {version} of task {task!r} cannot decide a condition of the policy: {reason}; "
        "roll the version back, or publish a policy for it",
        _UNAVAILABLE,
    ),
    # Commands.
    "missing_extra": Reason(
        "the package {module!r} is not installed; run: pip install 'nunatak[{extra}]'"
    ),
    "invalid_option": Reason("{problem}"),
    "output_failed": Reason("the output cannot be written: {problem}"),
    "machine_exhausted": Reason(
        "the machine gives no more memory or threads ({problem}); free some, or use smaller batches"
    ),
    "corpus_changed": Reason(
        "{folder} has the parts of another run: {problem}; undo the change to go on with that run, "
        "or remove the folder to begin anew"
    ),
    "ray_unavailable": Reason(
        "no Ray cluster at {address}: {problem}; start one with `ray start --head`, or name the "
        "address of its client server, such as ray://head:10001"
    ),
    "ray_failed": Reason("on Ray: {problem}"),
    "corpus_running": Reason(
        "another run writes to {folder}; wait for its end, or name another OUT"
    ),
    "invalid_task_file": Reason("{path}: {place}: {problem}; docs/training.md shows the format"),
    "invalid_policy_file": Reason("{path}: {place}: {problem}; docs/verdicts.md shows the format"),
    "invalid_question_file": Reason(
        "{path}: {place}: {problem}; docs/questions.md shows the format"
    ),
    "invalid_collection": Reason("the folder of collected texts {folder}: {problem}"),
    "loadtest_failed": Reason(
        "Locust ended with code {exit_code} and without a report; its last error: {said}"
    ),
    # The client.
    "api_error": Reason("{detail}{trail}"),
    "invalid_input": Reason("{problem}"),
    "connection_failed": Reason("{problem}"),
    "invalid_response": Reason("{problem}"),
    "wrong_head": Reason(
        "this property belongs to {wanted} tasks, and the answer is of a {head} task; read "
        "`{instead}` or `outputs`"
    ),
}
"""All reasons, by code."""
