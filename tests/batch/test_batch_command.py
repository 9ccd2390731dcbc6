"""`gptoss-jax batch` and `gptoss-jax generate` from the outside, on the scripted engine."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest
from scripted import ScriptedEngine

from gptoss_jax import cli
from gptoss_jax.commands import batch, generate
from gptoss_jax.engine.grammar import Grammar


@pytest.fixture
def engine(encoding, tmp_path, monkeypatch) -> ScriptedEngine:
    engine = ScriptedEngine(encoding)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    loaded = engine, encoding, types.SimpleNamespace(path=folder)
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
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    arguments = ["generate", "-", "--instructions", "Be brief.", "--effort", "high", "--date", "2025-06-28"]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == "You said: from a pipe\n"
    prompt = encoding.decode(engine.requests[0].prompt)
    assert "# Instructions\n\nBe brief." in prompt
    assert "Reasoning: high" in prompt
    assert "Current date: 2025-06-28" in prompt


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
    assert "the same command goes on" in capsys.readouterr().err
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
    assert cli.main(["generate", "Hello", "--schema", str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err


def test_a_process_that_does_not_speak_follows_and_leaves_the_files_alone(
    engine, write_lines, tmp_path, capsys, monkeypatch
):
    done = []
    monkeypatch.setattr(ScriptedEngine, "speaks", False)
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
    assert cli.main([*command, "--seed", "1"]) == 2
    assert len(closed) == 2
