"""Vocabularies from a Hugging Face `tokenizer.json` with byte-level BPE, such as gpt-oss's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from .api_fields import string
from .errors import HarmonyFormatError, shown
from .numbers import json_value
from .vocabulary import PATTERN, SPECIAL_TOKENS, check_single_bytes


class Tokenizer(NamedTuple):
    """What an encoding is made of."""

    tokens: list[bytes]
    special_tokens: dict[str, int]
    pattern: str


def read_tokenizer_json(data: bytes, source: str) -> Tokenizer:
    """Reads a `tokenizer.json`; `source` names the file in errors.

    Ids are taken as merge priorities, so the merges must stand in the order of the ids they make. Raises
    HarmonyFormatError for another kind of tokenizer or one without harmony's special tokens.
    """
    try:
        document = json_value(data)
    except ValueError as error:
        raise HarmonyFormatError(f"{source} is not JSON: {error}") from None
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise HarmonyFormatError(f"{source} has no model.vocab: it must be a byte-level BPE tokenizer")
    added = _added_tokens(document.get("added_tokens"), source)
    missing = [name for name in SPECIAL_TOKENS if name not in added]
    if missing:
        raise HarmonyFormatError(f"{source} lacks the special tokens {', '.join(missing)}")
    ids = {text: token for text, token in model["vocab"].items() if text not in added}
    if not all(map(_is_id, ids.values())) or sorted(ids.values()) != list(range(len(ids))):
        raise HarmonyFormatError(f"{source} must number its {len(ids)} ordinary tokens from 0 on")
    for text, token in added.items():
        if token < len(ids):
            raise HarmonyFormatError(
                f"{source} gives {shown(text)} the id {token}: "
                f"special tokens must have ids from {len(ids)} on"
            )
    _check_merges(ids, model.get("merges") or [], source)
    tokens = [_bytes(text, source) for text in sorted(ids, key=ids.__getitem__)]
    check_single_bytes(tokens, source)
    return Tokenizer(tokens, added, _pattern(document, source))


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _added_tokens(entries: Any, source: str) -> dict[str, int]:
    """The special tokens, each with an id of its own."""
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise HarmonyFormatError(f"{source} has added_tokens {shown(entries)}: it must be a list")
    added: dict[str, int] = {}
    names: dict[int, str] = {}
    for entry in entries:
        text, token = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(text, str) or not text or not _is_id(token):
            raise HarmonyFormatError(
                f"{source} has the added token {shown(entry)}: it must have a text, `content`, and a whole "
                "number, `id`"
            )
        string(text, f"{source} has an added token that")
        if text in added:
            raise HarmonyFormatError(f"{source} lists the added token {shown(text)} twice")
        if token in names:
            raise HarmonyFormatError(
                f"{source} gives {shown(text)} the id {token}: it is that of {shown(names[token])}"
            )
        added[text] = token
        names[token] = text
    return added


def _check_merges(ids: Mapping[str, int], merges: Any, source: str) -> None:
    last = -1
    for merge in merges if isinstance(merges, list) else [merges]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise HarmonyFormatError(f"{source} has the merge {shown(merge)}: it must be two texts")
        made = ids.get(pair[0] + pair[1], -1)
        if made < last:
            raise HarmonyFormatError(
                f"{source} merges {pair[0]!r} and {pair[1]!r} out of the order of its ids"
            )
        last = made


def _pattern(document: Mapping[str, Any], source: str) -> str:
    """The expression that splits text before merging; by default that of gpt-oss."""
    for part in _objects(document.get("pre_tokenizer")):
        if part.get("type") == "Split" and isinstance(part.get("pattern"), dict):
            pattern = part["pattern"].get("Regex")
            if isinstance(pattern, str):
                _check_pattern(pattern, source)
                return pattern
    return PATTERN


def _check_pattern(pattern: str, source: str) -> None:
    """Refuses a pattern that does not compile, and one that leaves text out or has empty pieces.

    Text that is left out would be lost, and `tiktoken` panics at an empty piece.
    """
    if pattern == PATTERN:
        return
    import regex  # type: ignore[import-untyped]  # tiktoken needs it; importing harmony loads neither
    import tiktoken

    try:
        single_bytes = {bytes([value]): value for value in range(256)}
        tiktoken.Encoding(source, pat_str=pattern, mergeable_ranks=single_bytes, special_tokens={})
        pieces = [found.group() for found in regex.finditer(pattern, _EVERY_KIND_OF_TEXT)]
    except (ValueError, regex.error) as error:
        raise HarmonyFormatError(f"{source} has the pattern {shown(pattern)}: {error}") from None
    if "" in pieces or "".join(pieces) != _EVERY_KIND_OF_TEXT:
        raise HarmonyFormatError(
            f"{source} has the pattern {shown(pattern)}: it must split any text without leaving any out"
        )


_EVERY_KIND_OF_TEXT = (
    "".join(map(chr, range(0x250))) + "Ab's don't  12345 \t\r\n\n x\u2028你好שלוםنحن😀e\u0301"
)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)


def _byte_characters() -> dict[str, int]:
    """The characters that stand for bytes in such files: visible Latin-1 itself, the others from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    return {chr(value): value for value in visible} | {chr(256 + n): value for n, value in enumerate(hidden)}


_BYTE_OF = _byte_characters()


def _bytes(text: str, source: str) -> bytes:
    try:
        token = bytes(_BYTE_OF[character] for character in text)
    except KeyError:
        raise HarmonyFormatError(f"{source} has the token {text!r}: it must be in byte-level form") from None
    if not token:
        raise HarmonyFormatError(f"{source} has an empty token: each must have at least one byte")
    return token
