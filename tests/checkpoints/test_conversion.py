"""Conversion: the same weights again, resumable, and refused where it would destroy or mix something."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from checkpoints import CheckpointError, open_checkpoint
from checkpoints.convert import convert
from checkpoints.describe import describe
from checkpoints.random import write_random
from tests.checkpoints.small_model import SMALL

REPOSITORY = Path(__file__).resolve().parents[2]


def loaded(path, **options):
    return {name: np.asarray(array) for name, array in open_checkpoint(path).load(**options).items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.fixture(scope="module")
def converted(huggingface, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    convert(huggingface, folder, progress=False)
    return folder


def test_a_converted_checkpoint_is_the_same_model(converted, huggingface):
    checkpoint = open_checkpoint(converted)
    assert (checkpoint.layout, checkpoint.config) == ("orbax", SMALL)
    assert_same(loaded(converted), loaded(huggingface))
    assert_same(loaded(converted, dtype=np.float32), loaded(huggingface, dtype=np.float32))


def test_the_original_layout_converts_to_the_same_files(converted, original, tmp_path):
    convert(original, tmp_path / "out", progress=False)
    chunks = [path.relative_to(converted) for path in converted.rglob("*") if path.name[0].isdigit()]
    assert len(chunks) > 60
    for chunk in chunks:
        assert (converted / chunk).read_bytes() == (tmp_path / "out" / chunk).read_bytes()


def test_orbax_itself_restores_what_conversion_wrote(converted, huggingface):
    expected = loaded(huggingface)
    restored = {}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for part in ("embedding", "layers.0", "layers.1", "layers.2", "unembedding"):
            restored |= checkpointer.restore(converted / part)
    assert_same({name: np.asarray(array) for name, array in restored.items()}, expected)


def test_packed_weights_are_stored_by_expert(converted):
    folder = converted / "layers.1" / "layers.1.moe.experts.down.blocks"
    chunks = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert chunks == [f"{expert}.0.0" for expert in range(SMALL.num_experts)]
    assert {(folder / chunk).stat().st_size for chunk in chunks} == {96 * 32}


def test_converting_again_changes_nothing(converted, huggingface):
    before = {path: path.stat().st_mtime_ns for path in converted.rglob("*")}
    convert(huggingface, converted, progress=False)
    assert {path: path.stat().st_mtime_ns for path in converted.rglob("*")} == before


def test_a_conversion_killed_midway_continues_and_redoes_nothing(tmp_path):
    source, destination = tmp_path / "source", tmp_path / "out"
    config = dataclasses.replace(SMALL, num_layers=12)
    write_random(source, config, 7)
    code = "import sys; from checkpoints.convert import convert; convert(*sys.argv[1:])"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(destination)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    while child.poll() is None and not (destination / "layers.3").exists():
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    said = child.communicate()[1]
    assert child.returncode == -signal.SIGKILL, said
    with pytest.raises(CheckpointError, match=r"unfinished conversion, \d+ of 14 parts: run convert again"):
        open_checkpoint(destination)
    (destination / "layers.11.orbax-checkpoint-tmp" / "half").mkdir(parents=True)  # what a kill can leave
    finished = {
        path: path.stat().st_mtime_ns
        for part in ("embedding", "layers.2")
        for path in (destination / part).rglob("*")
    }
    convert(source, destination, progress=False)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert not list(destination.glob("*tmp*"))
    assert_same(loaded(destination), loaded(source))


def test_the_vocabulary_comes_along(huggingface, tmp_path):
    shutil.copytree(huggingface, tmp_path / "source")
    (tmp_path / "source" / "vocabulary.tiktoken").write_text("IQ== 0\n")
    convert(tmp_path / "source", tmp_path / "out", progress=False)
    assert open_checkpoint(tmp_path / "out").vocabulary.read_text() == "IQ== 0\n"


def test_a_destination_that_holds_something_else_is_refused(converted, original, huggingface, tmp_path):
    with pytest.raises(CheckpointError, match="holds a conversion of another checkpoint"):
        convert(original, converted, progress=False)
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="not empty"):
        convert(huggingface, tmp_path, progress=False)
    with pytest.raises(CheckpointError, match="not empty"):
        convert(huggingface, tmp_path / "thesis.tex", progress=False)
    with pytest.raises(CheckpointError, match="already converted"):
        convert(converted, tmp_path / "out", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_source_that_changed_midway_is_not_mixed_in(huggingface, tmp_path):
    source, destination = tmp_path / "source", tmp_path / "out"
    shutil.copytree(huggingface, source)
    convert(source, destination, progress=False)
    os.replace(destination / "checkpoint.json", destination / "conversion.json")
    shutil.rmtree(source)
    write_random(source, SMALL, 4, shard_bytes=100_000)
    with pytest.raises(CheckpointError, match="another checkpoint"):
        convert(source, destination, progress=False)


def test_another_layout_version_is_refused(converted, tmp_path):
    shutil.copytree(converted, tmp_path / "old")
    description = json.loads((tmp_path / "old" / "checkpoint.json").read_text())
    (tmp_path / "old" / "checkpoint.json").write_text(json.dumps(description | {"layout_version": 0}))
    with pytest.raises(CheckpointError, match=r"layout_version is 0: this version reads 1; convert .* again"):
        open_checkpoint(tmp_path / "old")


def test_everything_missing_from_a_converted_checkpoint_is_said_in_one_message(converted, tmp_path):
    folder = tmp_path / "bad"
    shutil.copytree(converted, folder)
    layer = folder / "layers.1"
    (layer / "layers.1.moe.experts.down.blocks" / "3.0.0").unlink()
    chunk = layer / "layers.1.attention.query.weight" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    shutil.rmtree(folder / "embedding" / "embedding.weight")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    message = str(error.value)
    assert "3 of 60 parameters cannot be read" in message and "\n" not in message
    assert "embedding.weight is missing" in message
    assert "layers.1.moe.experts.down.blocks lacks whole chunks 3.0.0" in message
    assert "layers.1.attention.query.weight lacks whole chunks 0.0" in message
    assert f"state       NOT complete: {message}" in str(describe(folder))
    assert not describe(folder).complete and describe(converted).complete


def test_a_description_names_what_there_is(converted, huggingface):
    for folder, layout in ((converted, "converted (Orbax)"), (huggingface, "Hugging Face (safetensors)")):
        lines = dict(line.split(maxsplit=1) for line in str(describe(folder)).splitlines())
        assert (lines["checkpoint"], lines["layout"]) == (str(folder), layout)
        assert lines["state"].startswith("complete")
        assert lines["experts"] == "5 a layer, 2 active, intermediate 64"
        assert lines["vocabulary"].startswith("o200k_harmony")
    assert len(describe(huggingface).rows) == len(describe(converted).rows) == 11


def test_the_progress_bar_counts_bytes_and_nothing_else_is_printed(huggingface, tmp_path, capfd):
    convert(huggingface, tmp_path / "out")
    captured = capfd.readouterr()
    assert captured.out == ""
    last = captured.err.split("\r")[-1]
    assert last.startswith("converting: 100%") and "571k/571k" in last
    assert "WARNING" not in captured.err
