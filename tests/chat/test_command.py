"""`gptoss-jax chat` in pipes: lines in, answers out, and what is refused before a model is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chat.scripted_server import chunk, saying, serving
from tests.cli.command_runner import run

ROOT = Path(__file__).parents[2]


def test_lines_are_answered_by_the_embedded_model(tmp_path) -> None:
    file = tmp_path / "talk.jsonl"
    arguments = (
        "chat",
        "--temperature",
        "0",
        "--effort",
        "low",
        "--resume",
        str(file),
        "--max-length",
        "512",
    )
    done = run(*arguments, stdin="What is 2 + 3?\n\nWho are you?\n")
    assert done.code == 0, done.error
    assert done.text == (
        "2 + 3 = 5.\nI am a tiny test model that speaks harmony. I can add, subtract and call functions.\n"
    )
    messages = [json.loads(line) for line in file.read_text().splitlines()]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[1]["reasoning"]
    assert done.error.count("tokens/s · stop\n") == 2


def test_lines_are_messages_and_commands_and_one_may_go_on() -> None:
    with serving(saying("A"), saying("B"), saying("C")) as server:
        typed = "one\\\nmore\r\n/effort low\ntwo\n/dance\nthree"
        done = run("chat", "--url", server.url, "--no-stats", stdin=typed)
    assert done.text == "A\nB\nC\n"
    assert done.code == 1  # for /dance
    assert "no command /dance" in done.error
    assert [body["messages"][-1]["content"] for body in server.bodies] == ["one\nmore", "two", "three"]
    assert [body.get("reasoning_effort") for body in server.bodies] == [None, "low", "low"]


def test_a_line_that_gets_no_answer_is_told_and_the_next_is_answered() -> None:
    with serving((500, "text/plain", "broken"), saying("B")) as server:
        done = run("chat", "--url", server.url, "--no-stats", stdin=b"one\n\xff\ntwo\n")
    assert (done.text, done.code) == ("B\n", 1)
    first, second = done.error.splitlines()
    assert "says 500: broken" in first
    assert "line 2 of the input is not UTF-8" in second


def test_output_elsewhere_has_no_control_codes() -> None:
    with serving(saying("é\x1b[2m", "Hm.")) as server:
        done = run("chat", "--url", server.url, "--show-reasoning", stdin="one\n", terminal=True)
    assert done.text == "[reasoning]\nHm.\n\n[answer]\né\\x1b[2m\n"
    assert "\x1b" not in done.error


def test_the_results_of_calls_are_the_next_lines(tmp_path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "add", "parameters": {"type": "object"}}]')
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": "{}"}}
    with serving([chunk(tool_calls=[call]), chunk("tool_calls")], saying("It is 5.")) as server:
        arguments = ("chat", "--url", server.url, "--tools", str(tools), "--instructions", "Be brief.")
        done = run(*arguments, "--seed", "7", "--top-p", "0.5", "--max-tokens", "9", stdin="2 + 3?\n5\n")
    assert done.text == "[call] add {}\nIt is 5.\n"
    body = server.bodies[1]
    assert body["tools"] == [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    ]
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "5"}
    assert (body["seed"], body["top_p"], body["max_tokens"]) == (7, 0.5, 9)


def test_the_key_comes_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("GPTOSS_JAX_API_KEY", "ours")
    monkeypatch.setenv("OTHER_KEY", "other")
    monkeypatch.setenv("OPENAI_API_KEY", "for another server")
    with serving(saying("A"), saying("B")) as server:
        run("chat", "--url", server.url, stdin="one\n")
        run("chat", "--url", server.url, "--api-key-env", "OTHER_KEY", stdin="one\n")
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer ours", "Bearer other"]


def test_a_conversation_goes_on_with_a_server(tmp_path) -> None:
    file = tmp_path / "talk.jsonl"
    for instructions in ("Be brief.", "Be kind."):
        with serving(saying("A", "Hm.")) as server:
            run(
                *("chat", "--url", server.url, "--resume", str(file), "--system", instructions),
                stdin="one\n",
            )
    assert [message["content"] for message in server.bodies[0]["messages"]] == ["Be kind.", "one", "A", "one"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "x"], "--model needs a server: give --url too"),
        (["--api-key-env", "X"], "--api-key-env needs a server"),
        (["--url", "http://127.0.0.1:1/v1", "--mesh", "tensor=2"], "--mesh is for a model in this process"),
        (["--url", "http://127.0.0.1:1/v1", "--date", "2025-01-01"], "--date is for a model"),
        (["--url", "http://127.0.0.1:1/v1", "--no-header-guard"], "--no-header-guard is for a model"),
        (["--url", "http://127.0.0.1:1/v1", "--api-key-env", "NO_SUCH"], "'NO_SUCH'"),
        (["--url", "http://127.0.0.1:1/v1"], "cannot reach http://127.0.0.1:1/v1"),
        (["--url", "there"], "'there': it must begin with http"),
        (["--checkpoint", "/nowhere"], "/nowhere"),
        (["--resume", "/nowhere/c.jsonl"], "there is no folder /nowhere"),
        (["--resume", "broken.json"], "broken.json, line 1: not valid JSON"),
        (["--resume", "."], "not a regular file"),
        (["--tools", "missing.json"], "missing.json: No such file"),
        (["--tools", "broken.json"], "broken.json is not valid JSON"),
        (["--tools", "tools.json"], "tools.json: tools[0].function.name"),
    ],
)
def test_what_cannot_run_is_code_2_and_one_line(arguments, words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    Path("tools.json").write_text('[{"name": "two words"}]')
    done = run("chat", *arguments)
    assert done.code == 2
    assert words in done.error
    assert len(done.error.splitlines()) == 1


@pytest.mark.parametrize("package", ["httpx_sse", "httpx"])
def test_without_its_package_it_says_what_to_install(package, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "gptoss_jax.chat.remote", raising=False)
    done = run("chat", "--url", "http://127.0.0.1:1/v1")
    assert done.code == 2
    assert f"needs the package {package}: pip install 'gptoss-jax[chat]'" in done.error


def test_a_chat_with_a_server_needs_neither_jax_nor_an_editor() -> None:
    with serving(saying("A")) as server:
        program = (
            "import sys; from gptoss_jax import cli\n"
            f"assert cli.main(['chat', '--url', {server.url!r}]) == 0\n"
            "slow = {'jax', 'flax', 'prompt_toolkit'} & set(sys.modules); assert not slow, slow"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            input="one\n",
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "A\n"
