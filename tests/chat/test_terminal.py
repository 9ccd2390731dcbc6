"""`gptoss-jax chat` at a real terminal, on a scripted server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.chat.pty_program import at_terminal
from tests.chat.scripted_server import chunk, saying, serving


def endless(*_: object) -> Iterator[dict[str, Any]]:
    yield chunk(reasoning="Hm.")
    number = 0
    while True:
        number += 1
        yield chunk(content=f"word{number} ")
        time.sleep(0.01)


def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path) -> None:
    file = tmp_path / "talk.jsonl"
    with (
        serving(endless(), saying("It is 5.")) as server,
        at_terminal(
            *("chat", "--url", server.url, "--resume", str(file)),
            XDG_STATE_HOME=str(tmp_path / "state"),
        ) as chat,
    ):
        chat.until("\n>")
        chat.send("Tell me a story\r")
        chat.until("word5 ")
        chat.send("\x03")
        chat.until("the answer so far is kept")
        assert server.hung_up.wait(20)
        chat.until("\n>")
        chat.send("2 +\x1b\r3?\r")
        chat.until("It is 5.\n")
        chat.until("12 tokens (5 reasoning)")
        chat.until("\n>")
        chat.send("\x04")
        assert chat.exit_code() == 0
    messages = [json.loads(line) for line in file.read_text().splitlines()]
    assert [message["content"] for message in messages[::2]] == ["Tell me a story", "2 +\n3?"]
    assert messages[1]["finish_reason"] == "cancelled"
    assert messages[1]["reasoning"] == "Hm."
    assert messages[1]["content"].startswith("word1 word2 word3 word4 word5 ")
    assert server.bodies[1]["messages"][1]["content"] == messages[1]["content"]
    assert "+Tell me a story" in (tmp_path / "state" / "gptoss-jax" / "chat_history").read_text()


def test_reasoning_is_dimmed_and_escapes_of_the_model_are_shown(tmp_path) -> None:
    with (
        serving(saying("\x1b[31mred", "Hm.")) as server,
        at_terminal("chat", "--url", server.url, "--show-reasoning", "--history-file", "none") as chat,
    ):
        chat.until("\n>")
        chat.send("Hi\r")
        chat.until(r"\x1b[31mred")
        chat.send("/quit\r")
        assert chat.exit_code() == 0
    assert "\x1b[2mHm.\x1b[0m" in chat.raw
    assert "\x1b[31mred" not in chat.raw


def test_no_color_means_none(tmp_path) -> None:
    with (
        serving(saying("It is 5.", "Hm."), (500, "text/plain", "broken")) as server,
        at_terminal(
            *("chat", "--url", server.url, "--show-reasoning", "--history-file", "none"), NO_COLOR="1"
        ) as chat,
    ):
        chat.until("\n>")
        chat.send("Hi\r")
        chat.until("[answer]\nIt is 5.")
        chat.send("Hi\r")
        chat.until("gptoss-jax: the server says 500: broken")
        chat.send("/quit\r")
        assert chat.exit_code() == 0
    assert "\x1b[2m" not in chat.raw
    assert "\x1b[31m" not in chat.raw
