"""An engine's counters, and what of it is in use."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """What of an engine is in use at a moment.

    busy_slots, waiting: sequences that have a slot; sequences of the engine that wait for one.
    used_pages: pages that sequences hold. cached_pages: pages that only the prefix cache holds, and that make
        room where they are needed. free_pages: all others.
    """

    busy_slots: int
    waiting: int
    used_pages: int
    cached_pages: int
    free_pages: int


@dataclasses.dataclass
class Statistics:
    """Totals since the engine was made. To measure a part of its work, `copy` them before, and subtract."""

    prompt_tokens: int = 0
    """Prompt tokens of finished sequences."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that came from the prefix cache."""
    prefilled_tokens: int = 0
    """Tokens that prefill steps computed: prompts, and sequences that continue after preemption."""
    padded_tokens: int = 0
    """Padding of the prefill steps, in tokens."""
    generated_tokens: int = 0
    """Accepted tokens, forced ones included."""
    refused_tokens: int = 0
    """Tokens that were drawn and then dropped by the host."""
    dispatches: int = 0
    """Decode dispatches."""
    decode_steps: int = 0
    """Decode steps of those dispatches."""
    row_steps: int = 0
    """Decode steps times the slots in use; `generated_tokens / row_steps` is the part that was useful."""
    preemptions: int = 0
    """How often a sequence lost its slot and pages to others."""
    recomputations: int = 0
    """How often a sequence was computed again, as more of its tokens were taken back than a ring holds."""
    wait_seconds: float = 0.0
    """Time that the host waited for the device, in seconds."""
    blocked_dispatches: int = 0
    """Dispatches that were sent while the device was idle: it had waited for the host."""

    def copy(self) -> Statistics:
        """A copy that does not change any more."""
        return dataclasses.replace(self)

    def __sub__(self, earlier: Statistics) -> Statistics:
        """The difference to an earlier copy."""
        names = [field.name for field in dataclasses.fields(self)]
        return Statistics(**{name: getattr(self, name) - getattr(earlier, name) for name in names})
