"""Any text has the tokens that plain `tiktoken` gives it, in linear time, and before `tiktoken` is made."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.bench.conversations import conversation
from harmony import HarmonyEncoding, splitting, text_encoder, vocabulary
from harmony.text_encoder import WARM_UP, TextEncoder

TOKENS = list(vocabulary.o200k_base())
RANKS = {token: rank for rank, token in enumerate(TOKENS)}
SINGLE_BYTES = [bytes([value]) for value in range(256)]


def plain(tokens: list[bytes]) -> tiktoken.Encoding:
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding("x", pat_str=vocabulary.PATTERN, mergeable_ranks=ranks, special_tokens={})


PLAIN = plain(TOKENS)
COMMON = TOKENS[:20_000]  # a vocabulary too, of which an encoding is made in less time
PLAIN_COMMON = plain(COMMON)


def encoder(**settings: int) -> TextEncoder:
    """One that shares the tables of the others, which take long to make."""
    made = TextEncoder("x", TOKENS, **settings)
    made.__dict__.update(_ranks=RANKS, _tiktoken=PLAIN, _lengths=LENGTHS)
    return made


LENGTHS = [len(token) for token in TOKENS]
STANDARD, FINE, FIRST = encoder(warm_up=0), encoder(warm_up=0, chunk=16, block=64), encoder(warm_up=10**12)
ENCODERS = pytest.mark.parametrize("encoder", [STANDARD, FINE, FIRST], ids=["standard", "fine", "first"])

CHARACTERS = {
    "small letters": "etaoinshrdlu",
    "capitals": "ETAOINSHRDLU",
    "title case": "ǅǈǋǲᾈ",
    "letters without case": "中文字東京日本語",
    "letters of two bytes": "éüøßжщ",
    "digits": "0123456789",
    "punctuation": "!?.,;:-_=+*#",
    "apostrophes": "'",
    "spaces": " ",
    "tabs": "\t",
    "line breaks": "\n",
    "carriage returns": "\r",
    "other spaces": "\xa0\x85\u2003\u3000\u2028\v",
    "marks": "\u0301\u0308\u0903",
    "emoji": "😀🎉👍\u200d",
    "slashes": "/",
    "suffixes": "s'reTVE'mlL",
    "unassigned characters": "\u0378\U00010d5f\U000e0fff",
}
CHARACTER_OF_BYTE = {
    kind: {byte: characters[byte % len(characters)] for byte in range(256)}
    for kind, characters in CHARACTERS.items()
}
PAIRS = list(itertools.product(CHARACTERS, repeat=2))
PERIODS = (1, 2, 3, 7, 50, 1000, 9000, 49_999, 100_000)


def mixture(first: str, second: str, period: int, size: int, random: Random | None) -> str:
    """So many characters of one class, then of another, and so on: always the same one, or random ones."""

    def run(kind: str) -> str:
        if random is None:
            return CHARACTERS[kind][:1] * period
        return random.randbytes(period).decode("latin-1").translate(CHARACTER_OF_BYTE[kind])

    parts: list[str] = []
    while len(parts) * period < size:
        parts += [run(first), run(second)]
    return "".join(parts)[:size]


def pairs(period: int) -> list[tuple[str, str]]:
    """A part of all pairs: each pair is in the part of one of the periods, and each class in every part."""
    turn = PERIODS.index(period)
    kinds = range(len(CHARACTERS))
    return [
        pair
        for pair, (i, j) in zip(PAIRS, itertools.product(kinds, kinds), strict=True)
        if (i + j) % len(PERIODS) == turn
    ]


TEXTS = st.lists(
    st.builds(str.__mul__, st.sampled_from("".join(CHARACTERS.values())), st.integers(1, 200))
    | st.sampled_from(["'ll", " word", "Word", "\r\n", "12", "don't", "x're "])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    max_size=12,
).map("".join)


@ENCODERS
@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_tokens_are_those_of_plain_tiktoken(encoder: TextEncoder, text: str) -> None:
    assert encoder.encode(text) == PLAIN.encode_ordinary(text)


@pytest.mark.slow
@ENCODERS
@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_tokens_of_many_texts_are_those_of_plain_tiktoken(encoder: TextEncoder, text: str) -> None:
    assert encoder.encode(text) == PLAIN.encode_ordinary(text)


@pytest.mark.parametrize("repeating", [True, False], ids=["one character", "random characters"])
@ENCODERS
def test_mixtures_of_all_classes_have_the_tokens_of_plain_tiktoken(
    encoder: TextEncoder, repeating: bool
) -> None:
    random = Random(0)
    for number, (first, second) in enumerate(PAIRS):
        period = PERIODS[number % 6]
        text = mixture(first, second, period, 1500, None if repeating else random)
        assert encoder.encode(text) == PLAIN.encode_ordinary(text), (first, second, period)


@pytest.mark.slow
@pytest.mark.parametrize("period", PERIODS)
def test_long_mixtures_of_all_classes_have_the_tokens_of_plain_tiktoken(period: int) -> None:
    random = Random(period)
    for number, (first, second) in enumerate(PAIRS if period < 10_000 else pairs(period)):
        source = random if (number + PERIODS.index(period)) % 2 else None
        size = max(10_000 if period < 50 else 20_000, int(2.5 * period))
        text = mixture(first, second, period, size, source)
        assert STANDARD.encode(text) == PLAIN.encode_ordinary(text), (first, second)


class Counted:
    """`tiktoken`, and how much it was given to do."""

    def __init__(self) -> None:
        self.characters = self.merged = self.longest = 0

    def encode_ordinary(self, text: str) -> list[int]:
        self.characters += len(text)
        self.longest = max([self.longest, *map(len, splitting.pieces(text))])
        return PLAIN.encode_ordinary(text)

    def _encode_single_piece(self, piece: bytes) -> list[int]:
        self.merged += len(piece)
        self.longest = max(self.longest, len(piece))
        return PLAIN._encode_single_piece(piece)


def test_the_work_is_linear_in_any_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def counting(of: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal looked_at
            looked_at += size(*arguments)
            return of(*arguments)

        return call

    def looked_through(text: str, start: int, stop: int) -> int:
        return (splitting.first_cut(text, start, stop) or stop) - start

    for name in ("pieces", "may_have_long_pieces"):
        monkeypatch.setattr(
            text_encoder, name, counting(getattr(splitting, name), lambda text, *_: len(text))
        )
    monkeypatch.setattr(text_encoder, "first_cut", counting(splitting.first_cut, looked_through))
    random = Random(1)
    for number, (first, second) in enumerate(PAIRS):
        counted = Counted()
        made = encoder(warm_up=0, chunk=512, block=256)
        made.__dict__["_tiktoken"] = counted
        text = mixture(first, second, (1, 2, 60, 2500)[number % 4], 6000, random)
        looked_at = 0
        made.encode(text)
        assert looked_at <= 4 * len(text)
        assert counted.characters <= len(text)
        assert counted.merged <= 1.5 * len(text.encode())
        assert counted.longest <= 4 * 2 * 512  # bytes of the characters among which a place to cut was seen


def seconds(work: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def check_linear(make: Callable[[int], str], small: int = 12_000, times: int = 8) -> None:
    """A character takes at most three times as long in a text that is so many times as long."""
    short, long = make(small), make(small * times)
    for attempt in range(1, 7):  # others may be at work on this machine
        one = seconds(lambda: STANDARD.encode(short), 3 * attempt) / len(short)
        other = seconds(lambda: STANDARD.encode(long), attempt) / len(long)
        if other < 3 * one:
            return
    pytest.fail(f"{one * 1e9:.0f} and {other * 1e9:.0f} ns a character")


@pytest.mark.parametrize(
    "make",
    [
        lambda size: (" \t" * 49_999 + "x") * (size // 99_999) + " \t" * (size % 99_999 // 2),
        lambda size: (" " * 9000 + "\n") * (size // 9001 + 1),
        lambda size: "\u3000\xa0" * (size // 2) + "x",
        lambda size: "".join(Random(0).choices("etaoinshrdlu", k=size)),
        lambda size: "".join(Random(0).choices("中文字東京日本語", k=size)),
        lambda size: "".join(Random(0).choices("\u0301\u0308\u0903", k=size)),
        lambda size: "".join(Random(0).choices("".join(CHARACTERS.values()), k=size)),
        lambda size: "/" * size,
        lambda size: "\n/" * (size // 2),
        lambda size: "中A" * (size // 2),
        lambda size: "中" + "A" * size,
        lambda size: "'s" * (size // 2),
    ],
)
def test_time_is_linear(make: Callable[[int], str]) -> None:
    check_linear(make)


@pytest.mark.slow
@pytest.mark.parametrize("period", PERIODS)
def test_time_is_linear_in_any_mixture(period: int) -> None:
    for first, second in pairs(period):
        check_linear(
            lambda size, pair=(first, second): mixture(*pair, period, size, Random(0)),
            max(12_000, 2 * period),
            8 if period < 9000 else 4,
        )


@pytest.mark.parametrize(
    ("unit", "end"),
    [
        ("\u3000\xa0\t", ""),
        (" ", "x"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((" ", ""), (" ", "\n \n1"))),
        *(pytest.param("\u3000\xa0\t", end, marks=pytest.mark.slow) for end in ("x", "\n \n1")),
    ],
)
def test_a_run_of_spaces_that_plain_tiktoken_does_not_survive(unit: str, end: str) -> None:
    run = (unit * 1_100_000)[:1_100_000]
    pieces: list[str] = {
        "": [run],
        "x": [run[:-1], run[-1] + "x"],
        "\n \n1": [run + "\n \n", "1"],
    }[end]
    expected = [token for piece in pieces for token in PLAIN._encode_single_piece(piece)]
    assert STANDARD.encode(run + end) == expected


@given(
    st.permutations(["".join(token) for size in (2, 3, 4) for token in itertools.product("ab", repeat=size)]),
    st.integers(0, 28),
    st.text("ab", min_size=100, max_size=300) | st.sampled_from(["a" * 200, "ab" * 100, "aab" * 70]),
)
@settings(max_examples=150, deadline=None)
def test_blocks_have_the_tokens_of_the_whole_piece_in_any_vocabulary(
    merges: list[str], count: int, piece: str
) -> None:
    tokens = [*SINGLE_BYTES, *(merge.encode() for merge in merges[:count])]
    small = TextEncoder("small", tokens, r"[ab]+", block=1)
    whole = small._tiktoken._encode_single_piece(piece)
    assert small._merged_in_blocks(piece.encode()) == whole
    assert text_encoder.merged(piece.encode(), {token: rank for rank, token in enumerate(tokens)}) == whole


def test_blocks_that_share_no_token_are_merged_whole() -> None:
    # The last pair is merged first, then the last but one: what is merged depends on where a block ends.
    tokens = [*SINGLE_BYTES, *(bytes([value, value + 1]) for value in range(254, -1, -1))]
    piece = bytes(range(256))
    small = TextEncoder("small", tokens, warm_up=0, block=17)
    given_out: list[int] = []
    whole = plain(tokens)

    class Core:
        def _encode_single_piece(self, part: bytes) -> list[int]:
            given_out.append(len(part))
            return whole._encode_single_piece(part)

    small.__dict__["_tiktoken"] = Core()
    assert small._merged_in_blocks(piece) == whole._encode_single_piece(piece)
    assert given_out == [17, 17, 17, 17, 256]


def test_the_first_texts_are_encoded_without_tiktoken_and_the_others_by_it(encoding: HarmonyEncoding) -> None:
    script = f"""
import sys
from harmony import load_harmony_encoding, text_encoder
encoding = load_harmony_encoding()
text = {"Hello, wörld! 你好 don't 😀 1234  x" + chr(10)!r}
once = encoding.encode_ordinary(text)
print(once, "tiktoken" in sys.modules)
for _ in range(text_encoder.WARM_UP // len(text) + 1):
    assert encoding.encode_ordinary(text) == once
print("tiktoken" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = PLAIN.encode_ordinary("Hello, wörld! 你好 don't 😀 1234  x\n")
    assert done.stdout.splitlines() == [f"{expected} False", "True"]


def test_tokens_do_not_depend_on_what_was_encoded_before() -> None:
    texts = [
        part["text"]
        for message in conversation(60, 200)["messages"]
        for part in message["content"]
        if "text" in part
    ]
    expected = [PLAIN.encode_ordinary(text) for text in texts]
    for warm_up in (0, 100, 5000, 50_000, WARM_UP):
        made = encoder(warm_up=warm_up)
        assert [made.encode(text) for text in texts] == expected


def test_merging_much_ends_the_warm_up() -> None:
    made = encoder(warm_up=10_000)
    text = " zqxjkvbw" * 1000
    assert made.encode(text) == PLAIN.encode_ordinary(text)
    assert made._left_to_warm_up <= 0


def test_threads_may_meet_in_the_first_texts() -> None:
    made = TextEncoder("x", COMMON, warm_up=2000)
    text = "Ordinary words, don't you think? Zürich 你好 " * 10
    expected = PLAIN_COMMON.encode_ordinary(text)
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.extend(made.encode(text) for _ in range(5))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 30


def test_another_pattern_splits_text_as_it_says() -> None:
    words = TextEncoder("words", COMMON, r"\w+|\W+", warm_up=10**6)
    assert words.encode("don't 1234") == [
        token
        for piece in ("don", "'", "t", " ", "1234")
        for token in PLAIN_COMMON._encode_single_piece(piece)
    ]


def test_a_text_on_which_another_pattern_fails_is_one_line_of_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    backtracking = TextEncoder("backtracking", SINGLE_BYTES, r"\s+(?!\S)|\s+|\S+")
    with pytest.raises(ValueError, match="the pattern of backtracking cannot split '  ") as caught:
        backtracking.encode(" " * 1_100_000 + "x")
    assert "\n" not in str(caught.value)
    capfd.readouterr()  # the engine's own message
