"""Harmony, the conversation format of gpt-oss: render messages to tokens, parse tokens to messages.

The names are those of the `openai_harmony` package, with the same behaviour; what is new here has names of
its own. The vocabulary is in the package: nothing is fetched.
"""

from .encoding import (
    HarmonyEncoding,
    HarmonyEncodingName,
    RenderConversationConfig,
    RenderOptions,
    load_encoding,
    load_harmony_encoding,
)
from .errors import HarmonyError, HarmonyFormatError
from .messages import (
    Author,
    ChannelConfig,
    Content,
    Conversation,
    DeveloperContent,
    Message,
    ReasoningEffort,
    ResponseFormat,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
)
from .streaming import StreamableParser, StreamState

__all__ = [
    "Author",
    "ChannelConfig",
    "Content",
    "Conversation",
    "DeveloperContent",
    "HarmonyEncoding",
    "HarmonyEncodingName",
    "HarmonyError",
    "HarmonyFormatError",
    "Message",
    "ReasoningEffort",
    "RenderConversationConfig",
    "RenderOptions",
    "ResponseFormat",
    "Role",
    "StreamState",
    "StreamableParser",
    "SystemContent",
    "TextContent",
    "ToolDescription",
    "ToolNamespaceConfig",
    "load_encoding",
    "load_harmony_encoding",
]
