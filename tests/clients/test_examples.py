"""The examples of clients, as a user runs them, against the embedded model; Codex has tests of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gptoss_jax.llm.loading import load_engine
from tests import tiny_engine
from tests.clients.conftest import ROOT
from tests.clients.installed import Node, environment
from tests.serve.served import serving

EXAMPLES = ROOT / "examples"
WEATHER = "answer: It is 21 degrees and sunny in Oslo."
AGENT = ["get_weather was called for Oslo", WEATHER] * 2


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address that examples are told."""
    engine, encoding, _ = load_engine("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS)
    with serving(engine, encoding) as url:
        yield f"{url}/v1"


def lines_of(command: list[str], url: str) -> list[str]:
    """What an example writes; it must end without an error."""
    done = subprocess.run(
        command,
        env={**environment(), "GPTOSS_JAX_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_answers(lines: list[str]) -> None:
    """What the examples of both SDKs have in common."""
    assert lines[0].startswith("reasoning: ")
    assert lines[1] == "answer: 2 + 3 = 5."
    assert lines[2].startswith("4 + 4 = 8. → ")
    assert lines[-2:] == ["answer: 2 + 3 = 5.", "4 + 4 = 8."]


@pytest.mark.slow
def test_the_python_sdk(url: str) -> None:
    lines = lines_of([sys.executable, str(EXAMPLES / "openai_sdk.py")], url)
    check_answers(lines)
    assert lines[3:5] == ['call: get_weather {"city":"Oslo"}', WEATHER]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(url: str) -> None:
    lines = [line for line in lines_of([str(EXAMPLES / "curl.sh")], url) if line]
    assert json.loads(lines[0])["data"][0]["id"] == "tiny"
    assert json.loads(lines[1])["output"][-1]["content"][0]["text"] == "2 + 3 = 5."
    assert "event: response.completed" in lines
    assert lines.count("data: [DONE]") == 1
    wholes = [json.loads(line) for line in lines if line.startswith('{"id":"chatcmpl')]
    messages = [whole["choices"][0]["message"] for whole in wholes]
    assert messages[0]["content"] == "2 + 3 = 5."
    assert messages[0]["reasoning"]
    assert json.loads(messages[1]["content"])["answer"] in (5, 6)
    assert "reasoning" not in messages[1]


@pytest.mark.slow
def test_the_agents_sdk(url: str) -> None:
    assert lines_of([sys.executable, str(EXAMPLES / "agents_sdk.py")], url) == AGENT


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openai_sdk.mjs", "agents_sdk.mjs"])
def test_node(node: Node, url: str, name: str) -> None:
    shutil.copy(EXAMPLES / name, node.folder)
    lines = node.command(["node", name], GPTOSS_JAX_URL=url).splitlines()
    if name == "agents_sdk.mjs":
        assert lines == AGENT
    else:
        check_answers(lines)


def test_the_list_names_every_example() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) >= 10
    for path in files:
        if "__pycache__" not in path.parts:
            assert f"`{path.relative_to(EXAMPLES).as_posix()}`" in listed
    assert os.access(EXAMPLES / "curl.sh", os.X_OK)
