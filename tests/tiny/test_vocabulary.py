"""The tiny vocabulary is a working part of o200k."""

from __future__ import annotations

from checkpoints.opening import TINY, VOCABULARY_NAME
from gptoss_jax.tiny import vocabulary
from harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding
from harmony.vocabulary import o200k_base


def test_every_token_is_reached_by_merges_within_the_subset(encoding: HarmonyEncoding) -> None:
    for rank, token in enumerate(vocabulary.read(TINY / VOCABULARY_NAME)):
        try:
            text = token.decode()
        except UnicodeDecodeError:
            continue  # half a character cannot be encoded on its own
        if len(load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS).encode(text)) == 1:
            assert encoding.encode(text) == [rank]


def test_tokens_keep_the_order_of_o200k_and_no_two_digits_are_one_token() -> None:
    ranks = {token: rank for rank, token in enumerate(o200k_base())}
    tokens = vocabulary.read(TINY / VOCABULARY_NAME)
    assert len(tokens) == vocabulary.SIZE
    positions = [ranks[token] for token in tokens]
    assert positions == sorted(positions)
    assert not [t for t in tokens if len(t) > 1 and any(chr(byte).isdigit() for byte in t)]


def test_any_text_survives_encoding(encoding: HarmonyEncoding) -> None:
    text = "naïve — 日本語 🙂 \x00 1234567 <|end|>"
    assert encoding.decode(encoding.encode(text, disallowed_special=())) == text


def test_a_subset_takes_in_the_ancestors_of_its_tokens_or_leaves_a_token_out() -> None:
    singles = [bytes([value]) for value in range(256)]
    ranks = {token: rank for rank, token in enumerate([*singles, b"he", b"ll", b"hell", b"hello", b"12"])}
    chosen = vocabulary.merge_closed_subset([b"hello", b"12", b"ll"], ranks, 260)
    assert chosen == [*singles, b"he", b"ll", b"hell", b"hello"]
    too_small = vocabulary.merge_closed_subset([b"hello", b"ll"], ranks, 259)
    assert too_small == [*singles, b"ll"]
