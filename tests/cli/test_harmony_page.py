"""`docs/harmony.md`: every snippet runs and prints what the page shows; every name and word is on it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import harmony
from harmony.chatml_losses import LOST_IN_CHATML, LOST_IN_HARMONY
from harmony.events import Problem
from harmony.messages import EFFORT_WORDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "harmony.md").read_text(encoding="utf-8")


class Block(NamedTuple):
    """A fenced block of the page."""

    line: int
    language: str
    text: str


def blocks() -> list[Block]:
    return [
        Block(PAGE[: found.start()].count("\n") + 1, found.group(1), found.group(2))
        for found in re.finditer(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    ]


def shell(line: str, folder: Path) -> str:
    """What a command line prints, errors included, where `gptoss-jax` is this checkout's."""
    command = folder / "bin" / "gptoss-jax"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gptoss_jax.cli "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode()


def sessions(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with its output."""
    return [
        (found.group(1), found.group(2))
        for found in re.finditer(r"^\$ ([^\n]*)\n(.*?)(?=^\$ |\Z)", text, re.DOTALL | re.MULTILINE)
    ]


def actual_outputs(folder: Path) -> list[tuple[Block, str]]:
    """Runs the whole page, from its top; gives each block that shows output with what was really printed."""
    names: dict[str, Any] = {}
    printed = ""
    shown = []
    for block in blocks():
        if block.language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(block.text, f"docs/harmony.md, line {block.line}", "exec"), names)
            printed = output.getvalue()
        elif block.language == "text":
            shown.append((block, printed))
        elif block.language == "console":
            real = ""
            for line, _ in sessions(block.text):
                text = shell(line, folder)
                real += f"$ {line}\n{text}" + ("" if text.endswith("\n") or not text else "\n")
            shown.append((block, real))
    return shown


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def test_every_snippet_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = actual_outputs(tmp_path)
    assert len(shown) > 12
    for block, real in shown:
        assert trimmed(block.text) == trimmed(real), f"docs/harmony.md, line {block.line}"


def words() -> set[str]:
    return {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w|<>]+", code)}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(harmony.__all__, id="public names"),
        pytest.param(get_args(Problem), id="diagnostics"),
        pytest.param(tuple(EFFORT_WORDS), id="effort words"),
        pytest.param(tuple(harmony.RenderConversationConfig.model_fields), id="rendering options"),
        pytest.param(tuple(harmony.Message.model_fields), id="fields of a message"),
    ],
)
def test_the_page_has_every(names: tuple[str, ...]) -> None:
    assert set(names) - words() == set()


def test_the_page_has_every_deliberate_difference_and_no_other() -> None:
    path = ROOT / "tests" / "harmony" / "test_differences.py"
    spec = importlib.util.spec_from_file_location("differences_on_the_page", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = PAGE.partition("| difference | here | why |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in table.split("\n")]
    assert [row[0] for row in rows] == list(module.DIFFERENCES)
    assert all(len(row) == 3 for row in rows)


@pytest.mark.parametrize(
    ("heading", "stated"),
    [("ChatML cannot carry:", LOST_IN_CHATML.values()), ("Harmony cannot carry:", LOST_IN_HARMONY)],
)
def test_the_page_has_every_stated_loss_and_no_other(heading: str, stated: Iterable[str]) -> None:
    bullets = PAGE.partition(f"\n{heading}\n\n- ")[2].partition("\n\n")[0].split("\n- ")
    assert [" ".join(bullet.split())[:-1] for bullet in bullets] == list(stated)


def test_links_within_the_page_lead_to_headings() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= anchors
    for target in re.findall(r"\]\(([^#)]+)\)", PAGE):
        assert (ROOT / "docs" / target).is_file()
