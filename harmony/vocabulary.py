"""Vocabularies: the packed `o200k_base` inside this package, and `.tiktoken` files of any size.

A vocabulary is the list of its ordinary tokens' bytes; a token's id is its position and its merge
priority. Special tokens take the ids after it.

The package holds `o200k_base.xz`: the tokens, joined by the byte 0xFF that no other token has, compressed
with LZMA. `bytes.split` takes them apart again, which costs a third of a loop over lengths, and the file is
smaller for it. It is made from the published file by

    python -m harmony.vocabulary o200k_base.tiktoken

which refuses any file but the published one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import lzma
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import HarmonyError, HarmonyFormatError, shown

O200K_BASE_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of the published `o200k_base.tiktoken`, the one that `tiktoken` pins."""

O200K_BASE_UNPACKED_SHA256 = "e2898ccc959d3f167997d71f76388839e913252d795ddb94c2d6f9edf763240f"
"""SHA-256 of the same tokens as they lie in the package before compression; checked at every load."""

O200K_BASE_SIZE = 199_998

PACKED = Path(__file__).with_name("o200k_base.xz")

PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""How text is split before merging: the pattern of `o200k_base`, which small vocabularies share."""

SPECIAL_TOKENS = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)
"""The nine special tokens with a name, in the order in which a small vocabulary numbers them."""


def o200k_special_tokens() -> dict[str, int]:
    """The 1,091 special tokens of `o200k_harmony`: nine with a name, the others reserved."""
    named = {
        "<|startoftext|>": 199998,
        "<|endoftext|>": 199999,
        "<|return|>": 200002,
        "<|constrain|>": 200003,
        "<|channel|>": 200005,
        "<|start|>": 200006,
        "<|end|>": 200007,
        "<|message|>": 200008,
        "<|call|>": 200012,
    }
    taken = set(named.values())
    reserved = {f"<|reserved_{i}|>": i for i in range(200000, 201089) if i not in taken}
    return named | reserved


def o200k_base() -> list[bytes]:
    """The 199,998 tokens of `o200k_base`, from the package. Raises HarmonyError if its file is damaged."""
    packed = PACKED.read_bytes()
    try:
        plain = lzma.decompress(packed)
    except lzma.LZMAError:
        plain = b""
    if hashlib.sha256(plain).hexdigest() != O200K_BASE_UNPACKED_SHA256:
        raise HarmonyError(f"{PACKED} is damaged: install the package again")
    return split(plain)


def read_tiktoken(data: bytes, source: str) -> list[bytes]:
    """Reads a `.tiktoken` file: one `base64(token) rank` per line, ranks 0, 1, 2, …

    `source` names the file in errors. Every single byte must be a token, or some text could not be
    encoded. Raises HarmonyFormatError naming the line.
    """
    tokens: list[bytes] = []
    for number, line in enumerate(data.splitlines(), 1):
        fields = line.split()
        try:
            token, rank = base64.b64decode(fields[0], validate=True), int(fields[1])
        except (IndexError, ValueError, binascii.Error):
            raise HarmonyFormatError(
                f"{source}, line {number} is {shown(line)}: it must be a base64 token and its rank"
            ) from None
        if rank != len(tokens):
            raise HarmonyFormatError(f"{source}, line {number} has rank {rank}: it must be {len(tokens)}")
        tokens.append(token)
    known = set(tokens)
    if len(known) != len(tokens):
        raise HarmonyFormatError(f"{source} lists {len(tokens) - len(known)} tokens twice")
    check_single_bytes(tokens, source)
    return tokens


def check_single_bytes(tokens: Sequence[bytes], source: str) -> None:
    """Raises HarmonyFormatError unless every byte is a token, or some text could not be encoded."""
    missing = sorted(set(range(256)).difference(token[0] for token in tokens if len(token) == 1))
    if missing:
        raise HarmonyFormatError(
            f"{source} lacks {len(missing)} single bytes, the first {missing[0]:#04x}: all 256 must be tokens"
        )


def to_tiktoken(tokens: list[bytes]) -> bytes:
    """The `.tiktoken` file of a vocabulary; inverse of `read_tiktoken`."""
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


_SEPARATOR = b"\xff"


def join(tokens: list[bytes]) -> bytes:
    """A vocabulary as one string of bytes; inverse of `split`.

    Raises HarmonyFormatError if a token other than 0xFF itself, which must be there, has that byte: it is in
    no UTF-8 text.
    """
    if [token for token in tokens if _SEPARATOR in token] != [_SEPARATOR]:
        raise HarmonyFormatError("the byte 0xff must be one token and in no other one, or it cannot separate")
    return _SEPARATOR.join(tokens)


def split(plain: bytes) -> list[bytes]:
    """Inverse of `join`."""
    tokens = plain.split(_SEPARATOR)
    own = tokens.index(b"")  # between its two neighbours the separator's own token became two empty ones
    tokens[own : own + 2] = [_SEPARATOR]
    return tokens


def pack(tokens: list[bytes]) -> bytes:
    """A vocabulary as it lies in the package."""
    # lc=4, lp=0 suits text without alignment. The reader has a checksum of its own.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    return lzma.compress(join(tokens), check=lzma.CHECK_CRC32, filters=filters)


def main(arguments: list[str]) -> int:
    """Packs the published file named by the only argument into this package."""
    if len(arguments) != 1:
        print("usage: python -m harmony.vocabulary o200k_base.tiktoken", file=sys.stderr)
        return 2
    data = Path(arguments[0]).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != O200K_BASE_SHA256:
        print(f"{arguments[0]} has SHA-256 {digest}: it must be {O200K_BASE_SHA256}", file=sys.stderr)
        return 1
    PACKED.write_bytes(pack(read_tiktoken(data, arguments[0])))
    print(f"{PACKED}: {PACKED.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
