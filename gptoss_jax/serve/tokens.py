"""A prompt as tokens: what each of them is, in which message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harmony import Cursor

if TYPE_CHECKING:
    from harmony import HarmonyEncoding
    from harmony.cursor import OpenMessage


def token_object(
    encoding: HarmonyEncoding, prompt: Sequence[int], *, model: str, with_reasoning: bool
) -> dict[str, Any]:
    """The object that describes a prompt: its messages, and the tokens of each.

    Args:
        encoding: the one that rendered the prompt.
        prompt: token ids, from the first `<|start|>` to the `<|start|>assistant` of the answer to come.
        model: what the model is called.
        with_reasoning: False leaves out all messages on the channel analysis.

    Returns:
        `messages`, each with `role`, `name`, `channel`, `recipient`, `content_type` (None: it has none), its
        `tokens` and their `count`, and `open`: True for the one that the model is to write. `count` is the
        sum of their counts, and `hidden_messages` how many messages are left out.
    """
    messages = _messages(encoding, prompt)
    shown = [message for message in messages if with_reasoning or message["channel"] != "analysis"]
    return {
        "object": "harmony.tokens",
        "model": model,
        "count": sum(message["count"] for message in shown),
        "hidden_messages": len(messages) - len(shown),
        "messages": shown,
    }


def _messages(encoding: HarmonyEncoding, prompt: Sequence[int]) -> list[dict[str, Any]]:
    cursor = Cursor(encoding, None)
    messages: list[dict[str, Any]] = []
    tokens: list[dict[str, Any]] = []
    header: OpenMessage | None = None
    for token in prompt:
        in_content = cursor.take(token)
        if token == encoding.start and not in_content and tokens:
            messages.append(_message(header, tokens))
            tokens, header = [], None
        header = cursor.message or header
        tokens.append(_token(encoding, token, in_content=in_content))
    if tokens and header is not None:
        messages.append(_message(header, tokens))
    elif tokens:  # the header that the model goes on with
        role = (cursor.header_text or "").removeprefix("<|start|>")
        messages.append({**_message(None, tokens), "role": role})
    return messages


def _message(header: OpenMessage | None, tokens: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "role": None if header is None else header.author.role.value,
        "name": None if header is None else header.author.name,
        "channel": None if header is None else header.channel,
        "recipient": None if header is None else header.recipient,
        "content_type": None if header is None else header.content_type,
        "open": header is None,
        "count": len(tokens),
        "tokens": tokens,
    }


def _token(encoding: HarmonyEncoding, token: int, *, in_content: bool) -> dict[str, Any]:
    """A token: its id; what it is; its text, or its bytes where they are only a part of a character."""
    data = encoding.token_bytes(token) or b""
    part = "content" if in_content else "header"
    if encoding.is_special_token(token):
        part = "special"
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError:
        text = None
    return {"id": token, "text": text, "bytes": None if text is not None else list(data), "part": part}
