"""One model on meshes of eight simulated devices, and over two processes, gives what it gives on one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpoints.config import ModelConfig
from checkpoints.random import write_random
from gptoss_jax.model import load_plain
from tests.engine.on_mesh import LENGTH, prompts
from tests.golden.running import full_pass

HERE = Path(__file__).resolve().parent
CONFIG = ModelConfig(
    num_layers=2,
    vocabulary_size=301,  # no mesh divides it
    hidden_size=96,
    intermediate_size=64,
    num_heads=16,
    num_kv_heads=8,
    head_size=16,
    num_experts=8,
    experts_per_token=3,
    sliding_window=16,
    yarn_original_length=64,
)
MESHES = [(8, 1, 1), (2, 2, 2), (1, 4, 2), (1, 1, 8)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint."""
    folder = tmp_path_factory.mktemp("mesh_model")
    write_random(folder, CONFIG, 7)
    return folder


def start(folder: Path, shape: tuple[int, ...], out: Path, devices: int, *process: int) -> subprocess.Popen:
    """The script `on_mesh.py` with that many devices in its process."""
    return subprocess.Popen(
        [sys.executable, HERE / "on_mesh.py", folder, *map(str, shape), out, *map(str, process)],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHONPATH": str(HERE.parents[1]),
        },
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: subprocess.Popen) -> None:
    """Waits for them; a failed one's words are the error."""
    said = [process.communicate(timeout=600)[1] for process in processes]
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 0, text


@pytest.fixture(scope="session")
def on_one_device(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What an engine on a single device gives, and the plain model's logits."""
    out = tmp_path_factory.mktemp("one_device") / "out.npz"
    finish(start(folder, (1, 1, 1), out, 1))
    tokens = prompts(CONFIG.vocabulary_size)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (len(tokens), 1))
    return dict(np.load(out)) | {"logits": full_pass(load_plain(folder), tokens, positions)}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same tokens, greedy and sampled; logits and log-probabilities within float32."""
    assert actual.keys() == expected.keys()
    assert len(expected) > 14
    for name, values in expected.items():
        if name == "compiled":
            continue
        if name == "logits" or name.endswith("/logprobs"):
            scale = np.abs(values).max(initial=0)
            np.testing.assert_allclose(actual[name], values, rtol=0, atol=1e-5 * scale, err_msg=name)
            if name == "logits":
                assert np.argmax(actual[name], -1).tolist() == np.argmax(values, -1).tolist()
        else:
            assert actual[name].tolist() == values.tolist(), name


@pytest.mark.slow
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_a_mesh_gives_what_one_device_gives(
    folder: Path, on_one_device: dict[str, np.ndarray], tmp_path: Path, shape: tuple[int, ...]
) -> None:
    out = tmp_path / "out.npz"
    finish(start(folder, shape, out, 8))
    assert_same(dict(np.load(out)), on_one_device)


@pytest.mark.slow
def test_two_processes_of_a_mesh_give_what_one_device_gives(
    folder: Path, on_one_device: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "out.npz"
    finish(*(start(folder, (2, 2, 2), out, 4, process, 2, port) for process in range(2)))
    assert_same({**np.load(out), "logits": on_one_device["logits"]}, on_one_device)
