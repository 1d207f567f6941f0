"""The content of a call to a language model: its texts, and the parts that no task reads.

A gateway sends a call as JSON of its provider. Every string of the call is a text to judge, unless
the string is a setting that no model reads as text. So a new field of a provider is judged, and
not skipped. Objects that hold other content than text are unread parts, which a policy must name.
Data that a model reads whole has no settings, and its parts are judged as text too.

An attack may be cut over several texts, so what a model may read as one is judged as one too. Texts
of one author with others between are joined only where a sentence may go on, because tasks that are
trained on single texts find attacks in harmless conversations whose turns are joined.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, cast

from pydantic import JsonValue

from nunatak_contract.enums import PolicyMode, UnjudgedPart, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import VerdictMessages, VerdictTexts
from nunatak_server.errors import invalid_request
from nunatak_server.predict.types import Handling
from nunatak_server.settings import ServerSettings
from nunatak_server.verdicts.joins import Joined, goes_on, joined_texts, matches_in_call, parts_in
from nunatak_server.verdicts.judge import Judge, Judgement, verdict_fields
from nunatak_server.verdicts.rules import TextDecision, mask, merged_spans


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_VALUES: Final = 4_000
"""Most values of a call. The event loop reads this many in about ten milliseconds."""
USER: Final = "user"
ROLES: Final = _names("assistant developer function model system tool user")
SETTINGS: Final = _names(
    "allowed_token_ids call_id confidenceScores container_id conversation created detail effort "
    "encoding_format finish_reason format groundingChunkIndices id include index media_type "
    "mimeType mime_type modalities model object previous_response_id prompt_cache_key provider "
    "quality reasoning_effort reference_ids safety_identifier service_tier size status stop "
    "stop_reason stop_sequence stop_sequences stop_token_ids system_fingerprint toolUseId "
    "tool_call_id tool_choice tool_use_id truncation ttl type user verbosity voice"
)
"""Names of fields whose short values no model reads as text."""
OPAQUE: Final = _names(
    "encrypted_content encrypted_index encrypted_stdout redactedContent signature "
    "thoughtSignature thought_signature"
)
"""Names of fields whose values only their provider can read."""
OPAQUE_VALUE: Final = re.compile(r"[\w+/=-]+", re.ASCII)
CONVERSATION: Final = _names("content contents input messages prompt text")
"""Names of fields that hold what the user says, unless a role says otherwise."""
TEXT_FIELDS: Final = _names("content input prompt text")
"""Names of fields in which a model could read a number as text."""
MESSAGE_FIELDS: Final = _names("contents input message messages")
"""Names of fields that hold messages, of which a model reads `content`; of other parts, `text`."""
DATA_FIELDS: Final = _names(
    "chat_template_kwargs const default documents enum example examples json response tool_results "
    "variables"
)
"""Names of fields whose content a model reads whole, with names and numbers: data of tools."""
DATA: Final = "*"
"""The name that stands for each field in data."""
READ_AS: Final = {
    ("file_id", "annotations"): "id",
    ("document", "sources"): DATA,
    ("tool_output", "sources"): DATA,
}
"""How a model reads fields of citations, by their name and the list. A citation holds no file."""
SHORT_VALUE: Final = re.compile(r"[\w.:/+=-]{1,64}", re.ASCII)
WORD_OF_A_VALUE: Final = re.compile(r"(?=[^\W_]*[g-zG-Z])(?=(?:\d*[a-zA-Z]){2})[^\W_]+", re.ASCII)
"""A word between the symbols of a value, with two letters; a hexadecimal number is none."""
MAX_WORDS_OF_A_VALUE: Final = 2
FIELD_NAME: Final = re.compile(r"[\w.:/$-]{1,64}", re.ASCII)
TEXT_TYPES: Final = _names(
    "PLAN TEXT_CONTENT THINKING_CONTENT apply_patch_call_output bash_code_execution_tool_result "
    "char_location code_execution_tool_result compaction computer_call_output "
    "container_file_citation content_block_location custom_tool_call_output file_citation "
    "file_path function_call_output input_text local_shell_call_output logs mcp_approval_response "
    "mcp_tool_result message output_text page_location reasoning reasoning.encrypted "
    "reasoning.summary reasoning.text reasoning_text redacted_thinking reference refusal "
    "search_result search_result_location shell_call_output summary_text text "
    "text_editor_code_execution_tool_result thinking tool_reference tool_result "
    "tool_search_tool_result url_citation web_fetch_tool_result web_search_result "
    "web_search_result_location web_search_tool_result"
)
"""Types of objects in lists that hold nothing but text."""
SCHEMA_FIELDS: Final = _names(
    "$defs definitions dependencies dependentRequired dependentSchemas mapping patternProperties "
    "properties"
)
"""Names of fields in a JSON schema whose content has names of the caller's choice."""
SCHEMA_PLACES: Final = _names(
    "format generationConfig guided_json output_config response_format structured_outputs text"
)
"""Names of fields of a call that hold a JSON schema, where other names than keywords may stand."""
LISTS: Final = _names("allOf anyOf edits oneOf prefixItems sources type")
"""Names of lists in a schema, a citation or a setting, whose items are no parts of a message."""
NAMES_OF_PARTS: Final = {
    UnjudgedPart.IMAGES: _names(
        "image image_data image_embeds image_file image_generation_call image_url images "
        "input_image"
    ),
    UnjudgedPart.AUDIO: _names("audio audio_data audio_embeds audio_url input_audio output_audio"),
    UnjudgedPart.FILES: _names(
        "attachments container_upload document document_url file fileData file_data file_id "
        "file_ids file_url files inlineData inline_data input_file input_video multimodal_data "
        "tool_file video video_data video_embeds video_url"
    ),
    UnjudgedPart.TOOLS: _names(
        "additional_tools functions mcp_list_tools mcp_servers skills tool_choice tools"
    ),
    UnjudgedPart.TOOL_CALLS: _names(
        "apply_patch_call code_interpreter_call computer_call custom_tool_call file_search_call "
        "function_call functionCall local_shell_call mcp_approval_request mcp_call mcp_tool_use "
        "server_tool_use shell_call tool_calls tool_search_call tool_use toolUse web_search_call"
    ),
    UnjudgedPart.OTHER: _names("logprobs prompt_embeds"),
}
TEXTS_OF_PARTS: Final = _names("error output outputs results text transcript")
"""Names of fields with the words of a sound, or with what a call has found."""
TEXTS_OF_FILES: Final = _names("content context document_name filename name title")
"""Names of fields with what a model reads of a file as text, anywhere in the file."""
PARTS: Final = {name: part for part, names in NAMES_OF_PARTS.items() for name in names}
"""The part of a field with this name, or of an object in a list with this type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    author: str
    name: str
    text: str


@dataclass(slots=True, kw_only=True)
class CallContent:
    """What a call holds; `read` collects it, and replaces texts by `changes`."""

    changes: Mapping[str, str] = field(default_factory=dict[str, str])
    texts: Counter[str] = field(default_factory=Counter[str])
    """The texts in order, and how often each stands there. White space is no content."""
    sequences: dict[tuple[str, ...], None] = field(default_factory=dict[tuple[str, ...], None])
    """Texts that a model may read as one: of one list, and of one author without others between."""
    turns: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    """Texts of one author with others between, where a sentence may go on in the next."""
    unread: dict[UnjudgedPart, None] = field(default_factory=dict[UnjudgedPart, None])
    """The parts that no task reads, in order."""
    num_values: int = 0
    _said: list[_Said] = field(default_factory=list[_Said])
    """All texts in order."""
    _place: str = ""
    """The field of the call that is read."""
    _role: str = ""
    """The role of the message that is read."""
    _is_aside: bool = False
    """Whether a model reads another field in place of this one."""

    def read(self, value: JsonValue) -> JsonValue:
        """Read a call or its texts; return the value with changed texts."""
        # A role of the call itself is none of its messages.
        changed = self._object(value, "") if isinstance(value, dict) else self._read(value, "")
        runs = dict[str, list[Sequence[str]]]()
        for author, run in groupby(self._said, key=attrgetter("author")):
            said = tuple(run)
            spoken = [it.text for it in said if it.name in TEXT_FIELDS or not it.name]
            self._follow(spoken)
            self._follow(it.text for it in said)
            if spoken := [it for it in spoken if it.strip()]:
                runs.setdefault(author, []).append(spoken)
        self._said.clear()
        for own in runs.values():
            self._follow_turns(own)
        return changed

    def _follow_turns(self, runs: Sequence[Sequence[str]]) -> None:
        """Collect the runs of an author that go on in the author's next run."""
        begin = 0
        for end in range(1, len(runs) + 1):
            if end == len(runs) or not goes_on(runs[end - 1][-1], runs[end][0]):
                if end - begin > 1:
                    self.turns.append(tuple(chain.from_iterable(runs[begin:end])))
                begin = end

    def _follow(self, texts: Iterable[str]) -> None:
        sequence = tuple(texts)
        if len(sequence) > 1:
            self.sequences[sequence] = None

    def _count(self) -> None:
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise invalid_request(f"a guarded call may have at most {MAX_VALUES} JSON values")

    def _read(self, value: JsonValue, name: str) -> JsonValue:
        self._count()
        match value:
            case str():
                return self._text(value, name)
            case dict():
                before, self._role = self._role, self._role_of(value)
                changed = self._object(value, name)
                self._role = before
                return changed
            case list():
                self._follow(it for item in value if (it := _text_of(item, name)))
                return [self._item(item, name) for item in value]
            case int() | float() if name == DATA and not isinstance(value, bool):
                return value if (text := self._text(str(value), name)) == str(value) else text
            case int() | float() if name in TEXT_FIELDS and not isinstance(value, bool):
                self.unread[UnjudgedPart.OTHER] = None
                return value
            case _:
                return value

    def _object(self, fields: Mapping[str, JsonValue], name: str) -> dict[str, JsonValue]:
        changed = dict[str, JsonValue]()
        # A provider may skip the other fields, which must not part what a model reads as one.
        is_message = name in MESSAGE_FIELDS or fields.get("type") == "tool_result"
        main, before = "content" if is_message else "text", self._is_aside
        others = TEXT_FIELDS - {main} if name and fields.get(main) else ()
        for it, value in fields.items():
            self._is_aside = before or it in others
            own = self._name(it, name)
            while own in changed:
                # The masks of two names may be equal, and no value may be lost.
                own = f"{own} {len(changed)}"
            changed[own] = self._field(it, value, name)
        self._is_aside = before
        return changed

    def _role_of(self, fields: Mapping[str, JsonValue]) -> str:
        """Return the role of a message, also in its parts. Unknown roles count as the user's."""
        role = fields.get("role")
        if self._role or not role:
            return self._role
        return role if isinstance(role, str) and role in ROLES else USER

    def _text(self, text: str, name: str) -> str:
        if not text or _is_setting(text, name):
            return text
        author = self._role or (USER if self._place in CONVERSATION else self._place)
        if text.strip():
            self.texts[text] += 1
        elif not self._said or self._said[-1].author != author:
            # White space counts for patterns that read on over it, and parts no texts of others.
            return text
        self._said.append(_Said(author=author, name=DATA if self._is_aside else name, text=text))
        return self.changes.get(text, text)

    def _name(self, name: str, parent: str) -> str:
        """Return a name, changed like a text if it may be one: a model reads data and schemas."""
        is_keyword = self._place not in SCHEMA_PLACES or _has_few_words(name)
        is_plain = is_keyword and parent not in {DATA, *SCHEMA_FIELDS}
        return name if is_plain and FIELD_NAME.fullmatch(name) else self._text(name, "")

    def _field(self, name: str, value: JsonValue, parent: str) -> JsonValue:
        if parent in SCHEMA_FIELDS:
            return self._read(value, "")
        name = READ_AS.get((name, parent), name)
        part = PARTS.get(name) if _has_content(value) and not _is_setting(value, name) else None
        part = part or _part_of(value)
        if self._is_left_out(part, value, parent):
            return self._part(value, part, name)
        before, self._place = self._place, self._place or name
        is_data = name in DATA_FIELDS and parent != "structured_outputs"
        changed = self._read(value, DATA if parent == DATA or is_data else name)
        self._place = before
        return changed

    def _item(self, value: JsonValue, name: str) -> JsonValue:
        match value:
            case _ if name in LISTS:
                pass
            case bool():
                pass
            case int() | float() if name != DATA and name not in SETTINGS:
                # Token ids are a text that another tokenizer has made.
                self.unread[UnjudgedPart.OTHER] = None
            case {"type": "redacted_thinking" | "reasoning.encrypted", "data": str(data)} if (
                OPAQUE_VALUE.fullmatch(data)
            ):
                rest = {it: own for it, own in value.items() if it != "data"}
                return {**self._object(rest, name), "data": data}
            case _:
                part = _part_of(value, unknown=UnjudgedPart.OTHER)
                if self._is_left_out(part, value, name):
                    return self._part(value, part)
        return self._read(value, name)

    def _is_left_out(self, part: UnjudgedPart | None, value: JsonValue, name: str) -> bool:
        """Note a part that no task reads; return whether it is outside of data, and no message."""
        if part is not None:
            self.unread[part] = None
        is_message = isinstance(value, dict) and "role" in value
        return part is not None and name != DATA and not is_message

    def _part(self, value: JsonValue, part: UnjudgedPart | None, name: str = "") -> JsonValue:
        """Read what is text in a part, such as the words of a sound."""
        self._count()
        if not isinstance(value, dict):
            return value
        changed, is_file = dict[str, JsonValue](), part is UnjudgedPart.FILES
        for it, own in value.items():
            if it in TEXTS_OF_PARTS and own:
                changed[it] = self._read(own, "text")
            elif is_file and (it in TEXTS_OF_FILES or (it, name) == ("data", "document")):
                changed[it] = self._read(own, DATA if it == "data" else it)
            else:
                changed[it] = self._part(own, part, it) if is_file else own
        return changed


def _has_content(value: JsonValue) -> bool:
    return isinstance(value, (str, list, dict)) and bool(value)


def _part_of(value: JsonValue, *, unknown: UnjudgedPart | None = None) -> UnjudgedPart | None:
    match value:
        case {"type": "document", "source": dict() as it} if it.get("type") in {"content", "text"}:
            return None
        case {"type": str(kind)}:
            return None if kind in TEXT_TYPES else PARTS.get(kind, unknown)
        case {"type": _}:
            return unknown
        case _:
            return None


def _is_setting(value: JsonValue, name: str) -> bool:
    if not isinstance(value, str):
        return False
    if name == "role":
        return value in ROLES
    if name == "type" and value in TEXT_TYPES:
        return True
    if name in OPAQUE:
        return OPAQUE_VALUE.fullmatch(value) is not None
    if name not in SETTINGS or SHORT_VALUE.fullmatch(value) is None:
        return False
    return _has_few_words(value)


def _has_few_words(value: str) -> bool:
    return len(WORD_OF_A_VALUE.findall(value)) <= MAX_WORDS_OF_A_VALUE


def _text_of(item: JsonValue, name: str) -> str | None:
    match item:
        case str() if not _is_setting(item, name):
            text = item
        case {"text": str(text)}:
            pass
        case _:
            return None
    return text or None


async def judge_call(
    judge: Judge,
    settings: ServerSettings,
    policy: str,
    content: CallContent,
    handling: Handling,
    *,
    replaceable: Collection[str],
    stops_early: bool = True,
) -> tuple[Judgement, Mapping[str, str]]:
    """Judge every text of a call; return the judgement, and the masked texts by the texts.

    Texts that follow each other are judged as one text too. A mask of the joined text covers its
    part in each of them. The gateway can replace the `replaceable` texts alone. A call without a
    text is nothing to judge.
    """
    found, left = await judge.find(policy, handling)
    published = found.document
    turns = () if UnjudgedPart.TURNS in published.unjudged else content.turns
    most = settings.max_call_texts
    sequences = (*content.sequences, *turns) if len(content.texts) <= most else ()
    joined = joined_texts(sequences, max_chars=settings.max_text_chars, most=most)
    asked = tuple(dict.fromkeys((*content.texts, *joined)))
    match = partial(
        matches_in_call,
        *(published.patterns, asked, joined, sequences),
        max_chars=settings.max_text_chars,
    )
    judgement = await judge.ask(
        *(found, asked, left),
        stops_early=stops_early,
        is_call=True,
        match=match if published.patterns and sequences else None,
    )
    masks: Mapping[str, str] = {}
    if published.mode is PolicyMode.ENFORCE and judgement.action is not VerdictAction.BLOCK:
        unread = next((it for it in content.unread if it not in published.unjudged), None)
        if unread is not None:
            raise invalid_request(
                f"no task reads {unread.value}; name {unread.value!r} in `unjudged` of the "
                "policy to let them pass"
            )
        masks = _masks(dict(zip(asked, judgement.decisions, strict=True)), content, joined)
        if not masks.keys() <= frozenset(replaceable):
            problem = "a text to mask stands in a part of the call that cannot be replaced"
            raise invalid_request(problem)
    # A call that is refused has no verdict.
    judge.observe(judgement)
    return judgement, masks


def _masks(
    decisions: Mapping[str, TextDecision], content: CallContent, joined: Joined
) -> Mapping[str, str]:
    spans = {text: list(decisions[text].masking) for text in content.texts}
    for text, pieces in joined.items():
        for _, piece, span in parts_in(merged_spans(decisions[text].masking), pieces):
            spans[piece.text].append(span)
    return {text: mask(text, found) for text, found in spans.items() if found}


async def judge_request(
    judge: Judge,
    settings: ServerSettings,
    policy: str,
    body: VerdictTexts | VerdictMessages,
    handling: Handling,
    problem: Callable[[NunatakError], object],
) -> tuple[Judgement, dict[str, Any]]:
    """Judge the texts or the messages of a request; return the verdict in the wire format too."""
    if isinstance(body, VerdictTexts):
        texts = (body.inputs,) if isinstance(body.inputs, str) else tuple(body.inputs)
        judgement = await judge.judge(policy, texts, handling)
        return judgement, verdict_fields(judgement, body.inputs, problem)
    content = CallContent()
    call: dict[str, JsonValue] = {"messages": list[JsonValue](body.messages)}
    content.read(call)
    judgement, masks = await judge_call(
        judge, settings, policy, content, handling, replaceable=content.texts
    )
    fields = verdict_fields(judgement, None, problem)
    if judgement.action is VerdictAction.MASK:
        fields |= cast("dict[str, JsonValue]", CallContent(changes=masks).read(call))
    return judgement, fields
