"""Tokens of any integer type, in any sequence, in every function that takes them."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import harmony
from harmony import HarmonyEncoding, RecoveringParser, Role, StreamableParser, parse_completion

TEXT = "<|channel|>final<|message|>Grüße 😊<|return|>"


class Index:
    """An integer that is nothing else: it has neither comparisons nor a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def as_jax(tokens: list[int]) -> Any:
    return pytest.importorskip("jax.numpy").asarray(tokens)


SEQUENCES: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda tokens: (token for token in tokens),
    "numpy int64": np.array,
    "numpy uint32": lambda tokens: np.array(tokens, np.uint32),
    "numpy, every second": lambda tokens: np.repeat(np.array(tokens), 2)[::2],
    "numpy objects": lambda tokens: np.array(tokens, object),
    "numpy scalars": lambda tokens: [np.int32(token) for token in tokens],
    "numpy arrays of no dimension": lambda tokens: [np.array(token) for token in tokens],
    "jax": as_jax,
    "jax scalars": lambda tokens: list(as_jax(tokens)),
    "of enums": lambda tokens: [enum.IntEnum("Id", {"A": token}).A for token in tokens],  # type: ignore[attr-defined]
    "of a class of one's own": lambda tokens: list(map(Index, tokens)),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_function_takes_tokens_of_any_integer_type(name: str, encoding: HarmonyEncoding) -> None:
    tokens = encoding.encode(TEXT, allowed_special="all")
    made = SEQUENCES[name]
    assert encoding.decode(made(tokens)) == TEXT
    assert encoding.decode_utf8(made(tokens)) == TEXT
    assert encoding.decode_bytes(made(tokens)) == TEXT.encode()
    messages = encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    assert encoding.parse_messages_from_completion_tokens(made(tokens), Role.ASSISTANT) == messages
    assert parse_completion(encoding, made(tokens)) == parse_completion(encoding, tokens)
    parser, recovering = StreamableParser(encoding, Role.ASSISTANT), RecoveringParser(encoding)
    for token in made(tokens):
        assert encoding.is_special_token(token) == (operator.index(token) >= 199_998)
        assert encoding.token_bytes(token) is not None
        encoding.token_text(token)
        parser.process(token)
        recovering.feed([token])
    assert parser.tokens == tokens
    assert {type(token) for token in parser.tokens} == {int}
    assert parser.process_eos().messages == messages
    recovering.finish()
    assert recovering.completion == parse_completion(encoding, tokens)


NO_TOKENS: dict[str, Any] = {
    "a string": "x",
    "a number as a string": "5",
    "nothing": None,
    "a fraction": 1.5,
    "a whole fraction": 5.0,
    "a large fraction": 300_000.0,
    "numpy's fraction": np.float32(5),
    "numpy's boolean": np.bool_(True),
    "a list": [5],
    "an array": np.array([5]),
    "bytes": b"x",
}
IN_CONTENT = (
    "",
    "<|channel|>final<|message|>",
    "<|channel|>final<|message|>a",
    "<|channel|>final<|message|>a<|end|>",
)


@pytest.mark.parametrize("before", IN_CONTENT)
@pytest.mark.parametrize("name", NO_TOKENS)
def test_what_is_no_integer_is_one_clear_error(
    name: str, before: str, encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    wrong = NO_TOKENS[name]
    tokens = encoding.encode(before, allowed_special="all")
    for library, own in ((harmony, encoding), (known, known_encoding)):
        parser = library.StreamableParser(own, library.Role.ASSISTANT)
        for token in tokens:
            parser.process(token)
        calls: list[Callable[[], Any]] = [
            lambda parser=parser: parser.process(wrong),
            lambda own=own: own.decode([*tokens, wrong]),
            lambda own=own: own.decode_utf8([*tokens, wrong]),
            lambda own=own: own.is_special_token(wrong),
            lambda own=own, library=library: own.parse_messages_from_completion_tokens(
                [*tokens, wrong], library.Role.ASSISTANT
            ),
        ]
        for call in calls:
            with pytest.raises(TypeError) as raised:
                call()
            if library is harmony:
                assert str(raised.value) == f"a token is {wrong!r}: it must be an integer"
        assert parser.tokens == tokens  # what was refused is no part of the stream


@pytest.mark.parametrize("token", [-1, 2**32, 2**63, -(2**70), np.int64(-1)])
@pytest.mark.parametrize("before", IN_CONTENT)
def test_integers_that_can_be_no_token_are_refused(
    token: Any, before: str, encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    tokens = encoding.encode(before, allowed_special="all")
    for library, own, message in (
        (harmony, encoding, "it must be from 0 to 4294967295"),
        (known, known_encoding, "out of range|too large"),
    ):
        parser = library.StreamableParser(own, library.Role.ASSISTANT)
        for one in tokens:
            parser.process(one)
        for call in (parser.process, own.is_special_token):
            with pytest.raises(OverflowError, match=message):
                call(token)
        for call in (own.decode, own.decode_utf8):
            with pytest.raises(OverflowError, match=message):
                call([*tokens, token])
    with pytest.raises(harmony.HarmonyError, match=r"^a token is -?[0-9]+: it must be"):
        encoding.decode([token])


@pytest.mark.parametrize("before", IN_CONTENT)
@pytest.mark.parametrize("name", NO_TOKENS)
def test_the_recovering_parser_says_what_it_was_given(
    name: str, before: str, encoding: HarmonyEncoding
) -> None:
    wrong = NO_TOKENS[name]
    tokens = encoding.encode(before, allowed_special="all")
    parsed = parse_completion(encoding, [*tokens, wrong, *encoding.encode("b")])
    (reported,) = [one for one in parsed.diagnostics if one.what == "not_a_token"]
    assert (reported.where, reported.raw) == (len(tokens), repr(wrong))
    assert parsed.messages[-1].content[0].text.endswith("\ufffdb")  # type: ignore[attr-defined]
    assert "unknown_token" not in {one.what for one in parsed.diagnostics}


@pytest.mark.parametrize("tokens", [5, None, np.array(5), 1.5])
def test_what_holds_no_tokens_is_refused(tokens: Any, encoding: HarmonyEncoding) -> None:
    for call in (
        encoding.decode,
        encoding.parse_messages_from_completion_tokens,
        RecoveringParser(encoding).feed,
    ):
        with pytest.raises(TypeError, match=r"^tokens is .*: it must be a sequence of integers$"):
            call(tokens)


def test_special_tokens_may_be_given_in_any_collection(
    encoding: HarmonyEncoding, known_encoding: Any
) -> None:
    for collection in (list, tuple, set, frozenset, dict.fromkeys):
        allowed = collection(["<|end|>", "<|nope|>"])
        for own in (encoding, known_encoding):
            tokens = own.encode("a<|end|><|nope|>", allowed_special=allowed, disallowed_special=())
            assert tokens[:2] == [64, 200007]
            with pytest.raises(RuntimeError, match=r"disallowed special token '<\|start\|>'"):
                own.encode("<|start|>", allowed_special=allowed)
            with pytest.raises(RuntimeError, match=r"disallowed special token '<\|end\|>'"):
                own.encode("a<|end|>", disallowed_special=collection(["<|end|>"]))
            assert own.encode("a<|end|>", disallowed_special=None) == own.encode(
                "a<|end|>", disallowed_special=collection([])
            )
