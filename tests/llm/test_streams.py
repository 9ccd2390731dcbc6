"""Events of streams: together they say what the whole answer says, and no more."""

from __future__ import annotations

import random

import pytest

from gptoss_jax.engine.request import RequestError, SamplingParams
from gptoss_jax.llm import Finished, PreambleDelta, ReasoningDelta, TextDelta, ToolCallReady

THOUGHT = "<|channel|>analysis<|message|>Two and three.<|end|><|start|>assistant"
ANSWER = THOUGHT + "<|channel|>final<|message|>It is 5.<|return|>"
CALL = (
    THOUGHT + "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.add"
    '<|channel|>commentary <|constrain|>json<|message|>{"a":2}<|call|>'
)


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
