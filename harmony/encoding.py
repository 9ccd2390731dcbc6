"""An encoding: a vocabulary plus the rules that turn messages into tokens and back."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from pydantic import BaseModel

from . import vocabulary
from .errors import HarmonyError, HarmonyFormatError, shown
from .header import CONSTRAIN, author_of
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
from .sections import SchemaForm, defines_functions, developer_text, system_text
from .streaming import StreamableParser
from .tokenizer_json import read_tokenizer_json

if TYPE_CHECKING:
    from .text_encoder import TextEncoder


class HarmonyEncodingName(StrEnum):
    """The encodings that come with the package."""

    HARMONY_GPT_OSS = "HarmonyGptOss"


class RenderConversationConfig(BaseModel):
    """How a conversation is rendered. The defaults are what openai-harmony 0.0.8 does."""

    auto_drop_analysis: bool = True
    """False keeps all messages, as does the policy "none"."""
    analysis_policy: AnalysisPolicy = "compatible"
    """Which `analysis` messages are left out: see `history`."""
    schema_form: SchemaForm = "compatible"
    """How functions' parameters are written: see `typescript` and `typescript_improved`."""
    recipient_place: RecipientPlace | None = None
    """Where ` to=` stands in every header; None: where each message has it."""


class RenderOptions(BaseModel):
    """How a single message is rendered; as `RenderConversationConfig`."""

    conversation_has_function_tools: bool = False
    schema_form: SchemaForm = "compatible"
    recipient_place: RecipientPlace | None = None


class HarmonyEncoding:
    """Renders messages to tokens and parses tokens to messages. Immutable; safe to share."""

    def __init__(
        self,
        name: str,
        tokens: Sequence[bytes],
        special_tokens: Mapping[str, int],
        pattern: str = vocabulary.PATTERN,
    ) -> None:
        """`tokens` are text, by id; `special_tokens` take ids after them; `pattern` splits text."""
        self.name = name
        self._pattern = pattern
        self._special_tokens = dict(special_tokens)
        self.ordinary_tokens = list(tokens)
        """The bytes of the tokens that are text, by id."""
        self.known_texts: list[str | None] = [None] * len(self.ordinary_tokens)
        """The texts of those that `token_text` was asked for: decoding each once makes parsing fast."""
        self._special_bytes = {token: text.encode() for text, token in special_tokens.items()}
        self.start = special_tokens["<|start|>"]
        self.channel = special_tokens["<|channel|>"]
        self.constrain = special_tokens[CONSTRAIN]
        self.message = special_tokens["<|message|>"]
        self.end = special_tokens["<|end|>"]
        self.return_ = special_tokens["<|return|>"]
        self.call = special_tokens["<|call|>"]
        self.end_of_text = special_tokens["<|endoftext|>"]
        # Headers repeat a few words for ever.
        self._header_tokens = functools.lru_cache(maxsize=4096)(self.encode_ordinary)

    def __repr__(self) -> str:
        return f"HarmonyEncoding({self.name!r}, {self.size} tokens)"

    # Tokens and text

    @functools.cached_property
    def _text(self) -> TextEncoder:
        """Made for the first text that is encoded: it costs more than the rest, and parsing needs none."""
        from .text_encoder import TextEncoder  # loads tiktoken, which importing harmony should not

        return TextEncoder(self.name, self.ordinary_tokens, self._pattern)

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self._special_bytes) + 1

    @functools.cached_property
    def special_tokens_set(self) -> set[str]:
        """The texts of all special tokens."""
        return set(self._special_tokens)

    def is_special_token(self, token: int) -> bool:
        """Whether an id is a special token's."""
        return token in self._special_bytes

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes of a token, a special one's text included; None for an id outside the vocabulary."""
        if 0 <= token < len(self.ordinary_tokens):
            return self.ordinary_tokens[token]
        return self._special_bytes.get(token)

    def token_text(self, token: int) -> str | None:
        """The text of an ordinary token; None for any other and for parts of characters."""
        if not 0 <= token < len(self.ordinary_tokens):
            return None
        text = self.known_texts[token]
        if text is None:
            try:
                text = self.known_texts[token] = self.ordinary_tokens[token].decode()
            except UnicodeDecodeError:
                return None
        return text

    def stop_tokens(self) -> list[int]:
        """The tokens that end a message: end, return, call."""
        return sorted((self.end, self.return_, self.call))

    def stop_tokens_for_assistant_actions(self) -> list[int]:
        """The tokens at which sampling stops: return, call."""
        return sorted((self.return_, self.call))

    def encode_ordinary(self, text: str) -> list[int]:
        """Encodes text that can never become a special token. Raises ValueError for lone surrogates."""
        return self._text.encode(text)

    def encode(
        self,
        text: str,
        *,
        allowed_special: Literal["all"] | AbstractSet[str] = frozenset(),
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[int]:
        """Encodes text, special tokens included where they are allowed.

        Text that looks like a special token is encoded as one when `allowed_special` has it, raises
        HarmonyError when `disallowed_special` has it ("all": every one that is not allowed), and is
        ordinary text otherwise.
        """
        known = self.special_tokens_set
        allowed = known if allowed_special == "all" else known & allowed_special
        if disallowed_special == "all":
            disallowed_special = known - allowed
        if disallowed_special:
            found = _any_of(frozenset(disallowed_special)).search(text)
            if found:
                _refuse_special_token(found.group())
        if not allowed:
            return self.encode_ordinary(_replaced(text))
        tokens: list[int] = []
        # Splitting on a group yields text and special tokens in turn.
        for index, part in enumerate(_any_of(frozenset(allowed)).split(_replaced(text))):
            tokens += [self._special_tokens[part]] if index % 2 else self.encode_ordinary(part)
        return tokens

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens. Raises HarmonyError for an id outside the vocabulary."""
        parts = []
        for token in tokens:
            part = self.token_bytes(token)
            if part is None:
                raise HarmonyError(f"Invalid token for decoding: {token}")
            parts.append(part)
        return b"".join(parts)

    def decode_utf8(self, tokens: Iterable[int]) -> str:
        """The text of tokens. Raises HarmonyError for an unknown id or bytes that are not UTF-8."""
        try:
            return self.decode_bytes(tokens).decode()
        except HarmonyError as error:
            raise HarmonyError(f"Could not decode tokens: Invalid token error: {error}") from None
        except UnicodeDecodeError as error:
            raise HarmonyError(f"Could not decode tokens: Invalid utf-8 sequence: {error}") from None

    def decode(self, tokens: Iterable[int], errors: str = "replace") -> str:
        """The text of tokens, bytes that are not UTF-8 handled as `errors` says."""
        return self.decode_bytes(tokens).decode("utf-8", errors=errors)

    # Rendering

    def render(self, message: Message, render_options: RenderOptions | None = None) -> list[int]:
        """The tokens of one message, from `<|start|>` to `<|end|>` or `<|call|>`."""
        return self._render(message, render_options or RenderOptions())

    def render_conversation(
        self, conversation: Conversation, config: RenderConversationConfig | None = None
    ) -> list[int]:
        """The tokens of a conversation."""
        messages: Sequence[Message] = conversation.messages
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
            tokens += self._render(message, options)
        return tokens

    def render_conversation_for_completion(
        self,
        conversation: Conversation,
        next_turn_role: Role,
        config: RenderConversationConfig | None = None,
    ) -> list[int]:
        """The prompt after which `next_turn_role` speaks; it ends in `<|start|>assistant`, say."""
        tokens = self.render_conversation(conversation, config)
        return [*tokens, self.start, *self._header_tokens(Role(next_turn_role).value)]

    def render_conversation_for_training(
        self, conversation: Conversation, config: RenderConversationConfig | None = None
    ) -> list[int]:
        """The tokens of a conversation whose last message, if final, ends in `<|return|>`."""
        tokens = self.render_conversation(conversation, config)
        if conversation.messages:
            last = conversation.messages[-1]
            if last.author.role is Role.ASSISTANT and last.channel == "final":
                tokens[-1] = self.return_
        return tokens

    def _render(self, message: Message, options: RenderOptions) -> list[int]:
        role, name = message.author.role, message.author.name
        tokens = [self.start]
        if role is Role.TOOL:
            if name is None:
                raise HarmonyError("Tools should have a name!")
            if author_of(name).role is not Role.TOOL:
                raise HarmonyError(f"author.name is {shown(name)}: a tool's name cannot be that of a role")
            tokens += self._header_tokens(_checked("author.name", name))
        else:
            tokens += self._header_tokens(role.value)
            if name is not None:
                tokens += self._header_tokens(f":{_checked('author.name', name)}")
        recipient: list[int] = []
        if message.recipient is not None and message.recipient != "all":
            recipient = self._header_tokens(f" to={_checked('recipient', message.recipient)}")
        if message.channel is None:
            tokens += recipient
        else:
            channel = [self.channel, *self._header_tokens(_checked("channel", message.channel))]
            is_in_channel = (options.recipient_place or message.recipient_place) == "channel"
            tokens += channel + recipient if is_in_channel else recipient + channel
        if message.content_type is not None:
            tokens += self._render_content_type(message.content_type)
        tokens.append(self.message)
        for part in message.content:
            tokens += self.encode_ordinary(_content_text(part, role, options))
        is_call = role is Role.ASSISTANT and message.recipient is not None
        tokens.append(self.call if is_call else self.end)
        return tokens

    def _render_content_type(self, content_type: str) -> list[int]:
        if not content_type.startswith(CONSTRAIN):
            return self._header_tokens(f" {_checked('content_type', content_type)}")
        tokens = [*self._header_tokens(" "), self.constrain]
        rest = content_type.removeprefix(CONSTRAIN)
        return tokens + self._header_tokens(_checked("content_type", rest)) if rest else tokens

    # Parsing

    def parse_messages_from_completion_tokens(
        self, tokens: Iterable[int], role: Role | None = None, *, strict: bool = True
    ) -> list[Message]:
        """The messages of a completion; raises HarmonyError where the format is broken.

        With a `role`, the tokens start after `<|start|>role`. With `strict=False` a header that ends in a
        stop token becomes a message. `parse_completion` never raises.
        """
        parser = StreamableParser(self, role, strict=strict)
        for token in tokens:
            parser.process(token)
        return parser.process_eos().messages


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


_FORBIDDEN = re.compile(r"\s|<\||\|>")


def _checked(field: str, value: str) -> str:
    """A word of a header, refused where it would change what the header says."""
    if not value or _FORBIDDEN.search(value) or value.startswith("to="):
        raise HarmonyError(
            f"{field} is {shown(value)}: it must be one word without spaces, '<|', '|>' or a leading 'to='"
        )
    return value


def _replaced(text: str) -> str:
    """Replaces lone surrogates, as the known library's `encode` does and its rendering does not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.lru_cache(maxsize=128)
def _any_of(texts: frozenset[str]) -> re.Pattern[str]:
    return re.compile(f"({'|'.join(map(re.escape, sorted(texts)))})")


def _refuse_special_token(token: str) -> NoReturn:
    raise HarmonyError(
        f"Encountered text corresponding to disallowed special token {token!r}.\n"
        "If you want this text to be encoded as a special token, "
        f"pass it to `allowed_special`, e.g. `allowed_special={{'{token}', ...}}`.\n"
        "If you want this text to be encoded as normal text, disable the check for this token "
        f"by passing `disallowed_special=(enc.special_tokens_set - {{'{token}'}})`.\n"
        "To disable this check for all special tokens, pass `disallowed_special=()`.\n"
    )


_loading = threading.Lock()


def load_harmony_encoding(
    name: str | HarmonyEncodingName = HarmonyEncodingName.HARMONY_GPT_OSS,
) -> HarmonyEncoding:
    """The encoding of gpt-oss. Needs no network and no file; made once per process."""
    if str(name) != HarmonyEncodingName.HARMONY_GPT_OSS.value:
        raise ValueError(f"Invalid HarmonyEncodingName: {name}")
    with _loading:
        return _gpt_oss()


@functools.cache
def _gpt_oss() -> HarmonyEncoding:
    name = HarmonyEncodingName.HARMONY_GPT_OSS.value
    return HarmonyEncoding(name, vocabulary.o200k_base(), vocabulary.o200k_special_tokens())


def load_encoding(path: str | os.PathLike[str]) -> HarmonyEncoding:
    """The encoding of a `.tiktoken` vocabulary or a Hugging Face `tokenizer.json`, named after the file.

    In a `.tiktoken` vocabulary the nine special tokens follow the n ordinary ones, at ids n … n+8 in the
    order of `vocabulary.SPECIAL_TOKENS`; the published `o200k_base.tiktoken` gives gpt-oss's own ids
    instead. A `tokenizer.json` has ids of its own. Raises HarmonyFormatError for a file that cannot be read.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HarmonyFormatError(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix == ".json":
        return HarmonyEncoding(path.stem, *read_tokenizer_json(data, str(path)))
    tokens = vocabulary.read_tiktoken(data, str(path))
    if len(tokens) == vocabulary.O200K_BASE_SIZE:
        return HarmonyEncoding(path.stem, tokens, vocabulary.o200k_special_tokens())
    special = {text: len(tokens) + offset for offset, text in enumerate(vocabulary.SPECIAL_TOKENS)}
    return HarmonyEncoding(path.stem, tokens, special)
