"""An engine that answers from a script instead of a model: at once, and with every kind of answer on demand.

The last user message says what comes back: "call: f" a function call, "cut" a completion that ran out of
tokens, "broken" a malformed header; anything else is quoted in the answer, which of several samples it is
said with it. Log-probabilities are made of the tokens' ids.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gptoss_jax.engine import Completion, Request, RequestError
from gptoss_jax.engine.grammar import GrammarCompiler
from gptoss_jax.engine.request import TokenLogprobs
from gptoss_jax.engine.statistics import Statistics
from harmony import HarmonyEncoding, load_encoding


class ScriptedEngine:
    is_leader = True

    def __init__(self, encoding: HarmonyEncoding, slots: int = 4, max_length: int = 4096, delay: float = 0.0):
        self.encoding, self.slots, self.max_length, self.delay = encoding, slots, max_length, delay
        self.requests: list[Request] = []
        self.statistics, self.compiled_programs = Statistics(), 3
        self._compiler = GrammarCompiler(encoding, encoding.size)

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self, request: Request) -> None:
        if len(request.prompt) >= self.max_length:
            raise RequestError("too long")
        for token in request.sampling.logit_bias:
            if token >= self.encoding.size:
                raise RequestError(f"logit_bias holds token {token}: ids must be below {self.encoding.size}")
        if request.sampling.grammar is not None:
            self._compiler.check(request.sampling.grammar)

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        waiting, order = iter(requests), random.Random(0)
        running: list[tuple[Request, int]] = []
        while True:
            while len(running) < self.slots and (request := next(waiting, None)) is not None:
                self.requests.append(request)
                running += [(request, sample) for sample in range(request.sampling.n)]
            if not running:
                return
            time.sleep(self.delay)
            yield self._complete(*running.pop(order.randrange(len(running))))

    def _complete(self, request: Request, sample: int) -> Completion:
        prompt = self.encoding.decode(request.prompt)
        said = prompt.rpartition("<|start|>user<|message|>")[2].partition("<|end|>")[0]
        tokens = self.encoding.encode(script(said, sample), allowed_special="all")
        sampling, stop = request.sampling, None
        for string in sampling.stop:
            places = (end for end in range(len(tokens)) if string in self.encoding.decode(tokens[:end]))
            if (end := next(places, None)) is not None:
                tokens, stop = tokens[:end], string
        logprobs = None
        if sampling.logprobs is not None:
            likely = [tuple((rank, -float(rank + 1)) for rank in range(sampling.logprobs)) for _ in tokens]
            logprobs = tuple(
                TokenLogprobs(-token / 1000, top) for token, top in zip(tokens, likely, strict=True)
            )
        return Completion(
            request.id,
            tokens,
            "length" if said == "cut" else "stop",
            len(request.prompt),
            sample=sample,
            stop=stop,
            cached_tokens=min(16 * (sample + 1), len(request.prompt)),
            logprobs=logprobs,
            grammar_complete=None if sampling.grammar is None else said != "cut" and stop is None,
        )


def script(said: str, sample: int = 0) -> str:
    thought = "<|channel|>analysis<|message|>Hmm.<|end|><|start|>assistant"
    if said.startswith("call: "):
        name = said.removeprefix("call: ")
        header = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        return thought + header + '<|message|>{"a":1}<|call|>'
    if said == "cut":
        return "<|channel|>analysis<|message|>Hmm, let me"
    if said == "broken":
        return thought + "<|channel|><|channel|>final oops to= <|message|>Recovered.<|return|>"
    number = f" ({sample})" if sample else ""
    return thought + f"<|channel|>final<|message|>You said: {said}{number}<|return|>"


def byte_encoding(folder: Path) -> HarmonyEncoding:
    """The smallest vocabulary there is: every byte a token, then the nine special ones."""
    path = folder / "vocabulary.tiktoken"
    path.write_text("".join(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256)))
    return load_encoding(path)
