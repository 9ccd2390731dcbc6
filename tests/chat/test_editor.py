"""Keys at the editor → messages."""

from __future__ import annotations

import stat
from collections.abc import Iterator

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from gptoss_jax.chat.commands import COMMANDS
from gptoss_jax.chat.editor import CommandCompleter, Editor

ALT_ENTER = "\x1b\r"
PASTE = "\x1b[200~{}\x1b[201~"
UP = "\x1b[A"


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


@pytest.fixture
def editor(keys) -> Editor:
    return Editor(input=keys, output=DummyOutput())


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hello\r", "hello"),
        (f"one{ALT_ENTER}two\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("C:\\dir here\r", "C:\\dir here"),
        (PASTE.format("def f():\r    return 1\r\n\r") + "?\r", "def f():\n    return 1\n\n?"),
        (PASTE.format("/quit\r/clear") + "\r", "/quit\n/clear"),
        ("helo\x1b[Dl\r", "hello"),  # cursor left
        ("  indented\r", "  indented"),
    ],
)
def test_keys_become_a_message(typed, message, keys, editor) -> None:
    keys.send_text(typed)
    assert editor.message() == message


def test_ctrl_d_is_the_end_and_ctrl_c_is_an_interruption(keys, editor) -> None:
    keys.send_text("half\x03")
    with pytest.raises(KeyboardInterrupt):
        editor.message()
    keys.send_text("\x04")
    with pytest.raises(EOFError):
        editor.message()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/", [command.name for command in COMMANDS]),
        ("/re", ["/reasoning", "/retry"]),
        ("/effort ", ["low", "medium", "high"]),
        ("/effort h", ["high"]),
        ("/load ta", ["lk.jsonl"]),
        ("/help ", []),
        ("/dance ", []),
        ("plain /re", []),
        ("/re\nmore", []),
    ],
)
def test_commands_values_and_files_are_completed(typed, offered, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.jsonl").touch()
    found = CommandCompleter().get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found] == offered


def test_messages_are_kept_in_a_private_file(keys, tmp_path) -> None:
    path = tmp_path / "state" / "history"
    editor = Editor(path, input=keys, output=DummyOutput())
    keys.send_text(f"one{ALT_ENTER}two\r")
    editor.message()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    later = Editor(path, input=keys, output=DummyOutput())
    keys.send_text(f"{UP}!\r")
    assert later.message() == "one\ntwo!"


def test_results_of_calls_are_not_among_earlier_messages(keys, editor) -> None:
    keys.send_text("question\r")
    editor.message()
    keys.send_text("secret result\r")
    assert editor.result("add") == "secret result"
    keys.send_text(f"{UP}\r")
    assert editor.message() == "question"


def test_a_history_that_cannot_be_used_ends_nothing(keys, tmp_path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "history"):
        editor = Editor(path, input=keys, output=DummyOutput())
        keys.send_text("hello\r")
        assert editor.message() == "hello"


def test_bytes_that_are_no_utf8_become_replacement_characters(keys, editor) -> None:
    keys.send_bytes(b"a\xffb\r")
    editor.message().encode()
