"""A request's sample inside the engine."""

from __future__ import annotations

import dataclasses

from gptoss_jax.engine.control import Control
from gptoss_jax.engine.request import Completion, FinishReason, Request, TokenLogprobs, Update


@dataclasses.dataclass(eq=False)
class Sequence:
    """One of a request's samples: its tokens, and how far the device is with them.

    `tokens`: prompt and completion, as far as the host accepted it. `computed`: how many of them are in the
    cache. The last token never is: it is fed by the step that draws the next one, so a sequence decodes as
    soon as `computed` is one less than its tokens. Until then, be they a prompt's, forced ones, or those of a
    sequence that had to give its pages away, they are prefilled. `fresh`: its ring still holds another's
    tokens.

    `order`: who came first. `shard`, `slot`, `pages`: where it is, while it runs. `epoch` counts how often
    the host changed what the device does for it: tokens drawn for an earlier epoch are void. `flying`: steps
    that were sent to the device and not read back. `armed`: tokens that the device may draw before it stops
    and waits for the host. `boundary`: the prefix at whose end its rings are saved for others.
    """

    request: Request
    sample: int
    order: int
    control: Control
    tokens: list[int]
    computed: int = 0
    fresh: bool = True
    shard: int = -1
    slot: int = -1
    pages: list[int] = dataclasses.field(default_factory=list)
    epoch: int = 0
    flying: int = 0
    armed: int = 0
    changed: bool = True
    boundary: int = 0
    cached: int = 0
    reported: int = 0
    logprobs: list[TokenLogprobs] | None = None

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        """Tokens of the completion so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def decodes(self) -> bool:
        """Whether it has a slot, and all its tokens but the last are in the cache."""
        return not self.fresh and self.computed >= len(self.tokens) - 1

    def restart(self) -> None:
        """Forgets what the device did for it: pages, slot and all that was computed."""
        self.computed, self.fresh, self.boundary = 0, True, 0
        self.shard, self.slot, self.pages = -1, -1, []
        self.interrupt()

    def interrupt(self) -> None:
        """Voids what is under way; the device goes on from `tokens` with the next dispatch."""
        self.epoch += 1
        self.flying, self.armed, self.changed = 0, 0, True

    def update(self, finish: FinishReason | None = None, stop: str | None = None) -> Update:
        """The tokens that were not reported yet, and the completion if it is finished."""
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
                grammar_complete=self.control.grammar_complete,
            )
        return Update(self.request.id, self.sample, tokens, logprobs, completion)
