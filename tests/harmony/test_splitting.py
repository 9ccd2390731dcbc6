"""Text is split as the pattern says and cut only where a piece ends. Oracles: `regex` and `tiktoken`."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from harmony import splitting, vocabulary

EVERY_KIND = "aBsSLlrEv'ªǅ\u0301\u0903ʰ中1²Ⅷ٣! /-_\t\n\r\v\x1c\x85\xa0\u2028\u3000ſK😀\u200d\ue000"
PATTERN = regex.compile(vocabulary.PATTERN)


def known_pieces(text: str) -> list[bytes]:
    return [piece.encode() for piece in PATTERN.findall(text)]


# Both must know the characters: `regex` has newer tables than an older Python.
ASSIGNED = st.characters(exclude_categories=["Cs", "Cn"])
TEXTS = st.lists(st.sampled_from(EVERY_KIND) | ASSIGNED, max_size=40).map("".join)


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_pieces_are_those_of_the_pattern(text: str) -> None:
    assert splitting.pieces(text) == known_pieces(text)


def test_pieces_of_all_short_texts_are_those_of_the_pattern_and_cuts_change_none() -> None:
    cuts = 0
    alphabet = "aBs'ª\u0301l1! /\t\n\x85中"
    for text in map("".join, itertools.product(alphabet, repeat=4)):
        pieces = known_pieces(text)
        assert splitting.pieces(text) == pieces
        cut = splitting.first_cut(text, 0, len(text))
        if cut is not None:
            cuts += 1
            assert known_pieces(text[:cut]) + known_pieces(text[cut:]) == pieces, (text, cut)
    assert cuts > 30_000


@given(TEXTS, TEXTS)
@settings(max_examples=400, deadline=None)
def test_a_cut_anywhere_in_a_text_changes_no_piece(before: str, after: str) -> None:
    text = before + after
    cut = splitting.first_cut(text, len(before), len(text))
    if cut is not None:
        assert len(before) < cut < len(text)
        assert splitting.pieces(text[:cut]) + splitting.pieces(text[cut:]) == splitting.pieces(text)


def matched(pattern: str, text: str) -> str:
    """The characters of a text that `tiktoken`'s engine matches with a pattern."""
    single_bytes = {bytes([value]): value for value in range(256)}
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=single_bytes, special_tokens={})
    return bytes(encoding.encode_ordinary(text)).decode()


KINDS = {
    "A": r"[\p{Lu}\p{Lt}]",
    "a": r"\p{Ll}",
    "ª": r"[\p{Lm}\p{Lo}]",
    "¨": r"\p{M}",
    "0": r"\p{N}",
    "\t": r"\s",
}


def check_kinds(characters: str) -> None:
    rest = set(characters)
    for stand_in, pattern in KINDS.items():
        found = matched(pattern, characters)
        assert set(found.translate(splitting._KINDS).replace("s", "a")) <= {stand_in}
        rest.difference_update(found)
    assert set("".join(rest).translate(splitting._KINDS)) <= {"!"}


def characters(step: int) -> str:
    others = (chr(code) for code in range(0x80, 0x110000, step) if not 0xD800 <= code < 0xE000)
    return "".join(others)


def test_every_character_is_of_the_kind_that_tiktoken_sees() -> None:
    check_kinds("".join(c for c in characters(1) if unicodedata.category(c) not in ("Cn", "Co", "Lo")))
    check_kinds(characters(37))


@pytest.mark.slow
def test_every_character_of_all_is_of_the_kind_that_tiktoken_sees() -> None:
    check_kinds(characters(1))


def test_characters_that_python_does_not_know_yet_are_asked_of_tiktoken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = [c for c in characters(1) if unicodedata.category(c) == "Cn"]
    assert {splitting._kind(c) for c in unknown[:50]} <= set("Aaª¨0!")
    monkeypatch.setattr(splitting, "_IS_NEWER", True)
    for character, kind in zip("ÄäªʰǅͅΩ٣Ⅷ😀\u0301", "AaªªA¨A00!¨", strict=True):
        assert splitting._kind(character) == kind


def test_cuts_look_only_at_characters_of_which_all_tables_say_the_same() -> None:
    letters = regex.findall(f"[{splitting._LETTERS}]", characters(1))
    assert matched(r"\p{L}", "".join(letters)) == "".join(letters)
    assert len(letters) > 30_000
    marks = "".join(regex.findall(f"[{splitting._MARKS_OF_TEXT}]", "".join(map(chr, range(0x10000)))))
    assert matched(r"[^\s\p{L}\p{N}\p{M}']", marks) == marks
    assert len(marks) > 60


@pytest.mark.parametrize("unit", ["a", "中", "!", "/", " ", "\n", "\t\n", "\u0301", "aA", "'s", "1", "a1"])
@pytest.mark.parametrize("length", [8, 31, 100, 4096])
def test_a_long_piece_is_never_overlooked(unit: str, length: int) -> None:
    for before in ("", "x", "12 "):
        for size in (length + 1, 2 * length, 2 * length + 5):
            text = before + (unit * size)[:size] + "\nEnd 1!"
            longest = max(len(piece.decode()) for piece in splitting.pieces(text))
            assert longest <= length or splitting.may_have_long_pieces(text, length)


def test_ordinary_text_has_no_long_pieces() -> None:
    assert not splitting.may_have_long_pieces("Words, 1234 and (more) words.\n" * 100, 64)
    assert not splitting.may_have_long_pieces("1234567890" * 100, 64)
