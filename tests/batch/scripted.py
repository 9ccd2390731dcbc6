"""An engine that answers from a script instead of a model: at once, and with every kind of answer on demand.

The last user message says what comes back: "call: f" a function call, "cut" a completion that ran out of
tokens, "broken" a malformed header; anything else is quoted in the answer.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gptoss_jax.engine import Completion, Request, RequestError
from harmony import HarmonyEncoding, load_encoding


class ScriptedEngine:
    def __init__(self, encoding: HarmonyEncoding, slots: int = 4, max_length: int = 4096, delay: float = 0.0):
        self.encoding, self.slots, self.max_length, self.delay = encoding, slots, max_length, delay
        self.requests: list[Request] = []

    def check(self, request: Request) -> None:
        if len(request.prompt) >= self.max_length:
            raise RequestError("too long")

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        waiting, running, order = iter(requests), [], random.Random(0)
        while True:
            while len(running) < self.slots and (request := next(waiting, None)) is not None:
                self.requests.append(request)
                running.append(request)
            if not running:
                return
            time.sleep(self.delay)
            yield self._complete(running.pop(order.randrange(len(running))))

    def _complete(self, request: Request) -> Completion:
        prompt = self.encoding.decode(request.prompt)
        said = prompt.rpartition("<|start|>user<|message|>")[2].partition("<|end|>")[0]
        tokens = self.encoding.encode(script(said), allowed_special="all")
        return Completion(request.id, tokens, "length" if said == "cut" else "stop", len(request.prompt))


def script(said: str) -> str:
    thought = "<|channel|>analysis<|message|>Hmm.<|end|><|start|>assistant"
    if said.startswith("call: "):
        name = said.removeprefix("call: ")
        header = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        return thought + header + '<|message|>{"a":1}<|call|>'
    if said == "cut":
        return "<|channel|>analysis<|message|>Hmm, let me"
    if said == "broken":
        return thought + "<|channel|><|channel|>final oops to= <|message|>Recovered.<|return|>"
    return thought + f"<|channel|>final<|message|>You said: {said}<|return|>"


def byte_encoding(folder: Path) -> HarmonyEncoding:
    """The smallest vocabulary there is: every byte a token, then the nine special ones."""
    path = folder / "vocabulary.tiktoken"
    path.write_text("".join(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256)))
    return load_encoding(path)
