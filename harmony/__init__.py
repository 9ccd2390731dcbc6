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
from .events import (
    CallReady,
    ContentDelta,
    Diagnostic,
    MessageFinished,
    MessageStarted,
    ParsedCompletion,
    Stopped,
    event_from_dict,
    event_to_dict,
)
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
from .recovery import RecoveringParser, parse_completion
from .streaming import StreamableParser, StreamState

__all__ = [
    "Author",
    "CallReady",
    "ChannelConfig",
    "Content",
    "ContentDelta",
    "Conversation",
    "DeveloperContent",
    "Diagnostic",
    "HarmonyEncoding",
    "HarmonyEncodingName",
    "HarmonyError",
    "HarmonyFormatError",
    "Message",
    "MessageFinished",
    "MessageStarted",
    "ParsedCompletion",
    "ReasoningEffort",
    "RecoveringParser",
    "RenderConversationConfig",
    "RenderOptions",
    "ResponseFormat",
    "Role",
    "Stopped",
    "StreamState",
    "StreamableParser",
    "SystemContent",
    "TextContent",
    "ToolDescription",
    "ToolNamespaceConfig",
    "event_from_dict",
    "event_to_dict",
    "load_encoding",
    "load_harmony_encoding",
    "parse_completion",
]
