"""One reader of headers: everybody assigns every token to the same message, channel and part."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from gptoss_jax.answers import kind_of, read_sample, text_of
from gptoss_jax.engine.channels import Channels
from gptoss_jax.engine.output_processor import OutputProcessor
from gptoss_jax.engine.request import Completion, Request, SamplingParams, TokenLogprobs
from harmony import (
    Cursor,
    HarmonyEncoding,
    ParsedCompletion,
    RecoveringParser,
    Role,
    load_harmony_encoding,
    parse_completion,
)
from tests.harmony import generators as generate

ENCODING = load_harmony_encoding()
PROMPT = ENCODING.encode("<|start|>user<|message|>Hi<|end|><|start|>assistant", allowed_special="all")
SLOW = pytest.mark.slow


class Place(NamedTuple):
    """Where a content token stands."""

    message: int
    channel: str | None


def places(cursor: Cursor, tokens: list[int]) -> list[Place | None]:
    """Of each token; None for one that is no content."""
    found: list[Place | None] = []
    for token in tokens:
        is_content = cursor.take(token)
        message = cursor.message
        found.append(Place(message.number, message.channel) if is_content and message is not None else None)
        assert not is_content or (cursor.in_content and message is not None)
    return found


def check_against(parsed: ParsedCompletion, tokens: list[int], found: list[Place | None]) -> None:
    """Each message has the channel that its tokens were given, and their text.

    The text of a header that was given up stands between those of the tokens around it. Only a malformed
    stream may have text in a message that is none of its content tokens'.
    """
    problems = {diagnostic.what for diagnostic in parsed.diagnostics} - {"truncated", "ended_by_endoftext"}
    for number, message in enumerate(parsed.messages):
        own = [index for index, place in enumerate(found) if place is not None and place.message == number]
        assert {place.channel for place in found if place is not None and place.message == number} <= {
            message.channel
        }
        said = b""
        if own:
            whole = tokens[own[0] : own[-1] + 1]
            said = b"".join(ENCODING.token_bytes(token) or "\ufffd".encode() for token in whole)
        text = said.decode(errors="replace")
        if problems:
            assert text in text_of(message)
        else:
            assert text == text_of(message)
    last = max((place.message for place in found if place is not None), default=-1)
    assert last < len(parsed.messages)


def streams(seeds: range) -> list[tuple[int, list[int]]]:
    made = []
    for seed in seeds:
        tokens = generate.broken_stream(Random(seed), ENCODING)
        made.append((seed, [token for token in tokens if 0 <= token < 201_088]))
    return made


@pytest.mark.parametrize("seeds", [range(2500), pytest.param(range(2500, 102_500), marks=SLOW)], ids=len)
def test_every_reader_gives_every_token_the_same_place_as_the_parser(seeds: range) -> None:
    for seed, tokens in streams(seeds):
        parser = RecoveringParser(ENCODING)
        for token in tokens:
            parser.feed([token])
        parser.finish()
        parsed = parser.completion
        assert parsed == parse_completion(ENCODING, tokens), seed

        cursor = Cursor(ENCODING)
        found = places(cursor, tokens)
        check_against(parsed, tokens, found)
        # The engine's limits, behind the prompt that everything stands behind.
        channels = Channels(ENCODING, PROMPT)
        assert places(channels, tokens) == found, seed
        counts: dict[str | None, int] = {}
        for place in found:
            if place is not None:
                counts[place.channel] = counts.get(place.channel, 0) + 1
        assert channels.counts == counts, seed

        # Usage, and the log-probabilities of text.
        scores = tuple(TokenLogprobs(float(index)) for index in range(len(tokens)))
        sample = read_sample(Completion("x", tokens, "length", len(PROMPT), logprobs=scores), ENCODING)
        assert sample.usage.reasoning_tokens == counts.get("analysis", 0), seed
        assert sample.messages == parsed.messages, seed
        assert sample.text_tokens is not None
        for number, message in enumerate(parsed.messages):
            own = [float(i) for i, place in enumerate(found) if place and place.message == number]
            is_text = kind_of(message) in ("text", "preamble")
            actual = [scored.logprobs.chosen for scored in sample.text_tokens[number]]
            assert actual == (own if is_text else []), (seed, number)


@pytest.mark.parametrize("seeds", [range(600), pytest.param(range(600, 20_600), marks=SLOW)], ids=len)
def test_a_budget_ends_the_thought_where_the_parser_has_as_many_tokens_of_it(seeds: range) -> None:
    for seed, tokens in streams(seeds):
        budget = 1 + seed % 4
        processor = OutputProcessor(
            Request("x", PROMPT, SamplingParams(reasoning_budget=budget)),
            0,
            encoding=ENCODING,
            stop_tokens=frozenset(),
            max_tokens=10_000,
            matcher=None,
            prompt=PROMPT,
        )
        found = places(Cursor(ENCODING), tokens)
        thoughts = [index for index, place in enumerate(found) if place and place.channel == "analysis"]
        outcome = processor.process(tokens)
        # A final message ends the completion; else it is the token with which the budget is used up.
        if outcome.finish is None and outcome.forced:
            assert outcome.accepted == thoughts[budget - 1] + 1, seed
        elif len(thoughts) >= budget and outcome.accepted > thoughts[budget - 1]:
            assert outcome.finish == "length", seed  # a call that was cut


CASES: list[tuple[str, list[tuple[int, str | None, str]]]] = [
    ("<|channel|>analysis<|channel|>commentary<|message|>a b c d", [(0, "analysis", "a b c d")]),
    (
        "<|channel|>final<|message|>a <|channel|>analysis<|message|>b<|end|>",
        [(0, "final", "a "), (1, "analysis", "b")],
    ),
    ("<|channel|>final<|message|>a<|channel|> b<|return|>", [(0, "final", "a")]),
    ("<|channel|>final<|message|>a<|channel|><|end|> b<|message|>c", [(0, "final", "a"), (1, None, "c")]),
    (
        "<|channel|>final<|message|>a<|channel|>x<|message|> b",
        [(0, "final", "a"), (0, "final", "<|message|> b")],
    ),
    ("<|channel|>final<|message|>a<|channel|>analysis b<|return|>", [(0, "final", "a")]),
    ("x<|channel|>final<|message|>y", [(1, "final", "y")]),
    (
        "<|channel|>analysis<|message|>a<|start|>assistant<|message|>b",
        [(0, "analysis", "a"), (1, "analysis", "b")],
    ),
    ("Hello there<|end|>", []),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[case[0] for case in CASES])
def test_tokens_have_the_places_that_are_stated(
    text: str, expected: list[tuple[int, str | None, str]]
) -> None:
    tokens = ENCODING.encode(text, allowed_special="all")
    actual: list[tuple[int, str | None, str]] = []
    before: Place | None = None
    for token, place in zip(tokens, places(Cursor(ENCODING), tokens), strict=True):
        if place is not None and place == before:
            actual[-1] = (*actual[-1][:2], actual[-1][2] + ENCODING.decode([token]))
        elif place is not None:
            actual.append((*place, ENCODING.decode([token])))
        before = place
    assert actual == expected


def test_a_copy_goes_on_by_itself(encoding: HarmonyEncoding) -> None:
    cursor = Cursor(encoding)
    for token in encoding.encode("<|channel|>analysis", allowed_special="all"):
        cursor.take(token)
    copy = cursor.copy()
    for token in encoding.encode(" to=functions.f<|message|>", allowed_special="all"):
        copy.take(token)
    assert copy.is_call and copy.in_content and not cursor.in_content
    cursor.take(encoding.message)
    assert cursor.in_content and not cursor.is_call
    assert (cursor.header_text, copy.header_text) == (None, None)


@pytest.mark.parametrize(
    ("text", "role", "header"),
    [
        ("", Role.ASSISTANT, "<|start|>assistant"),
        ("<|channel|>ana", Role.ASSISTANT, "<|start|>assistant<|channel|>ana"),
        ("", None, ""),
        ("<|start|>", None, "<|start|>"),
        ("<|channel|>final<|message|>a<|end|>", Role.ASSISTANT, ""),
        ("<|channel|>final<|message|>a<|end|><|start|>assist", Role.ASSISTANT, "<|start|>assist"),
        ("<|channel|>final<|message|>a<|channel|>", Role.ASSISTANT, None),
    ],
)
def test_the_header_so_far_is_shown(text: str, role: Role | None, header: str | None) -> None:
    cursor = Cursor(ENCODING, role)
    for token in ENCODING.encode(text, allowed_special="all"):
        cursor.take(token)
    assert cursor.header_text == header
