"""`gptoss-jax harmony parse`: token ids, or text with special tokens → messages as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re

from gptoss_jax.commands.harmony.inputs import load_vocabulary, read_text, source_name
from gptoss_jax.terminal import json_text, write
from harmony import (
    HarmonyEncoding,
    HarmonyError,
    HarmonyFormatError,
    ParsedCompletion,
    Role,
    StreamableParser,
    StreamState,
    parse_completion,
)
from harmony.errors import shown
from harmony.events import EndToken

_NUMBERS = re.compile(r"[-\s,\[\]0-9]+")
# A number with more digits is not a token id, and `int` raises for thousands of digits.
_MAX_DIGITS = 18


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    source = source_name(options.file)
    text = read_text(options.file)
    is_tokens = _is_tokens(text, source) if options.form == "auto" else options.form == "tokens"
    numbers = _token_ids(text, source) if is_tokens else None
    encoding = load_vocabulary(options.vocabulary)
    tokens = _encoded(encoding, text) if numbers is None else numbers
    role = _role(options.role, encoding, tokens)
    parsed = _strictly(encoding, tokens, role, source) if options.strict else None
    write(_as_json(parsed or parse_completion(encoding, tokens, role)) + "\n")
    return 0


def _is_tokens(text: str, source: str) -> bool:
    """True if the input is token ids, False if it is text. Refuses other JSON, which is neither."""
    if _NUMBERS.fullmatch(text):
        return bool(text.strip())
    if text.lstrip()[:1] not in ("[", "{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    raise HarmonyFormatError(
        f"{source} is JSON, but not a list of token ids: parse reads token ids, or text with special tokens "
        "(--from text reads it as text)"
    )


def _token_ids(text: str, source: str) -> list[int]:
    """Token ids separated by white space or commas, or as a JSON list."""
    body = text.strip()
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1]
    tokens = []
    for position, word in enumerate(body.replace(",", " ").split()):
        if not word.isascii() or not word.isdigit() or len(word) > _MAX_DIGITS:
            raise HarmonyFormatError(
                f"{source}, item {position}, is {shown(word)}: a token id is a whole number from 0"
            )
        tokens.append(int(word))
    return tokens


def _encoded(encoding: HarmonyEncoding, text: str) -> list[int]:
    """The tokens of a text.

    A line break after a last special token ends the file and is not part of the text.
    """
    tokens = encoding.encode(text, allowed_special="all")
    trimmed = text.rstrip()
    if trimmed != text and trimmed.endswith("|>"):
        shorter = encoding.encode(trimmed, allowed_special="all")
        if shorter and encoding.is_special_token(shorter[-1]):
            return shorter
    return tokens


def _role(choice: str | None, encoding: HarmonyEncoding, tokens: list[int]) -> Role | None:
    if choice is None:
        return None if tokens[:1] == [encoding.start] else Role.ASSISTANT
    return None if choice == "none" else Role(choice)


def _strictly(
    encoding: HarmonyEncoding, tokens: list[int], role: Role | None, source: str
) -> ParsedCompletion:
    """Parses as openai-harmony does. Raises HarmonyFormatError, which names the token."""
    parser = StreamableParser(encoding, role)
    try:
        for token in tokens:
            parser.process(token)
    except HarmonyError as error:
        raise HarmonyFormatError(f"{source}, token {len(parser.tokens) - 1}: {error}") from None
    is_complete = bool(tokens) and parser.state is StreamState.EXPECT_START
    try:
        messages = parser.process_eos().messages
    except HarmonyError as error:
        raise HarmonyFormatError(f"{source}, at its end: {error}") from None
    ends: dict[int, EndToken] = {
        encoding.end: "<|end|>",
        encoding.return_: "<|return|>",
        encoding.call: "<|call|>",
    }
    return ParsedCompletion(messages, is_complete, end=ends[tokens[-1]] if is_complete else None)


def _as_json(parsed: ParsedCompletion) -> str:
    document = {
        "messages": [message.to_dict() for message in parsed.messages],
        "complete": parsed.complete,
        "end": parsed.end,
        "diagnostics": [dataclasses.asdict(diagnostic) for diagnostic in parsed.diagnostics],
    }
    return json_text(document)
