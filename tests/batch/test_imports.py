"""What a command imports before its input is checked: no jax, and nothing that takes as long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny_engine

ROOT = Path(__file__).parents[2]
HEAVY = {"jax", "jaxlib", "flax", "orbax", "tensorstore", "optax", "llguidance", "tiktoken"}

PROGRAM = """
import json, sys
from gptoss_jax import cli
from gptoss_jax.commands import batch, generate

def load_engine(*_, **__):
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
    raise KeyboardInterrupt

batch.load_engine = generate.load_engine = load_engine
sys.exit(cli.main(sys.argv[1:]))
"""


def imported(*arguments: str) -> tuple[int, set[str]]:
    """The exit code, and the packages that are imported when the model would be loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, set(json.loads(done.stdout))


def test_a_batch_is_checked_without_jax(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    code, packages = imported("batch", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"))
    assert code == 130
    assert {"gptoss_jax", "checkpoints", "numpy"} <= packages
    assert not HEAVY & packages


def test_generate_checks_what_it_is_given_without_jax(tmp_path):
    (tmp_path / "schema.json").write_text("{}")
    code, packages = imported("generate", "Hi", "--schema", str(tmp_path / "schema.json"))
    assert code == 130
    assert not HEAVY & packages


@pytest.mark.parametrize("module", ["gptoss_jax.batch", "gptoss_jax.engine.request", "checkpoints"])
def test_a_module_that_needs_no_jax_loads_none(module):
    program = f"import sys, {module}; print(*sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_a_cpu_loads_neither_pallas_nor_orbax_to_answer(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    arguments = ["batch", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    arguments += ["--max-tokens", "2", "--dtype", tiny_engine.DTYPE]
    for name, value in tiny_engine.OPTIONS.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    program = (
        "import sys; from gptoss_jax import cli\n"
        f"assert cli.main({arguments}) == 0\n"
        "names = ('jax.experimental.pallas', 'jax._src.pallas.mosaic.lowering', 'orbax')\n"
        "print(*(name for name in names if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == ""
