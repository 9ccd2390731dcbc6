"""Events of streams: together they say what the whole answer says, and no more."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.engine.request import Completion, Request, RequestError, SamplingParams, Update
from gptoss_jax.llm import Finished, PreambleDelta, ReasoningDelta, TextDelta, ToolCallReady
from gptoss_jax.llm.events import SampleEvents
from harmony import HarmonyEncoding

THOUGHT = "<|channel|>analysis<|message|>Two and three.<|end|><|start|>assistant"
ANSWER = THOUGHT + "<|channel|>final<|message|>It is 5.<|return|>"
CALL = (
    THOUGHT + "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.add"
    '<|channel|>commentary <|constrain|>json<|message|>{"a":2}<|call|>'
)
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


def joined(events: list, kind: type, sample: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, kind) and event.sample == sample)


def test_events_come_in_the_order_of_the_answer(answering) -> None:
    events = list(answering(CALL).stream("2+3"))
    kinds = [type(event) for event in events]
    assert list(dict.fromkeys(kinds)) == [ReasoningDelta, PreambleDelta, ToolCallReady, Finished]
    assert joined(events, ReasoningDelta) == "Two and three."
    assert joined(events, PreambleDelta) == "Let me see."
    result = events[-1].result
    assert [event.call for event in events if isinstance(event, ToolCallReady)] == result.tool_calls
    assert result.finish_reason == "tool_calls"


def test_a_stream_ends_with_the_generation(answering) -> None:
    llm = answering(ANSWER)
    stream = llm.stream("2+3")
    assert stream.generation.samples == []
    events = list(stream)
    assert stream.generation.sample == events[-1].result
    assert stream.generation.id == stream.id
    assert stream.generation.prompt_tokens == llm._engine.requests[stream.id].prompt
    assert list(stream) == []


def test_text_comes_before_the_answer_is_whole(answering, endless) -> None:
    with answering(endless).stream("2+3") as stream:
        assert isinstance(next(stream), TextDelta)


def test_samples_of_a_stream_are_told_apart(answering) -> None:
    llm = answering(lambda request, sample: f"<|channel|>final<|message|>number {sample}<|return|>")
    events = list(llm.stream("x", SamplingParams(n=3)))
    for sample in range(3):
        assert joined(events, TextDelta, sample) == f"number {sample}"
    assert sorted(event.sample for event in events if isinstance(event, Finished)) == [0, 1, 2]


def test_what_may_begin_a_stop_string_is_held_back(encoding: HarmonyEncoding, tokens_of) -> None:
    request = Request("x", [1], SamplingParams(stop=("6789", "stop")))
    reader = SampleEvents(request, 0, encoding)

    def told(text: str) -> list:
        return reader.take(Update("x", 0, tokens_of(text)))

    assert told("<|channel|>final<|message|>12345") == [TextDelta(0, "12345")]
    assert told("67") == []
    assert told("1") == [TextDelta(0, "671")]
    assert told("678") == []
    assert told("<|end|>") == [TextDelta(0, "678")]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_deltas_add_up_to_the_answer_whatever_the_model_says(encoding: HarmonyEncoding, data) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=14), label="pieces"))
    stops = tuple(data.draw(st.lists(st.sampled_from(["bc", "stop", "é", "a"]), max_size=2), label="stops"))
    chunk = data.draw(st.integers(1, 9), label="chunk")
    reason = data.draw(st.sampled_from(["stop", "length", "cancelled"]), label="reason")
    completion = play(text, stops, reason, encoding)
    reader = SampleEvents(Request("x", [1], SamplingParams(stop=stops)), 0, encoding)
    tokens, events = completion.tokens, []
    for begin in range(0, max(len(tokens), 1), chunk):
        is_last = begin + chunk >= len(tokens)
        part = tokens[begin : begin + chunk]
        events += reader.take(Update("x", 0, part, completion=completion if is_last else None))
    result = events[-1].result
    assert joined(events, ReasoningDelta) == result.reasoning
    assert joined(events, PreambleDelta) == result.preamble
    assert joined(events, TextDelta) == result.text
    assert [event.call for event in events if isinstance(event, ToolCallReady)] == result.tool_calls
    assert all(
        event.text for event in events if isinstance(event, ReasoningDelta | TextDelta | PreambleDelta)
    )
    assert not any(stop in result.text for stop in stops)


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


def test_a_request_that_is_refused_raises_in_the_iteration(answering) -> None:
    stream = answering(ANSWER, max_length=50).stream("Ho " * 300)
    with pytest.raises(RequestError, match=r"^the prompt has \d+ tokens: at most 50 fit$"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("way", ["close", "with", "forget"])
def test_ending_a_stream_ends_its_request_and_no_other(way, answering, endless) -> None:
    llm = answering(lambda request, sample: endless if request.sampling.top_k else ANSWER)
    stream = llm.stream("x", SamplingParams(top_k=1))
    next(stream)
    if way == "with":
        with stream:
            pass
    elif way == "close":
        stream.close()
    ended = stream.id
    if way != "forget":
        assert list(stream) == []
    del stream
    assert llm.generate("y")[0].text == "It is 5."
    assert [id for what, id in llm._engine.log if what == "cancel"] == [ended]
    assert llm._engine.unfinished == 0


def test_a_stream_that_is_over_cancels_nothing(answering) -> None:
    llm = answering(ANSWER)
    with llm.stream("x") as stream:
        list(stream)
    llm.generate("y")
    assert not [id for what, id in llm._engine.log if what == "cancel"]


def test_streams_share_the_engine(answering) -> None:
    llm = answering(ANSWER)
    llm._engine.gate.clear()
    streams = [llm.stream("x") for _ in range(3)]
    llm._engine.gate.set()
    order = random.Random(0)
    told: list[list] = [[] for _ in streams]
    while any(not events or not isinstance(events[-1], Finished) for events in told):
        index = order.randrange(3)
        told[index] += [event for event in [next(streams[index], None)] if event is not None]
    assert all(joined(events, TextDelta) == "It is 5." for events in told)
    assert llm._engine.most_together == 3
