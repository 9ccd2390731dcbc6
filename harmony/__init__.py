"""Harmony, the conversation format of gpt-oss: renders messages to tokens and parses tokens to messages.

Every public name of `openai_harmony` 0.0.8 is here and behaves the same. The vocabulary is part of the
package, so nothing is downloaded. A module is imported when one of its names is first used: a program that
only encodes and decodes text never waits for pydantic.
"""

import importlib

TYPE_CHECKING = False  # type checkers take it for `typing.TYPE_CHECKING`; importing `typing` takes longer
if TYPE_CHECKING:
    from .cursor import Cursor as Cursor
    from .encoding import HarmonyEncoding as HarmonyEncoding
    from .encoding import HarmonyEncodingName as HarmonyEncodingName
    from .encoding import load_encoding as load_encoding
    from .encoding import load_harmony_encoding as load_harmony_encoding
    from .errors import HarmonyError as HarmonyError
    from .errors import HarmonyFormatError as HarmonyFormatError
    from .events import CallReady as CallReady
    from .events import ContentDelta as ContentDelta
    from .events import Diagnostic as Diagnostic
    from .events import MessageFinished as MessageFinished
    from .events import MessageStarted as MessageStarted
    from .events import ParsedCompletion as ParsedCompletion
    from .events import Stopped as Stopped
    from .events import event_from_dict as event_from_dict
    from .events import event_to_dict as event_to_dict
    from .messages import Author as Author
    from .messages import ChannelConfig as ChannelConfig
    from .messages import Content as Content
    from .messages import Conversation as Conversation
    from .messages import DeveloperContent as DeveloperContent
    from .messages import Message as Message
    from .messages import ReasoningEffort as ReasoningEffort
    from .messages import ResponseFormat as ResponseFormat
    from .messages import Role as Role
    from .messages import SystemContent as SystemContent
    from .messages import TextContent as TextContent
    from .messages import ToolDescription as ToolDescription
    from .messages import ToolNamespaceConfig as ToolNamespaceConfig
    from .recovery import RecoveringParser as RecoveringParser
    from .recovery import parse_completion as parse_completion
    from .rendering import RenderConversationConfig as RenderConversationConfig
    from .rendering import RenderOptions as RenderOptions
    from .streaming import StreamableParser as StreamableParser
    from .streaming import StreamState as StreamState

_NAMES = {
    "cursor": ("Cursor",),
    "encoding": ("HarmonyEncoding", "HarmonyEncodingName", "load_encoding", "load_harmony_encoding"),
    "errors": ("HarmonyError", "HarmonyFormatError"),
    "events": (
        "CallReady",
        "ContentDelta",
        "Diagnostic",
        "MessageFinished",
        "MessageStarted",
        "ParsedCompletion",
        "Stopped",
        "event_from_dict",
        "event_to_dict",
    ),
    "messages": (
        "Author",
        "ChannelConfig",
        "Content",
        "Conversation",
        "DeveloperContent",
        "Message",
        "ReasoningEffort",
        "ResponseFormat",
        "Role",
        "SystemContent",
        "TextContent",
        "ToolDescription",
        "ToolNamespaceConfig",
    ),
    "recovery": ("RecoveringParser", "parse_completion"),
    "rendering": ("RenderConversationConfig", "RenderOptions"),
    "streaming": ("StreamableParser", "StreamState"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULE_OF)


if not TYPE_CHECKING:  # with `__getattr__` in sight, type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name in _NAMES:
            return importlib.import_module(f".{name}", __name__)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value  # so that the next access does not come here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
