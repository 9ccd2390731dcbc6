"""The engine: requests in, tokens out; the host decides while the devices compute."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import Mesh

from checkpoints.config import ModelConfig
from gptoss_jax.cache import EMPTY
from gptoss_jax.engine.control import Control
from gptoss_jax.engine.link import connect
from gptoss_jax.engine.memory import MemoryPlan, device_limit, plan
from gptoss_jax.engine.options import Bucket, EngineOptions, lay_out
from gptoss_jax.engine.request import Completion, Request, RequestError, SamplingParams, TokenLogprobs, Update
from gptoss_jax.engine.runner import STOP_COLUMNS, Runner
from gptoss_jax.engine.scheduler import Copy, Part, Scheduler
from gptoss_jax.engine.sequence import Sequence
from gptoss_jax.engine.slots import SlotTable
from gptoss_jax.engine.statistics import Statistics
from gptoss_jax.engine.steps import Drawn
from gptoss_jax.model import Transformer
from gptoss_jax.sharding import MeshShape, make_mesh, shape_of
from pallas_kernels.expert_matmul import form_for
from pallas_kernels.platform import choose

if TYPE_CHECKING:
    from harmony import HarmonyEncoding

_BACKLOG = 4
"""Requests that `run` draws ahead for each slot, so that it can start with the longest."""


_MEMORY = 32
"""Rows over which the number of tokens that verified rows keep is averaged."""


@dataclasses.dataclass(frozen=True)
class _Flight:
    """A dispatch that was sent and not read: who stood in which row, and for which epoch."""

    drawn: Drawn
    steps: int
    members: list[tuple[Sequence, int, int]]


class Engine:
    """Generates for many requests at once with continuous batching.

    Requests of any length share a decode batch; a finished one leaves and a waiting one takes its row. The
    options are those of `EngineOptions`. All shapes are fixed, so a handful of programs are compiled in all,
    and a row's arithmetic is the same whatever stands beside it.

    `model` must lie on `mesh` (None: one device, or the devices it was loaded on). `encoding` is needed for
    what concerns text and channels: stop strings, budgets, grammars.

    Attributes:
        plan: what it keeps in each device's memory.
        statistics: what it did so far.
    """

    def __init__(
        self,
        model: Transformer,
        stop_tokens: Collection[int],
        *,
        encoding: HarmonyEncoding | None = None,
        mesh: Mesh | None = None,
        options: EngineOptions | None = None,
        **changes: Any,
    ):
        self.options = dataclasses.replace(options or EngineOptions(), **changes)
        self.max_length = self.options.max_length
        self._mesh = mesh or make_mesh(model.config, MeshShape(), [_device_of(model)])
        shape = shape_of(self._mesh)
        self._config, self._encoding = model.config, encoding
        self._stop_tokens = frozenset(stop_tokens)
        if len(self._stop_tokens) > STOP_COLUMNS // 2:
            raise RequestError(
                f"stop_tokens are {len(self._stop_tokens)}: there must be at most {STOP_COLUMNS // 2}"
            )
        self.plan = plan_on(self._mesh, model.config, self.options, model.dtype)
        options = dataclasses.replace(self.options, pages=self.plan.pages)
        self._layout = lay_out(options, model.config, shape, model.dtype)
        leader, self._follower = connect()
        self._runner = Runner(model, self._mesh, self._layout, leader)
        self._scheduler = Scheduler(self._layout, shape.batch_shards)
        self._table = SlotTable(self._runner, self._stop_tokens)
        self.statistics = Statistics()
        self._sequences: dict[str, list[Sequence]] = {}
        self._orders = itertools.count()
        self._flights: collections.deque[_Flight] = collections.deque()
        self._cancelled: list[str] = []
        self._kept = float(self.options.decode_steps)  # tokens of a dispatch that verified rows kept lately
        self._compiler = None if encoding is None else _grammars(encoding, model.config.vocabulary_size)

    @property
    def slots(self) -> int:
        """Sequences that decode side by side."""
        return self._runner.rows

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""
        return self._scheduler.unfinished

    @property
    def compiled_programs(self) -> int:
        """How many programs were compiled so far; it stays the same once each bucket has been used."""
        return self._runner.steps.compiled_programs

    @property
    def speaks(self) -> bool:
        """Whether requests are given to this process. With several processes it is the first; the others
        `follow` it."""
        return self._follower is None

    def follow(self) -> None:
        """In the other processes of several: makes the same steps as the first, until it is closed."""
        if self._follower is not None:
            self._follower.follow(self._runner.perform)

    def close(self) -> None:
        """Lets the other processes go. Further steps are not possible then."""
        self._runner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        size, sampling = self._config.vocabulary_size, request.sampling
        if lowest < 0 or highest >= size:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"the prompt holds token {wrong}: ids must be from 0 to {size - 1}")
        for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            wrong_ids = [token for token in ids if not 0 <= token < size]
            if wrong_ids:
                raise RequestError(f"{name} holds token {wrong_ids[0]}: ids must be from 0 to {size - 1}")
        self._control(request, 0)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises `RequestError` if `check` refuses it, or its id is that of a request which is not finished.
        """
        if request.id in self._sequences:
            raise RequestError(f"the id {request.id!r} is in use: a request with it is not finished")
        self.check(request)
        sequences = [
            Sequence(
                request,
                sample,
                next(self._orders),
                self._control(request, sample),
                list(request.prompt),
                logprobs=None if request.sampling.logprobs is None else [],
            )
            for sample in range(request.sampling.n)
        ]
        self._sequences[request.id] = sequences
        for sequence in sequences:
            self._scheduler.add(sequence)

    def cancel(self, id: str) -> None:
        """Ends a request: its slots and pages are free at once, and the next `step` says so. One that is not
        there is left alone."""
        if id in self._sequences and id not in self._cancelled:
            self._cancelled.append(id)

    def step(self) -> list[Update]:
        """One turn: admit, prefill a chunk, send one decode dispatch, and read the one before it.

        Returns what the turn brought; it may be nothing.
        """
        updates = self._cancel()
        self._copy(self._scheduler.admit())
        prefilling = self._prefill()
        if self._verifies():
            updates += self._read_all()
        launched = self._launch(prefilling)
        ahead = 1 if launched and not self._verifies() else 0
        while len(self._flights) > ahead:
            updates += self._read()
        return updates

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completes every request and yields each completion as it finishes, in any order.

        Requests are drawn from the iterable a few at a time, and of those the longest start first. Raises
        `RequestError` at a request that `check` refuses. If the caller stops early, unfinished sequences are
        given up. Meanwhile nobody else may call `step`, and updates of requests that were added otherwise are
        lost.
        """
        source = iter(requests)
        mine: dict[str, int] = {}  # samples that are not finished
        try:
            while True:
                if len(self._scheduler.waiting()) < self.slots:
                    window = list(itertools.islice(source, _BACKLOG * self.slots))
                    for request in sorted(window, key=self._length, reverse=True):
                        self.add(request)
                        mine[request.id] = request.sampling.n
                if not mine:
                    return
                for update in self.step():
                    if update.completion is not None and update.id in mine:
                        mine[update.id] -= 1
                        if not mine[update.id]:
                            del mine[update.id]
                        yield update.completion
        finally:
            for id in mine:
                self.cancel(id)
            self._cancel()

    def _length(self, request: Request) -> int:
        room = self.max_length - len(request.prompt)
        return len(request.prompt) + min(request.sampling.max_tokens or room, room)

    def _control(self, request: Request, sample: int) -> Control:
        sampling: SamplingParams = request.sampling
        matcher = None
        if sampling.grammar is not None:
            if self._compiler is None:
                raise RequestError("grammar needs an engine with an encoding: this one has none")
            matcher = self._compiler.compile(sampling.grammar)
        room = self.max_length - len(request.prompt)
        return Control(
            request,
            sample,
            encoding=self._encoding,
            stop_tokens=self._stop_tokens,
            max_tokens=min(sampling.max_tokens or room, room),
            matcher=matcher,
            prompt=request.prompt,
        )

    def _cancel(self) -> list[Update]:
        updates = []
        for id in self._cancelled:
            for sequence in list(self._sequences.get(id, ())):
                updates.append(self._finish(sequence, "cancelled"))
        self._cancelled.clear()
        return updates

    def _copy(self, copies: list[Copy]) -> None:
        """Copies rings, one for each batch shard at a time, in their order."""
        shards = shape_of(self._mesh).batch_shards
        scratch = self._layout.cache.ring_rows - 1
        for copy in copies:
            sources = np.full(shards, scratch, np.int32)
            targets = sources.copy()
            sources[copy.shard], targets[copy.shard] = copy.source, copy.target
            self._runner.copy_rings(sources, targets)

    def _prefill(self) -> bool:
        """Sends the next prefill step; whether there was one."""
        found = False
        for bucket, parts in self._scheduler.parts().items():
            self._runner.prefill(*self._chunk(bucket, parts))
            self._count_prefill(bucket, parts)
            self._copy(self._scheduler.computed(parts))
            found = True
        return found

    def _count_prefill(self, bucket: Bucket, parts: list[Part]) -> None:
        statistics, tokens = self.statistics, sum(part.end - part.begin for part in parts)
        statistics.prefilled_tokens += tokens
        statistics.padded_tokens += bucket.rows * bucket.tokens * shape_of(self._mesh).batch_shards - tokens

    def _chunk(self, bucket: Bucket, parts: list[Part]) -> tuple[np.ndarray, ...]:
        """The arrays of a `Chunk`; rows without a part have nothing to do."""
        shards = shape_of(self._mesh).batch_shards
        rows = shards * bucket.rows
        tokens = np.zeros((rows, bucket.tokens), np.int32)
        positions = np.full((rows, bucket.tokens), EMPTY, np.int32)
        table = np.zeros((rows, self._layout.page_columns), np.int32)
        slots = np.full(rows, self._layout.cache.ring_rows - 1, np.int32)
        fresh = np.ones(rows, bool)
        used = [0] * shards
        for sequence, begin, end in parts:
            row = sequence.shard * bucket.rows + used[sequence.shard]
            used[sequence.shard] += 1
            tokens[row, : end - begin] = sequence.tokens[begin:end]
            positions[row, : end - begin] = np.arange(begin, end)
            table[row, : len(sequence.pages)] = sequence.pages
            slots[row] = sequence.slot
            fresh[row] = begin == 0
        return tokens, positions, table, slots, fresh

    def _verifies(self) -> bool:
        return any(one.decodes and one.control.verifies for one in self._scheduler.running())

    def _launch(self, prefilling: bool) -> bool:
        """Sends one decode dispatch for all sequences that are ready; whether there was one."""
        steps = self.options.decode_steps
        if prefilling:  # so that those which wait for the end of a prompt do not wait long
            steps = max(1, steps // 4)
        self.statistics.preemptions += len(self._scheduler.reserve(steps))
        ready = [sequence for sequence in self._scheduler.running() if sequence.decodes]
        members = [sequence for sequence in ready if sequence.changed or sequence.armed > sequence.flying]
        if not members:
            return False
        if all(sequence.control.verifies for sequence in members):
            # What a dispatch draws beyond the first token that is refused, is drawn in vain.
            steps = min(steps, round(2 * self._kept) + 1)
        patch, table, words, masked = self._table.fill(ready)
        masks = (words, masked) if masked.any() else None
        self.statistics.dispatches += 1
        self.statistics.blocked_dispatches += not self._flights
        self.statistics.decode_steps += steps
        self.statistics.row_steps += steps * len(members)
        drawn = self._runner.decode(patch, table, steps, masks)
        flight = _Flight(drawn, steps, [(one, one.epoch, self._table.row(one)) for one in members])
        for sequence in members:
            sequence.flying += steps
        self._flights.append(flight)
        return True

    def _read_all(self) -> list[Update]:
        updates: list[Update] = []
        while self._flights:
            updates += self._read()
        return updates

    def _read(self) -> list[Update]:
        """Waits for the oldest dispatch and takes in what it drew."""
        flight = self._flights.popleft()
        begin = time.perf_counter()
        tokens = np.asarray(flight.drawn.tokens)
        self.statistics.wait_seconds += time.perf_counter() - begin
        listed = any(sequence.logprobs is not None for sequence, *_ in flight.members)
        likely = tuple(map(np.asarray, flight.drawn[1:])) if listed else None
        updates = []
        for sequence, epoch, row in flight.members:
            if sequence.epoch != epoch:
                continue
            sequence.flying -= flight.steps
            column = tokens[:, row]
            update = self._take(sequence, column[column != EMPTY].tolist(), row, likely)
            if update is not None:
                updates.append(update)
        return updates

    def _take(
        self, sequence: Sequence, drawn: list[int], row: int, likely: tuple[np.ndarray, ...] | None
    ) -> Update | None:
        """Gives a sequence the tokens that were drawn for it, as far as its control accepts them."""
        verdict = sequence.control.advance(drawn)
        kept = drawn[: verdict.accepted]
        sequence.tokens += kept
        sequence.computed = len(sequence.tokens) - 1
        sequence.armed -= len(kept)
        self.statistics.generated_tokens += len(kept) + len(verdict.forced)
        self.statistics.refused_tokens += len(drawn) - len(kept)
        if sequence.control.verifies and drawn:
            self._kept += (len(kept) - self._kept) / _MEMORY
        if sequence.logprobs is not None and likely is not None:
            most = sequence.request.sampling.logprobs or 0
            sequence.logprobs += [_logprobs(likely, step, row, most) for step in range(len(kept))]
        if verdict.finish is not None:
            return self._finish(sequence, verdict.finish, verdict.stop)
        if verdict.forced:
            sequence.tokens += verdict.forced
            if sequence.logprobs is not None:
                sequence.logprobs += [TokenLogprobs(0.0)] * len(verdict.forced)
            sequence.interrupt()
        elif len(kept) < len(drawn) or (sequence.armed <= 0 and sequence.flying <= 0):
            sequence.interrupt()
        if sequence.control.verifies:  # masks change with every token
            sequence.changed = True
        return sequence.update() if kept or verdict.forced else None

    def _finish(self, sequence: Sequence, reason: Any, stop: str | None = None) -> Update:
        self.statistics.prompt_tokens += sequence.prompt_length
        self.statistics.cached_tokens += sequence.cached
        self._scheduler.remove(sequence)
        sequence.interrupt()
        siblings = self._sequences[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.id]
        return sequence.update(reason, stop)


def plan_on(mesh: Mesh, config: ModelConfig, options: EngineOptions, dtype: Any) -> MemoryPlan:
    """What an engine will keep in the memory of each device of a mesh; nothing need be loaded yet.

    Raises `gptoss_jax.engine.memory.EngineMemoryError` if it does not fit, and says what would.
    """
    choice = choose("expert_mlp", ("reference", "tpu", "gpu"))
    form = form_for(choice.chip) if choice.implementation == "tpu" else None
    return plan(config, shape_of(mesh), options, dtype, device_limit(mesh.local_devices[0]), form)


def _logprobs(likely: tuple[np.ndarray, ...], step: int, row: int, most: int) -> TokenLogprobs:
    chosen, ids, values = (array[step, row] for array in likely)
    top = tuple(zip(ids[:most].tolist(), values[:most].tolist(), strict=True))
    return TokenLogprobs(float(chosen), top)


def _grammars(encoding: HarmonyEncoding, vocabulary_size: int) -> Any:
    from gptoss_jax.engine.grammar import GrammarCompiler

    return GrammarCompiler(encoding, vocabulary_size)


def _device_of(model: Transformer) -> Any:
    (device,) = model.norm.scale[...].devices()
    return device
