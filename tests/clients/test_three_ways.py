"""A conversation with the server gives the same prompts stored, replayed as items and as chat messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gptoss_jax.serve.store import ResponseStore
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

FUNCTIONS: list[dict[str, Any]] = [
    {"name": name, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    for name in ("f", "python", "a.b-c")
]
TEXTS = ("Go.", "", " \n", "é🙂", "<|end|>", "It is 5.", "a\n\nb")
ARGUMENTS = ('{"a": 1}', "{}", "", '{"a":"<|call|>"}', "no JSON")


class Conversation:
    """One conversation, held in three ways at the same time."""

    def __init__(self, url: str, engine: FakeEngine, says: dict[str, list[int]]) -> None:
        self.http = httpx.Client(base_url=f"{url}/v1", timeout=60)
        self.engine, self.says = engine, says
        self.messages: list[Any] = []
        self.items: list[Any] = []
        self.new_items: list[Any] = []
        self.previous: str | None = None

    def add(self, message: dict[str, Any], item: dict[str, Any]) -> None:
        """Adds what the client says."""
        self.messages.append(message)
        self.items.append(item)
        self.new_items.append(item)

    def answer(self, tokens: list[int]) -> list[tuple[str, str]]:
        """Asks in all three ways: the prompts must be the same. Gives the ids of calls, in chat and items."""
        self.says["now"] = tokens
        chat = self._post(
            "/chat/completions",
            messages=self.messages,
            tools=[{"type": "function", "function": function} for function in FUNCTIONS],
        )
        tools = [{"type": "function", **function} for function in FUNCTIONS]
        asked = self._prompt()
        replayed = self._post("/responses", input=self.items, tools=tools, store=False)
        assert self._prompt() == asked
        stored = self._post(
            "/responses", input=self.new_items, tools=tools, previous_response_id=self.previous
        )
        assert self._prompt() == asked
        message = chat["choices"][0]["message"]
        self.messages.append(message)
        self.items += replayed["output"]
        self.previous, self.new_items = stored["id"], []
        calls = [item for item in replayed["output"] if item["type"] == "function_call"]
        kept = [item for item in stored["output"] if item["type"] == "function_call"]
        self.stored_ids = {call["call_id"]: same["call_id"] for call, same in zip(calls, kept, strict=True)}
        chat_calls = message.get("tool_calls", [])
        return [(of_chat["id"], call["call_id"]) for of_chat, call in zip(chat_calls, calls, strict=True)]

    def result(self, ids: tuple[str, str], text: str) -> None:
        """Adds the result of a call."""
        self.messages.append({"role": "tool", "tool_call_id": ids[0], "content": text})
        self.items.append({"type": "function_call_output", "call_id": ids[1], "output": text})
        self.new_items.append({**self.items[-1], "call_id": self.stored_ids[ids[1]]})

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, (answer.text, body)
        whole: dict[str, Any] = answer.json()
        return whole

    def _prompt(self) -> list[int]:
        return list(self.engine.requests.values())[-1].prompt


def completion(chance: random.Random, encoding: HarmonyEncoding) -> list[int]:
    """A thought, a preamble, an answer or a call in one of the model's forms; some may be missing."""
    messages: list[tuple[str, str, str]] = []
    if chance.random() < 0.6:
        messages.append(("<|channel|>analysis<|message|>", chance.choice(TEXTS), "<|end|>"))
    if chance.random() < 0.5:
        messages.append(("<|channel|>final<|message|>", chance.choice(TEXTS), "<|return|>"))
    else:
        if chance.random() < 0.5:
            messages.append(("<|channel|>commentary<|message|>", "Let me see.", "<|end|>"))
        channel = chance.choice(["commentary", "commentary", "analysis"])
        recipient = f" to=functions.{chance.choice(FUNCTIONS)['name']}"
        kind = chance.choice([" <|constrain|>json", " json", ""])
        first = chance.random() < 0.5
        header = f"{recipient}<|channel|>{channel}" if first else f"<|channel|>{channel}{recipient}"
        end = chance.choice(["<|call|>", "<|call|>", "<|return|>"])
        messages.append((f"{header}{kind}<|message|>", chance.choice(ARGUMENTS), end))
    tokens: list[int] = []
    for header, text, end in messages:
        tokens += encoding.encode("<|start|>assistant" * bool(tokens) + header, allowed_special="all")
        tokens += encoding.encode(text, disallowed_special=()) + encoding.encode(end, allowed_special="all")
    return tokens


@pytest.fixture(scope="module")
def started(
    encoding: HarmonyEncoding, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, FakeEngine, dict[str, list[int]]]]:
    says: dict[str, list[int]] = {}
    engine = FakeEngine(lambda request, sample: Script(says["now"]), chunk=100, max_length=20_000)
    path: Path = tmp_path_factory.mktemp("store") / "store.sqlite"
    store = ResponseStore(path, max_bytes=1 << 26, max_age_seconds=3600)
    with serving(engine, encoding, store) as url:
        yield url, engine, says
    store.close()


def hold(number: int, started: Any, encoding: HarmonyEncoding) -> None:
    """A conversation of at most six turns."""
    chance = random.Random(number)
    conversation = Conversation(*started)
    role = chance.choice(["system", "developer", "user"])
    conversation.add({"role": role, "content": "Be brief."}, {"role": role, "content": "Be brief."})
    calls: list[tuple[str, str]] = []
    with conversation.http:
        for _ in range(chance.randint(2, 6)):
            for call in calls:
                conversation.result(call, chance.choice(TEXTS))
            if not calls or chance.random() < 0.2:
                text, said = chance.choice(TEXTS), chance.choice(["user", "user", "user", "developer"])
                part = [{"type": "input_text", "text": text}]
                conversation.add({"role": said, "content": text}, {"role": said, "content": part})
            calls = conversation.answer(completion(chance, encoding))


def test_conversations_have_the_same_prompts_all_three_ways(started: Any, encoding: HarmonyEncoding) -> None:
    for number in range(8):
        hold(number, started, encoding)


@pytest.mark.slow
def test_a_hundred_conversations(started: Any, encoding: HarmonyEncoding) -> None:
    for number in range(8, 108):
        hold(number, started, encoding)
