"""Vocabularies from a Hugging Face `tokenizer.json` with byte-level BPE, such as gpt-oss's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeGuard

from .api_fields import string
from .errors import HarmonyFormatError, shown, shown_json
from .json_types import Json, JsonObject
from .numbers import json_value
from .vocabulary import PATTERN, SPECIAL_TOKENS, check_single_bytes


class Tokenizer(NamedTuple):
    """What an encoding is made of: ordinary tokens (bytes by id), special tokens (text → id), and a pattern.

    The pattern is the regular expression that splits text before merging.
    """

    tokens: list[bytes]
    special_tokens: dict[str, int]
    pattern: str


def read_tokenizer_json(data: bytes, source: str) -> Tokenizer:
    """Reads a `tokenizer.json`; `source` names the file in errors.

    Token ids are used as merge priorities, so the merges must be listed in the order of the ids that they
    make. Raises HarmonyFormatError if they are not, for another kind of tokenizer, and for one without
    harmony's special tokens.
    """
    try:
        document = json_value(data)
    except ValueError as error:
        raise HarmonyFormatError(f"{source} is not JSON: {error}") from None
    model = document.get("model") if isinstance(document, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(document, dict) or not isinstance(model, dict) or not isinstance(vocab, dict):
        raise HarmonyFormatError(f"{source} has no model.vocab: it must be a byte-level BPE tokenizer")
    added = _added_tokens(document.get("added_tokens"), source)
    missing = [name for name in SPECIAL_TOKENS if name not in added]
    if missing:
        raise HarmonyFormatError(f"{source} lacks the special tokens {', '.join(missing)}")
    ordinary = {text: token for text, token in vocab.items() if text not in added}
    ids = {text: token for text, token in ordinary.items() if _is_id(token)}
    if len(ids) < len(ordinary) or sorted(ids.values()) != list(range(len(ids))):
        raise HarmonyFormatError(f"{source} must number its {len(ordinary)} ordinary tokens from 0 on")
    for text, token in added.items():
        if token < len(ids):
            raise HarmonyFormatError(
                f"{source} gives {shown_json(text)} the id {token}: "
                f"special tokens must have ids from {len(ids)} on"
            )
    _check_merges(ids, model.get("merges") or [], source)
    tokens = [_bytes(text, source) for text in sorted(ids, key=ids.__getitem__)]
    check_single_bytes(tokens, source)
    return Tokenizer(tokens, added, _pattern(document, source))


def _is_id(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _added_tokens(entries: Json, source: str) -> dict[str, int]:
    """The special tokens, text → id. Raises HarmonyFormatError if two share a text or an id."""
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise HarmonyFormatError(f"{source} has added_tokens {shown_json(entries)}: it must be a list")
    added: dict[str, int] = {}
    names: dict[int, str] = {}
    for entry in entries:
        text, token = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(text, str) or not text or not _is_id(token):
            raise HarmonyFormatError(
                f"{source} has the added token {shown_json(entry)}: it must have a text, `content`, and a "
                "whole number, `id`"
            )
        string(text, f"{source} has an added token that")
        if text in added:
            raise HarmonyFormatError(f"{source} lists the added token {shown_json(text)} twice")
        if token in names:
            raise HarmonyFormatError(
                f"{source} gives {shown_json(text)} the id {token}: it is that of {shown_json(names[token])}"
            )
        added[text] = token
        names[token] = text
    return added


def _check_merges(ids: Mapping[str, int], merges: Json, source: str) -> None:
    last = -1
    for merge in merges if isinstance(merges, list) else [merges]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        texts = [text for text in pair if isinstance(text, str)] if isinstance(pair, list) else []
        if len(texts) != 2 or pair != texts:
            raise HarmonyFormatError(f"{source} has the merge {shown_json(merge)}: it must be two texts")
        made = ids.get("".join(texts), -1)
        if made < last:
            raise HarmonyFormatError(
                f"{source} has the merge {shown_json(merge)} out of the order of its ids"
            )
        last = made


def _pattern(document: JsonObject, source: str) -> str:
    """The regular expression that splits text before merging; gpt-oss's own if the file has none."""
    for part in _objects(document.get("pre_tokenizer")):
        pattern = part.get("pattern")
        if part.get("type") == "Split" and isinstance(pattern, dict):
            regex = pattern.get("Regex")
            if isinstance(regex, str):
                _check_pattern(regex, source)
                return regex
    return PATTERN


def _check_pattern(pattern: str, source: str) -> None:
    """Raises HarmonyFormatError for a pattern that does not compile, skips text, or matches an empty piece.

    Skipped text would be lost, and `tiktoken` panics at an empty piece.
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


def _objects(value: Json) -> Iterator[JsonObject]:
    """The object itself and all objects inside of it."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)


def _byte_characters() -> dict[str, int]:
    """Character → the byte that it stands for: visible Latin-1 for itself, U+0100 and on for the others."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    return {chr(value): value for value in visible} | {chr(256 + n): value for n, value in enumerate(hidden)}


_BYTE_OF = _byte_characters()


def _bytes(text: str, source: str) -> bytes:
    try:
        token = bytes(_BYTE_OF[character] for character in text)
    except KeyError:
        raise HarmonyFormatError(
            f"{source} has the token {shown_json(text)}: it must be in byte-level form"
        ) from None
    if not token:
        raise HarmonyFormatError(f"{source} has an empty token: each must have at least one byte")
    return token
