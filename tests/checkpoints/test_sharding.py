"""Loading onto many devices, and that a process reads only what its devices hold."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from checkpoints import open_checkpoint, placing
from checkpoints.convert import convert
from checkpoints.converted import arrays
from checkpoints.parameters import UINT8, ParameterSpec
from checkpoints.placing import place
from tests.checkpoints.small_model import SMALL

HERE = Path(__file__).resolve().parent


def test_eight_devices_hold_what_one_does_from_every_layout(huggingface, original, tmp_path):
    convert(original, tmp_path / "converted", progress=False)
    result = subprocess.run(
        [sys.executable, str(HERE / "eight_devices.py"), huggingface, original, tmp_path / "converted"],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "PYTHONPATH": str(HERE.parents[1]),
        },
        capture_output=True,
        text=True,
    )
    assert result.stdout == "ok\n", result.stderr


def test_only_the_chunks_that_a_shard_touches_are_opened(huggingface, tmp_path):
    convert(huggingface, tmp_path, progress=False)
    array = arrays(tmp_path, SMALL)["layers.0.moe.experts.gate_up.blocks"]
    for expert in (0, 1, 4):
        (array.folder / f"{expert}.0.0.0").unlink()
    out = np.empty((2, 1, 64, 20), np.uint8)
    array.read((slice(2, 4), slice(1, 2), slice(0, 64), slice(8, 28)), out)
    for expert in (2, 3):
        chunk = np.fromfile(array.folder / f"{expert}.0.0.0", np.uint8).reshape(2, 64, 48)
        np.testing.assert_array_equal(out[expert - 2, 0], chunk[1, :, 8:28])


def test_a_replicated_parameter_is_read_once():
    indices = []

    def read(index, out):
        indices.append(index)
        out[...] = 7

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    array = place(ParameterSpec((3, 64), UINT8), read, sharding, np.float32)
    assert indices == [(slice(0, 3), slice(0, 64))]
    assert array.dtype == np.uint8 and (np.asarray(array) == 7).all()


def test_where_memory_is_short_the_same_arrays_are_loaded(huggingface, tmp_path, monkeypatch):
    convert(huggingface, tmp_path, progress=False)
    forgotten = []
    monkeypatch.setattr(placing, "_physical_memory", lambda: 1_000_000)  # the weights are 571 kB
    monkeypatch.setattr(placing, "_READ_BYTES", 1000)
    monkeypatch.setattr(placing.os, "posix_fadvise", lambda *call: forgotten.append(call[2]), raising=False)
    monkeypatch.setattr(placing.os, "POSIX_FADV_DONTNEED", 4, raising=False)
    short = {folder: open_checkpoint(folder).load() for folder in (huggingface, tmp_path)}
    assert sum(forgotten) > 571_000
    monkeypatch.undo()
    for name, array in open_checkpoint(huggingface).load().items():
        for arrays_of_folder in short.values():
            np.testing.assert_array_equal(np.asarray(arrays_of_folder[name]), np.asarray(array))
