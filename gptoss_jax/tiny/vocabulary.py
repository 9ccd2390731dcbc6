"""The tiny model's vocabulary: a merge-closed subset of `o200k`, renumbered in order.

Leaving a token out leaves every other merge as it was only if both halves of each kept token are kept too.
All 256 bytes are kept, so any text can be encoded. No token holds two digits, so numbers are read digit by
digit.
"""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Iterable
from pathlib import Path

from gptoss_jax.tiny.dialogues import draw_group
from harmony import Conversation, HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding
from harmony.vocabulary import o200k_base, read_tiktoken, to_tiktoken

SIZE = 2038
"""Ordinary tokens; nine special ones follow, and the model's 2,048 rows end in one spare."""
_SAMPLED_GROUPS = 4000


def _halves(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens whose merge makes `token`: byte pair encoding stopped one merge short."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(a + b, 1 << 40) for a, b in itertools.pairwise(parts)]
        first = min(range(len(joined)), key=joined.__getitem__)
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts


def _with_ancestors(token: bytes, ranks: dict[bytes, int], known: set[bytes]) -> set[bytes]:
    """`token` and every token it is merged from, except those already `known`."""
    if token in known:
        return set()
    needed = {token}
    for half in _halves(token, ranks):
        needed |= _with_ancestors(half, ranks, known | needed)
    return needed


def merge_closed_subset(frequencies: Iterable[bytes], ranks: dict[bytes, int], size: int) -> list[bytes]:
    """The tokens of `frequencies` (most frequent first) that fit in `size` with their ancestors, by rank."""
    kept = {bytes([value]) for value in range(256)}
    for token in frequencies:
        if len(token) > 1 and any(48 <= value <= 57 for value in token):
            continue
        needed = _with_ancestors(token, ranks, kept)
        if len(kept) + len(needed) <= size:
            kept |= needed
    return sorted(kept, key=ranks.__getitem__)


def token_frequencies(encoding: HarmonyEncoding, seed: int) -> list[bytes]:
    """The tokens of a large sample of dialogues in the full encoding, most frequent first."""
    rng = random.Random(seed)
    counts: collections.Counter[int] = collections.Counter()
    for _ in range(_SAMPLED_GROUPS):
        group = draw_group(rng)
        counts.update(encoding.render_conversation(Conversation.from_messages(group.setting.messages)))
        for turns in group.branches:
            for turn in turns:
                for message in [*turn.given, *turn.completion]:
                    counts.update(encoding.render(message))
    ordered = sorted(counts, key=lambda token: (-counts[token], token))
    return [encoding.decode_bytes([token]) for token in ordered if not encoding.is_special_token(token)]


def build(seed: int) -> list[bytes]:
    """The tiny vocabulary, by id: the packaged `o200k` cut down to what the dialogues need."""
    ranks = {token: rank for rank, token in enumerate(o200k_base())}
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    return merge_closed_subset(token_frequencies(encoding, seed), ranks, SIZE)


def write(tokens: list[bytes], path: Path) -> None:
    """Writes tokens as `.tiktoken` lines: base64 of the bytes, then the rank."""
    path.write_bytes(to_tiktoken(tokens))


def read(path: Path) -> list[bytes]:
    """Reads the tokens that `write` wrote, by id."""
    return read_tiktoken(path.read_bytes(), str(path))
