"""openai-harmony's own Python tests, run against this library through a one-line shim.

Their files are not kept here: `OPENAI_HARMONY_SOURCE` names a checkout of that library at 0.0.8.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import harmony

SOURCE = os.environ.get("OPENAI_HARMONY_SOURCE", "")


def test_the_shim_is_one_line_and_is_this_library() -> None:
    shim = Path(__file__).parent / "shim"
    assert len((shim / "openai_harmony" / "__init__.py").read_text().splitlines()) == 1
    script = "import openai_harmony, harmony; assert openai_harmony.Message is harmony.Message"
    path = os.pathsep.join([str(shim), str(Path(harmony.__file__).parents[1])])
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, check=True)


@pytest.mark.skipif(not SOURCE, reason="OPENAI_HARMONY_SOURCE does not name a checkout of openai-harmony")
def test_the_known_librarys_own_tests_pass() -> None:
    path = os.pathsep.join([str(Path(__file__).parent / "shim"), str(Path(harmony.__file__).parents[1])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{SOURCE}/tests"]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=SOURCE, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert "42 passed" in result.stdout
