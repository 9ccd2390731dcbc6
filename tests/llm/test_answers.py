"""What comes back of a prompt."""

from __future__ import annotations

import pytest

from gptoss_jax.engine.request import SamplingParams
from harmony import Role
from tests.llm.fake_engine import Script

THOUGHT = "<|channel|>analysis<|message|>Two and three.<|end|><|start|>assistant"
ANSWER = THOUGHT + "<|channel|>final<|message|>It is 5.<|return|>"
CALL = (
    THOUGHT + "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.add"
    '<|channel|>commentary <|constrain|>json<|message|>{"a":2}<|call|>'
)


def test_an_answer_is_parsed(answering, tokens_of) -> None:
    script = Script(tokens_of(ANSWER), cached_tokens=7, grammar_complete=True)
    llm = answering(script)
    (output,) = llm.generate("2+3", SamplingParams(logprobs=1))
    (request,) = llm._engine.requests.values()
    assert output.id == request.id
    assert output.prompt_tokens == request.prompt
    assert output.text == "It is 5."
    assert output.reasoning == "Two and three."
    assert output.preamble == ""
    assert output.tool_calls == []
    assert output.finish_reason == "stop"
    assert output.stop is None
    assert output.diagnostics == []
    assert output.tokens == script.tokens
    assert output.complete is True
    assert output.logprobs is not None and len(output.logprobs) == len(script.tokens)
    assert [message.channel for message in output.messages] == ["analysis", "final"]
    assert output.usage.prompt_tokens == len(request.prompt)
    assert output.usage.cached_tokens == 7
    assert output.usage.generated_tokens == len(script.tokens)
    assert output.usage.reasoning_tokens == len(tokens_of("Two and three."))
    assert output.usage.total_tokens == len(request.prompt) + len(script.tokens)
    assert output.chat_message() == {
        "role": "assistant",
        "content": "It is 5.",
        "reasoning": "Two and three.",
    }


def test_a_call_is_ready_to_be_run(answering) -> None:
    (output,) = answering(CALL).generate("2+3")
    (call,) = output.tool_calls
    assert (call.name, call.arguments) == ("add", '{"a":2}')
    assert call.message == output.messages[-1]
    assert output.preamble == "Let me see."
    assert output.text == ""
    assert output.finish_reason == "tool_calls"
    (said,) = output.chat_message()["tool_calls"]
    assert said["id"] == call.id


def test_a_call_that_was_cut_is_no_call(answering, tokens_of) -> None:
    (output,) = answering(Script(tokens_of(CALL)[:-2], "length")).generate("2+3")
    assert output.tool_calls == []
    assert output.finish_reason == "length"
    assert output.messages[-1].recipient == "functions.add"
    assert output.diagnostics == []


def test_generations_come_in_the_order_of_the_prompts(answering) -> None:
    lengths = [9, 1, 5, 30, 2, 14]

    def answer(request, sample):
        return f"<|channel|>final<|message|>{'so ' * request.sampling.top_k}<|return|>"

    llm = answering(answer, slots=3)
    outputs = llm.generate(["x"] * 6, [SamplingParams(top_k=length) for length in lengths])
    assert [output.text.count("so") for output in outputs] == lengths


def test_samples_are_kept_apart(answering) -> None:
    llm = answering(lambda request, sample: f"<|channel|>final<|message|>number {sample}<|return|>")
    (output,) = llm.generate("x", SamplingParams(n=3))
    assert [sample.text for sample in output.samples] == ["number 0", "number 1", "number 2"]
    assert [sample.index for sample in output.samples] == [0, 1, 2]
    assert output.usage.generated_tokens == sum(len(sample.tokens) for sample in output.samples)
    assert output.usage.prompt_tokens == len(output.prompt_tokens)
    with pytest.raises(ValueError, match=r"^the generation has 3 samples: take them from its `samples`$"):
        _ = output.text


def test_requests_have_names_of_their_own_that_the_next_run_has_again(answering) -> None:
    runs = []
    for _ in range(2):
        llm = answering(ANSWER)
        runs.append([output.id for _ in range(2) for output in llm.generate(["a", "b"])])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 4


def test_malformed_harmony_is_recovered_and_told(answering) -> None:
    (output,) = answering(THOUGHT + "<|channel|><|channel|>final oops to= <|message|>So.<|return|>").generate(
        "x"
    )
    assert output.diagnostics
    assert output.messages[0].channel == "analysis"
    assert "".join(part.text for message in output.messages for part in message.content).endswith("So.")


def test_made_up_messages_of_others_are_no_text(answering) -> None:
    (output,) = answering(
        ANSWER.replace("<|return|>", "<|end|><|start|>user<|message|>And?<|return|>")
    ).generate("x")
    assert output.messages[-1].author.role is Role.USER
    assert output.text == "It is 5."


def test_progress_counts_prompts(answering) -> None:
    told: list[tuple[int, int]] = []
    answering(ANSWER, slots=1).generate(["a"] * 3, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)
    assert told == sorted(told)


def test_progress_can_be_a_bar(answering, capsys) -> None:
    answering(ANSWER, slots=1).generate(["a"] * 3, progress=True)
    assert "3/3" in capsys.readouterr().err
