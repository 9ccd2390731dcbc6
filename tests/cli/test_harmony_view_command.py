"""`gptoss-jax harmony view`: everything is shown, and nothing in it acts on the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptoss_jax.terminal import display_width, printable, wrapped
from harmony import (
    Message,
    RenderConversationConfig,
    Role,
)
from tests.cli.command_runner import run
from tests.cli.harmony_samples import CONVERSATION, ENCODING, command


def test_view_shows_every_header_and_content_with_its_tokens(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = command("view").splitlines()
    heads = [line for line in lines if line.startswith("── ")]
    sizes = [len(ENCODING.render(message)) for message in CONVERSATION]
    assert [re.sub(" ─+ ", "|", head) for head in heads[2:]] == [
        f"── 2 user:alice|{sizes[2]} tokens",
        f"── 3 assistant · analysis|{sizes[3]} tokens",
        f"── 4 assistant · commentary · call functions.weather · <|constrain|>json|{sizes[4]} tokens",
        f"── 5 tool functions.weather · commentary · to assistant|{sizes[5]} tokens",
        f"── 6 assistant · final|{sizes[6]} tokens",
    ]
    assert all(display_width(head) == 100 for head in heads)
    for text in ("  You are a test.", "  Reasoning: high", "  Be brief.", "  I look it up.", "  5 °C"):
        assert text in lines
    whole = ENCODING.render_conversation(CONVERSATION, RenderConversationConfig(analysis_policy="none"))
    prompt = ENCODING.render_conversation_for_completion(CONVERSATION, Role.ASSISTANT)
    assert lines[-2:] == [
        f"7 messages, {len(whole)} tokens",
        f"as a prompt for the assistant: {len(prompt)} tokens",
    ]


def test_view_shows_tokens_that_add_up_to_the_text() -> None:
    output = command("view", "--tokens", "--from", "harmony", stdin=[{"role": "user", "content": "Hi é\n𓀀"}])
    shown = re.findall(r"(\d+) (<\|\w+\|>|\"(?:[^\"\\]|\\.)*\"|b'[^']*')", output.partition("\n")[2])
    tokens = [int(token) for token, _ in shown]
    message = Message.from_role_and_content(Role.USER, "Hi é\n𓀀")
    assert tokens == ENCODING.render(message)
    assert [text for token, text in shown if ENCODING.is_special_token(int(token))] == [
        "<|start|>",
        "<|message|>",
        "<|end|>",
    ]
    assert '"Hi"' in output


HOSTILE = "\x1b[2J\x07\x9b31m\r\u202eevil\u200b\u2028\U000e0041\x7f"
ACTING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["view"],
        ["view", "--tokens"],
        ["view", "--side-by-side", "chatml"],
        ["parse"],
        ["convert", "--to", "harmony"],
    ],
)
def test_nothing_in_a_conversation_acts_on_the_terminal(arguments: list[str]) -> None:
    name = "n\x1b[31m\u202e"
    conversation: Any = [
        {"role": "user", "name": name, "content": f"a{HOSTILE}b"},
        {"role": "assistant", "channel": name, "recipient": name, "content_type": name, "content": HOSTILE},
        {"role": "tool", "name": name, "content": HOSTILE},
    ]
    stdin = conversation
    if arguments == ["parse"]:
        stdin = command("render", stdin=conversation)
    done = run("harmony", *arguments, stdin=stdin if isinstance(stdin, str) else json.dumps(stdin))
    assert done.code == 0
    assert not ACTING.search(done.text)
    assert not ACTING.search(done.error.replace("\n", ""))
    assert r"\x1b" in done.text or r"\u001b" in done.text


def test_errors_show_no_character_that_acts_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\u202e.json"
    for data in ("{", json.dumps([{"role": "\x1b[2J\u202e"}])):
        path.write_text(data)
        error = run("harmony", "view", str(path)).error
        assert not ACTING.search(error.removesuffix("\n"))


def test_colour_is_for_terminals_and_for_those_who_ask(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain = command("view")
    assert "\x1b" not in plain
    coloured = command("view", "--color", "always")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]+m", "", coloured) == plain
    assert command("view", terminal=True) == coloured
    assert command("view", "--color", "never", terminal=True) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert command("view", terminal=True) == plain
    assert command("view", "--color", "always") == coloured
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert command("view", terminal=True) == plain


def test_on_a_terminal_rendered_text_cannot_act_and_ends_its_line() -> None:
    conversation = [{"role": "user", "channel": "x", "content": "\x1b[2J"}]
    assert command("render", stdin=conversation, terminal=True) == (
        "<|start|>user<|channel|>x<|message|>\\x1b[2J<|end|>\n"
    )


@given(st.text(st.sampled_from("ab é漢\u0301 \n\t<|"), max_size=200), st.integers(4, 40))
def test_wrapping_keeps_the_width_and_every_character_but_spaces(text: str, width: int) -> None:
    lines = list(wrapped(text, width))
    assert all(display_width(line) <= width for line in lines)
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)
    if all(display_width(line) <= width for line in text.expandtabs(4).split("\n")):
        assert "\n".join(lines) == text.expandtabs(4)


def test_a_long_content_is_shown_whole(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = " ".join(f"word{number}" for number in range(20_000)) + "x" * 100_000
    output = command("view", stdin=[{"role": "user", "channel": "c", "content": text}])
    body = output.split("\n", 1)[1].rpartition("\n\n")[0]
    assert re.sub(r"\s", "", body) == text.replace(" ", "")


def test_printable_text_is_left_as_it_is() -> None:
    text = "naïve 漢字 👩‍👩‍👧 می‌خواهم\n\tx"
    assert printable(text) == text
