"""The host's side: which request gets which slot when, and which tokens belong to whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx

from gptoss_jax.cache import EMPTY, new_cache
from gptoss_jax.engine.request import Completion, Request, RequestError
from gptoss_jax.engine.steps import Chunk, Slots, decode, idle_slots, prefill
from gptoss_jax.model import Transformer
from gptoss_jax.sampling import Samplers


@dataclasses.dataclass
class _Sequence:
    """A request in a slot."""

    request: Request
    slot: int
    max_tokens: int
    tokens: list[int] = dataclasses.field(default_factory=list)


class Engine:
    """Generates for many requests at once with continuous batching.

    Requests of any length share a decode batch of `slots` rows; a finished one leaves and a waiting one takes
    its row. `max_length` is the longest sequence, prompt and completion together. One dispatch decodes up to
    `decode_steps` tokens of every slot; prompts are prefilled `prefill_rows` at a time in chunks of
    `prefill_chunk` tokens. All shapes are fixed, so two programs are compiled in all, and a request's
    arithmetic is the same whatever stands beside it.
    """

    def __init__(
        self,
        model: Transformer,
        stop_tokens: Collection[int],
        *,
        slots: int = 32,
        max_length: int = 2048,
        decode_steps: int = 16,
        prefill_rows: int = 4,
        prefill_chunk: int = 128,
    ):
        for name, value in (
            ("slots", slots),
            ("max_length", max_length),
            ("decode_steps", decode_steps),
            ("prefill_rows", prefill_rows),
            ("prefill_chunk", prefill_chunk),
        ):
            if value < 1:
                raise RequestError(f"{name} is {value}: it must be a whole number from 1")
        self.max_length = max_length
        self._vocabulary_size = model.config.vocabulary_size
        self._graph, self._parameters = nnx.split(model)
        self._stop_tokens = frozenset(stop_tokens)
        self._stop_array = jnp.array(sorted(self._stop_tokens), jnp.int32)
        self._decode_steps = decode_steps
        self._prefill_rows = min(prefill_rows, slots)
        self._prefill_chunk = min(prefill_chunk, max_length)
        self._slots: Slots = idle_slots(slots)
        self._cache = new_cache(model.config, slots, max_length, model.dtype)
        self._num_slots = slots

    def check(self, request: Request) -> None:
        """Raises `RequestError` if the request can never run here."""
        if not request.prompt:
            raise RequestError("the prompt is empty: it must have at least one token")
        if len(request.prompt) >= self.max_length:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens: it must leave room in the longest sequence, "
                f"{self.max_length} tokens"
            )
        lowest, highest = min(request.prompt), max(request.prompt)
        if lowest < 0 or highest >= self._vocabulary_size:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(
                f"the prompt holds token {wrong}: ids must be from 0 to {self._vocabulary_size - 1}"
            )

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completes every request and yields each as it finishes, in any order.

        Requests are drawn from the iterable only when a slot is free. Raises `RequestError` at a request that
        `check` refuses. If the caller stops early, unfinished sequences are given up.
        """
        waiting = iter(requests)
        free = list(range(self._num_slots))
        running: dict[int, _Sequence] = {}
        try:
            while True:
                while free and (admitted := self._admit(waiting, free)):
                    running.update((sequence.slot, sequence) for sequence in admitted)
                    self._prefill(admitted)
                if not running:
                    return
                for sequence, finish_reason in self._decode(running):
                    free.append(sequence.slot)
                    yield Completion(
                        sequence.request.id, sequence.tokens, finish_reason, len(sequence.request.prompt)
                    )
        finally:
            if running:
                self._slots = idle_slots(self._num_slots)

    def _admit(self, waiting: Iterator[Request], free: list[int]) -> list[_Sequence]:
        admitted: list[_Sequence] = []
        while free and len(admitted) < self._prefill_rows and (request := next(waiting, None)) is not None:
            self.check(request)
            room = self.max_length - len(request.prompt)
            admitted.append(_Sequence(request, free.pop(), min(request.sampling.max_tokens or room, room)))
        return admitted

    def _prefill(self, sequences: list[_Sequence]) -> None:
        longest = max(len(sequence.request.prompt) for sequence in sequences)
        for begin in range(0, longest, self._prefill_chunk):
            chunk = self._chunk(sequences, begin)
            self._cache, self._slots = prefill(self._graph, self._parameters, self._cache, self._slots, chunk)

    def _chunk(self, sequences: list[_Sequence], begin: int) -> Chunk:
        """The prompt tokens from `begin` on of sequences that still have some; other rows are padding."""
        rows, length = self._prefill_rows, self._prefill_chunk
        slots = np.full(rows, self._num_slots, np.int32)
        tokens = np.zeros((rows, length), np.int32)
        positions = np.full((rows, length), EMPTY, np.int32)
        last = np.full(rows, EMPTY, np.int32)
        remaining = np.zeros(rows, np.int32)
        seeds = np.zeros((rows, 2), np.uint32)
        temperature = np.zeros(rows, np.float32)
        top_p = np.ones(rows, np.float32)
        top_k = np.zeros(rows, np.int32)
        for row, sequence in enumerate(sequences):
            prompt, sampling = sequence.request.prompt, sequence.request.sampling
            part = prompt[begin : begin + length]
            if not part:
                continue
            slots[row] = sequence.slot
            tokens[row, : len(part)] = part
            positions[row, : len(part)] = np.arange(begin, begin + len(part))
            if begin + len(part) == len(prompt):
                last[row] = len(part) - 1
            remaining[row] = sequence.max_tokens
            seeds[row] = sequence.request.seed_words()
            temperature[row] = sampling.temperature
            top_p[row] = sampling.top_p
            top_k[row] = sampling.top_k
        return Chunk(
            slots=jnp.asarray(slots),
            tokens=jnp.asarray(tokens),
            positions=jnp.asarray(positions),
            fresh=jnp.full(rows, begin == 0),
            last=jnp.asarray(last),
            remaining=jnp.asarray(remaining),
            samplers=Samplers(*map(jnp.asarray, (seeds, temperature, top_p, top_k))),
        )

    def _decode(self, running: dict[int, _Sequence]) -> Iterator[tuple[_Sequence, Literal["stop", "length"]]]:
        """One dispatch; yields the sequences that finished in it, taken out of `running`."""
        self._cache, self._slots, emitted = decode(
            self._graph, self._parameters, self._cache, self._slots, self._stop_array, self._decode_steps
        )
        tokens = np.asarray(emitted)
        for slot, sequence in list(running.items()):
            column = tokens[:, slot]
            sequence.tokens += column[column != EMPTY].tolist()
            stopped = sequence.tokens[-1] in self._stop_tokens
            if stopped or len(sequence.tokens) >= sequence.max_tokens:
                del running[slot]
                yield sequence, "stop" if stopped else "length"
