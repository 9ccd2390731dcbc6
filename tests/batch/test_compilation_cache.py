"""Compiled programs are kept where the user says, and where they cannot be, nothing is said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from gptoss_jax.compilation_cache import VARIABLE, keep_compiled

ROOT = Path(__file__).parents[2]
NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No folder is set, and $HOME is one of the test's own."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_the_folder_is_in_the_users_cache_unless_it_is_named(monkeypatch, tmp_path):
    assert keep_compiled() == tmp_path / ".cache" / "gptoss-jax"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / ".cache" / "gptoss-jax")
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "deep" / "folder"))
    assert keep_compiled() == tmp_path / "deep" / "folder"
    assert (tmp_path / "deep" / "folder").is_dir()


def test_an_empty_name_switches_it_off(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "")
    assert keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert not (tmp_path / ".cache").exists()


def test_what_jax_was_told_stays(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "ours"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    assert keep_compiled() == tmp_path / "theirs"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_a_folder_that_cannot_be_made_is_done_without(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "folder"))
    assert keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert capsys.readouterr() == ("", "")


PROGRAM = """
import jax, jax.numpy as jnp
from gptoss_jax.compilation_cache import keep_compiled

jax.jit(jnp.sin)(1.0)  # jax has looked for a cache by now
keep_compiled()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("/cache_hits")))
jax.jit(lambda x: jnp.cos(x) + 3)(1.0)
print(sum(hits))
"""


def test_a_second_process_takes_what_the_first_compiled_and_says_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(tmp_path / "kept")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        found.append(int(done.stdout))
    assert found[0] == 0 < found[1]
