"""A guardrail of LiteLLM's proxy that judges answers, streamed or whole, by a policy."""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

from fastapi import HTTPException
from guard import BlockedError, released
from litellm.integrations.custom_guardrail import CustomGuardrail
from litellm.types.utils import Delta, ModelResponse, ModelResponseStream, StreamingChoices

UNREAD = "The answer has parts that the policy does not read."


class AnswerGuard(CustomGuardrail):
    """Shows what the policy releases; other parts than text, and second answers, are blocked."""

    async def async_post_call_streaming_iterator_hook(
        self,
        user_api_key_dict: Any,  # noqa: ANN401 - LiteLLM's own
        response: AsyncIterable[ModelResponseStream],
        request_data: dict[str, Any],
    ) -> AsyncGenerator[object]:
        """Yield the judged answer, and then its end as the LLM said it.

        Raises:
            HTTPException: the parts are of another protocol, whose own error LiteLLM makes of this.
        """
        parts = aiter(response)
        first = await anext(parts, ModelResponseStream())
        if not isinstance(first, ModelResponseStream):
            raise HTTPException(400, UNREAD)
        last, finish = first, finish_of(first)

        async def texts() -> AsyncGenerator[str]:
            nonlocal last, finish
            yield text_of(first)
            async for chunk in parts:
                text = text_of(chunk)
                last, finish = (chunk if chunk.choices else last), finish_of(chunk) or finish
                yield text

        try:
            async for text in released(texts()):
                yield chunk_of(last, text)
            yield chunk_of(last, "", finish=finish)
        except BlockedError as error:
            yield chunk_of(last, str(error), finish="content_filter")

    async def async_post_call_success_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: Any,  # noqa: ANN401 - LiteLLM's own
        response: ModelResponse,
    ) -> ModelResponse:
        """Return the judged answer of a call that does not stream."""

        async def texts() -> AsyncGenerator[str]:
            yield text_of(response)

        try:
            judged = "".join([it async for it in released(texts())])
        except BlockedError as error:
            raise HTTPException(400, str(error)) from error
        response.choices[0].message.content = judged
        for name in {*(response.model_extra or ())} - {"usage"}:
            delattr(response, name)  # such as citations, which no policy has read
        return response


def text_of(said: object) -> str:
    """Return the text of an answer or of its part.

    Raises:
        BlockedError: something else than one text is there.
    """
    if not isinstance(said, ModelResponse | ModelResponseStream) or len(said.choices) > 1:
        raise BlockedError(UNREAD)
    for choice in said.choices:
        parts = choice.model_dump()
        message = parts.pop("delta", None) or parts.pop("message", None) or {}
        text = message.pop("content", None) or ""
        parts.pop("finish_reason", None)
        message.pop("role", None)
        if not isinstance(text, str) or has_more(parts) or has_more(message):
            raise BlockedError(UNREAD)
        return text
    return ""


def finish_of(said: ModelResponseStream) -> str | None:
    """Return why the LLM ended its answer, if a part says so."""
    return next((it.finish_reason for it in said.choices), None)


def has_more(part: object) -> bool:
    """Return whether a part has any value."""
    return any(map(has_more, part.values())) if isinstance(part, dict) else bool(part)


def chunk_of(like: ModelResponseStream, text: str, finish: str | None = None) -> object:
    """Return a part of a judged answer, with the ids and the usage of the LLM's own part alone."""
    choice = StreamingChoices(index=0, delta=Delta(content=text), finish_reason=finish)
    own = {"id": like.id, "created": like.created, "model": like.model, "usage": like.get("usage")}
    return ModelResponseStream(choices=[choice], **own)
