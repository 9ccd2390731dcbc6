"""`--check`: told of a file before anything runs, the same lines are refused that a run refuses."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax import cli
from gptoss_jax.batch import run_batch
from gptoss_jax.vocabulary import load_encoding_for
from tests.batch.scripted import ScriptedEngine

ROOT = Path(__file__).parents[2]
TOOLS = [{"type": "web_search"}]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "x", "strict": True, "schema": {"multipleOf": 12345789}},
}

HOSTILE: list[Any] = [
    {"id": "good", "prompt": "Hi"},
    b"\xef\xbb\xbf" + b'{"id": "marked", "prompt": "a mark that is not at the beginning"}',
    b'{"id": "crlf", "prompt": "Windows"}\r',
    b'{"id": "nul", "prompt": "a\x00b"}',
    b"\x00\x00",
    b'{"id": "escaped nul", "prompt": "a\\u0000b"}',
    b'{"id": "latin", "prompt": "caf\xe9"}',
    b'{"id": "twice", "id": "twice", "prompt": "Hi"}',
    b'{"id": "surrogate", "prompt": "\\ud800"}',
    b'{"id": "nan", "prompt": "Hi", "temperature": NaN}',
    b'{"id": "huge", "prompt": "Hi", "temperature": 1e999}',
    b"[" * 5000,
    b"[]",
    b'"text"',
    b"{} {}",
    {"id": "good", "prompt": "a duplicate"},
    {"id": 7, "prompt": "a number"},
    {"id": "7", "prompt": "the same number"},
    {"id": True, "prompt": "Hi"},
    {"id": "nothing"},
    {"id": "typo", "prompt": "Hi", "temprature": 1},
    {"id": "bias", "prompt": "Hi", "logit_bias": {"999999": 1}},
    {"id": "tool", "prompt": "Hi", "tools": TOOLS},
    {"id": "schema", "prompt": "Hi", "response_format": SCHEMA},
    {"id": "long", "prompt": "word " * 3000},
    {"custom_id": "url", "method": "POST", "url": "/v1/images", "body": {}},
    {"custom_id": "form", "method": "POST", "url": "/v1/responses", "body": {"input": "Hi"}},
]


def checked(capsys: Any, *arguments: str) -> tuple[int, dict[int, tuple[str, str]], list[str]]:
    """The exit code, line → code and message, and the lines of the summary."""
    code = cli.main(["batch", *arguments, "--check"])
    printed = capsys.readouterr()
    assert printed.err == ""
    found, rest = {}, []
    for text in printed.out.splitlines():
        told = re.fullmatch(r"line (\d+): (\w+): (.*)", text)
        if told:
            found[int(told[1])] = told[2], told[3]
        else:
            rest.append(text)
    return code, found, rest


@pytest.mark.parametrize("options", [[], ["--strict"], ["--ignore-unknown-tools"]])
def test_a_check_finds_the_lines_that_a_run_refuses_in_the_same_words(
    write_lines, read_rows, tmp_path, capsys, options
):
    source, out = write_lines(HOSTILE), tmp_path / "out.jsonl"
    encoding = load_encoding_for(open_checkpoint("tiny"))
    settings = {option.strip("-").replace("-", "_"): True for option in options}
    run_batch(source, out, engine=ScriptedEngine(encoding, max_length=2048), encoding=encoding, **settings)
    refused = {}
    for number, row in read_rows(out).items():
        response = row.get("response")
        error = row["error"] or (response or {}).get("body", {}).get("error")
        if error:
            refused[number] = error["code"], error["message"].removeprefix(f"line {number}: ")
    code, found, (summary, *unknown) = checked(capsys, str(source), "--max-length", "2048", *options)
    bias = (
        HOSTILE.index(next(line for line in HOSTILE if isinstance(line, dict) and "logit_bias" in line)) + 1
    )
    for told in (found, refused):  # the scripted engine has other words than the real one
        assert "logit_bias holds token 999999" in told.pop(bias)[1]
    assert found == refused
    found[bias] = "invalid_request", ""
    assert code == 1 and len(found) >= 14
    assert summary.startswith(f"{len(HOSTILE)} rows, {len(found)} of them cannot be answered: ")
    counts = {
        name: int(count) for count, name in re.findall(r"(\d+) (\w+)(?:,|$)", summary.partition(": ")[2])
    }
    assert sum(counts.values()) == len(found) and counts["duplicate_id"] == 2
    assert unknown == ([] if options == ["--strict"] else ["unknown field temprature: 1 row; temperature?"])


def test_an_input_that_is_all_right_says_so(write_lines, capsys, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\r\n\r\n{"prompt": "b"}'))
    assert checked(capsys, str(tmp_path / "in.gz")) == (0, {}, ["2 rows, 0 of them cannot be answered"])
    assert sorted(os.listdir(tmp_path)) == ["in.gz"]


def test_what_cannot_be_read_is_one_line(tmp_path, capsys):
    (tmp_path / "in.gz").write_bytes(gzip.compress(os.urandom(500))[:-20])
    assert cli.main(["batch", str(tmp_path / "in.gz"), "--check"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "it is no whole gzip file" in line


def test_a_run_still_needs_an_output(write_lines, capsys):
    with pytest.raises(SystemExit):
        cli.main(["batch", str(write_lines([]))])
    assert "--output" in capsys.readouterr().err


def test_a_line_of_ten_megabytes_is_one_line_of_error_and_one_beyond_the_most_too(
    write_lines, tmp_path, read_rows, encoding, monkeypatch
):
    from gptoss_jax.batch import rows, source

    monkeypatch.setattr(source, "MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", 1 << 20)
    lines = [{"prompt": "a"}, {"prompt": "b" * (10 << 20)}, {"prompt": "c"}, b"d" * (3 << 20)]
    given, out = write_lines(lines), tmp_path / "out.jsonl"
    given.write_bytes(given.read_bytes().rstrip(b"\n"))
    report = run_batch(given, out, engine=ScriptedEngine(encoding), encoding=encoding)
    found = read_rows(out)
    assert (report.rows, report.answered) == (4, 2)
    assert [found[line]["error"] and found[line]["error"]["code"] for line in range(1, 5)] == [
        None,
        "line_too_long",
        None,
        "line_too_long",
    ]


@pytest.mark.slow
def test_a_prompt_of_ten_megabytes_is_one_line_of_error(write_lines, tmp_path, read_rows, encoding):
    given, out = write_lines([{"prompt": "b" * (10 << 20)}, {"prompt": "c"}]), tmp_path / "out.jsonl"
    report = run_batch(given, out, engine=ScriptedEngine(encoding), encoding=encoding)
    assert (report.answered, report.errors) == (1, 1)
    message = read_rows(out)[1]["error"]["message"]
    assert "tokens" in message and "\n" not in message and len(message) < 300


def test_a_check_loads_no_jax(write_lines):
    program = (
        "import sys; from gptoss_jax import cli\n"
        "code = cli.main(sys.argv[1:])\n"
        "print(sorted({'jax', 'jaxlib', 'flax', 'orbax', 'tensorstore'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "batch", str(write_lines([{"prompt": "a"}])), "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
