"""A chat at the terminal: on an engine in this process, or on a server that speaks Chat Completions.

`Chat` reads messages from a `MessageInput` (`editor.Editor` at a terminal, `lines.LineInput` elsewhere),
sends the conversation to a `Backend` (`local.LocalBackend`, `remote.RemoteBackend`), and shows the answer on
a `Display`. Importing this package imports none of these four modules: they need jax or the extra `chat`.
"""

from gptoss_jax.chat.backend import Answer, Backend, ChatMessage, Piece
from gptoss_jax.chat.display import Display
from gptoss_jax.chat.errors import ChatError
from gptoss_jax.chat.session import Chat, MessageInput, described
from gptoss_jax.chat.transcript import Transcript

__all__ = [
    "Answer",
    "Backend",
    "Chat",
    "ChatError",
    "ChatMessage",
    "Display",
    "MessageInput",
    "Piece",
    "Transcript",
    "described",
]
