"""A completion → its sample; and the events of a stream, which say together what the sample says."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.answers import (
    PreambleDelta,
    ReasoningDelta,
    SampleReader,
    StreamEvent,
    TextDelta,
    ToolCallReady,
    Usage,
    kind_of,
    read_sample,
    text_of,
    usage_of,
)
from gptoss_jax.engine.request import Completion, TokenLogprobs, Update
from harmony import HarmonyEncoding
from tests.answers.completions import ANSWER, CALL, THOUGHT

PIECES = [
    "<|channel|>analysis<|message|>",
    "<|channel|>commentary<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    "<|end|><|start|>assistant",
    "<|end|><|start|>user<|message|>",
    "<|start|>",
    "<|call|>",
    "<|return|>",
    "ab",
    "abc",
    "stop here",
    " é🙂",
    '{"a":1}',
    "\n\n",
]


def stopped(text: str, stop: str, encoding: HarmonyEncoding) -> Completion:
    """A completion that ends with the token in which the stop string first was whole."""
    tokens = encoding.encode(text, allowed_special="all")
    for end in range(len(tokens) + 1):
        if stop in encoding.decode(tokens[:end]).rpartition("<|message|>")[2]:
            return Completion("x", tokens[:end], "stop", 3, stop=stop)
    raise AssertionError


@pytest.mark.parametrize(
    ("stop", "text"),
    [("5", "It is "), (" is", "It"), ("5.", "It is "), ("It", ""), ("s 5.", "It i")],
)
def test_text_ends_before_a_stop_string(stop, text, encoding: HarmonyEncoding) -> None:
    answer = read_sample(stopped(ANSWER, stop, encoding), encoding)
    assert answer.messages[-1].content[0].text == text
    assert answer.messages[-1].channel == "final"
    assert answer.messages[0].content[0].text == "Two and three."
    assert answer.finish_reason == "stop"
    assert answer.diagnostics == []


def test_a_stop_string_that_min_tokens_let_pass_stays(encoding: HarmonyEncoding, tokens_of) -> None:
    tokens = tokens_of("<|channel|>final<|message|>5 and 5")
    answer = read_sample(Completion("x", tokens, "stop", 3, stop="5"), encoding)
    assert answer.messages[-1].content[0].text == "5 and "


def test_of_several_in_the_last_token_the_first_counts(encoding: HarmonyEncoding, tokens_of) -> None:
    (token,) = tokens_of(" the")
    tokens = [*tokens_of("<|channel|>final<|message|>Is"), token]
    answer = read_sample(Completion("x", tokens, "stop", 3, stop="h"), encoding)
    assert answer.messages[-1].content[0].text == "Is t"


def test_a_stop_string_in_arguments_leaves_no_call(encoding: HarmonyEncoding) -> None:
    answer = read_sample(stopped(CALL, '"a', encoding), encoding)
    assert answer.tool_calls == []
    assert answer.finish_reason == "stop"
    assert answer.messages[-1].content[0].text == "{"


def test_a_stop_token_of_the_request_is_no_text(encoding: HarmonyEncoding, tokens_of) -> None:
    tokens = tokens_of("<|channel|>final<|message|>It is 5.")
    answer = read_sample(Completion("x", tokens, "stop", 3), encoding)
    assert answer.messages[-1].content[0].text == encoding.decode(tokens[:-1]).rpartition("<|message|>")[2]
    assert answer.diagnostics == []
    assert answer.usage.generated_tokens == len(tokens)


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_being_cut_is_no_fault_of_the_models(reason, encoding: HarmonyEncoding, tokens_of) -> None:
    for length in range(len(tokens_of(ANSWER))):
        answer = read_sample(Completion("x", tokens_of(ANSWER)[:length], reason, 3), encoding)
        assert answer.diagnostics == []
        assert answer.finish_reason == reason


def test_what_may_begin_a_stop_string_is_held_back(encoding: HarmonyEncoding, tokens_of) -> None:
    reader = SampleReader(encoding, "x", stop=("6789", "stop"))

    def told(text: str) -> list:
        return reader.read(Update("x", 0, tokens_of(text)))

    assert told("<|channel|>final<|message|>12345") == [TextDelta(0, "12345")]
    assert told("67") == []
    assert told("1") == [TextDelta(0, "671")]
    assert told("678") == []
    assert told("<|end|>") == [TextDelta(0, "678")]


def joined(events: list[StreamEvent], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def streamed(completion: Completion, stops: tuple[str, ...], chunk: int, encoding) -> list[StreamEvent]:
    """The events of a completion that comes `chunk` tokens at a time."""
    reader = SampleReader(encoding, completion.id, completion.sample, stops)
    tokens, logprobs = completion.tokens, completion.logprobs
    events: list[StreamEvent] = []
    for begin in range(0, max(len(tokens), 1), chunk):
        end = begin + chunk
        scores = None if logprobs is None else logprobs[begin:end]
        last = completion if end >= len(tokens) else None
        events += reader.read(Update(completion.id, completion.sample, tokens[begin:end], scores, last))
    return events


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_stream_says_what_the_whole_completion_says(encoding: HarmonyEncoding, data) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=14), label="pieces"))
    stops = tuple(data.draw(st.lists(st.sampled_from(["bc", "stop", "é", "a"]), max_size=2), label="stops"))
    reason = data.draw(st.sampled_from(["stop", "length", "cancelled"]), label="reason")
    completion = play(text, stops, reason, encoding)
    scored = data.draw(st.booleans(), label="logprobs")
    logprobs = tuple(TokenLogprobs(-float(place)) for place in range(len(completion.tokens)))
    whole = data.draw(st.sampled_from([None, True, False]), label="grammar")
    completion = dataclasses.replace(
        completion, logprobs=logprobs if scored else None, grammar_complete=whole
    )
    events = streamed(completion, stops, data.draw(st.integers(1, 9), label="chunk"), encoding)
    result = events[-1].result
    assert result == read_sample(completion, encoding)
    deltas = [event for event in events if isinstance(event, ReasoningDelta | PreambleDelta | TextDelta)]
    for kind, delta in (("reasoning", ReasoningDelta), ("preamble", PreambleDelta), ("text", TextDelta)):
        said = [text_of(message) for message in result.messages if kind_of(message) == kind]
        assert getattr(result, kind) == "\n\n".join(filter(None, said)) == joined(deltas, delta)
    for number, message in enumerate(result.messages):
        own = [delta for delta in deltas if delta.message == number]
        if kind_of(message) in ("reasoning", "preamble", "text"):
            assert "".join(delta.text.removeprefix(delta.separator) for delta in own) == text_of(message)
        if scored:
            assert [token for delta in own for token in delta.tokens] == result.text_tokens[number]
    assert all(delta.text for delta in deltas)
    assert [event.call for event in events if isinstance(event, ToolCallReady)] == result.tool_calls
    assert not any(stop in result.text for stop in stops)
    assert (result.text_tokens is not None) is scored
    if whole is False:
        assert result.finish_reason in ("length", "cancelled")


def play(text: str, stops: tuple[str, ...], reason, encoding: HarmonyEncoding) -> Completion:
    """The completion in which an engine would end that watches every token."""
    tokens = encoding.encode(text, allowed_special="all")
    content = b""
    for end, token in enumerate(tokens, 1):
        special = encoding.is_special_token(token)
        content = b"" if special else content + (encoding.token_bytes(token) or b"")
        said = content.decode(errors="ignore")
        found = sorted((at, stop) for stop in stops if (at := said.find(stop)) >= 0)
        if found:
            return Completion("x", tokens[:end], "stop", 1, stop=found[0][1])
        if token in (encoding.return_, encoding.call):
            return Completion("x", tokens[:end], "stop", 1)
    return Completion("x", tokens, "length" if reason == "stop" else reason, 1)


@pytest.mark.parametrize("text", [ANSWER, CALL])
def test_what_is_not_whole_under_a_grammar_is_cut_by_length_whatever_ended_it(
    encoding: HarmonyEncoding, tokens_of, text
) -> None:
    for complete, reason in ((True, "stop" if text == ANSWER else "tool_calls"), (False, "length")):
        completion = Completion("x", tokens_of(text), "stop", 3, grammar_complete=complete)
        sample = read_sample(completion, encoding)
        assert (sample.finish_reason, sample.complete) == (reason, complete)


def test_tokens_of_the_text_come_with_their_scores_and_others_do_not(
    encoding: HarmonyEncoding, tokens_of
) -> None:
    tokens = tokens_of(CALL)
    scores = tuple(TokenLogprobs(-float(place)) for place in range(len(tokens)))
    sample = read_sample(Completion("x", tokens, "stop", 3, logprobs=scores), encoding)
    assert [bool(scored) for scored in sample.text_tokens] == [False, True, False]
    (preamble,) = filter(None, sample.text_tokens)
    assert encoding.decode([scored.token for scored in preamble]) == "Let me see."
    first = tokens.index(preamble[0].token, len(tokens_of(THOUGHT)))
    assert [scored.logprobs for scored in preamble] == list(scores[first : first + len(preamble)])


def test_the_usage_of_several_samples_counts_their_prompt_once(encoding: HarmonyEncoding, tokens_of) -> None:
    tokens = tokens_of(ANSWER)
    samples = [
        read_sample(Completion("x", tokens, "stop", 30, sample=index, cached_tokens=cached), encoding)
        for index, cached in enumerate((16, 8, 24))
    ]
    thought = samples[0].usage.reasoning_tokens
    assert usage_of(samples) == Usage(30, 8, 3 * len(tokens), 3 * thought)
    assert usage_of([]) == Usage()
