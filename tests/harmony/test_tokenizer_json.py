"""A `tokenizer.json` is read whole, or refused in one line before anything can be encoded with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harmony import HarmonyEncoding, HarmonyFormatError, load_encoding
from harmony.vocabulary import SPECIAL_TOKENS

VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
HIDDEN = sorted(set(range(256)).difference(VISIBLE))
CHARACTERS = {chr(b): b for b in VISIBLE} | {chr(256 + n): b for n, b in enumerate(HIDDEN)}


def special(ids: Any) -> list[dict[str, Any]]:
    return [{"content": text, "id": token} for text, token in zip(SPECIAL_TOKENS, ids, strict=True)]


def split(pattern: str) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}}}


def tokenizer(**changes: Any) -> dict[str, Any]:
    """The 256 single bytes, two merges, another pattern and harmony's special tokens; some of it replaced."""
    document = {
        "added_tokens": special(range(258, 267)),
        "model": {"vocab": CHARACTERS | {"ab": 256, "abc": 257}, "merges": [["a", "b"], "ab c"]},
    }
    return document | split(r"\s+|\S+") | changes


def load(document: Any, folder: Path) -> HarmonyEncoding:
    path = folder / "v.json"
    path.write_text(json.dumps(document))
    return load_encoding(path)


def test_a_good_one_encodes_every_byte_and_its_merges(tmp_path: Path) -> None:
    encoding = load(tokenizer(), tmp_path)
    assert encoding.encode_ordinary("abc ab é") == [257, 32, 256, 32, 0xC3, 0xA9]
    assert encoding.encode("<|end|>", allowed_special="all") == [258 + SPECIAL_TOKENS.index("<|end|>")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"added_tokens": 7}, "added_tokens 7: it must be a list"),
        ({"added_tokens": None}, "lacks the special tokens <|startoftext|>"),
        ({"added_tokens": special("abcdefghi")}, '<|startoftext|>", "id": "a"}: it must have a text'),
        ({"added_tokens": special([float(n) for n in range(258, 267)])}, "a whole number, `id`"),
        ({"added_tokens": special([True, *range(258, 266)])}, "a whole number, `id`"),
        ({"added_tokens": [*special(range(258, 267)), {"content": [], "id": 1}]}, "it must have a text"),
        (
            {"added_tokens": special(range(9))},
            '"<|startoftext|>" the id 0: special tokens must have ids from',
        ),
        ({"added_tokens": special(range(257, 266))}, "special tokens must have ids from 258 on"),
        ({"added_tokens": special(range(-9, 0))}, "special tokens must have ids from 258 on"),
        ({"added_tokens": special([300] * 9)}, '"<|endoftext|>" the id 300: it is that of "<|startoftext|>"'),
        ({"added_tokens": special(range(258, 267)) * 2}, 'lists the added token "<|startoftext|>" twice'),
        ({"added_tokens": [*special(range(258, 267)), {"content": "\ud800", "id": 300}]}, "lone surrogate"),
        ({"model": {"vocab": {"a": 0}}}, "lacks 255 single bytes, the first 0x00: all 256 must be tokens"),
        ({"model": {"vocab": {**CHARACTERS, "": 256}}}, "has an empty token"),
        ({"model": {"vocab": {**CHARACTERS, "ab": "256"}}}, "must number its 257 ordinary tokens from 0 on"),
        ({"model": {"vocab": {**CHARACTERS, "ab": None}}}, "must number its 257 ordinary tokens from 0 on"),
        ({"model": {"vocab": CHARACTERS, "merges": 7}}, "has the merge 7: it must be two texts"),
        ({"model": {"vocab": CHARACTERS, "merges": ["abc"]}}, 'has the merge "abc": it must be two texts'),
        ({"model": {"vocab": CHARACTERS, "merges": [["a", 7]]}}, 'has the merge ["a", 7]'),
        (split("("), "has the pattern '(': Parsing error at position 1"),
        (split(""), "has the pattern '': it must split any text without leaving any out"),
        (split("x*|."), "it must split any text"),
        (split(r"\w+"), "it must split any text"),
        ({"x": json.loads("[" * 200 + "]" * 200)}, "nested more than 128 levels deep"),
    ],
)
def test_what_would_fail_later_is_refused_in_one_line(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(HarmonyFormatError) as caught:
        load(tokenizer(**changes), tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'v.json'} ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG_VALUES: list[Any] = [None, True, 7, -1, 10**30, 1.5, "", "x y", "\ud800", [], [7], {}, {"x": 7}, [[]]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in list(items)[-12:] for place in places(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def test_wrong_values_at_any_key_are_one_line_or_a_vocabulary_that_works(tmp_path: Path) -> None:
    good = 0
    for place in places(tokenizer()):
        for value in WRONG_VALUES:
            try:
                encoding = load(changed(tokenizer(), place, value), tmp_path)
            except HarmonyFormatError as error:
                assert "\n" not in str(error), (place, value)
            else:
                good += 1
                everything = "".join(map(chr, range(256)))
                assert encoding.decode(encoding.encode(everything)) == everything, (place, value)
                assert len({*encoding.stop_tokens(), encoding.start, encoding.message}) == 5
    assert good > 5
