"""The engine: continuous batching of many requests on one mesh."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Unpack

import jax
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.engine.errors import RequestError, RequestFailed, ends_process, one_line
from gptoss_jax.engine.feeder import Feeder
from gptoss_jax.engine.layout import Bucket, lay_out
from gptoss_jax.engine.memory import MemoryPlan, defaults_for, device_limit, plan
from gptoss_jax.engine.multihost import connect
from gptoss_jax.engine.options import EngineKeywords, EngineOptions, options_from
from gptoss_jax.engine.output_processor import OutputProcessor
from gptoss_jax.engine.request import Completion, FinishReason, Request, SamplingParams, TokenLogprobs, Update
from gptoss_jax.engine.runner import STOP_COLUMNS, Runner
from gptoss_jax.engine.scheduler import Copy, Part, Scheduler
from gptoss_jax.engine.sequence import Sequence, State
from gptoss_jax.engine.slots import SlotTable
from gptoss_jax.engine.statistics import Occupancy, Statistics
from gptoss_jax.engine.steps import DecodedTokens
from gptoss_jax.model import Transformer
from gptoss_jax.model.kv_cache import EMPTY
from gptoss_jax.sharding import make_mesh, shape_of
from gptoss_jax.sizes import MeshShape
from harmony.errors import shown
from pallas_kernels.expert_matmul import code_format_for
from pallas_kernels.platform import choose

if TYPE_CHECKING:
    from gptoss_jax.engine.grammar import GrammarCompiler
    from harmony import HarmonyEncoding

_logger = logging.getLogger(__name__)

_AVERAGED_ROWS = 32
"""The window of the running average `_usual_accepted`, in rows."""


@dataclasses.dataclass(frozen=True)
class _Dispatch:
    """A decode dispatch that was sent to the device and not read yet.

    drawn: its tokens, on the device.
    steps: how many decode steps it has.
    members: the sequences in it, each with its epoch when it was sent, and its row.
    """

    drawn: DecodedTokens
    steps: int
    members: list[tuple[Sequence, int, int]]


class Engine:
    """Generates completions for many requests at once, with continuous batching.

    Requests of any length share one decode batch. When a sequence is finished, a waiting one takes its slot.
    All shapes are fixed: only a handful of programs are compiled, and a row's arithmetic does not depend on
    the other rows.

    Attributes:
        options: the engine's options; those that were None have the values that were chosen.
        plan: what the engine keeps in each device's memory.
        max_length: the longest sequence, prompt and completion together, in tokens.
        statistics: counters of what the engine did so far.
    """

    def __init__(
        self,
        model: Transformer,
        stop_tokens: Collection[int],
        *,
        encoding: HarmonyEncoding | None = None,
        mesh: Mesh | None = None,
        options: EngineOptions | None = None,
        **changes: Unpack[EngineKeywords],
    ):
        """Allocates the KV cache. Nothing is compiled before the first step.

        Args:
            model: the model, loaded on the devices of `mesh`.
            stop_tokens: token ids that end every completion; at most 16.
            encoding: the model's encoding, for requests with stop strings, channel limits or a grammar; None
                refuses such requests.
            mesh: the mesh; None for the one device that the model is on.
            options: the engine's options; None for the defaults.
            changes: single options by name, which override `options`; None changes nothing.

        Raises:
            RequestError: an option has a value that is not allowed.
            EngineMemoryError: the engine does not fit in the devices' memory.
        """
        chosen = options_from(dict(changes), options)
        self._mesh = mesh or make_mesh(model.config, MeshShape(), [_device_of(model)])
        shape = shape_of(self._mesh)
        self._config, self._encoding = model.config, encoding
        self._stop_tokens = frozenset(stop_tokens)
        if len(self._stop_tokens) > STOP_COLUMNS // 2:
            raise RequestError(
                f"stop_tokens are {len(self._stop_tokens)}: there must be at most {STOP_COLUMNS // 2}"
            )
        self.plan = plan_on(self._mesh, model.config, chosen, model.dtype)
        defaults = defaults_for(self._mesh.local_devices[0])
        self.options = dataclasses.replace(
            chosen,
            max_length=self.plan.max_length,
            pages=self.plan.pages,
            prefill_tokens=chosen.prefill_tokens or defaults.prefill_tokens,
        )
        self.max_length = self.plan.max_length
        self._layout = lay_out(self.options, model.config, shape, model.dtype)
        _logger.info(
            "engine: mesh %s, %d slots of each batch shard, prefill steps of %s tokens",
            shape,
            self._layout.slots,
            ", ".join(f"{bucket.rows} x {bucket.tokens}" for bucket in self._layout.buckets),
        )
        _logger.info("plan: %s", self.plan)
        leader, self._follower = connect()
        self._runner = Runner(model, self._mesh, self._layout, leader)
        self._scheduler = Scheduler(self._layout, shape.batch_shards)
        self._table = SlotTable(self._runner, self._stop_tokens)
        self.statistics = Statistics()
        self._sequences: dict[str, list[Sequence]] = {}
        self._orders = itertools.count()
        self._in_flight: collections.deque[_Dispatch] = collections.deque()
        self._cancelled: list[str] = []
        # A running average: how many tokens of a dispatch are kept in rows that the host must check.
        self._usual_accepted = float(self.options.decode_steps)
        self._compiler = None if encoding is None else _grammars(encoding, model.config.vocabulary_size)

    @property
    def slots(self) -> int:
        """Sequences that decode at the same time."""
        return self._runner.rows

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""
        return self._scheduler.unfinished

    def occupancy(self) -> Occupancy:
        """What is in use. May be called in any thread."""
        return self._scheduler.occupancy()

    @property
    def compiled_programs(self) -> int:
        """How many programs were compiled so far. It stays constant once every bucket was used."""
        return self._runner.steps.compiled_programs

    @property
    def is_leader(self) -> bool:
        """True in the process that takes requests: the first of several. The others `follow` it."""
        return self._follower is None

    def follow(self) -> None:
        """Runs the same steps as the leader until the leader closes. Returns at once in the leader itself."""
        if self._follower is not None:
            self._follower.follow(self._runner.perform)

    def close(self) -> None:
        """Ends the `follow` of the other processes. The engine cannot step afterwards."""
        self._runner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, request: Request) -> None:
        """Raises an error if the request can never run on this engine. Does not queue it.

        Raises:
            RequestError: the request asks for something that is not allowed.
            RequestFailed: the engine's own code failed on it.
        """
        if not isinstance(request, Request):
            raise RequestError(f"the request is {shown(request)}: it must be a Request")
        if not request.prompt:
            raise RequestError("the prompt is empty: it must have at least one token")
        if len(request.prompt) >= self.max_length:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens: it must leave room in the longest sequence, "
                f"{self.max_length} tokens (max_length)"
            )
        lowest, highest = min(request.prompt), max(request.prompt)
        size, sampling = self._config.vocabulary_size, request.sampling
        if lowest < 0 or highest >= size:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"the prompt holds token {shown(wrong)}: ids must be from 0 to {size - 1}")
        for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            wrong_ids = [token for token in ids if not 0 <= token < size]
            if wrong_ids:
                raise RequestError(f"{name} holds token {wrong_ids[0]}: ids must be from 0 to {size - 1}")
        self._new_processor(request, 0)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestError, RequestFailed: as for `check`; or an unfinished request has the same id.
        """
        self.check(request)
        if request.id in self._sequences:
            raise RequestError(f"the id {shown(request.id)} is in use: a request with it is not finished")
        sequences = [
            Sequence(
                request,
                sample,
                next(self._orders),
                self._new_processor(request, sample),
                list(request.prompt),
                logprobs=None if request.sampling.logprobs is None else [],
            )
            for sample in range(request.sampling.n)
        ]
        self._sequences[request.id] = sequences
        for sequence in sequences:
            self._scheduler.add(sequence)

    def cancel(self, id: str) -> None:
        """Cancels a request. The next `step` frees its slots and pages, and returns its completions.

        Does nothing if there is no unfinished request with this id. May be called in any thread.
        """
        if id in self._sequences and id not in self._cancelled:
            self._cancelled.append(id)

    def has_begun(self, id: str) -> bool:
        """True if a sample of the request has a slot. May be called in any thread."""
        return any(sequence.state is not State.WAITING for sequence in self._sequences.get(id, ()))

    def step(self) -> list[Update]:
        """Runs one turn: admits sequences, sends a prefill and a decode dispatch, reads the dispatch before.

        Returns the updates of the sequences that have new tokens or are finished; possibly none.
        """
        updates = self._cancel()
        copies, preempted = self._scheduler.admit()
        self._note_preempted(preempted)
        self._copy(copies)
        prefilling = self._prefill()
        if self._verifies():
            updates += self._read_all()
        launched = self._launch(prefilling)
        ahead = 1 if launched and not self._verifies() else 0
        while len(self._in_flight) > ahead:
            updates += self._read()
        return updates

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completes every request, and yields each completion as soon as it is finished.

        Takes a few requests at a time from the iterable: see `gptoss_jax.engine.feeder.Feeder`. If the caller
        stops early, the unfinished requests are cancelled. In the meantime nobody else may call `step`;
        updates of requests that were added elsewhere are lost.

        Raises:
            RequestError, RequestFailed: as for `add`.
        """
        feeder = Feeder(self)
        feeder.add_source(requests)
        mine: dict[str, int] = {}  # request id → its unfinished samples
        try:
            while True:
                for request in feeder.due():
                    self.add(request)
                    mine[request.id] = request.sampling.n
                if not mine and not feeder:
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

    def _new_processor(self, request: Request, sample: int) -> OutputProcessor:
        """The processor of a new sequence. Raises `RequestError`, and `RequestFailed` for other errors."""
        try:
            return self._make_processor(request, sample)
        except RequestError:
            raise
        except BaseException as error:
            if ends_process(error):
                raise
            _logger.warning("request %r cannot be taken", request.id, exc_info=error)
            raise RequestFailed(f"the engine cannot take the request: {one_line(error)}") from error

    def _make_processor(self, request: Request, sample: int) -> OutputProcessor:
        sampling: SamplingParams = request.sampling
        matcher = headers = None
        if sampling.grammar is not None:
            if self._compiler is None:
                raise RequestError("grammar needs an engine with an encoding: this one has none")
            matcher = self._compiler.compile(sampling.grammar)
        elif sampling.header_guard is not None and self._encoding is not None:
            from gptoss_jax.engine.grammar.headers import HeaderMatcher, compile_headers

            size = self._config.vocabulary_size
            headers = HeaderMatcher(
                compile_headers(sampling.header_guard, self._encoding, size), request.prompt
            )
        room = self.max_length - len(request.prompt)
        return OutputProcessor(
            request,
            sample,
            encoding=self._encoding,
            stop_tokens=self._stop_tokens,
            max_tokens=min(sampling.max_tokens or room, room),
            matcher=matcher,
            headers=headers,
            prompt=request.prompt,
        )

    def _cancel(self) -> list[Update]:
        updates = []
        while self._cancelled:  # other threads may add to it
            id = self._cancelled.pop(0)
            for sequence in list(self._sequences.get(id, ())):
                updates.append(self._finish(sequence, "cancelled"))
        return updates

    def _copy(self, copies: list[Copy]) -> None:
        """Runs copies of rings, in their order."""
        shards = shape_of(self._mesh).batch_shards
        scratch = self._layout.spare_ring
        for copy in copies:
            sources = np.full(shards, scratch, np.int32)
            targets = sources.copy()
            sources[copy.shard], targets[copy.shard] = copy.source, copy.target
            self._runner.copy_rings(sources, targets)

    def _prefill(self) -> bool:
        """Sends the next prefill step. Returns False if there is nothing to prefill."""
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
        """The arrays of a `Chunk`; rows without a part are unused."""
        shards = shape_of(self._mesh).batch_shards
        rows = shards * bucket.rows
        tokens = np.zeros((rows, bucket.tokens), np.int32)
        positions = np.full((rows, bucket.tokens), EMPTY, np.int32)
        table = np.zeros((rows, self._layout.block_columns), np.int32)
        slots = np.full(rows, self._layout.spare_ring, np.int32)
        starts = np.ones(rows, bool)
        used = [0] * shards
        for sequence, begin, end in parts:
            placement = sequence.placed
            row = placement.shard * bucket.rows + used[placement.shard]
            used[placement.shard] += 1
            tokens[row, : end - begin] = sequence.tokens[begin:end]
            positions[row, : end - begin] = np.arange(begin, end)
            table[row, : len(placement.pages)] = placement.pages
            slots[row] = placement.slot
            starts[row] = begin == 0
        return tokens, positions, table, slots, starts

    def _verifies(self) -> bool:
        return any(
            one.state is State.DECODING and one.processor.verifies for one in self._scheduler.running()
        )

    def _launch(self, prefilling: bool) -> bool:
        """Sends one decode dispatch for all sequences that are ready. Returns False if none is ready."""
        steps = self.options.decode_steps
        if prefilling:  # a short dispatch, so that the next prefill step comes soon
            steps = max(1, steps // 4)
        self._note_preempted(self._scheduler.reserve(steps))
        ready = [one for one in self._scheduler.running() if one.state is State.DECODING]
        members = [one for one in ready if one.changed or one.granted > one.in_flight]
        if not members:
            return False
        if all(sequence.processor.verifies for sequence in members):
            # All tokens after the first refused one are drawn in vain.
            steps = min(steps, round(2 * self._usual_accepted) + 1)
        patch, table, words, masked = self._table.fill(ready)
        masks = (words, masked) if masked.any() else None
        self.statistics.dispatches += 1
        self.statistics.blocked_dispatches += not self._in_flight
        self.statistics.decode_steps += steps
        self.statistics.row_steps += steps * len(members)
        drawn = self._runner.decode(patch, table, steps, masks)
        dispatch = _Dispatch(drawn, steps, [(one, one.epoch, self._table.row(one)) for one in members])
        for sequence in members:
            sequence.in_flight += steps
        self._in_flight.append(dispatch)
        return True

    def _note_preempted(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.statistics.preemptions += 1
            _logger.debug(
                "preempted sample %d of request %r after %d tokens",
                sequence.sample,
                sequence.request.id,
                sequence.generated,
            )

    def _read_all(self) -> list[Update]:
        updates: list[Update] = []
        while self._in_flight:
            updates += self._read()
        return updates

    def _read(self) -> list[Update]:
        """Waits for the oldest dispatch in flight and processes its tokens."""
        dispatch = self._in_flight.popleft()
        begin = time.perf_counter()
        tokens = np.asarray(dispatch.drawn.tokens)
        self.statistics.wait_seconds += time.perf_counter() - begin
        has_logprobs = any(sequence.logprobs is not None for sequence, *_ in dispatch.members)
        logprobs = tuple(map(np.asarray, dispatch.drawn[1:])) if has_logprobs else None
        updates = []
        for sequence, epoch, row in dispatch.members:
            if sequence.epoch != epoch:
                continue
            sequence.in_flight -= dispatch.steps
            column = tokens[:, row]
            drawn = column[column != EMPTY].tolist()
            # A row that fell idle draws nothing in the dispatches that were sent after this one.
            ahead = 0
            if len(drawn) == dispatch.steps:
                ahead = min(sequence.in_flight, sequence.granted - len(drawn))
            update = self._process(sequence, drawn, ahead, row, logprobs)
            if update is not None:
                updates.append(update)
        return updates

    def _process(
        self,
        sequence: Sequence,
        drawn: list[int],
        ahead: int,
        row: int,
        logprobs: tuple[np.ndarray, ...] | None,
    ) -> Update | None:
        """Adds the tokens that were drawn for a sequence, as far as its processor accepts them.

        `ahead`: the most tokens that the device draws behind these, in dispatches that were sent already.
        If the processor fails, only this sequence ends.
        """
        try:
            outcome = sequence.processor.process(drawn)
        except BaseException as error:
            if ends_process(error):
                raise
            failure = f"the engine failed while it followed the completion: {one_line(error)}"
            _logger.warning("request %r: %s", sequence.request.id, failure, exc_info=error)
            return self._finish(sequence, "cancelled", error=failure)
        kept = drawn[: outcome.accepted]
        last = len(sequence.tokens) - 2 + len(drawn) + ahead  # the position that the device computed last
        sequence.tokens += kept
        sequence.computed = len(sequence.tokens) - 1
        sequence.granted -= len(kept)
        self.statistics.generated_tokens += len(kept) + len(outcome.forced)
        self.statistics.refused_tokens += len(drawn) - len(kept)
        if sequence.processor.verifies and drawn:
            self._usual_accepted += (len(kept) - self._usual_accepted) / _AVERAGED_ROWS
        if sequence.logprobs is not None and logprobs is not None:
            top = sequence.request.sampling.logprobs or 0
            sequence.logprobs += [_logprobs(logprobs, step, row, top) for step in range(len(kept))]
        if outcome.finish is not None:
            return self._finish(sequence, outcome.finish, outcome.stop)
        if outcome.forced:
            sequence.tokens += outcome.forced
            if sequence.logprobs is not None:
                sequence.logprobs += [TokenLogprobs(0.0)] * len(outcome.forced)
            sequence.interrupt()
        elif len(kept) < len(drawn):
            sequence.interrupt()
            if not self._layout.holds_window(self._config.sliding_window, sequence.computed, last):
                self.statistics.recomputations += 1
                self._scheduler.requeue(sequence)
        elif sequence.granted <= 0 and sequence.in_flight <= 0:
            sequence.interrupt()
        if sequence.processor.verifies:  # masks change with every token
            sequence.changed = True
        return sequence.update() if kept or outcome.forced else None

    def _finish(
        self, sequence: Sequence, reason: FinishReason, stop: str | None = None, error: str | None = None
    ) -> Update:
        self.statistics.prompt_tokens += sequence.prompt_length
        self.statistics.cached_tokens += sequence.cached
        self._scheduler.remove(sequence)
        sequence.interrupt()
        siblings = self._sequences[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.id]
        return sequence.update(reason, stop, error)


def plan_on(mesh: Mesh, config: ModelConfig, options: EngineOptions, dtype: DTypeLike) -> MemoryPlan:
    """Plans the memory of an engine on a mesh, before the model is loaded.

    Raises:
        EngineMemoryError: it does not fit.
        RequestError: options contradict each other.
    """
    choice = choose("expert_mlp", ("reference", "tpu", "gpu"))
    form = code_format_for(choice.chip) if choice.implementation == "tpu" else None
    device = mesh.local_devices[0]
    return plan(config, shape_of(mesh), options, dtype, device_limit(device), form, defaults_for(device))


def _logprobs(arrays: tuple[np.ndarray, ...], step: int, row: int, top: int) -> TokenLogprobs:
    """The log-probabilities of one token and the `top` likeliest, from the arrays of `DecodedTokens`."""
    chosen, ids, values = (array[step, row] for array in arrays)
    return TokenLogprobs(float(chosen), tuple(zip(ids[:top].tolist(), values[:top].tolist(), strict=True)))


def _grammars(encoding: HarmonyEncoding, vocabulary_size: int) -> GrammarCompiler:
    from gptoss_jax.engine.grammar import GrammarCompiler

    return GrammarCompiler(encoding, vocabulary_size)


def _device_of(model: Transformer) -> jax.Device:
    device: jax.Device
    (device,) = model.norm.scale[...].devices()
    return device
