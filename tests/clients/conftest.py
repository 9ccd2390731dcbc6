from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding
from tests.clients.installed import Node, install

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture(scope="session")
def node_modules(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed JavaScript clients, kept in pytest's cache where there is one."""
    cache = getattr(pytestconfig, "cache", None)
    return install(cache.mkdir("clients") if cache else tmp_path_factory.getbasetemp().parent)


@pytest.fixture
def node(node_modules: Path, tmp_path: Path) -> Node:
    return Node(node_modules, tmp_path)


@pytest.fixture(scope="session")
def served_url() -> Iterator[str]:
    """The address of `gptoss-jax serve` on the embedded checkpoint."""
    command = ["-m", "gptoss_jax", "serve", "--port", "0", "--slots", "4", "--date", "2026-01-01"]
    command += ["--temperature", "0"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.stderr is not None
    try:
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r" on (http://127\.0\.0\.1:\d+)/v1$", line.rstrip()):
                break
        else:
            pytest.fail("".join(said))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)
