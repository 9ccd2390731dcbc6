"""`gptoss-jax harmony`: wrong input is one line, commands make pipes, and nothing slow is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harmony import parse_completion
from harmony.vocabulary import SPECIAL_TOKENS
from tests.cli.command_runner import run
from tests.cli.harmony_samples import CHAT, ENCODING, HARMONY, RESPONSES, command, tokens_of
from tests.json_places import changed, places


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ("", "standard input: it is empty"),
        ("{", "it is not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ('{"messages": []}\n{"messages": []}', "a second JSON value begins at line 2, column 1"),
        ("<|start|>user<|message|>", "`gptoss-jax harmony parse` reads text with special tokens"),
        ("7", "it is 7: it must be an object, or a list of messages"),
        ('{"model": "m"}', 'its keys are "model": it must have messages'),
        ('{"input": 7}', "input is 7: it must be a string or a list"),
        ('{"prompt": 7}', "prompt is 7: it must be a string"),
        ('{"url": "/v1/responses", "body": {"messages": []}}', "it has no input: a Responses request must"),
        ('{"body": 7}', "body is 7: it must be an object"),
        ('{"messages": 7}', "messages is 7: it must be a list"),
        ('{"messages": [7]}', "messages[0] is 7: it must be an object"),
        ('[{"role": "bot", "content": []}]', 'messages[0].role is "bot": it must be user, assistant,'),
        ('[{"role": "user", "channel": 7, "content": "x"}]', "messages[0].channel is 7: it must be a string"),
        ('[{"role": "user", "channel": "x"}]', "messages[0].content is null: it must be a string or a list"),
        ('[{"role": "user", "content": [7]}]', "messages[0].content[0] is 7: it must be an object"),
        (
            '[{"role": "user", "content": [{"type": []}]}]',
            "messages[0].content[0].type is []: it must be text",
        ),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "messages[0].content[0].text is missing"),
        (
            '[{"role": "system", "content": [{"type": "system_content", "reasoning_effort": "huge"}]}]',
            "messages[0].content[0].reasoning_effort is \"huge\": it must be 'Low', 'Medium' or 'High'",
        ),
        (
            '[{"role": "user", "channel": "a b", "content": ""}]',
            "messages[0] cannot be rendered: channel is 'a b': it must be one word",
        ),
        ('[{"role": "tool", "channel": "c", "content": ""}]', "messages[0] cannot be rendered: Tools should"),
        ('[{"role": "user", "content": "\\ud800"}]', '[0].content is "\\ud800": it has a lone surrogate'),
        ('[{"role": "user", "content": NaN}]', "it has NaN, which is not a JSON number"),
        ('[{"role": "user", "content": ' + "9" * 5000 + "}]", "a whole number of thousands of digits"),
        ("[" * 5000 + "]" * 5000, "nested"),
        ("[" * 200 + "]" * 200, "nested more than 128 levels deep"),
        (
            '{"tools": [], "messages": [{"role": "user", "channel": "c", "content": ""}]}',
            "tools is a field of Chat Completions, but the messages are harmony's",
        ),
        ("<|im_start|>bot\n<|im_end|>", "message 0 has the role bot"),
        (b"\xff\xfe\x00", "standard input is not UTF-8 text: invalid start byte at byte 1"),
    ],
)
def test_a_wrong_conversation_is_one_line_that_names_the_place(stdin: str | bytes, words: str) -> None:
    done = run("harmony", "render", stdin=stdin)
    assert done.code == 2
    assert done.output == b""
    assert done.error.startswith("gptoss-jax: standard input")
    assert done.error.count("\n") == 1
    assert words in done.error


@pytest.mark.parametrize("name", ["render", "parse", "view"])
def test_files_that_cannot_be_read_are_named(name: str, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "missing.json", "No such file"), (tmp_path, "Is a directory")):
        done = run("harmony", name, str(path))
        assert (done.code, done.output) == (2, b"")
        assert done.error == f"gptoss-jax: cannot read {path}: {done.error.rpartition(': ')[2]}"
        assert words in done.error


def tokenizer(**changes: Any) -> bytes:
    """A `tokenizer.json` of the 256 single bytes and harmony's special tokens, some of it replaced."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)).difference(visible))
    document = {
        "model": {"vocab": {chr(b): b for b in visible} | {chr(256 + n): b for n, b in enumerate(hidden)}},
        "added_tokens": [{"content": text, "id": 256 + n} for n, text in enumerate(SPECIAL_TOKENS)],
    }
    return json.dumps(document | changes).encode()


def special(ids: Any) -> list[dict[str, Any]]:
    return [{"content": text, "id": token} for text, token in zip(SPECIAL_TOKENS, ids, strict=False)]


def test_a_vocabulary_can_be_a_tokenizer_json(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(tokenizer())
    text = "ordinary tëxt"
    conversation = [{"role": "user", "channel": "c", "content": text}]
    output = command("render", "--tokens", "--vocabulary", str(path), stdin=conversation)
    assert " ".join(map(str, text.encode())) in output


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("v.tiktoken", b"hello", "line 1 is b'hello'"),
        ("v.json", b"{", "is not JSON"),
        ("v.json", b"{}", "has no model.vocab"),
        ("v.json", tokenizer(added_tokens=special([])), "lacks the special tokens"),
        ("v.json", tokenizer(added_tokens=special(range(9))), "special tokens must have ids from 256 on"),
        ("v.json", tokenizer(model={"vocab": {"a": 0}}), "lacks 255 single bytes, the first 0x00"),
        ("v.json", b"[" * 100_000, "nested more than 128 levels deep"),
    ],
)
def test_a_wrong_vocabulary_is_one_line_that_names_it(
    name: str, data: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    for arguments in (["render"], ["parse", "--from", "text"]):
        done = run("harmony", *arguments, "--vocabulary", str(path), stdin=json.dumps(HARMONY))
        assert (done.code, done.output) == (2, b"")
        assert f"{path}" in done.error
        assert words in done.error
        assert done.error.count("\n") == 1


WRONG_VALUES = [
    None,
    True,
    7,
    -1.5,
    10**400,
    1e999,
    "",
    "\x00 \n<|end|>",
    "\ud800",
    [],
    [7],
    {},
    {"x": 7},
    [[]],
]


@pytest.mark.parametrize("document", [HARMONY, CHAT, RESPONSES], ids=["harmony", "chat", "responses"])
@pytest.mark.parametrize("part", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["a third", "all"])
def test_wrong_values_at_any_key_are_one_line_and_never_a_stack_trace(document: Any, part: int) -> None:
    names = [
        ["view"],
        ["render", "--schema", "improved", "--for", "completion"],
        ["convert", "--to", "chatml"],
        ["render", "--tokens", "--for", "training"],
        ["view", "--side-by-side", "chatml"],
    ]
    failed = 0
    for number, place in enumerate(places(document)):
        for other, value in enumerate(WRONG_VALUES):
            if (number + other) % part:
                continue
            stdin = json.dumps(changed(document, place, value)).replace("Infinity", "1e999")
            name, *options = names[(number + other) % len(names)]
            done = run("harmony", name, *options, stdin=stdin)
            assert done.code in (0, 2), (place, value)
            if done.code == 2:
                failed += 1
                assert done.output == b""
                assert done.error.count("\n") == 1, (place, value)
    assert failed > 100 / part


@given(st.text() | st.binary())
@settings(deadline=None)
def test_any_input_is_a_conversation_or_one_line(data: str | bytes) -> None:
    stdin = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    done = run("harmony", "view", stdin=stdin)
    assert done.code in (0, 2)
    assert done.error.count("\n") == (1 if done.code else 0)


def script(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gptoss_jax.cli", "harmony", *arguments]


def test_the_commands_fit_together_with_pipes(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(HARMONY), encoding="utf-8")
    render = subprocess.Popen(script("render", "--tokens", str(path)), stdout=subprocess.PIPE)
    parse = subprocess.run(script("parse"), stdin=render.stdout, capture_output=True, check=True)
    assert render.wait() == 0
    expected = parse_completion(ENCODING, tokens_of(command("render", "--tokens")), role=None)
    assert json.loads(parse.stdout)["messages"] == [message.to_dict() for message in expected.messages]


def test_a_reader_that_leaves_is_no_reason_for_a_stack_trace() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(script("view"), **pipes)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.write(json.dumps(HARMONY).encode())
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["render"], 0),
        (["parse"], 2),
        (["view", "--side-by-side", "chatml"], 0),
        (["convert", "--to", "chatml"], 0),
        (["view", "--vocabulary", "missing"], 2),
        (["render", "--vocabulary", "tiny"], 0),
    ],
)
def test_no_command_loads_jax_not_even_to_refuse(arguments: list[str], code: int) -> None:
    program = (
        "import sys; from gptoss_jax import cli\n"
        f"code = cli.main(['harmony', *{arguments!r}])\n"
        "heavy = {'jax', 'flax', 'numpy', 'orbax'} & set(sys.modules); assert not heavy, heavy\n"
        f"assert code == {code}, code"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(HARMONY),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_help_loads_nothing_slow() -> None:
    program = (
        "import sys; from gptoss_jax import cli\n"
        "for name in ([], ['render'], ['parse'], ['view'], ['convert']):\n"
        "    try: cli.main(['harmony', *name, '--help'])\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "heavy = {'jax', 'pydantic', 'tiktoken', 'harmony'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: gptoss-jax harmony") == 5
