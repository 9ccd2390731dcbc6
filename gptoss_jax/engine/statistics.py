"""What an engine did, in numbers."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Statistics:
    """Sums since the engine was made; `copy` and subtract to measure a stretch of work."""

    prompt_tokens: int = 0
    """Of sequences that are finished."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that an earlier request had left in the cache."""
    prefilled_tokens: int = 0
    """Tokens that prefill steps computed: prompts, and what preemption made necessary again."""
    padded_tokens: int = 0
    """Tokens that prefill steps had room for beyond that."""
    generated_tokens: int = 0
    """Tokens that were accepted, forced ones included."""
    refused_tokens: int = 0
    """Tokens that were drawn and taken back."""
    dispatches: int = 0
    """Decode dispatches."""
    decode_steps: int = 0
    """Steps that those were sent for."""
    row_steps: int = 0
    """The same for each row that a sequence was in; `generated_tokens` over it is the use of the rows."""
    preemptions: int = 0
    """How often a sequence had to give its pages away."""
    wait_seconds: float = 0.0
    """Time in which the host waited for a dispatch: all but this is the host's own."""
    blocked_dispatches: int = 0
    """Dispatches that were sent when none was under way: the device had to wait for the host."""

    def copy(self) -> Statistics:
        """As it is now."""
        return dataclasses.replace(self)

    def __sub__(self, earlier: Statistics) -> Statistics:
        """What was added since."""
        return Statistics(
            *(after - before for after, before in zip(_values(self), _values(earlier), strict=True))
        )


def _values(statistics: Statistics) -> list:
    return [getattr(statistics, field.name) for field in dataclasses.fields(statistics)]
