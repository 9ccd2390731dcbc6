"""A request's sample inside the engine."""

from __future__ import annotations

import dataclasses
import enum

from gptoss_jax.engine.output_processor import OutputProcessor
from gptoss_jax.engine.request import Completion, FinishReason, Request, TokenLogprobs, Update


class State(enum.Enum):
    """The states of a `Sequence`, which has the diagram."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"


@dataclasses.dataclass
class Placement:
    """What a running sequence holds.

    shard, slot: the batch shard, and the slot in it.
    pages: its pages of the cache, in the order of its tokens.
    ring_is_own: True once the slot's ring holds this sequence's tokens; before, it holds those of the
        sequence that had the slot last.
    snapshot_at: how many tokens are in the ring when it is saved for other sequences; 0 for no snapshot.
    """

    shard: int
    slot: int
    pages: list[int]
    ring_is_own: bool
    snapshot_at: int = 0


@dataclasses.dataclass(eq=False)
class Sequence:
    """One sample of a request: its tokens, and how far the device has computed them.

    ::

                    the scheduler gives it               all tokens but the
                     a slot and pages                    last are in the cache
        WAITING ─────────────────────────► PREFILLING ─────────────────────────► DECODING ───► finished
           ▲                                   │  ▲                                │  │
           │     its slot and pages are taken  │  │        tokens are forced       │  │
           └───────────────────────────────────┴──┼────────────────────────────────┘  │
                                                  └───────────────────────────────────┘

    The last token is never in the cache: the decode step that draws the next token feeds it. All others are
    prefilled: prompts, forced tokens, and tokens that are computed again. A sequence is computed again after
    preemption, and when the host takes more tokens back than a ring holds; both take its slot and pages.

    request, sample: the request, and which of its samples this is.
    order: the order of arrival.
    processor: decides which drawn tokens are kept, and when the sequence ends.
    tokens: the prompt, and the completion as far as the host has accepted it.
    computed: how many of the tokens are in the cache.
    placement: its slot and pages; None while it waits.
    epoch: increases when the host changes the sequence. Tokens drawn in an earlier epoch are dropped.
    in_flight: decode steps that were sent to the device and not read back.
    granted: tokens that the device may still draw before it waits for the host.
    changed: True if the device needs the sequence's token, position and settings again.
    cached: tokens of the prompt that came from the prefix cache.
    reported: tokens of the completion that were in updates.
    logprobs: log-probabilities of the completion's tokens; None if the request has no `logprobs`.
    """

    request: Request
    sample: int
    order: int
    processor: OutputProcessor
    tokens: list[int]
    computed: int = 0
    placement: Placement | None = None
    epoch: int = 0
    in_flight: int = 0
    granted: int = 0
    changed: bool = True
    cached: int = 0
    reported: int = 0
    logprobs: list[TokenLogprobs] | None = None

    @property
    def state(self) -> State:
        """Waiting, prefilling or decoding."""
        if self.placement is None:
            return State.WAITING
        is_cached = self.placement.ring_is_own and self.computed >= len(self.tokens) - 1
        return State.DECODING if is_cached else State.PREFILLING

    @property
    def rank(self) -> tuple[bool, int]:
        """What is served first: the smallest. Sequences in the background come behind all others."""
        return self.request.background, self.order

    @property
    def placed(self) -> Placement:
        """Its slot and pages. Raises RuntimeError if it has none."""
        if self.placement is None:
            raise RuntimeError(f"sample {self.sample} of request {self.request.id!r} has no slot")
        return self.placement

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        """Tokens of the completion so far."""
        return len(self.tokens) - self.prompt_length

    def restart(self) -> None:
        """Begins again after preemption: nothing is in the cache any more."""
        self.computed = 0
        self.interrupt()

    def interrupt(self) -> None:
        """Drops the tokens in flight. The next dispatch continues after `tokens`."""
        self.epoch += 1
        self.in_flight, self.granted, self.changed = 0, 0, True

    def update(
        self, finish: FinishReason | None = None, stop: str | None = None, error: str | None = None
    ) -> Update:
        """The tokens that were not reported yet; with `finish`, also the completion."""
        begin, self.reported = self.reported, self.generated
        tokens = self.tokens[self.prompt_length + begin :]
        logprobs = None if self.logprobs is None else tuple(self.logprobs[begin:])
        completion = None
        if finish is not None:
            completion = Completion(
                id=self.request.id,
                tokens=self.tokens[self.prompt_length :],
                finish_reason=finish,
                prompt_tokens=self.prompt_length,
                sample=self.sample,
                stop=stop,
                cached_tokens=min(self.cached, self.prompt_length),
                logprobs=None if self.logprobs is None else tuple(self.logprobs),
                grammar_complete=self.processor.grammar_complete if error is None else False,
                error=error,
            )
        return Update(self.request.id, self.sample, tokens, logprobs, completion)
