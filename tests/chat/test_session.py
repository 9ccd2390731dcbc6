"""A chat on a scripted engine: what is shown, what is kept, and what the model is asked next."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gptoss_jax.chat import Transcript
from gptoss_jax.chat.commands import COMMANDS
from gptoss_jax.chat.transcript import NO_RESULT
from tests.llm.fake_engine import Script

THOUGHT = "<|channel|>analysis<|message|>Two and three.<|end|><|start|>assistant"
FIVE = THOUGHT + "<|channel|>final<|message|>It is 5.<|return|>"
SIX = "<|channel|>final<|message|>It is 6.<|return|>"
CALL = (
    "<|channel|>analysis<|message|>A call helps.<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a":2}<|call|>'
)
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def test_an_answer_is_shown_without_its_reasoning(held) -> None:
    done = held([FIVE], "2 + 3?")
    assert done.out == "It is 5.\n"
    assert done.notes == ""
    assert done.messages == [
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": "It is 5.", "reasoning": "Two and three."},
    ]


def test_reasoning_is_shown_apart_from_the_answer(held) -> None:
    done = held([FIVE], "2 + 3?", show_reasoning=True)
    assert done.out == "[reasoning]\nTwo and three.\n\n[answer]\nIt is 5.\n"


def test_reasoning_is_dimmed_where_colours_are_allowed(held) -> None:
    done = held([FIVE], "2 + 3?", show_reasoning=True, colour=True, engine={"chunk": 100})
    assert done.out == "\x1b[2mTwo and three.\x1b[0m\n\nIt is 5.\n"


def test_a_preamble_is_shown_apart_from_the_answer(held) -> None:
    answer = "<|channel|>commentary<|message|>First I add.<|end|><|start|>assistant" + SIX
    done = held([answer], "2 + 4?")
    assert done.out == "First I add.\n\nIt is 6.\n"
    assert done.messages[-1]["content"] == "First I add.\n\nIt is 6."


def test_that_an_answer_is_awaited_is_shown_and_taken_away(held) -> None:
    done = held([FIVE], "2 + 3?", live=True)
    assert done.notes == "thinking…\r" + " " * 11 + "\r"


def test_earlier_reasoning_is_left_out_of_prompts(held) -> None:
    done = held([FIVE, SIX], "2 + 3?", "2 + 4?", instructions="Be brief.")
    assert "Two and three." not in done.prompts[1]
    assert done.prompts[1].endswith(
        "<|start|>user<|message|>2 + 3?<|end|><|start|>assistant<|channel|>final<|message|>It is 5.<|end|>"
        "<|start|>user<|message|>2 + 4?<|end|><|start|>assistant"
    )
    assert all("Be brief." in prompt and "2026-01-01" in prompt for prompt in done.prompts)


def test_the_user_is_asked_for_the_result_of_a_call_and_reasoning_stays_until_the_answer(held) -> None:
    done = held([CALL, SIX, FIVE], "2 + 4?", "6", "and 2 + 3?", tools=[ADD])
    assert done.out.startswith('Let me see.\n[call] add {"a":2}\nIt is 6.\n')
    assert done.asked == ["add"]
    assert "type add = " in done.prompts[0]
    assert "A call helps." in done.prompts[1]
    assert done.prompts[1].endswith(
        "<|start|>functions.add to=assistant<|channel|>commentary<|message|>6<|end|><|start|>assistant"
    )
    assert "A call helps." not in done.prompts[2]


def test_a_call_without_a_result_does_not_end_the_conversation(held) -> None:
    done = held([CALL, FIVE], "2 + 4?", KeyboardInterrupt, "2 + 3?", tools=[ADD])
    assert [message["role"] for message in done.messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]
    assert done.messages[2]["content"] == NO_RESULT
    assert "the call gets no result" in done.notes
    assert done.out.endswith("It is 5.\n")


def test_the_end_of_input_in_place_of_a_result_ends_the_chat(held, tmp_path) -> None:
    done = held([CALL], "2 + 4?", EOFError, tools=[ADD], path=tmp_path / "c")
    assert Transcript.load(tmp_path / "c").messages[-1]["content"] == NO_RESULT
    assert done.chat.failures == 0


ODD = {
    "nothing": "<|return|>",
    "only reasoning": "<|channel|>analysis<|message|>Hm.<|return|>",
    "no header": "just text",
    "unknown channel": "<|channel|>shout<|message|>HA<|return|>",
    "call on analysis": '<|channel|>analysis to=functions.add <|constrain|>json<|message|>{"a":1}<|call|>',
    "call ended by return": '<|channel|>commentary to=functions.add<|message|>{"a":1}<|return|>',
    "call of nothing": "<|channel|>commentary to=functions.<|message|>{}<|call|>",
    "call with a broken name": "<|channel|>commentary to=functions.a$b§<|message|>{}<|call|>",
    "call that is no JSON": "<|channel|>commentary to=functions.add<|message|>two<|call|>",
    "call of a built-in tool": '<|channel|>analysis to=browser.search<|message|>{"query":"x"}<|call|>',
    "a made-up user": "<|channel|>final<|message|>Hi<|end|><|start|>user<|message|>ok<|end|>",
    "only headers": "<|start|>assistant<|channel|><|channel|><|message|><|start|>",
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD.keys())
def test_an_odd_answer_does_not_end_the_conversation(answer, held, tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    done = held([answer, FIVE, FIVE], "one", "two", "three", tools=[ADD], path=path)
    assert done.out.endswith("It is 5.\n")
    assert Transcript.load(path).messages == done.messages


def test_an_answer_without_text_says_so(held) -> None:
    done = held([ODD["only reasoning"]], "Hello?")
    assert "there is no answer: it ended (stop) before any text" in done.notes
    assert done.chat.failures == 1


def test_an_answer_that_a_limit_cut_is_marked(held, encoding) -> None:
    tokens = encoding.encode("<|channel|>final<|message|>It is", allowed_special="all")
    done = held([Script(tokens, "length")], "2 + 3?", stats=True)
    assert done.messages[-1] == {"role": "assistant", "content": "It is", "finish_reason": "length"}
    assert done.notes.endswith("· length\n")


def test_a_call_that_a_limit_cut_is_left_out(held, encoding) -> None:
    cut = encoding.encode(CALL.removesuffix("}<|call|>"), allowed_special="all")
    done = held([Script(cut, "length"), SIX], "2 + 4?", "go on")
    assert "tool_calls" not in done.messages[1]
    assert done.asked == []
    assert done.out == "Let me see.\nIt is 6.\n"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
def test_no_text_of_the_model_acts_on_the_terminal(held, encoding, text) -> None:
    final = encoding.encode("<|channel|>final<|message|>", allowed_special="all")
    thought = encoding.encode("<|channel|>analysis<|message|>", allowed_special="all")
    said = encoding.encode_ordinary(text)
    script = Script([*thought, *said, *encoding.encode("<|end|><|start|>assistant", allowed_special="all"),
                     *final, *said, *encoding.encode("<|return|>", allowed_special="all")])  # fmt: skip
    done = held([script], "Hi", show_reasoning=True)
    assert not CONTROL.search(done.out + done.notes)


def test_names_and_arguments_of_calls_do_not_act_on_the_terminal(held) -> None:
    call = "<|channel|>commentary to=functions.add<|message|>\x1b]0;owned\x07<|call|>"
    done = held([call, FIVE], "Hi", "ok")
    assert r"[call] add \x1b]0;owned\x07" in done.out
    assert not CONTROL.search(done.out + done.notes)


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """As at a terminal, even where the tests run in the background, which ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_ctrl_c")
def test_ctrl_c_keeps_the_part_of_the_answer_and_the_next_message_is_answered(held, encoding) -> None:
    begin = encoding.encode("<|channel|>final<|message|>So", allowed_special="all")
    endless = Script(begin + encoding.encode(" the") * 100_000)

    def answers(request, sample):
        if sample == 0 and "again" in encoding.decode(request.prompt):
            return FIVE
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        return endless

    done = held(answers, "Tell me", "again")
    assert done.messages[1]["finish_reason"] == "cancelled"
    assert done.messages[1]["content"].startswith("So the the")
    assert done.out == done.messages[1]["content"] + "\nIt is 5.\n"
    assert "stopped; the answer so far is kept" in done.notes
    assert done.messages[1]["content"] in done.prompts[1]


def test_ctrl_c_at_the_prompt_ends_nothing(held) -> None:
    done = held([FIVE], KeyboardInterrupt, "2 + 3?")
    assert done.out == "It is 5.\n"
    assert "Ctrl-D" in done.notes


def test_a_prompt_that_is_too_long_is_one_line_and_undo_helps(held) -> None:
    done = held([FIVE], "Ho " * 300, "/undo", "2 + 3?", engine={"max_length": 200})
    assert done.notes.splitlines()[0].startswith("gptoss-jax: the prompt has ")
    assert len(done.notes.splitlines()) == 2
    assert done.out == "It is 5.\n"
    assert done.chat.failures == 1


def test_an_engine_that_fails_is_one_line(held) -> None:
    done = held([FIVE, FIVE], "2 + 3?", "2 + 3?", engine={"fail_at": 2})
    assert all(line.startswith("gptoss-jax: ") for line in done.notes.splitlines())
    assert len(done.notes.splitlines()) == 2
    assert done.chat.failures == 2


def test_statistics_have_tokens_rate_and_finish_reason(held, encoding) -> None:
    done = held([FIVE], "2 + 3?", stats=True)
    tokens = len(encoding.encode(FIVE, allowed_special="all"))
    reasoning = len(encoding.encode("Two and three."))
    assert re.fullmatch(rf"{tokens} tokens \({reasoning} reasoning\) · [0-9.]+ tokens/s · stop\n", done.notes)


# Commands


def test_retry_answers_the_last_message_again(held) -> None:
    done = held([FIVE, SIX], "2 + 4?", "/retry")
    assert done.prompts[0] == done.prompts[1]
    assert [message.get("content") for message in done.messages] == ["2 + 4?", "It is 6."]


def test_undo_takes_back_a_message_with_its_calls(held) -> None:
    done = held([FIVE, CALL, SIX, SIX], "2 + 3?", "2 + 4?", "6", "/undo", "2 + 4?", tools=[ADD])
    assert done.prompts[3] == done.prompts[1]


def test_clear_keeps_the_instructions_and_the_file(held, tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    done = held([FIVE, SIX], "2 + 3?", "/clear", "2 + 4?", instructions="Be brief.", path=path)
    assert "Be brief." in done.prompts[1]
    assert "2 + 3?" not in done.prompts[1]
    assert [m["content"] for m in Transcript.load(path).messages] == ["Be brief.", "2 + 3?", "It is 5."]


def test_effort_holds_from_then_on(held) -> None:
    done = held([FIVE, FIVE], "2 + 3?", "/effort high", "2 + 3?")
    assert "Reasoning: medium" in done.prompts[0]
    assert "Reasoning: high" in done.prompts[1]


def test_reasoning_can_be_shown_and_hidden(held) -> None:
    done = held([FIVE, FIVE], "/reasoning on", "2 + 3?", "/reasoning off", "2 + 3?")
    assert done.out == "[reasoning]\nTwo and three.\n\n[answer]\nIt is 5.\nIt is 5.\n"


def test_help_lists_every_command(held) -> None:
    done = held([], "/help")
    assert all(command.name in done.notes and command.help in done.notes for command in COMMANDS)


def test_the_page_lists_the_commands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chat.md").read_text(encoding="utf-8")
    width = max(len(command.usage) for command in COMMANDS)
    listed = "".join(f"{command.usage:{width}}  {command.help}\n" for command in COMMANDS)
    assert f"```\n{listed}```" in page


def test_quit_ends_the_chat(held) -> None:
    assert held([], "/quit", "2 + 3?").messages == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/dance", "no command /dance"),
        ("/effort huge", "low or medium or high, not 'huge'"),
        ("/reasoning maybe", "on or off"),
        ("/undo 2", "takes no argument"),
        ("/undo", "no message to take back"),
        ("/retry", "no message to answer again"),
        ("/save", "a file's name"),
        ("/load", "a file's name"),
        ("/load /no/such/file", "there is no file"),
        ("/save /no/such/folder/file", "cannot write /no/such/folder/file"),
        ("/quit now", "takes no argument"),
    ],
)
def test_a_wrong_command_is_one_line(text, words, held) -> None:
    done = held([FIVE], text, "2 + 3?")
    assert words in done.notes
    assert len(done.notes.splitlines()) == 1
    assert done.out == "It is 5.\n"


@pytest.mark.parametrize("text", ["/etc/passwd holds what?", " /help", "/help\nme", "/ 2", "//"])
def test_what_only_looks_like_a_command_is_a_message(text, held) -> None:
    assert held([FIVE], text).messages[0]["content"] == text


def test_save_and_load_go_on_with_a_conversation(held, tmp_path) -> None:
    path = tmp_path / "with space.jsonl"
    held([FIVE, SIX], "2 + 3?", f"/save {path}", "2 + 4?")
    done = held([FIVE], f"/load {path}", "2 + 3?")
    assert [m["role"] for m in done.messages] == ["user", "assistant"] * 3
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == done.messages
    assert "It is 6." in done.prompts[0]


def test_a_conversation_is_saved_after_every_turn(held, tmp_path) -> None:
    path = tmp_path / "c.jsonl"

    def answers(request, sample):
        seen.append(len(path.read_text().splitlines()) if path.exists() else 0)
        return FIVE

    seen: list[int] = []
    held(answers, "one", "two", "three", path=path)
    assert seen == [0, 2, 4]


def test_a_file_that_cannot_be_written_is_one_line_after_each_turn(held, tmp_path) -> None:
    folder = tmp_path / "gone"
    done = held([FIVE, FIVE], "one", "two", path=folder / "c.jsonl")
    assert done.out == "It is 5.\nIt is 5.\n"
    assert [line[:24] for line in done.notes.splitlines()] == ["gptoss-jax: cannot write"] * 2
