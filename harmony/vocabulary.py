"""Vocabularies: the packed `o200k_base` inside this package, and `.tiktoken` files of any size.

A vocabulary is the list of its ordinary tokens' bytes; a token's id is its position and its merge
priority. Special tokens take the ids after it.

The package holds `o200k_base.xz`: one byte per token with its length, then all tokens' bytes, compressed
with LZMA. It is made from the published file by

    python -m harmony.vocabulary o200k_base.tiktoken

which refuses any file but the published one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import lzma
import sys
from importlib import resources
from pathlib import Path

from .errors import HarmonyFormatError, shown

O200K_BASE_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of the published `o200k_base.tiktoken`, the one that `tiktoken` pins."""

O200K_BASE_SIZE = 199_998

PACKED_NAME = "o200k_base.xz"

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
    """The 199,998 tokens of `o200k_base`, from the package (about 0.1 s)."""
    return unpack((resources.files(__package__) / PACKED_NAME).read_bytes())


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
    missing = [value for value in range(256) if bytes([value]) not in known]
    if missing:
        raise HarmonyFormatError(
            f"{source} lacks {len(missing)} single bytes, the first {missing[0]:#04x}: all 256 must be tokens"
        )
    return tokens


def to_tiktoken(tokens: list[bytes]) -> bytes:
    """The `.tiktoken` file of a vocabulary; inverse of `read_tiktoken`."""
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


def pack(tokens: list[bytes]) -> bytes:
    """A vocabulary as it lies in the package. No token may be longer than 255 bytes."""
    plain = bytes(map(len, tokens)) + b"".join(tokens)
    # lc=4, lp=0 suits text without alignment; SHA-256 makes unpacking notice a damaged file.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    return lzma.compress(len(tokens).to_bytes(4, "little") + plain, check=lzma.CHECK_SHA256, filters=filters)


def unpack(packed: bytes) -> list[bytes]:
    """Inverse of `pack`."""
    plain = lzma.decompress(packed)
    count = int.from_bytes(plain[:4], "little")
    start = 4 + count
    tokens = []
    for length in plain[4:start]:
        end = start + length
        tokens.append(plain[start:end])
        start = end
    return tokens


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
    target = Path(__file__).with_name(PACKED_NAME)
    target.write_bytes(pack(read_tiktoken(data, arguments[0])))
    print(f"{target}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
