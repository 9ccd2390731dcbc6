"""Vocabularies: the packed `o200k_base` inside this package, and `.tiktoken` files of any size.

A vocabulary is the list of its ordinary tokens' bytes. The position of a token is its id and its merge
priority. Special tokens have ids above those.

The packed file `o200k_base.tokens` has three parts: the number of tokens; the offset of every 64th token; and
all tokens in the order of their ids, separated by the byte 0xFF, which no other token contains. Numbers are
unsigned 32-bit integers, little-endian. Nothing is compressed, so loading is reading the file: a token is
found by splitting its block of 64. This command makes the file from the published vocabulary, and refuses any
other:

    python -m harmony.vocabulary o200k_base.tiktoken
"""

from __future__ import annotations

import base64
import binascii
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import overload

from .errors import HarmonyError, HarmonyFormatError, shown

O200K_BASE_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of the published `o200k_base.tiktoken`; `tiktoken` checks the same one."""

O200K_BASE_CRC32 = 0x0BB34861
"""CRC-32 of the file in the package. It is checked at every load, to notice a damaged file."""

O200K_BASE_SIZE = 199_998

PACKED = os.path.join(os.path.dirname(__file__), "o200k_base.tokens")

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
"""The regular expression of `o200k_base` that splits text into the pieces that are merged.

`.tiktoken` files of any size are used with it.
"""

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
"""The nine special tokens that have a name, in the order in which a `.tiktoken` vocabulary numbers them."""


def o200k_special_tokens() -> dict[str, int]:
    """The 1,091 special tokens of `o200k_harmony`, text → id: nine with a name, the others reserved."""
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


def o200k_base() -> PackedTokens:
    """The 199,998 tokens of `o200k_base`, from the package. Raises HarmonyError if its file is damaged."""
    try:
        with open(PACKED, "rb") as file:
            data = file.read()
    except OSError as error:
        raise HarmonyError(f"{PACKED} cannot be read ({error.strerror}): install the package again") from None
    if zlib.crc32(data) != O200K_BASE_CRC32:
        raise HarmonyError(f"{PACKED} is damaged: install the package again")
    return PackedTokens(data)


def read_tiktoken(data: bytes, source: str) -> list[bytes]:
    """Reads a `.tiktoken` file: one `base64(token) rank` per line, ranks 0, 1, 2, …

    `source` names the file in errors. Raises HarmonyFormatError for a line that is not such a pair, a rank
    out of order, a token listed twice, and a single byte that is not a token.
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
    """Raises HarmonyFormatError unless every single byte is a token; else some text could not be encoded."""
    missing = sorted(set(range(256)).difference(token[0] for token in tokens if len(token) == 1))
    if missing:
        raise HarmonyFormatError(
            f"{source} lacks {len(missing)} single bytes, the first {missing[0]:#04x}: all 256 must be tokens"
        )


def to_tiktoken(tokens: Iterable[bytes]) -> bytes:
    """The `.tiktoken` file of a vocabulary; inverse of `read_tiktoken`."""
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


_SEPARATOR = b"\xff"
_BLOCK = 64
"""How many tokens are split at once."""


class PackedTokens(Sequence[bytes]):
    """The tokens of a packed vocabulary, by id.

    A `bytes` object is made when a token of its block is read.
    """

    def __init__(self, data: bytes) -> None:
        """`data` is what `pack` made."""
        (self._size,) = struct.unpack_from("<I", data)
        blocks = -(-self._size // _BLOCK)
        self._joined = data[4 * (1 + blocks) :]
        # One more start than blocks: that after the last token.
        self._starts = (*struct.unpack_from(f"<{blocks}I", data, 4), len(self._joined) + 1)
        self._blocks: list[list[bytes] | None] = [None] * blocks

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[token] for token in range(*index.indices(self._size))]
        number, place = divmod(range(self._size)[index], _BLOCK)
        block = self._blocks[number]
        if block is None:
            joined = self._joined[self._starts[number] : self._starts[number + 1] - 1]
            block = self._blocks[number] = _split(joined)
        return block[place]

    def __iter__(self) -> Iterator[bytes]:
        return iter(_split(self._joined))


def _split(joined: bytes) -> list[bytes]:
    tokens = joined.split(_SEPARATOR)
    if b"" in tokens:  # the token that is the separator itself was split into two empty ones
        own = tokens.index(b"")
        tokens[own : own + 2] = [_SEPARATOR]
    return tokens


def pack(tokens: Sequence[bytes]) -> bytes:
    """A vocabulary in the packed format.

    The byte 0xFF, which UTF-8 text never has, must be a token and may not be part of another one. Raises
    HarmonyFormatError otherwise.
    """
    if [token for token in tokens if _SEPARATOR in token] != [_SEPARATOR]:
        raise HarmonyFormatError("the byte 0xff must be one token and part of no other: it separates tokens")
    starts = list(accumulate((len(token) + 1 for token in tokens), initial=0))[:-1:_BLOCK]
    return struct.pack(f"<I{len(starts)}I", len(tokens), *starts) + _SEPARATOR.join(tokens)


def main(arguments: list[str]) -> int:
    """Packs the published file, whose path is the only argument, into this package.

    Returns the exit status.
    """
    import hashlib

    if len(arguments) != 1:
        print("usage: python -m harmony.vocabulary o200k_base.tiktoken", file=sys.stderr)
        return 2
    with open(arguments[0], "rb") as published:
        data = published.read()
    digest = hashlib.sha256(data).hexdigest()
    if digest != O200K_BASE_SHA256:
        print(f"{arguments[0]} has SHA-256 {digest}: it must be {O200K_BASE_SHA256}", file=sys.stderr)
        return 1
    packed = pack(read_tiktoken(data, arguments[0]))
    with open(PACKED, "wb") as file:
        file.write(packed)
    print(f"{PACKED}: {len(packed)} bytes, CRC-32 {zlib.crc32(packed):#010x}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
