"""An encoding: a vocabulary plus the rules that turn messages into tokens and back."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, SupportsIndex

from . import vocabulary
from .errors import HarmonyFormatError
from .token_ids import tokens_of
from .tokenizer import Tokenizer

# Messages are pydantic models, which take longer to import than the vocabulary takes to load. A program that
# only encodes and decodes text does not import them.
if TYPE_CHECKING:
    from .messages import Conversation, Message, Role
    from .rendering import RenderConversationConfig, Renderer, RenderOptions


class HarmonyEncodingName(StrEnum):
    """The encodings that are in the package."""

    HARMONY_GPT_OSS = "HarmonyGptOss"


class HarmonyEncoding(Tokenizer):
    """Renders messages to tokens and parses tokens to messages. Immutable; safe to share."""

    # Rendering

    @functools.cached_property
    def _renderer(self) -> Renderer:
        from .rendering import Renderer

        return Renderer(self)

    def render(self, message: Message, render_options: RenderOptions | None = None) -> list[int]:
        """The tokens of one message, from `<|start|>` to `<|end|>` or `<|call|>`.

        Raises as `render_conversation`.
        """
        return self._renderer.message(message, render_options)

    def render_conversation(
        self, conversation: Conversation, config: RenderConversationConfig | None = None
    ) -> list[int]:
        """The tokens of a conversation; a `config` of None means the defaults.

        Raises HarmonyError for a message that the format cannot express, such as a tool without a name, and
        ValueError (HarmonyFormatError) for a field of the wrong type and for lone surrogates.
        """
        return self._renderer.conversation(conversation, config)

    def render_conversation_for_completion(
        self,
        conversation: Conversation,
        next_turn_role: Role,
        config: RenderConversationConfig | None = None,
    ) -> list[int]:
        """The prompt for a completion: the conversation, then `<|start|>` and the role, such as `assistant`.

        Raises as `render_conversation`.
        """
        return self._renderer.for_completion(conversation, next_turn_role, config)

    def render_conversation_for_training(
        self, conversation: Conversation, config: RenderConversationConfig | None = None
    ) -> list[int]:
        """The tokens of a conversation; a last assistant message on `final` ends in `<|return|>`.

        Raises as `render_conversation`.
        """
        return self._renderer.for_training(conversation, config)

    # Parsing

    def parse_messages_from_completion_tokens(
        self, tokens: Iterable[SupportsIndex], role: Role | None = None, *, strict: bool = True
    ) -> list[Message]:
        """The messages of a completion.

        With a `role`, the tokens start after `<|start|>role`; with None, at `<|start|>`. Raises HarmonyError
        for malformed tokens. With `strict=False` a header that ends in a stop token becomes a message with
        the header's text as content. `parse_completion` never raises.
        """
        from .streaming import StreamableParser

        parser = StreamableParser(self, role, strict=strict)
        for token in tokens_of(tokens):
            parser.process(token)
        return parser.process_eos().messages


_loaded: dict[str, HarmonyEncoding] = {}


def load_harmony_encoding(
    name: str | HarmonyEncodingName = HarmonyEncodingName.HARMONY_GPT_OSS,
) -> HarmonyEncoding:
    """The encoding of gpt-oss: loaded from the package, and the same object at every call.

    Raises ValueError for another name, and HarmonyError if the vocabulary file in the package is damaged.
    """
    gpt_oss = HarmonyEncodingName.HARMONY_GPT_OSS.value
    if str(name) != gpt_oss:
        raise ValueError(f"Invalid HarmonyEncodingName: {name}")
    if gpt_oss not in _loaded:
        encoding = HarmonyEncoding(gpt_oss, vocabulary.o200k_base(), vocabulary.o200k_special_tokens())
        _loaded.setdefault(gpt_oss, encoding)  # if two threads get here, both return the first one's
    return _loaded[gpt_oss]


def load_encoding(path: str | os.PathLike[str]) -> HarmonyEncoding:
    """The encoding of a `.tiktoken` file or a Hugging Face `tokenizer.json`, named after the file.

    A `.tiktoken` file has ordinary tokens only. With n of them, the nine special tokens get the ids n … n+8,
    in the order of `vocabulary.SPECIAL_TOKENS`. The published `o200k_base.tiktoken` is the exception: it gets
    gpt-oss's own ids. A `tokenizer.json` lists its special tokens with their ids. Raises HarmonyFormatError
    for a file that cannot be read or is not such a file.
    """
    from pathlib import Path

    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HarmonyFormatError(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix == ".json":
        from .tokenizer_json import read_tokenizer_json

        return HarmonyEncoding(path.stem, *read_tokenizer_json(data, str(path)))
    tokens = vocabulary.read_tiktoken(data, str(path))
    if len(tokens) == vocabulary.O200K_BASE_SIZE:
        return HarmonyEncoding(path.stem, tokens, vocabulary.o200k_special_tokens())
    special = {text: len(tokens) + offset for offset, text in enumerate(vocabulary.SPECIAL_TOKENS)}
    return HarmonyEncoding(path.stem, tokens, special)
