"""What can be refused is refused before the model loads, in one line, and nothing on disk changes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import open_checkpoint
from gptoss_jax import cli
from gptoss_jax.batch import BatchError, open_batch
from gptoss_jax.batch.output import OutputFile
from gptoss_jax.commands import batch

Refuse = Callable[..., str]


@pytest.fixture
def refuse(tmp_path, monkeypatch, capsys) -> Refuse:
    """Gives what `gptoss-jax batch` says when it refuses; loading the model fails the test."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(batch, "load_engine", load)
    monkeypatch.chdir(tmp_path)

    def refuse(*arguments: str) -> str:
        before = snapshot(tmp_path)
        assert cli.main(["batch", *arguments]) == 2
        assert snapshot(tmp_path) == before
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert printed.out == ""
        return line.removeprefix("gptoss-jax: ")

    Path("in.jsonl").write_text('{"prompt": "Hi"}\n')
    return refuse


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def finished(path: Path, **changes: object) -> None:
    """An output as `gptoss-jax batch in.jsonl --output PATH` leaves it, or one with other settings."""
    settings = {
        "checkpoint": batch.checkpoint_fingerprint(open_checkpoint("tiny").path),
        "dtype": "float32",
        "kv_dtype": "float32",
        "max_length": 2048,
    }
    with open_batch("in.jsonl", path, settings=settings | changes) as run:
        run._output.begin()
        run._output.append(1, {"id": "line-1", "text": "Hello", "error": None})


def test_the_output_folder_that_is_not_there(refuse):
    assert "there is no folder" in refuse("in.jsonl", "--output", "missing/out.jsonl")


@pytest.mark.parametrize("where", [".", "folder"])
def test_an_output_that_is_a_folder(refuse, where):
    Path("folder").mkdir()
    assert "Is a directory" in refuse("in.jsonl", "--output", where)


def test_a_folder_that_is_not_writable(refuse, monkeypatch):
    """By `os.access`, as root may write everywhere."""
    Path("folder").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "folder" and allowed(path, mode))
    assert "the folder" in refuse("in.jsonl", "--output", "folder/out.jsonl")
    assert "cannot write folder/report.json: permission denied" in refuse(
        "in.jsonl", "--output", "out.jsonl", "--report", "folder/report.json"
    )


def test_an_output_that_another_process_is_writing(refuse):
    with open("out.jsonl", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "is being written by another run" in refuse("in.jsonl", "--output", "out.jsonl")
        assert "is being written by another run" in refuse("in.jsonl", "--output", "out.jsonl", "--overwrite")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--seed", "1"], "seed"),
        (["--temperature", "0"], "sampling"),
        (["--max-tokens", "5"], "sampling"),
        (["--effort", "high"], "effort"),
        (["--dtype", "bfloat16"], "dtype"),
        (["--kv-dtype", "bfloat16"], "kv_dtype"),
        (["--max-length", "64"], "max_length"),
        (["--date", "2020-01-01"], "date"),
        (["--dtype", "bfloat16", "--retry-errors"], "dtype"),
    ],
)
def test_an_output_that_was_made_with_other_settings(refuse, arguments, name):
    finished(Path("out.jsonl"))
    line = refuse("in.jsonl", "--output", "out.jsonl", *arguments)
    assert f'was made with "{name}"' in line
    assert "--overwrite" in line


def test_an_output_that_was_made_from_another_input_or_checkpoint(refuse):
    finished(Path("out.jsonl"))
    Path("other.jsonl").write_text('{"prompt": "Ho"}\n')
    assert '"input_sha256"' in refuse("other.jsonl", "--output", "out.jsonl")
    Path("out.jsonl").unlink()
    finished(Path("out.jsonl"), checkpoint="another")
    assert '"checkpoint"' in refuse("in.jsonl", "--output", "out.jsonl")


def test_an_output_that_is_the_input_or_no_output_at_all(refuse):
    assert "is the input" in refuse("in.jsonl", "--output", "in.jsonl", "--overwrite")
    Path("link").symlink_to("in.jsonl")
    assert "is the input" in refuse("in.jsonl", "--output", "link", "--overwrite")
    Path("notes").write_text("precious\n")
    assert "no batch run's output" in refuse("in.jsonl", "--output", "notes")
    assert "not a regular file" in refuse("in.jsonl", "--output", "/dev/full")
    assert "ends in .gz" in refuse("in.jsonl", "--output", "out.jsonl.gz")


def test_a_place_where_the_runs_description_cannot_lie(refuse):
    Path("out.jsonl.run.json").mkdir()
    assert "out.jsonl.run.json: it is a folder" in refuse("in.jsonl", "--output", "out.jsonl")


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ("missing/report.json", "there is no folder missing"),
        (".", "it is a folder"),
        ("in.jsonl", "another file of this run"),
        ("out.jsonl", "another file of this run"),
        ("./out.jsonl.run.json", "another file of this run"),
    ],
)
def test_a_report_that_could_not_be_written(refuse, report, words):
    assert words in refuse("in.jsonl", "--output", "out.jsonl", "--report", report)


def test_an_input_that_cannot_be_read(refuse):
    assert "cannot read missing.jsonl: No such file" in refuse("missing.jsonl", "--output", "out.jsonl")
    assert "cannot read .: Is a directory" in refuse(".", "--output", "out.jsonl")


def test_a_checkpoint_that_is_none(refuse):
    assert "nowhere" in refuse("in.jsonl", "--output", "out.jsonl", "--checkpoint", "nowhere")


def test_retrying_errors_on_standard_output(refuse):
    assert "standard output" in refuse("in.jsonl", "--output", "-", "--retry-errors")


def test_a_model_that_does_not_load_leaves_the_earlier_output_as_it_was(refuse, tmp_path, monkeypatch):
    """Even with --overwrite, and for error rows that were to be answered again."""
    finished(Path("out.jsonl"))
    before = snapshot(tmp_path)
    for option in ("--overwrite", "--retry-errors"):
        with pytest.raises(AssertionError, match="the model was loaded"):
            cli.main(["batch", "in.jsonl", "--output", "out.jsonl", option])
        assert snapshot(tmp_path) == before


def test_a_run_that_never_begins_leaves_no_file(refuse, tmp_path):
    with pytest.raises(AssertionError, match="the model was loaded"):
        cli.main(["batch", "in.jsonl", "--output", "out.jsonl"])
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl"]


def test_a_file_that_others_filled_meanwhile_is_not_removed(tmp_path):
    out = OutputFile(tmp_path / "out.jsonl", {})
    (tmp_path / "out.jsonl").write_text("from elsewhere")
    out.close()
    assert (tmp_path / "out.jsonl").read_text() == "from elsewhere"


def test_options_that_were_left_out_are_those_of_the_run_that_is_continued(refuse, monkeypatch):
    finished(Path("out.jsonl"), dtype="bfloat16", kv_dtype="float8_e5m2", max_length=99)
    asked = []

    def load(options, *_: object, **__: object) -> None:
        asked.append((options.dtype, options.kv_dtype, options.max_length))
        raise OSError(errno.EIO, "enough")

    monkeypatch.setattr(batch, "load_engine", load)
    assert cli.main(["batch", "in.jsonl", "--output", "out.jsonl"]) == 2
    assert asked == [("bfloat16", "float8_e5m2", 99)]


def test_the_description_of_a_run_holds_what_was_settled_when_it_began(tmp_path):
    run = {"a": 1, "dtype": None}
    with OutputFile(tmp_path / "out.jsonl", run, inherited={"dtype"}) as out:
        assert not (tmp_path / "out.jsonl.run.json").exists()
        out.begin({"dtype": "float32"})
        out.append(1, {"error": None})
    assert json.loads((tmp_path / "out.jsonl.run.json").read_text()) == {"a": 1, "dtype": "float32"}
    with (
        OutputFile(tmp_path / "out.jsonl", run, inherited={"dtype"}) as out,
        pytest.raises(BatchError, match='was made with "dtype" "float32", this run has "dtype" "bfloat16"'),
    ):
        out.begin({"dtype": "bfloat16"})
