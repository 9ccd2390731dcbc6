"""The slots' settings: a copy on the host, of which only changes are sent to the device."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from gptoss_jax.engine.request import MAX_BIASED_TOKENS
from gptoss_jax.engine.runner import STOP_COLUMNS, Runner
from gptoss_jax.engine.sampling import idle_samplers
from gptoss_jax.engine.sequence import Sequence
from gptoss_jax.model.kv_cache import EMPTY


class SlotTable:
    """The rows of all slots, as the device has them."""

    def __init__(self, runner: Runner, stop_tokens: Collection[int]):
        self._runner = runner
        self._stop_tokens = sorted(stop_tokens)
        self._samplers = {name: np.array(value) for name, value in vars(idle_samplers(runner.rows)).items()}
        self._origin = np.zeros(runner.rows, np.int32)
        self._stops = np.full((runner.rows, STOP_COLUMNS), EMPTY, np.int32)
        self._holders: list[tuple[Sequence, int] | None] = [None] * runner.rows
        self._stale: set[str] = set()

    def row(self, sequence: Sequence) -> int:
        """The row of a running sequence in the batch of all shards."""
        placement = sequence.placed
        return placement.shard * self._runner.layout.slots + placement.slot

    def fill(self, ready: list[Sequence]) -> tuple[np.ndarray, ...]:
        """Prepares a decode dispatch for the sequences that are ready, and sends changed settings.

        Returns the arrays that `Runner.decode` takes: patch, table, mask words, masked. The patch stops slots
        whose sequence has left or is not ready.
        """
        with np.errstate(over="ignore"):  # settings beyond float32 become infinite; sampling bounds them
            return self._fill(ready)

    def _fill(self, ready: list[Sequence]) -> tuple[np.ndarray, ...]:
        layout, count = self._runner.layout, self._runner.rows
        patch = np.zeros((count, 4), np.int32)
        table = np.full((count, layout.block_columns), layout.pages, np.int32)  # no page
        words = np.zeros((count, self._runner.mask_words), np.uint32)
        masked = np.zeros(count, bool)
        holders: list[tuple[Sequence, int] | None] = [None] * count
        for sequence in ready:
            row = self.row(sequence)
            holders[row] = (sequence, sequence.epoch)
            pages = sequence.placed.pages
            table[row, : len(pages)] = pages
            if sequence.changed or self._holders[row] != holders[row]:
                self._start(sequence, row)
                sequence.granted = sequence.processor.allowance()
                patch[row] = 1, sequence.tokens[-1], len(sequence.tokens) - 1, sequence.granted
                sequence.changed = False
            if (mask := sequence.processor.mask()) is not None:
                words[row, : mask.size], masked[row] = mask, True
        for row, (before, now) in enumerate(zip(self._holders, holders, strict=True)):
            if before is not None and now is None:
                patch[row, 0] = 1
        self._holders = holders
        self._send()
        return patch, table, words, masked

    def _start(self, sequence: Sequence, row: int) -> None:
        """Sets a row to its sequence's settings."""
        sampling = sequence.request.sampling
        ids = np.full(MAX_BIASED_TOKENS, EMPTY, np.int32)
        values = np.zeros(MAX_BIASED_TOKENS, np.float32)
        ids[: len(sampling.logit_bias)] = list(sampling.logit_bias)
        values[: len(sampling.logit_bias)] = list(sampling.logit_bias.values())
        banned, until = sequence.processor.ban()
        banned_ids = np.full(self._samplers["banned_ids"].shape[1], EMPTY, np.int32)
        banned_ids[: len(banned)] = banned
        for name, value in (
            ("seeds", sequence.request.seed_words(sequence.sample)),
            *((name, getattr(sampling, name)) for name in ("temperature", "top_p", "top_k", "min_p")),
            ("repetition_penalty", sampling.repetition_penalty),
            ("presence_penalty", sampling.presence_penalty),
            ("frequency_penalty", sampling.frequency_penalty),
            ("bias_ids", ids),
            ("bias_values", values),
            ("banned_ids", banned_ids),
            ("ban_until", until),
            ("logprobs", sampling.logprobs is not None),
        ):
            self._set(name, self._samplers[name], row, value)
        stops = np.full(STOP_COLUMNS, EMPTY, np.int32)
        both = [*self._stop_tokens, *sampling.stop_token_ids]
        stops[: len(both)] = both
        self._set("slots", self._origin, row, sequence.prompt_length)
        self._set("slots", self._stops, row, stops)
        if (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0):
            length = self._runner.layout.max_length
            prompt, completion = (np.full(length, EMPTY, np.int32) for _ in range(2))
            prompt[: sequence.prompt_length] = sequence.request.prompt
            completion[: sequence.generated] = sequence.tokens[sequence.prompt_length :]
            self._runner.count(row, prompt, completion)

    def _set(self, name: str, array: np.ndarray, row: int, value: ArrayLike) -> None:
        value = np.asarray(value, array.dtype)
        if not np.array_equal(array[row], value):
            array[row] = value
            self._stale.add(name)

    def _send(self) -> None:
        for name in sorted(self._stale):
            if name == "slots":
                self._runner.set_slots(self._origin, self._stops)
            else:
                self._runner.set_sampler(name, self._samplers[name])
        self._stale.clear()
