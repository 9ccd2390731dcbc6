"""An engine that plays scripts instead of running a model, with the interface of the real one."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

from gptoss_jax.engine.request import Completion, FinishReason, Request, RequestError, TokenLogprobs, Update


@dataclasses.dataclass
class Script:
    """What one sample is going to be."""

    tokens: list[int]
    finish_reason: FinishReason = "stop"
    stop: str | None = None
    cached_tokens: int = 0
    grammar_complete: bool | None = None


@dataclasses.dataclass
class _Running:
    request: Request
    sample: int
    script: Script
    told: int = 0


class FakeEngine:
    """Tells `chunk` tokens of each of `slots` samples in every step.

    `script` says what a request's sample is. Steps wait for `gate`; `fail_at` is the number of the step that
    raises. `log` holds what happened, `threads` in which threads.
    """

    def __init__(
        self,
        script: Callable[[Request, int], Script],
        *,
        chunk: int = 3,
        slots: int = 4,
        max_length: int = 2000,
        fail_at: int | None = None,
        is_leader: bool = True,
    ) -> None:
        self.max_length = max_length
        self.is_leader = is_leader
        self.gate = threading.Event()
        self.gate.set()
        self.stepped = threading.Event()
        self.log: list[tuple[str, str]] = []
        self.threads: set[int] = set()
        self.requests: dict[str, Request] = {}
        self.most_together = 0
        self.most_unfinished = 0
        self.steps = 0
        self.closed = False
        self._script = script
        self._chunk = chunk
        self.slots = slots
        self._fail_at = fail_at
        self._queue: list[_Running] = []
        self._cancelled: list[_Running] = []

    @property
    def unfinished(self) -> int:
        return len(self._queue) + len(self._cancelled)

    def check(self, request: Request) -> None:
        self.threads.add(threading.get_ident())
        if not request.prompt:
            raise RequestError("the prompt is empty: it must have at least one token")
        if len(request.prompt) >= self.max_length:
            raise RequestError(f"the prompt has {len(request.prompt)} tokens: at most {self.max_length} fit")

    def add(self, request: Request) -> None:
        self.check(request)
        if request.id in self.requests:
            raise RequestError(f"the id {request.id!r} is in use")
        self.requests[request.id] = request
        self.log.append(("add", request.id))
        for sample in range(request.sampling.n):
            self._queue.append(_Running(request, sample, self._script(request, sample)))

    def cancel(self, id: str) -> None:
        self.threads.add(threading.get_ident())
        if not any(running.request.id == id for running in self._queue):
            return
        self.log.append(("cancel", id))
        self._cancelled += [running for running in self._queue if running.request.id == id]
        self._queue = [running for running in self._queue if running.request.id != id]

    def step(self) -> list[Update]:
        self.threads.add(threading.get_ident())
        self.stepped.set()
        assert self.gate.wait(20)
        time.sleep(0.0002)  # lets callers have a turn
        self.steps += 1
        if self.steps == self._fail_at:
            raise ArithmeticError("the device\nis on fire")
        active = self._queue[: self.slots]
        self.most_unfinished = max(self.most_unfinished, len(self._queue))
        self.most_together = max(self.most_together, len({running.request.id for running in active}))
        updates = [self._advance(running) for running in active]
        self._queue = [running for running in self._queue if running.told < len(running.script.tokens)]
        updates += [
            self._update(running, [], "cancelled", running.script.tokens[: running.told])
            for running in self._cancelled
        ]
        self._cancelled.clear()
        return updates

    def _advance(self, running: _Running) -> Update:
        tokens = running.script.tokens[running.told : running.told + self._chunk]
        running.told += self._chunk
        if running.told < len(running.script.tokens):
            return Update(running.request.id, running.sample, tokens)
        return self._update(running, tokens, running.script.finish_reason, running.script.tokens)

    def _update(self, running: _Running, new: list[int], reason: FinishReason, tokens: list[int]) -> Update:
        script, request = running.script, running.request
        wanted = request.sampling.logprobs is not None
        completion = Completion(
            id=request.id,
            tokens=tokens,
            finish_reason=reason,
            prompt_tokens=len(request.prompt),
            sample=running.sample,
            stop=script.stop if reason != "cancelled" else None,
            cached_tokens=script.cached_tokens,
            logprobs=tuple(TokenLogprobs(-0.5) for _ in tokens) if wanted else None,
            grammar_complete=script.grammar_complete,
        )
        return Update(request.id, running.sample, new, completion=completion)

    def follow(self) -> None:
        self.log.append(("follow", ""))

    def close(self) -> None:
        self.closed = True
