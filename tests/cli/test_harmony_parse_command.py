"""`gptoss-jax harmony parse`: ids and text in every writing, recovering and strict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.command_runner import run
from tests.cli.harmony_samples import ENCODING, command

WORD = st.from_regex(r"[a-z_.]{1,8}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))
    message: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": draw(TEXT)}]}
    message["name"] = f"functions.{draw(WORD)}" if role == "tool" else None
    optional = {"channel": WORD, "recipient": WORD, "content_type": WORD.map("<|constrain|>".__add__)}
    for name, values in optional.items():
        value = draw(st.none() | values)
        if value is not None and value != "all":
            message[name] = value
    return message


@given(st.lists(messages(), max_size=4))
@settings(max_examples=100, deadline=None)
def test_parsing_the_tokens_of_render_gives_the_messages_back(conversation: list[dict[str, Any]]) -> None:
    rendered = command("render", "--tokens", "--from", "harmony", stdin={"messages": conversation})
    parsed = json.loads(command("parse", stdin=rendered))
    assert parsed["messages"] == conversation
    assert parsed["complete"] == bool(conversation)


def test_text_and_every_way_of_writing_tokens_parse_alike() -> None:
    text = "<|channel|>analysis<|message|>a\n<|end|><|start|>assistant<|channel|>final<|message|>é<|return|>"
    tokens = ENCODING.encode(text, allowed_special="all")
    expected = command("parse", stdin=text)
    parsed = json.loads(expected)
    assert [m["content"][0]["text"] for m in parsed["messages"]] == ["a\n", "é"]
    assert (parsed["complete"], parsed["end"], parsed["diagnostics"]) == (True, "<|return|>", [])
    for written in (
        text + "\n",
        " ".join(map(str, tokens)),
        ", ".join(map(str, tokens)) + "\n",
        "\n".join(map(str, tokens)),
        json.dumps(tokens),
        json.dumps(tokens, indent=2),
    ):
        assert command("parse", stdin=written) == expected


def test_parse_recovers_and_says_what_was_wrong() -> None:
    parsed = json.loads(command("parse", stdin="I must refuse<|end|>"))
    assert parsed["messages"][0]["content"][0]["text"] == "I must refuse"
    assert {"what": "text_in_header", "where": 0, "raw": "I must refuse"} in parsed["diagnostics"]


def test_parse_keeps_a_partial_message() -> None:
    parsed = json.loads(command("parse", stdin="<|channel|>final<|message|>It is\n"))
    assert parsed["messages"][0]["content"][0]["text"] == "It is\n"
    assert (parsed["complete"], parsed["end"]) == (False, None)


def test_parse_takes_ids_outside_the_vocabulary_as_diagnostics() -> None:
    head = ENCODING.encode("<|channel|>final<|message|>a", allowed_special="all")
    parsed = json.loads(command("parse", stdin=" ".join(map(str, [*head, 999_999_999, ENCODING.end]))))
    assert parsed["messages"][0]["content"][0]["text"] == "a\ufffd"
    assert [d["what"] for d in parsed["diagnostics"]] == ["unknown_token"]


@pytest.mark.parametrize(
    ("options", "text", "role"),
    [
        ([], "<|message|>hi<|end|>", "assistant"),
        ([], "<|start|>user<|message|>hi<|end|>", "user"),
        (["--role", "user"], "<|message|>hi<|end|>", "user"),
        (["--role", "none"], "<|start|>developer<|message|>hi<|end|>", "developer"),
        (["--role", "system", "--strict"], "<|message|>hi<|end|>", "system"),
        (["--strict"], "<|start|>user<|message|>hi<|end|>", "user"),
        (["--strict"], "<|message|>hi<|end|>", "assistant"),
    ],
)
def test_parse_knows_in_whose_header_the_input_begins(options, text, role) -> None:
    (message,) = json.loads(command("parse", *options, stdin=text))["messages"]
    assert message["role"] == role


def test_strict_parsing_refuses_and_names_the_token() -> None:
    text = "<|channel|>final<|message|>a<|end|>stray"
    done = run("harmony", "parse", "--strict", stdin=text)
    assert done.code == 2
    assert done.output == b""
    assert "standard input, token 5: Unexpected token" in done.error
    assert run("harmony", "parse", stdin=text).code == 0


def test_numbers_are_text_if_one_says_so() -> None:
    parsed = json.loads(command("parse", "--from", "text", stdin="4"))
    assert parsed["messages"][0]["content"][0]["text"] == "4"


def test_what_parse_prints_can_be_rendered_and_viewed() -> None:
    parsed = command("parse", stdin=command("render", "--tokens"))
    assert command("render", "--from", "harmony", stdin=parsed) == command("render")
    assert "messages" in command("view", stdin=parsed)


@given(st.binary(max_size=60) | st.lists(st.integers(0, 2**70)).map(lambda n: json.dumps(n).encode()))
@settings(max_examples=150, deadline=None)
def test_parse_answers_any_bytes_with_json_or_one_line(data: bytes) -> None:
    done = run("harmony", "parse", stdin=data)
    if done.code:
        assert done.code == 2
        assert done.error.startswith("gptoss-jax: standard input")
        assert done.error.count("\n") == 1
    else:
        assert set(json.loads(done.output)) == {"messages", "complete", "end", "diagnostics"}
