"""The file of a conversation: what is written is what is read, whole, by nobody else, and nothing is lost."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptoss_jax.chat import ChatError, Transcript
from gptoss_jax.chat.transcript import NO_RESULT

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), st.none() | TEXTS)
def test_a_saved_conversation_is_read_as_it_was(tmp_path_factory, turns, instructions) -> None:
    path = tmp_path_factory.mktemp("chat") / "c.jsonl"
    transcript = Transcript(instructions, path)
    for asked, thought, said in turns:
        transcript.add_user(asked)
        transcript.add_answer({"role": "assistant", "content": said, "reasoning": thought})
    transcript.save()
    assert Transcript.load(path).messages == transcript.messages


def test_a_file_is_replaced_in_one_step(tmp_path, monkeypatch) -> None:
    path = tmp_path / "c.jsonl"
    transcript = Transcript(path=path)
    transcript.add_user("one")
    transcript.save()
    before = path.read_bytes()
    transcript.add_user("two")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ChatError, match="No space left on device"):
        transcript.save()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c.jsonl"]


def test_a_new_file_is_private_and_an_old_one_keeps_its_permissions(tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    transcript = Transcript("Be brief.", path)
    transcript.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    transcript.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_file_behind_a_link_is_replaced_and_not_the_link(tmp_path) -> None:
    link = tmp_path / "link"
    link.symlink_to("c.jsonl")
    Transcript("Be brief.", link).save()
    assert link.is_symlink()
    assert Transcript.load(tmp_path / "c.jsonl").messages[0]["content"] == "Be brief."


def test_a_device_is_neither_read_nor_replaced(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(ChatError, match="not a regular file"):
            Transcript("Be brief.", path).save()
        with pytest.raises(ChatError, match="not a regular file"):
            Transcript.load(path)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{}"], "line 1: messages[0].role is null"),
        (['{"role": "user", "content": "a"}', "[1]"], "line 2: must be a JSON object"),
        (['{"role": "user", "content": "a"}', "", "{"], "line 3: not valid JSON"),
        (['{"role": "user", "content": 5}'], "line 1: messages[0].content is 5"),
        (['{"role": "robot", "content": "a"}'], 'is "robot"'),
        (['{"role": "tool", "tool_call_id": "c9", "content": "a"}'], "no earlier call has this id"),
        (['{"role": "tool", "content": "a"}'], "tool_call_id is null"),
        (['{"role": "assistant", "tool_calls": [{"id": "1"}]}'], "function is null"),
        (["\xff"], "line 1: not UTF-8"),
    ],
)
def test_a_file_that_is_no_conversation_is_refused_in_one_line(lines, words, tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes("\n".join(lines).encode("latin-1"))
    with pytest.raises(ChatError) as error:
        Transcript.load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_lone_surrogates_of_a_file_can_be_saved_again(tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"role": "user", "content": "a\\ud800b \\ud83d\\ude00"}\n')
    transcript = Transcript.load(path)
    transcript.save()
    assert Transcript.load(path).messages[0]["content"] == "a\ufffdb \U0001f600"


def test_saving_under_a_name_that_is_taken_is_refused(tmp_path) -> None:
    taken = tmp_path / "notes"
    taken.write_text("mine")
    transcript = Transcript("Be brief.")
    with pytest.raises(ChatError, match="exists"):
        transcript.save_as(taken)
    assert taken.read_text() == "mine"
    assert transcript.path is None
    transcript.save_as(tmp_path / "new")
    transcript.save_as(tmp_path / "new")
    assert transcript.path == tmp_path / "new"


def test_instructions_replace_those_of_a_file(tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(
        "".join(
            json.dumps({"role": role, "content": role}) + "\n" for role in ("system", "developer", "user")
        )
    )
    transcript = Transcript.load(path)
    transcript.instruct("Be brief.")
    assert [message["content"] for message in transcript.messages] == ["Be brief.", "user"]


def test_only_calls_without_a_result_get_none(tmp_path) -> None:
    transcript = Transcript()
    transcript.add_user("add")
    second = {**CALL, "id": "c2"}
    transcript.add_answer({"role": "assistant", "content": None, "tool_calls": [CALL, second]})
    transcript.add_result(CALL, "5")
    assert transcript.open_calls() == [second]
    transcript.add_user("and?")
    assert [m["content"] for m in transcript.messages if m["role"] == "tool"] == ["5", NO_RESULT]
