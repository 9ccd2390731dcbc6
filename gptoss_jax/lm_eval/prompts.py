"""Prompts on their way through lm_eval, which knows only texts: chat messages → a text → chat messages.

lm_eval gives the messages of a document to the model's chat template, keeps the text that it returns, and
hands it back when the answers are due. The text is the messages as JSON behind a mark, so that the rendering
stays harmony's, and so that no text of a task can be mistaken for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from gptoss_jax.engine.request import RequestError
from harmony.errors import shown

_MARK = '{"gptoss_jax_chat": '
_ROLES = ("system", "developer", "user", "assistant")


@dataclasses.dataclass(frozen=True)
class ChatPrompt:
    """The prompt of one document.

    messages: chat messages, each a role and its content; the last is the user's.
    prefix: what the answer begins with (a task's `gen_prefix`); "" for nothing.
    """

    messages: tuple[Mapping[str, str], ...]
    prefix: str = ""


def context_of(messages: Sequence[Mapping[str, object]], answer_begun: bool) -> str:
    """The text that lm_eval keeps for chat messages.

    `answer_begun`: whether the last message is the beginning of the answer, and the assistant's.

    Raises:
        RequestError: a message is no text of a known role, or the last one is not whose it must be.
    """
    checked = [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]
    last = checked[-1]["role"] if checked else None
    if answer_begun and last != "assistant":
        raise RequestError(f"the last message is that of {last}: an answer that has begun is the assistant's")
    if not answer_begun and last != "user":
        raise RequestError(f"the last message is that of {last}: it must be the user's")
    return f"{_MARK}{json.dumps(checked, ensure_ascii=False)}}}"


def prompt_of(context: str) -> ChatPrompt:
    """The prompt of a text that lm_eval kept.

    A text without chat template, which may hold examples besides the question, is one message of the user.

    Raises:
        RequestError: a task has changed the text of a chat template.
    """
    if not context.startswith(_MARK):
        return ChatPrompt(({"role": "user", "content": context},))
    try:
        messages = next(iter(json.loads(context).values()))
    except ValueError:
        rest = shown(context[-40:])
        raise RequestError(
            f"the task changes the prompt behind the chat template, which ends in {rest}: gptoss-jax renders "
            "the messages themselves, so run this task without --apply_chat_template"
        ) from None
    if messages[-1]["role"] == "assistant":
        return ChatPrompt(tuple(messages[:-1]), messages[-1]["content"])
    return ChatPrompt(tuple(messages))


def _checked(message: Mapping[str, object], name: str) -> dict[str, str]:
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise RequestError(f"{name}.role is {shown(role)}: it must be {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise RequestError(f"{name}.content is {shown(content)}: it must be a text; gpt-oss reads no images")
    return {"role": str(role), "content": content}
