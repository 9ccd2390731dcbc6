"""Answers from a server that speaks Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import httpx
import httpx_sse

from gptoss_jax.chat.backend import Answer, ChatMessage, Piece
from gptoss_jax.chat.errors import ChatError, one_line
from gptoss_jax.chat.text import without_surrogates

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""Seconds without a byte of the answer, which may wait in a queue; and for the connection."""


class RemoteBackend:
    """Answers by `POST URL/chat/completions`, streamed."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        key: str | None = None,
        fields: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Connects to a server.

        Args:
            url: the address before `/chat/completions`, such as http://127.0.0.1:8000/v1.
            model: the model's name; None asks the server for its only one.
            key: the API key; None sends none.
            fields: further fields of every request's body.
            tools: functions that the model may call, as in Chat Completions.

        Raises:
            ChatError: the URL, the key or the environment's proxy cannot be used; or `model` is None, and the
                server does not name exactly one.
        """
        if not url.startswith(("http://", "https://")):
            raise ChatError(f"the URL is {url!r}: it must begin with http:// or https://")
        if key and not (key.isascii() and key.isprintable()):
            raise ChatError("the API key cannot be sent: it must be printable ASCII characters")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._url = url.rstrip("/")
        try:
            self._client = httpx.Client(headers=headers, timeout=_TIMEOUT)
        except (ImportError, ValueError) as error:
            raise ChatError(one_line(f"the environment names a proxy that cannot be used: {error}")) from None
        self._fields = dict(fields or {})
        if tools:
            self._fields["tools"] = list(tools)
        self._reasoning_field = "reasoning"
        try:
            self.name = model if model is not None else self._only_model()
        except BaseException:
            self.close()
            raise

    def answer(self, messages: Sequence[ChatMessage], effort: str | None) -> Generator[Piece | Answer]:
        """See `Backend`."""
        body = {
            "model": self.name,
            "messages": [self._as_sent(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._fields,
        }
        if effort is not None:
            body["reasoning_effort"] = effort
        assembly = _Assembly()
        try:
            with httpx_sse.connect_sse(
                self._client, "POST", f"{self._url}/chat/completions", json=body
            ) as source:
                for chunk in self._chunks(source):
                    yield from assembly.add(chunk)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        self._reasoning_field = assembly.reasoning_field or self._reasoning_field
        yield assembly.answer()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _only_model(self) -> str:
        try:
            response = self._client.get(f"{self._url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        _check_status(response)
        listed = _json(response.text)
        models = listed.get("data") if isinstance(listed, dict) else None
        names = [
            model["id"]
            for model in models or []
            if isinstance(model, dict) and isinstance(model.get("id"), str)
        ]
        if len(names) != 1:
            offers = f"offers {', '.join(names)}" if names else "names no model"
            raise ChatError(one_line(f"{self._url} {offers}: choose with --model"))
        return str(names[0])

    def _chunks(self, source: httpx_sse.EventSource) -> Iterator[Any]:
        """The objects of the stream; the one object of a server that does not stream."""
        response = source.response
        if response.is_error or response.is_redirect:
            response.read()
            _check_status(response)
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if kind == "application/json":
            response.read()
            yield _json(response.text)
            return
        if kind != "text/event-stream":
            raise ChatError(f"{self._url} answers with the content type {kind!r}: it is no API")
        for event in source.iter_sse():
            if event.data.strip() == "[DONE]":
                return
            if event.data.strip():
                yield _json(event.data)

    def _as_sent(self, message: ChatMessage) -> ChatMessage:
        """The message without what only the chat's file needs, its reasoning in the server's own field."""
        sent = {name: value for name, value in message.items() if name != "finish_reason"}
        if "reasoning" in sent:
            sent[self._reasoning_field] = sent.pop("reasoning")
        return sent

    def _unreachable(self, error: Exception) -> ChatError:
        if isinstance(error, httpx.ReadTimeout):
            return ChatError(f"{self._url} has been silent for {_TIMEOUT.read:.0f} seconds")
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL)):
            return ChatError(one_line(f"cannot reach {self._url}: {error or type(error).__name__}"))
        return ChatError(one_line(f"{self._url} broke off: {error or type(error).__name__}"))


class _Assembly:
    """The answer that the chunks of a stream add up to.

    reasoning_field: where the server puts the chain of thought; None if it sent none yet.
    """

    def __init__(self) -> None:
        self.reasoning_field: str | None = None
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}

    def add(self, chunk: Any) -> Iterator[Piece]:
        """The new text of a chunk. Raises ChatError for one that says an error."""
        if not isinstance(chunk, dict):
            raise ChatError("the server sent a chunk that is no JSON object")
        if chunk.get("error"):
            raise ChatError(one_line(f"the server says: {_error_text(chunk)}"))
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                yield from self._add_delta(delta)
            if isinstance(choice.get("finish_reason"), str):
                self._finish_reason = choice["finish_reason"]

    def _add_delta(self, delta: dict[str, Any]) -> Iterator[Piece]:
        for field in (
            "reasoning",
            "reasoning_content",
        ):  # who sends both repeats the text
            text = delta.get(field)
            if isinstance(text, str) and text and self.reasoning_field in (None, field):
                self.reasoning_field = field
                self._reasoning.append(text)
                yield Piece("reasoning", text)
        text = delta.get("content")
        if isinstance(text, str) and text:
            self._content.append(text)
            yield Piece("content", text)
        calls = delta.get("tool_calls")
        for position, part in enumerate(calls if isinstance(calls, list) else []):
            if isinstance(part, dict):
                self._add_call(part, position)

    def _add_call(self, part: dict[str, Any], position: int) -> None:
        index = part.get("index")
        call = self._calls.setdefault(
            index if isinstance(index, int) else position, {"id": "", "name": "", "arguments": ""}
        )
        function = part.get("function")
        function = function if isinstance(function, dict) else {}
        if isinstance(part.get("id"), str):
            call["id"] = call["id"] or part["id"]
        for name in ("name", "arguments"):
            if isinstance(function.get(name), str):
                call[name] += function[name]

    def answer(self) -> Answer:
        """The whole answer. Raises ChatError if the stream ended before it did."""
        if self._finish_reason is None:
            raise ChatError("the server ended the stream before the answer was whole")
        message: ChatMessage = {"role": "assistant", "content": "".join(self._content) or None}
        if self._reasoning:
            message["reasoning"] = "".join(self._reasoning)
        # Some servers end a turn of calls with "stop". Calls that a limit cut are left out.
        if self._calls and self._finish_reason in ("tool_calls", "stop"):
            message["tool_calls"] = [
                {
                    "id": call["id"] or f"call-{index}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for index, call in sorted(self._calls.items())
            ]
        details = self._usage.get("completion_tokens_details")
        return Answer(
            message,
            "tool_calls" if "tool_calls" in message else self._finish_reason,
            _count(self._usage.get("completion_tokens")),
            _count(details.get("reasoning_tokens")) if isinstance(details, dict) else None,
        )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _json(text: str) -> Any:
    """Raises ChatError if the text is not JSON."""
    try:
        return json.loads(without_surrogates(text), object_pairs_hook=_clean)
    except (ValueError, RecursionError):
        raise ChatError(one_line(f"the server sent something that is not JSON: {text[:80]!r}")) from None


def _clean(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose escapes may have written lone surrogates."""
    return {name: without_surrogates(value) if isinstance(value, str) else value for name, value in pairs}


def _check_status(response: httpx.Response) -> None:
    """Raises ChatError if the server refused."""
    if response.is_success:
        return
    try:
        reason = _error_text(json.loads(response.text))
    except (ValueError, RecursionError):
        reason = response.text.strip() or response.reason_phrase
    if response.is_redirect:
        reason = f"moved to {response.headers.get('location')}"
    raise ChatError(one_line(f"the server says {response.status_code}: {reason}"))


def _error_text(body: Any) -> str:
    """The message of an error's body, in the forms that servers give it."""
    while isinstance(body, dict):
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), "no reason")
    return str(body)
