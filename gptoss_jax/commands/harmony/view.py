"""`gptoss-jax harmony view`: shows a conversation message by message, with token counts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from gptoss_jax.commands.harmony.inputs import load_vocabulary, read_conversation, source_name
from gptoss_jax.commands.harmony.rendering import RenderedMessage, rendered_conversation, rendered_messages
from gptoss_jax.commands.harmony.side_by_side import side_by_side
from gptoss_jax.terminal import Paint, columns, display_width, printable, wrapped, write
from harmony import HarmonyEncoding, Message, RenderConversationConfig, Role

_ROLE_COLOURS = {
    Role.SYSTEM: "magenta",
    Role.DEVELOPER: "yellow",
    Role.USER: "cyan",
    Role.ASSISTANT: "green",
    Role.TOOL: "blue",
}
_INDENT = "  "


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    conversation = read_conversation(options.file, options.form, options.date)
    encoding = load_vocabulary(options.vocabulary)
    paint = Paint(options.color)
    source = source_name(options.file)
    rendered = rendered_messages(encoding, conversation, source)
    if options.side_by_side:
        lines = side_by_side(encoding, rendered, source, columns(), paint)
    else:
        prompt = rendered_conversation(
            encoding, conversation, RenderConversationConfig(), "completion", source
        )
        lines = _view(encoding, rendered, len(prompt), paint, shows_tokens=options.tokens)
    write("".join(f"{line}\n" for line in lines))
    return 0


def _view(
    encoding: HarmonyEncoding,
    rendered: list[RenderedMessage],
    prompt_size: int,
    paint: Paint,
    *,
    shows_tokens: bool,
) -> Iterator[str]:
    """The lines of the view; `prompt_size` is the number of tokens of the conversation as a prompt."""
    width = columns()
    for number, (message, tokens) in enumerate(rendered):
        yield from _head(number, message, len(tokens), width, paint)
        if shows_tokens:
            yield from _token_lines(encoding, tokens, width, paint)
        else:
            # The content: what is between the header and the token that ends the message.
            content = encoding.decode(tokens[tokens.index(encoding.message) + 1 : -1])
            style = ("dim",) if message.channel == "analysis" else ()
            for line in wrapped(printable(content), width - len(_INDENT)):
                yield _INDENT + paint(line, *style) if line else ""
        yield ""
    total = sum(len(tokens) for _, tokens in rendered)
    yield paint(f"{_count(len(rendered), 'message')}, {_count(total, 'token')}", "bold")
    yield f"as a prompt for the assistant: {_count(prompt_size, 'token')}"


def _head(number: int, message: Message, tokens: int, width: int, paint: Paint) -> Iterator[str]:
    """The lines above a message: its number, author, channel, recipient, content type and token count."""
    author = message.author.name or ""
    if message.author.role is not Role.TOOL:
        author = message.author.role.value + (f":{author}" if author else "")
    else:
        author = f"tool {author}"
    said = [printable(author)]
    if message.channel is not None:
        said.append(printable(message.channel))
    if message.recipient is not None:
        said.append(("call " if message.is_call else "to ") + printable(message.recipient))
    if message.content_type is not None:
        said.append(printable(message.content_type))
    count = _count(tokens, "token")
    left = f"{number} {' · '.join(said)}"
    colour = _ROLE_COLOURS[message.author.role]
    room = width - display_width(left) - len(count) - len("──  ") - 1
    if room < 2:  # a long head has lines of its own
        for line in wrapped(left, width - len("── ")):
            yield f"{paint('──', 'dim')} {paint(line, 'bold', colour)}"
        yield f"{paint('─' * (width - len(count) - 1), 'dim')} {count}"
    else:
        yield f"{paint('──', 'dim')} {paint(left, 'bold', colour)} {paint('─' * room, 'dim')} {count}"


def _token_lines(encoding: HarmonyEncoding, tokens: list[int], width: int, paint: Paint) -> Iterator[str]:
    """The id and the text of each token, as many on a line as fit."""
    line, used = "", 0
    for token in tokens:
        data = encoding.token_bytes(token) or b""
        is_special = encoding.is_special_token(token)
        text = data.decode() if is_special else _quoted(data)
        size = len(str(token)) + 1 + display_width(text) + 3
        if line and used + size - 3 > width - len(_INDENT):
            yield _INDENT + line.rstrip()
            line, used = "", 0
        line += f"{paint(str(token), 'dim')} {paint(text, 'magenta' if is_special else 'green')}   "
        used += size
    if line:
        yield _INDENT + line.rstrip()


def _quoted(data: bytes) -> str:
    """A token's text in quotes; its bytes, if they are only part of a character."""
    try:
        return printable(json.dumps(data.decode(), ensure_ascii=False))
    except UnicodeDecodeError:
        return repr(data)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
