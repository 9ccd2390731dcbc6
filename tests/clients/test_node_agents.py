"""The Agents SDK for Node in a tool loop of five turns: it passes the reasoning back, and no call is lost."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.engine.request import Request
from gptoss_jax.serve.sealing import Sealer
from harmony import HarmonyEncoding
from tests.clients.installed import Node
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "agents.mjs"
TURNS = 5
SEALED = ["reasoning.encrypted_content"]
DOUBLE = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def said_in(prompt: str) -> str:
    """A call for each turn; at last an answer that tells which thoughts of earlier turns the prompt has."""
    turn = prompt.count("<|start|>functions.double to=assistant")
    if turn < TURNS:
        return (
            f"<|channel|>analysis<|message|>Thought {turn}.<|end|><|start|>assistant"
            f'<|channel|>commentary to=functions.double <|constrain|>json<|message|>{{"a":{turn}}}<|call|>'
        )
    kept = [number for number in range(TURNS) if f"Thought {number}." in prompt]
    thought = "<|channel|>analysis<|message|>Done.<|end|><|start|>assistant"
    return f"{thought}<|channel|>final<|message|>{kept}<|return|>"


def runs_of(url: str, node: Node, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What came of runs that double numbers."""
    whole = [{"tool": "double", "input": "Go.", "instructions": "Double.", **run} for run in runs]
    given = {"tools": {"double": {"parameters": DOUBLE, "output": None}}, "runs": whole}
    came: list[dict[str, Any]] = node.run(PROGRAM, url, given)
    assert len(came) == len(runs)
    return came


@pytest.mark.parametrize("hidden", [False, True])
def test_five_turns_lose_no_call_and_keep_the_thoughts_that_the_client_passes_back(
    node: Node, encoding: HarmonyEncoding, hidden: bool
) -> None:
    def script(request: Request, sample: int) -> Script:
        return Script(encoding.encode(said_in(encoding.decode(request.prompt)), allowed_special="all"))

    runs = [
        {"api": api, "stream": stream, "include": include}
        for (api, include), stream in itertools.product(
            [("responses", None), ("responses", SEALED), ("chat", None)], [False, True]
        )
    ]
    engine = FakeEngine(script, chunk=4, max_length=4000)
    with serving(engine, encoding, sealer=Sealer(None), hide_reasoning=hidden) as url:
        came = runs_of(url, node, runs)
    calls = [["double", json.dumps({"a": turn}, separators=(",", ":"))] for turn in range(TURNS)]
    for run, result in zip(runs, came, strict=True):
        assert "error" not in result, (run, result)
        assert result["calls"] == calls, run
        assert result["executed"] == [{"a": turn} for turn in range(TURNS)], run
        kept = [] if hidden and run["include"] is None else list(range(TURNS))
        assert result["final"] == str(kept), run
