"""Long runs are cut out of the text without changing a token."""

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


@pytest.mark.parametrize("unit", [" ", " \n", "a", "!"])
def test_a_run_of_a_million_characters_is_encoded(unit: str, encoding: HarmonyEncoding) -> None:
    text = "x" + unit * (1_100_000 // len(unit)) + "x"
    assert encoding.decode(encoding.encode_ordinary(text)) == text
