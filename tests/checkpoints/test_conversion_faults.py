"""What goes wrong around a conversion: full disks, second runs, read-only folders, lost parts."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoints import CheckpointError, open_checkpoint
from checkpoints import convert as conversion
from checkpoints.convert import convert
from tests.checkpoints.small_model import SMALL

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture(scope="module")
def converted(huggingface, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    convert(huggingface, folder, progress=False)
    return folder


def test_a_disk_that_fills_up_is_one_line_and_the_next_run_goes_on(huggingface, tmp_path):
    # The system refuses files above a size, as a full disk refuses more bytes: the code's path is the same.
    code = (
        "import resource, sys; from gptoss_jax.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12_300, resource.RLIM_INFINITY))\n"
        "sys.exit(main(['convert', *sys.argv[1:]]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, huggingface, tmp_path / "out"],
        # Python keeps compiled modules without checking that all of them was written.
        env={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    said = [line for line in result.stderr.splitlines() if line and "converting:" not in line]
    assert result.returncode == 2 and result.stdout == ""
    assert said[0].startswith(f"gptoss-jax: {tmp_path / 'out'}: cannot be written: File too large; finished")
    assert len(said) == 1, result.stderr
    assert not list((tmp_path / "out").glob("*orbax-checkpoint-tmp*"))
    with pytest.raises(CheckpointError, match="an unfinished conversion"):
        open_checkpoint(tmp_path / "out")
    convert(huggingface, tmp_path / "out", progress=False)
    assert open_checkpoint(tmp_path / "out").config == SMALL


def test_too_little_space_is_told_before_anything_is_written(huggingface, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 500_000, 500_000)
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match=r"converting needs 0\.00 GB more, and 0\.00 GB are free"):
        convert(huggingface, tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").glob("*/*"))


def test_a_destination_that_cannot_be_written_is_one_line(huggingface, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="file/out: cannot be written: Not a directory"):
        convert(huggingface, tmp_path / "file" / "out", progress=False)
    with pytest.raises(CheckpointError, match="cannot be written"):
        convert(huggingface, Path("/proc/out"), progress=False)
    monkeypatch.setattr(conversion.os, "replace", _refuse)
    with pytest.raises(CheckpointError, match="out: cannot be written: Read-only file system"):
        convert(huggingface, tmp_path / "out", progress=False)


def _refuse(*_):
    raise OSError(30, os.strerror(30))


def test_a_second_run_is_refused_while_the_first_lives_and_not_after_its_death(huggingface, tmp_path):
    destination = tmp_path / "out"
    code = (
        "import sys, time; from checkpoints import convert as conversion\n"
        "def wait(*_):\n    print('writing', flush=True); time.sleep(60)\n"
        "conversion.save_group = wait\n"
        "conversion.convert(*sys.argv[1:], progress=False)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, huggingface, destination],
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout.readline() == "writing\n"
        with pytest.raises(CheckpointError, match="out: another process is converting into it"):
            convert(huggingface, destination, progress=False)
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    convert(huggingface, destination, progress=False)
    assert open_checkpoint(destination).config == SMALL
    assert not (destination / "conversion.lock").exists()


def test_a_part_that_lost_files_is_converted_again(converted, huggingface, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(converted, folder)
    os.replace(folder / "checkpoint.json", folder / "conversion.json")
    (folder / "layers.1" / "layers.1.attention.sinks" / "0").unlink()
    (folder / "layers.2" / "layers.2.attention.sinks" / ".zarray").write_text("{")
    before = (folder / "layers.0" / "layers.0.attention.sinks" / "0").stat().st_mtime_ns
    convert(huggingface, folder, progress=False)
    assert open_checkpoint(folder).config == SMALL
    assert (folder / "layers.0" / "layers.0.attention.sinks" / "0").stat().st_mtime_ns == before


def test_layers_and_parameters_that_are_missing_or_unexpected_are_named(converted, tmp_path):
    folder = tmp_path / "bad"
    shutil.copytree(converted, folder)
    shutil.rmtree(folder / "layers.0")
    shutil.copytree(folder / "layers.1", folder / "layers.7")
    shutil.copytree(folder / "embedding" / "embedding.weight", folder / "embedding" / "embedding.bias")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    message = str(error.value)
    assert "1 missing of 5 parts: layers.0;" in message
    assert "2 unexpected of 5 parts: layers.7; embedding/embedding.bias" in message


def test_fewer_layers_than_there_are_is_no_checkpoint(converted, tmp_path):
    folder = tmp_path / "bad"
    shutil.copytree(converted, folder)
    description = json.loads((folder / "checkpoint.json").read_text())
    description["config"]["num_layers"] = 2
    (folder / "checkpoint.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"1 unexpected of 4 parts: layers\.2"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout_version": "1"}, 'layout_version is "1": this version reads 1'),
        ({"config": None}, "config is null: it must be an object"),
        ({"config": {}}, "config lacks or should not have num_layers"),
        ({"config.surprise": 7}, "config lacks or should not have surprise"),
        ({"config.num_layers": 10**9}, "num_layers is 1000000000: it must be a whole number from 1 to 1,024"),
        ({"config.rope_theta": "x"}, 'rope_theta is "x": it must be a number'),
        ({"source": 7}, "source is 7: it must be a path"),
        ({"source_files": "x"}, 'source_files is "x": it must be an object'),
        ({"eos_token_ids": "x"}, 'eos_token_ids is "x": it must be a list of tokens'),
    ],
)
def test_a_wrong_description_is_refused_in_one_line(converted, tmp_path, change, message):
    fields = json.loads((converted / "checkpoint.json").read_text())
    for name, value in change.items():
        place = fields["config"] if name.startswith("config.") else fields
        place[name.removeprefix("config.")] = value
    (tmp_path / "checkpoint.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=message) as error:
        open_checkpoint(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "checkpoint.json"))


def test_the_tokenizer_and_the_end_token_come_along(huggingface, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(huggingface, source)
    (source / "tokenizer.json").write_text("{}")
    fields = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(fields | {"eos_token_id": [7, 9]}))
    convert(source, tmp_path / "out", progress=False)
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.tokenizer.read_text() == "{}" and checkpoint.eos_token_ids == (7, 9)


def test_a_finished_folder_that_cannot_be_written_is_still_finished(huggingface, converted, monkeypatch):
    monkeypatch.setattr(conversion, "_only_writer", _refuse)
    convert(huggingface, converted, progress=False)


@pytest.mark.parametrize(("damage", "code"), [(None, 1), ("layers.0", 1), ("checkpoint.json", 2)])
def test_inspect_says_by_its_exit_code_whether_a_checkpoint_can_run(
    converted, tmp_path, capsys, damage, code
):
    from gptoss_jax.cli import main

    folder = tmp_path / "x"
    shutil.copytree(converted, folder)
    if damage == "layers.0":
        shutil.rmtree(folder / damage)
    elif damage:
        (folder / damage).write_text("{")
    assert main(["inspect", str(folder)]) == code
    if code == 1:  # whole, it lacks rows for the vocabulary that it would speak
        assert ("NOT complete" if damage else "NOT usable") in capsys.readouterr().out
    assert main(["inspect", "tiny"]) == 0
