"""Long runs are encoded in linear time, without changing a token."""

from __future__ import annotations

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from harmony import HarmonyEncoding, vocabulary
from harmony.text_encoder import TextEncoder

TOKENS = vocabulary.o200k_base()
CUTTING = TextEncoder("cutting", TOKENS, long_run=2)
WHOLE = tiktoken.Encoding(
    "whole",
    pat_str=vocabulary.PATTERN,
    mergeable_ranks={token: rank for rank, token in enumerate(TOKENS)},
    special_tokens={},
)
PIECES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\u2028",
    "\x85",
    "\x1c",
    "\u3000",
    "a",
    "B",
    "!",
    "/",
    "7",
    "é",
)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@settings(max_examples=500, deadline=None)
def test_cutting_out_runs_of_spaces_changes_no_token(text: str) -> None:
    assert CUTTING.encode(text) == WHOLE.encode_ordinary(text)


SHORTENING = TextEncoder("shortening", TOKENS, block=1024, long_run=1500)
CHARACTERS = " \t\n\r/!aAé中7=-.'sS\u3000\u0301\u2028\x85😊𝒳"
RUNS = st.builds(str.__mul__, st.sampled_from(CHARACTERS), st.integers(1000, 5000))
SHORT = st.lists(st.sampled_from([*CHARACTERS, "'ll", " word", "Word", "\r\n", "12"]), max_size=4).map(
    "".join
)


@given(st.lists(RUNS | SHORT, min_size=1, max_size=6).map("".join))
@settings(max_examples=500, deadline=None)
def test_leaving_out_most_of_long_runs_changes_no_token(text: str) -> None:
    assert SHORTENING.encode(text) == WHOLE.encode_ordinary(text)


@given(st.permutations(range(2, 12)), st.integers(0, 10), st.integers(100, 400), SHORT, SHORT)
@settings(max_examples=200, deadline=None)
def test_leaving_out_most_of_a_long_run_is_exact_in_any_vocabulary(
    lengths: list[int], count: int, size: int, before: str, after: str
) -> None:
    tokens = [*(bytes([value]) for value in range(256)), *(b"a" * length for length in lengths[:count])]
    encoder = TextEncoder("small", tokens, block=40)
    text = before + "a" * size + after
    whole = tiktoken.Encoding(
        "whole",
        pat_str=vocabulary.PATTERN,
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens={},
    )
    assert encoder.encode(text) == whole.encode_ordinary(text)


@pytest.mark.parametrize("unit", [" ", "a", "A", "!", "\n", "中", "7", "\x85"])
def test_most_of_a_long_run_never_reaches_the_merging(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder("counting", TOKENS)
    expected = encoder.encode("x" + unit * 50_000 + "x")
    assert expected == WHOLE.encode_ordinary("x" + unit * 50_000 + "x")
    core = encoder._core
    seen: list[int] = []

    class Counting:
        def encode_ordinary(self, text: str) -> list[int]:
            seen.append(len(text))
            return core.encode_ordinary(text)

    monkeypatch.setattr(encoder, "_core", Counting())
    text = "x" + unit * 2_000_000 + "x"
    assert b"".join(TOKENS[token] for token in encoder.encode(text)).decode() == text
    assert sum(seen) < 20_000


@pytest.mark.parametrize("unit", [" ", " \n", "a", "!", " \t"])
def test_a_run_of_two_million_characters_is_encoded(unit: str, encoding: HarmonyEncoding) -> None:
    text = "x" + unit * (2_000_000 // len(unit)) + "x"
    assert encoding.decode(encoding.encode_ordinary(text)) == text
