"""`gptoss-jax batch` and `gptoss-jax generate` from the outside, on the scripted engine."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest

from gptoss_jax import cli
from gptoss_jax.commands import batch, generate
from gptoss_jax.engine.grammar import Grammar
from tests.batch.scripted import ScriptedEngine


@pytest.fixture
def engine(encoding, tmp_path, monkeypatch) -> ScriptedEngine:
    engine = ScriptedEngine(encoding)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    loaded = engine, encoding, types.SimpleNamespace(path=folder)
    fingerprint = batch.checkpoint_fingerprint
    monkeypatch.setattr(batch, "checkpoint_fingerprint", lambda _: fingerprint(folder))
    for module in (batch, generate):
        monkeypatch.setattr(module, "load_engine", lambda options, slots, announce=False: loaded)
    return engine


def test_batch_answers_a_file_and_prints_and_writes_its_report(
    engine, write_lines, read_rows, tmp_path, capsys
):
    source, out, report = (
        write_lines([{"prompt": "Hi"}, b"{"]),
        tmp_path / "out.jsonl",
        tmp_path / "report.json",
    )
    command = ["batch", str(source), "--output", str(out), "--report", str(report), "--temperature", "0"]
    assert cli.main([*command, "--effort", "low", "--max-tokens", "9"]) == 0
    assert read_rows(out)[1]["text"] == "You said: Hi"
    (request,) = engine.requests
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 9)
    printed = capsys.readouterr()
    assert "2 (1 answered, 1 errors, 0 resumed)" in printed.out
    assert "2/2" in printed.err
    written = json.loads(report.read_text())
    assert (written["rows"], written["errors"], written["finish_reasons"]) == (2, 1, {"stop": 1})


def test_batch_refuses_to_continue_with_another_seed_or_checkpoint_in_one_line(
    engine, write_lines, tmp_path, capsys
):
    command = ["batch", str(write_lines([{"prompt": "Hi"}])), "--output", str(tmp_path / "out.jsonl")]
    assert cli.main(command) == 0
    capsys.readouterr()
    assert cli.main([*command, "--seed", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gptoss-jax: ")
    assert '"seed"' in line
    (tmp_path / "checkpoint" / "config.json").write_text("{} ")
    assert cli.main(command) == 2
    assert '"checkpoint"' in capsys.readouterr().err
    assert cli.main([*command, "--overwrite"]) == 0


def test_a_checkpoint_is_told_by_its_content_not_its_place(tmp_path):
    def folder(name: str, files: dict[str, bytes]) -> str:
        (tmp_path / name).mkdir()
        for file, data in files.items():
            (tmp_path / name / file).write_bytes(data)
        return batch.checkpoint_fingerprint(tmp_path / name)

    large = b"a" * (5 << 20)
    files = {"config.json": b"{}", "model.safetensors": large, "vocabulary.tiktoken": b"YQ== 0"}
    first = folder("first", files)
    assert folder("moved", files) == first
    assert folder("with_output", {**files, "out.jsonl": b"{}", "out.jsonl.run.json": b"{}"}) == first
    others = [
        {**files, "config.json": b"{ }"},
        {**files, "vocabulary.tiktoken": b"Yg== 0"},
        {"config.json": b"{}", "other.safetensors": large, "vocabulary.tiktoken": b"YQ== 0"},
        {**files, "model.safetensors": large + b"a"},
        {**files, "model.safetensors": large[:-1] + b"b"},
        {**files, "model.safetensors": b"b" + large[1:]},
        {"checkpoint.json": b"{}"},
        {"checkpoint.json": b"{ }"},
    ]
    fingerprints = {folder(f"other{number}", other) for number, other in enumerate(others)}
    assert len(fingerprints | {first}) == len(others) + 1


def test_generate_prints_only_the_answer_when_nobody_watches(engine, capsys):
    assert cli.main(["generate", "Hello"]) == 0
    assert capsys.readouterr().out == "You said: Hello\n"


def test_generate_dims_the_reasoning_on_a_terminal(engine, capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["generate", "Hello"]) == 0
    assert capsys.readouterr().out == "\x1b[2mHmm.\x1b[0m\n\nYou said: Hello\n"


def test_generate_reads_standard_input_and_takes_instructions(engine, encoding, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    arguments = ["generate", "-", "--instructions", "Be brief.", "--effort", "high", "--date", "2025-06-28"]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == "You said: from a pipe\n"
    prompt = encoding.decode(engine.requests[0].prompt)
    assert "# Instructions\n\nBe brief." in prompt
    assert "Reasoning: high" in prompt
    assert "Current date: 2025-06-28" in prompt


@pytest.mark.parametrize("given", [None, b"caf\xe9", b"", b" \n"])
def test_a_standard_input_that_is_no_text_is_one_line_before_the_model_loads(given, capsys, monkeypatch):
    monkeypatch.setattr(generate, "load_engine", None)
    stdin = None if given is None else io.TextIOWrapper(io.BytesIO(given))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert cli.main(["generate", "-"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    reason = {None: "it is closed", b"caf\xe9": "not UTF-8: unexpected end of data at byte 4"}
    assert reason.get(given, "the text is empty") in line


def test_generate_as_json_gives_everything(engine, capsys):
    assert cli.main(["generate", "Hello", "--json", "--seed", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["text"], answer["reasoning"], answer["finish_reason"]) == (
        "You said: Hello",
        "Hmm.",
        "stop",
    )
    assert [message["channel"] for message in answer["messages"]] == ["analysis", "final"]
    assert engine.requests[0].sampling.seed == 3


def test_generate_without_an_answer_fails_and_says_why(engine, capsys):
    assert cli.main(["generate", "cut"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "cut after" in printed.err


def test_an_interrupted_batch_leaves_its_rows_and_says_so(
    engine, write_lines, read_rows, tmp_path, capsys, monkeypatch
):
    run = ScriptedEngine.run

    def interrupted(self, requests):
        completions = run(self, requests)
        yield next(completions)
        raise KeyboardInterrupt

    monkeypatch.setattr(ScriptedEngine, "run", interrupted)
    command = [
        "batch",
        str(write_lines([{"prompt": "a"}, {"prompt": "b"}])),
        "--output",
        str(tmp_path / "out.jsonl"),
    ]
    assert cli.main(command) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert len(read_rows(tmp_path / "out.jsonl")) == 1


def test_generate_enforces_a_schema_from_a_file(engine, tmp_path, capsys):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    assert cli.main(["generate", "Hello", "--schema", str(schema)]) == 0
    assert engine.requests[0].sampling.grammar == Grammar.json_object()
    capsys.readouterr()
    for text, words in (
        ('{"type": ', "not valid JSON"),
        ("[]", "schema"),
        ('{"multipleOf": 12345789}', "12345789"),
    ):
        schema.write_text(text)
        assert cli.main(["generate", "Hello", "--schema", str(schema)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("gptoss-jax: ") and words in line
    assert cli.main(["generate", "Hello", "--schema", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err


def test_a_process_that_does_not_speak_follows_and_leaves_the_files_alone(
    engine, write_lines, tmp_path, capsys, monkeypatch
):
    done = []
    monkeypatch.setattr(ScriptedEngine, "is_leader", False)
    monkeypatch.setattr(ScriptedEngine, "follow", lambda self: done.append("followed"), raising=False)
    monkeypatch.setattr(ScriptedEngine, "__exit__", lambda self, *_: done.append("closed"))
    out = tmp_path / "out.jsonl"
    second = ["--distributed", "host:1,2,1"]
    assert cli.main(["batch", str(tmp_path / "only elsewhere"), "--output", str(out), *second]) == 0
    assert cli.main(["generate", "Hello", *second]) == 0
    assert done == ["followed", "closed"] * 2
    assert not out.exists()
    assert engine.requests == []
    assert capsys.readouterr() == ("", "")


def test_the_engine_is_closed_whatever_happens(engine, write_lines, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(ScriptedEngine, "__exit__", lambda self, *_: closed.append(1))
    command = ["batch", str(write_lines([{"prompt": "Hi"}])), "--output", str(tmp_path / "out.jsonl")]
    assert cli.main(command) == 0
    monkeypatch.setattr(ScriptedEngine, "run", None)
    with pytest.raises(TypeError):
        cli.main([*command, "--overwrite"])
    assert len(closed) == 2


TYPO = {"prompt": "a", "temprature": 0.5}
SEARCH = {"prompt": "b", "tools": [{"type": "web_search"}]}


def test_strict_and_unknown_tools_decide_which_rows_are_refused(engine, write_lines, read_rows, tmp_path):
    out = tmp_path / "out.jsonl"
    command = ["batch", str(write_lines([TYPO, SEARCH, {"prompt": "c"}])), "--output", str(out)]
    assert cli.main([*command, "--strict"]) == 0
    first = read_rows(out)
    assert first[1]["error"]["code"] == "unknown_field"
    assert "temprature" in first[1]["error"]["message"]
    assert "web_search" in first[2]["error"]["message"]
    assert cli.main(command) == 2, "another setting"
    assert cli.main([*command, "--ignore-unknown-tools", "--retry-errors"]) == 0
    rows = read_rows(out)
    assert [rows[line]["error"] for line in (1, 2, 3)] == [None] * 3
    assert rows[3] == first[3]


@pytest.mark.parametrize(
    ("lines", "options", "code"),
    [
        ([{"prompt": "a"}, b"{"], [], 0),
        ([{"prompt": "a"}, b"{"], ["--max-errors", "1"], 0),
        ([{"prompt": "a"}, b"{"], ["--max-errors", "0"], 1),
        ([b"{"], [], 1),
        ([], [], 0),
    ],
)
def test_the_exit_code_tells_whether_rows_were_answered(engine, write_lines, tmp_path, lines, options, code):
    command = ["batch", str(write_lines(lines)), "--output", str(tmp_path / "out.jsonl"), *options]
    assert cli.main(command) == code
    assert cli.main(command) == code, "the same when everything is there already"
