"""The command line: what it says about itself, and how it refuses."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from checkpoints.describe import CheckpointDescription
from gptoss_jax import cli
from gptoss_jax.commands import options
from gptoss_jax.engine.options import KV_DTYPES
from gptoss_jax.sizes import AXES

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "batch",
    "merge",
    "serve",
    "chat",
    "generate",
    "convert",
    "inspect",
    "verify",
    "eval",
    "harmony",
    "bench",
)


def command_line(*arguments: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    """`python -m gptoss_jax` with arguments, and its environment."""
    command = [sys.executable, "-m", "gptoss_jax", *arguments]
    return command, {**os.environ, "PYTHONPATH": str(ROOT), **environment}


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from parsers(command)


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


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 300])
def test_the_help_of_every_command_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    found = list(parsers(cli.new_parser()))
    assert len(found) == 1 + len(COMMANDS) + 4 + 3 + 5, "those of harmony, bench and eval"
    for parser in found:
        widest = max(parser.format_help().splitlines(), key=len)
        assert len(widest) <= min(columns, 100), (parser.prog, widest)
        if columns >= 80:
            assert parser.format_help().splitlines()[0].startswith(f"usage: {parser.prog} [options]")


def test_the_usage_names_what_must_be_given(capsys):
    with pytest.raises(SystemExit):
        cli.main(["batch", "in.jsonl"])
    usage, error = capsys.readouterr().err.splitlines()
    assert usage == "usage: gptoss-jax batch [options] IN.jsonl --output OUT.jsonl"
    assert error == "gptoss-jax batch: error: the following arguments are required: --output"


def test_the_version_is_that_of_the_installed_package(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(
        f"gptoss-jax {metadata.version('gptoss-jax')} (jax {metadata.version('jax')}, Python 3."
    )


def test_the_package_is_a_command():
    command, environment = command_line("--version")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("gptoss-jax ")


@pytest.mark.parametrize("arguments", [["--version"], ["inspect", "tiny"]])
def test_a_full_disk_behind_standard_output_is_one_line(arguments):
    command, environment = command_line(*arguments)
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "gptoss-jax: No space left on device\n")


def test_every_exception_that_is_told_in_one_line_exists():
    for module, name in cli._INPUT_ERRORS.items():
        assert issubclass(getattr(importlib.import_module(module), name), ValueError)


@pytest.mark.parametrize("platform", ["cuda", "pigeon"])
def test_a_platform_that_is_not_there_is_code_2_and_one_line(platform):
    command, environment = command_line("generate", "hi", JAX_PLATFORMS=platform)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gptoss-jax: JAX_PLATFORMS is '{platform}': jax finds no such device here")


@pytest.mark.parametrize(
    ("given", "shown"), [([], []), (["-v"], ["started"]), (["-vv"], ["started", "slot 3"])]
)
@pytest.mark.parametrize("place", ["before", "after"])
def test_the_log_is_shown_only_to_those_who_ask(given, shown, place, capsys, monkeypatch):
    def describe(_: str) -> CheckpointDescription:
        logging.getLogger("gptoss_jax.engine").info("started")
        logging.getLogger("checkpoints.opening").debug("slot 3")
        return CheckpointDescription({"state": "described"}, complete=True)

    monkeypatch.setattr("checkpoints.describe.describe", describe)
    command = ["inspect", "tiny"]
    assert cli.main([*given, *command] if place == "before" else [*command, *given]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == ["state", "described"]
    assert [line.rpartition(": ")[2] for line in printed.err.splitlines()] == shown
    logging.getLogger("gptoss_jax").info("nobody listens any more")
    assert capsys.readouterr().err == ""


def test_completion_scripts_name_commands_options_and_files(capsys):
    pytest.importorskip("shtab")
    for shell in ("bash", "zsh", "tcsh"):
        with pytest.raises(SystemExit) as stop:
            cli.main(["--print-completion", shell])
        assert stop.value.code == 0
        script = capsys.readouterr().out
        assert all(word in script for word in (*COMMANDS, "kv-dtype", "float8_e5m2"))
    with pytest.raises(SystemExit):
        cli.main(["--print-completion", "bash"])
    script = capsys.readouterr().out
    assert "_shtab_gptoss_jax_batch___output_COMPGEN=_shtab_compgen_files" in script
    assert "_shtab_gptoss_jax_batch___checkpoint_COMPGEN=_shtab_compgen_dirs" in script


def test_completion_without_its_package_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["--print-completion", "bash"])
    assert stop.value.code == 2
    assert "pip install 'gptoss-jax[completion]'" in capsys.readouterr().err
