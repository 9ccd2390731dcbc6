"""What a batch run did, in numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any


@dataclasses.dataclass
class BatchReport:
    """The sums over one run; rows that an earlier run had finished count only in `resumed`."""

    rows: int = 0
    """Rows of the input."""
    resumed: int = 0
    """Rows that were there when this run started."""
    answered: int = 0
    errors: int = 0
    """Rows of this run that became error rows."""
    malformed: int = 0
    """Answers whose harmony had to be recovered: see the rows' `diagnostics`."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """The part of `prompt_tokens` that earlier requests had left in the cache."""
    generated_tokens: int = 0
    reasoning_tokens: int = 0
    """The part of `generated_tokens` inside analysis messages."""
    finish_reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    """Of all samples, so their sum is above `answered` where rows asked for several."""
    preemptions: int = 0
    """How often a request gave its place in the cache to others, to be computed again later."""
    compiled_programs: int = 0
    """Programs that the engine compiled, or took from the compilation cache."""
    elapsed_seconds: float = 0.0
    """Wall time of this run, compilation included, loading the model not."""

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens of answered rows over the elapsed time."""
        return self.prompt_tokens / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def generated_tokens_per_second(self) -> float:
        """Generated tokens over the elapsed time."""
        return self.generated_tokens / self.elapsed_seconds if self.elapsed_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """All fields and both rates, ready for `json.dumps`."""
        return {
            **dataclasses.asdict(self),
            "finish_reasons": dict(sorted(self.finish_reasons.items())),
            "prompt_tokens_per_second": round(self.prompt_tokens_per_second, 1),
            "generated_tokens_per_second": round(self.generated_tokens_per_second, 1),
            "elapsed_seconds": round(self.elapsed_seconds, 3),
        }

    def __str__(self) -> str:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(self.finish_reasons.items()))
        lines = [
            ("rows", f"{self.rows} ({self.answered} answered, {self.errors} errors, {self.resumed} resumed)"),
            ("finish reasons", reasons or "none"),
            ("malformed answers", str(self.malformed)),
            (
                "prompt tokens",
                f"{self.prompt_tokens} ({self.prompt_tokens_per_second:.0f} a second), "
                f"{self.cached_tokens} of them cached",
            ),
            (
                "generated tokens",
                f"{self.generated_tokens} ({self.generated_tokens_per_second:.0f} a second), "
                f"{self.reasoning_tokens} of them reasoning",
            ),
            ("engine", f"{self.compiled_programs} programs, {self.preemptions} preemptions"),
            ("elapsed", f"{self.elapsed_seconds:.1f} s"),
        ]
        return "\n".join(f"{name:<18}{value}" for name, value in lines)
