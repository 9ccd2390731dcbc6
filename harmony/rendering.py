"""Messages → tokens: writes headers, drops old chain of thought, and turns contents into text."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pydantic import BaseModel

from .errors import HarmonyError, shown
from .header import CONSTRAIN, author_of, is_content_type, is_word
from .history import AnalysisPolicy, without_old_analysis
from .messages import (
    Content,
    Conversation,
    DeveloperContent,
    Message,
    RecipientPlace,
    Role,
    SystemContent,
    TextContent,
)
from .plain import plain_message
from .sections import SchemaForm, defines_functions, developer_text, system_text
from .tokenizer import Tokenizer


class RenderConversationConfig(BaseModel):
    """How a conversation is rendered. With the defaults it is rendered as openai-harmony 0.0.8 does."""

    auto_drop_analysis: bool = True
    """False keeps all messages, as the policy "none" does."""
    analysis_policy: AnalysisPolicy = "compatible"
    """Which old `analysis` messages are dropped: see `history.without_old_analysis`."""
    schema_form: SchemaForm = "compatible"
    """How the parameters of functions are written: see `typescript` and `typescript_improved`."""
    recipient_place: RecipientPlace | None = None
    """Where ` to=` stands in every header; None: as each message's own `recipient_place` says."""


class RenderOptions(BaseModel):
    """How a single message is rendered; the other fields are those of `RenderConversationConfig`."""

    conversation_has_function_tools: bool = False
    """True if a developer message defines functions; the system message then says where calls of them go."""
    schema_form: SchemaForm = "compatible"
    recipient_place: RecipientPlace | None = None


class Renderer:
    """Renders with one encoding. Users call it through the `render…` methods of `HarmonyEncoding`."""

    def __init__(self, encoding: Tokenizer) -> None:
        self._encoding = encoding
        self._words = encoding.encode_ordinary
        # A conversation has few different headers.
        self._header = functools.lru_cache(maxsize=4096)(self._header_of)

    def conversation(self, conversation: Conversation, config: RenderConversationConfig | None) -> list[int]:
        """See `HarmonyEncoding.render_conversation`."""
        messages: Sequence[Message] = [plain_message(message) for message in conversation.messages]
        has_function_tools = any(
            isinstance(part, DeveloperContent) and defines_functions(part)
            for message in messages
            for part in message.content
        )
        config = config or RenderConversationConfig()
        options = RenderOptions(
            conversation_has_function_tools=has_function_tools,
            schema_form=config.schema_form,
            recipient_place=config.recipient_place,
        )
        if config.auto_drop_analysis:
            messages = without_old_analysis(messages, config.analysis_policy)
        tokens: list[int] = []
        for message in messages:
            tokens += self._tokens(message, options)
        return tokens

    def for_completion(
        self, conversation: Conversation, next_turn_role: Role, config: RenderConversationConfig | None
    ) -> list[int]:
        """See `HarmonyEncoding.render_conversation_for_completion`."""
        tokens = self.conversation(conversation, config)
        return [*tokens, self._encoding.start, *self._words(Role(next_turn_role).value)]

    def for_training(self, conversation: Conversation, config: RenderConversationConfig | None) -> list[int]:
        """See `HarmonyEncoding.render_conversation_for_training`."""
        tokens = self.conversation(conversation, config)
        if conversation.messages:
            last = plain_message(conversation.messages[-1])
            if last.author.role is Role.ASSISTANT and last.channel == "final":
                tokens[-1] = self._encoding.return_
        return tokens

    def message(self, message: Message, options: RenderOptions | None) -> list[int]:
        """See `HarmonyEncoding.render`."""
        return self._tokens(plain_message(message), options or RenderOptions())

    def _tokens(self, message: Message, options: RenderOptions) -> list[int]:
        author, recipient = message.author, message.recipient
        role = author.role
        tokens = self._header(
            role,
            author.name,
            message.channel,
            recipient,
            message.content_type,
            options.recipient_place or message.recipient_place,
        ).copy()
        for part in message.content:
            text = part.text if type(part) is TextContent else _content_text(part, role, options)
            tokens += self._encoding.encode_ordinary(text)
        is_call = role is Role.ASSISTANT and recipient is not None
        tokens.append(self._encoding.call if is_call else self._encoding.end)
        return tokens

    def _header_of(
        self,
        role: Role,
        name: str | None,
        channel: str | None,
        recipient: str | None,
        content_type: str | None,
        place: RecipientPlace,
    ) -> list[int]:
        """The tokens of a header, from `<|start|>` to `<|message|>`. Callers must not change the list."""
        tokens = [self._encoding.start]
        if role is Role.TOOL:
            if name is None:
                raise HarmonyError("Tools should have a name!")
            if author_of(name).role is not Role.TOOL:
                raise HarmonyError(f"author.name is {shown(name)}: a tool's name cannot be that of a role")
            tokens += self._words(_checked("author.name", name))
        else:
            tokens += self._words(role.value)
            if name is not None:
                tokens += self._words(f":{_checked('author.name', name)}")
        to: list[int] = []
        if recipient is not None and recipient != "all":
            to = self._words(f" to={_checked('recipient', recipient)}")
        if channel is None:
            tokens += to
        else:
            named = [self._encoding.channel, *self._words(_checked("channel", channel))]
            tokens += named + to if place == "channel" else to + named
        if content_type is not None:
            tokens += self._content_type(content_type)
        tokens.append(self._encoding.message)
        return tokens

    def _content_type(self, content_type: str) -> list[int]:
        if not is_content_type(content_type):
            raise HarmonyError(
                f"content_type is {shown(content_type)}: it must be words separated by spaces, without '<|', "
                f"'|>' or a leading 'to=', which may follow {CONSTRAIN}"
            )
        if not content_type.startswith(CONSTRAIN):
            return self._words(f" {content_type}")
        tokens = [*self._words(" "), self._encoding.constrain]
        rest = content_type.removeprefix(CONSTRAIN)
        return tokens + self._words(rest) if rest else tokens


def _content_text(part: Content, role: Role, options: RenderOptions) -> str:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, SystemContent):
        if role is not Role.SYSTEM:
            raise HarmonyError(
                f"SystemContent may only appear in system messages, found in {role.name.title()}"
            )
        return system_text(part, options.conversation_has_function_tools, options.schema_form)
    if isinstance(part, DeveloperContent):
        if role is not Role.DEVELOPER:
            raise HarmonyError(
                f"DeveloperContent may only appear in developer messages, found in {role.name.title()}"
            )
        return developer_text(part, options.schema_form)
    raise HarmonyError(f"{type(part).__name__} cannot be rendered: use TextContent or another content")


def _checked(field: str, value: str) -> str:
    """The value, which becomes part of a header.

    Raises HarmonyError if it would change the rest of the header.
    """
    if not is_word(value):
        raise HarmonyError(
            f"{field} is {shown(value)}: it must be one word without spaces, '<|', '|>' or a leading 'to='"
        )
    return value
