"""The command line: what it says about itself, and how it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gptoss_jax import cli
from gptoss_jax.commands import options
from gptoss_jax.engine.options import KV_DTYPES
from gptoss_jax.sharding import AXES

COMMANDS = ("batch", "generate", "convert", "inspect", "eval", "harmony", "bench")


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_does_not_load_jax(arguments):
    program = (
        "import sys; from gptoss_jax import cli\n"
        f"try: cli.main({arguments!r})\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'jax', 'flax', 'numpy', 'pydantic', 'tiktoken'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: gptoss-jax" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["dance"], "dance"),
        (["batch", "in.jsonl"], "--output"),
        (["batch", "in.jsonl", "--output", "o", "--temperature", "9"], "a number from 0 to 2, not '9'"),
        (["batch", "in.jsonl", "--output", "o", "--temperature", "nan"], "'nan'"),
        (["batch", "in.jsonl", "--output", "o", "--top-p", "0"], "above 0"),
        (["batch", "in.jsonl", "--output", "o", "--slots", "0"], "a whole number from 1, not '0'"),
        (["batch", "in.jsonl", "--output", "o", "--max-tokens", "many"], "'many'"),
        (["batch", "in.jsonl", "--output", "o", "--date", "28.06.2025"], "YYYY-MM-DD, not '28.06.2025'"),
        (["batch", "in.jsonl", "--output", "o", "--effort", "huge"], "huge"),
        (["generate", "hi", "--dtype", "float16"], "float16"),
        (["generate", "hi", "--kv-dtype", "int4"], "int4"),
        (["generate", "hi", "--mesh", "tensor"], "like data=1,expert=2,tensor=4, not 'tensor'"),
        (["generate", "hi", "--mesh", "tensor=0"], "'tensor=0'"),
        (["generate", "hi", "--mesh", "tensor=2,tensor=2"], "'tensor=2,tensor=2'"),
        (["generate", "hi", "--mesh", "model=2"], "'model=2'"),
        (["generate", "hi", "--memory", "0"], "a number of GiB above 0, not '0'"),
        (["generate", "hi", "--distributed", "here"], "auto or COORDINATOR:PORT,COUNT,INDEX, not 'here'"),
        (["generate", "hi", "--distributed", "host:1,2,2"], "'host:1,2,2'"),
        (["eval", "chess"], "chess"),
        (["harmony", "sing"], "sing"),
        (["bench", "chess"], "chess"),
        (["bench", "harmony", "--rounds", "0"], "a whole number from 1, not '0'"),
    ],
)
def test_wrong_use_is_code_2_and_names_the_value(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["batch", "missing.jsonl", "--output", "out.jsonl"], "missing.jsonl"),
        (["inspect", "missing"], "missing"),
        (["convert", "missing", "there"], "missing"),
        (["generate", "hi", "--checkpoint", "missing"], "missing"),
        (["generate", "  "], "the text is empty"),
        (["eval", "tiny", "--checkpoint", "missing"], "missing"),
        (["generate", "hi", "--mesh", "data=1000"], "has 1000 devices"),
        (["generate", "hi", "--memory", "0.001"], "may use 0.00"),
        (
            ["generate", "hi", "--kv-dtype", "float32", "--max-length", "64", "--mesh", "tensor=99"],
            "tensor 99",
        ),
    ],
)
def test_wrong_input_is_code_2_and_one_line_that_names_it(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("gptoss-jax: ")
    assert words in line


def test_the_options_name_what_the_engine_has():
    assert options.KV_DTYPES == KV_DTYPES
    assert options.AXES == AXES


def test_a_wrong_setting_of_the_kernels_is_code_2_and_one_line(capsys, monkeypatch):
    monkeypatch.setenv("GPTOSS_JAX_KERNELS", "fast")
    assert cli.main(["generate", "hello"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gptoss-jax: GPTOSS_JAX_KERNELS is 'fast': it must be one of auto, ")
