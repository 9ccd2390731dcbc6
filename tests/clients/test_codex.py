"""The Codex CLI, configured as in `examples/`: sessions of two turns, with a shell call in between."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gptoss_jax.engine.request import Request
from harmony import HarmonyEncoding
from tests.clients.conftest import ROOT
from tests.clients.installed import Node
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples" / "codex" / "config.toml"
ADDRESS = "http://127.0.0.1:8000"
# Nothing but the model is asked, and few words of the CLI's own fill the small model's context.
SETTINGS = """
check_for_update_on_startup = false
web_search = "disabled"
model_instructions_file = "instructions.md"
include_environment_context = false
include_permissions_instructions = false
[analytics]
enabled = false
[skills]
include_instructions = false
[features]
goals = false
"""
OPTIONS = ("--strict-config", "--skip-git-repo-check")
NO_SHELL = ("--disable", "shell_tool", "--disable", "unified_exec")


class Codex:
    """The CLI in a home of its own."""

    def __init__(self, node: Node, url: str) -> None:
        self.node = node
        self.home, self.work = node.folder / "home", node.folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        (self.home / "instructions.md").write_text("Be brief.\n", encoding="utf-8")
        example = EXAMPLE.read_text(encoding="utf-8")
        assert ADDRESS in example
        first, table, rest = example.replace(ADDRESS, url).partition("[model_providers")
        top, tables, more = SETTINGS.partition("[")
        text = f"{first}{top}{table}{rest}{tables}{more}"
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def __call__(self, *arguments: str) -> list[dict[str, Any]]:
        """The events of a turn."""
        command = [str(self.node.bin / "codex"), "exec", *arguments, "--json", *OPTIONS]
        home = str(self.home)
        said = self.node.command(command, cwd=self.work, CODEX_HOME=home, HOME=home)
        return [json.loads(line) for line in said.splitlines()]


def items_of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in items if item["type"] == kind]


def test_a_session_of_two_turns_on_the_embedded_model(node: Node, served_url: str) -> None:
    codex = Codex(node, served_url)
    first = codex("--sandbox", "read-only", *NO_SHELL, "What is 2 + 3?")
    second = codex("resume", "--last", *NO_SHELL, "What is 4 + 4?")
    for events, answer in ((first, "2 + 3 = 5."), (second, "4 + 4 = 8.")):
        assert [item["text"] for item in items_of(events, "agent_message")] == [answer]
        assert events[-1]["type"] == "turn.completed"
        assert events[-1]["usage"]["reasoning_output_tokens"] > 0


def test_a_shell_call_is_run_and_the_next_turn_goes_on_from_it(node: Node, encoding: HarmonyEncoding) -> None:
    prompts: list[str] = []

    def script(request: Request, sample: int) -> Script:
        prompt = encoding.decode(request.prompt)
        prompts.append(prompt)
        if "<|start|>functions.exec_command to=assistant" in prompt:
            channel, text = "<|channel|>final", f"Answer {len(prompts)}.<|return|>"
        else:
            channel = "<|channel|>commentary to=functions.exec_command <|constrain|>json"
            text = json.dumps({"cmd": "echo $((6*7)) > made.txt; cat made.txt"}) + "<|call|>"
        thought = f"<|channel|>analysis<|message|>Thought {len(prompts)}.<|end|><|start|>assistant"
        return Script(encoding.encode(f"{thought}{channel}<|message|>{text}", allowed_special="all"))

    with serving(FakeEngine(script, chunk=5, max_length=100_000), encoding) as url:
        codex = Codex(node, url)
        # The one command that comes is that of the script: no sandbox of the machine's is needed.
        first = codex("--sandbox", "danger-full-access", "Make a file.")
        second = codex("resume", "--last", "And now?")
    (command,) = items_of(first, "command_execution")
    assert (command["exit_code"], command["status"]) == (0, "completed")
    assert (codex.work / "made.txt").read_text() == "42\n"
    assert [item["text"] for item in items_of(first, "agent_message")] == ["Answer 2."]
    assert [item["text"] for item in items_of(second, "agent_message")] == ["Answer 3."]
    asked, answered, resumed = prompts
    assert "type exec_command = " in asked
    # The call, its thought and its result come back in the same turn; the next turn leaves the thought out.
    assert answered.startswith(asked)
    assert "Thought 1." in answered
    assert "Output:\n42\n" in answered
    assert resumed.startswith(asked.removesuffix("<|start|>assistant"))
    assert "Output:\n42\n" in resumed
    assert "Answer 2." in resumed
    assert "Thought" not in resumed
    assert resumed.index("And now?") > resumed.index("Answer 2.")
