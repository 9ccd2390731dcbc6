"""Vocabularies from a Hugging Face `tokenizer.json` with byte-level BPE, such as gpt-oss's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .errors import HarmonyFormatError
from .vocabulary import PATTERN, SPECIAL_TOKENS


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
        document = json.loads(data)
    except ValueError as error:
        raise HarmonyFormatError(f"{source} is not JSON: {error}") from None
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise HarmonyFormatError(f"{source} has no model.vocab: it must be a byte-level BPE tokenizer")
    added = {
        entry["content"]: entry["id"]
        for entry in document.get("added_tokens", ())
        if isinstance(entry, dict) and {"content", "id"} <= entry.keys()
    }
    missing = [name for name in SPECIAL_TOKENS if name not in added]
    if missing:
        raise HarmonyFormatError(f"{source} lacks the special tokens {', '.join(missing)}")
    ids = {text: token for text, token in model["vocab"].items() if text not in added}
    if sorted(ids.values()) != list(range(len(ids))):
        raise HarmonyFormatError(f"{source} must number its {len(ids)} ordinary tokens from 0 on")
    _check_merges(ids, model.get("merges") or [], source)
    by_id = sorted(ids, key=ids.__getitem__)
    return Tokenizer([_bytes(text, source) for text in by_id], added, _pattern(document) or PATTERN)


def _check_merges(ids: Mapping[str, int], merges: list[Any], source: str) -> None:
    last = -1
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        made = ids.get(left + right, -1)
        if made < last:
            raise HarmonyFormatError(f"{source} merges {left!r} and {right!r} out of the order of its ids")
        last = made


def _pattern(document: Mapping[str, Any]) -> str | None:
    """The expression that splits text before merging."""
    for part in _objects(document.get("pre_tokenizer")):
        if part.get("type") == "Split" and isinstance(part.get("pattern"), dict):
            pattern = part["pattern"].get("Regex")
            if isinstance(pattern, str):
                return pattern
    return None


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
        return bytes(_BYTE_OF[character] for character in text)
    except KeyError:
        raise HarmonyFormatError(f"{source} has the token {text!r}: it must be in byte-level form") from None
