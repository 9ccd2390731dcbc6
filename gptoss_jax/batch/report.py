"""The counts of a batch run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptoss_jax.openai_api import UnknownField
    from harmony.json_types import JsonObject

STOPPED = 75
"""The exit code of a run that was stopped and can be continued: EX_TEMPFAIL of sysexits.h."""

_MAX_UNKNOWN = 20
"""How many unknown fields the printed report lists; its JSON lists all of them."""


@dataclasses.dataclass
class BatchReport:
    """The counts of one run. Rows of an earlier run count only in `rows`, `resumed`, `resumed_errors`."""

    rows: int = 0
    """Rows of the input."""
    resumed: int = 0
    """Rows of an earlier run that were kept; without error rows that this run answered again."""
    resumed_errors: int = 0
    """The part of `resumed` that is error rows."""
    answered: int = 0
    """Rows that this run answered."""
    errors: int = 0
    """Rows of this run that became error rows."""
    stopped: str = ""
    """Why the run ended before its last row, as words for a sentence; empty if it did not."""
    unanswered: int = 0
    """Rows of the input that have no row because the run was stopped. The next run answers them."""
    malformed: int = 0
    """Samples whose harmony was malformed and recovered: see the rows' `diagnostics`."""
    prompt_tokens: int = 0
    """Prompt tokens of the answered rows."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that came from the prefix cache."""
    generated_tokens: int = 0
    """Tokens of all samples of the answered rows."""
    reasoning_tokens: int = 0
    """The part of `generated_tokens` inside analysis messages."""
    finish_reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    """Finish reason → samples that ended with it."""
    unknown_fields: Counter[UnknownField] = dataclasses.field(default_factory=Counter)
    """Unknown field → rows that have it."""
    preemptions: int = 0
    """How often a sequence lost its slot and pages to others, and was computed again later."""
    compiled_programs: int = 0
    """Programs that the engine compiled, or loaded from the compilation cache."""
    elapsed_seconds: float = 0.0
    """Wall time of the run in seconds, with compilation, without loading the model."""

    @property
    def failed(self) -> int:
        """Error rows in the whole output, earlier ones included."""
        return self.errors + self.resumed_errors

    def exit_code(self, max_errors: int | None = None) -> int:
        """Returns the exit code of the command.

        1 if the output has more than `max_errors` error rows (None for no limit); 75 if rows are left because
        the run was stopped; 1 if the input has rows and none was answered, by this run or an earlier one.
        Else 0.
        """
        answered = self.answered + self.resumed - self.resumed_errors
        too_many = max_errors is not None and self.failed > max_errors
        if self.unanswered and not too_many:
            return STOPPED
        return 1 if too_many or (self.rows and not answered) else 0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens divided by the elapsed time."""
        return self.prompt_tokens / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def generated_tokens_per_second(self) -> float:
        """Generated tokens divided by the elapsed time."""
        return self.generated_tokens / self.elapsed_seconds if self.elapsed_seconds else 0.0

    def as_json(self) -> JsonObject:
        """All fields and both rates, as JSON."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "finish_reasons": dict(sorted(self.finish_reasons.items())),
            "unknown_fields": [
                {"name": field.name, "nearest": field.nearest, "rows": rows}
                for field, rows in self.unknown_fields.most_common()
            ],
            "prompt_tokens_per_second": round(self.prompt_tokens_per_second, 1),
            "generated_tokens_per_second": round(self.generated_tokens_per_second, 1),
            "elapsed_seconds": round(self.elapsed_seconds, 3),
        }

    def __str__(self) -> str:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(self.finish_reasons.items()))
        resumed = f"{self.resumed} resumed"
        if self.resumed_errors:
            resumed += f", {self.resumed_errors} of them errors"
        left = f", {self.unanswered} left" if self.unanswered else ""
        lines = [
            ("rows", f"{self.rows} ({self.answered} answered, {self.errors} errors, {resumed}{left})"),
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
        for field, rows in self.unknown_fields.most_common(_MAX_UNKNOWN):
            hint = "" if field.nearest is None else f"; {field.nearest}?"
            lines.append(("unknown field", f"{field.name}: {rows} row{'s' * (rows != 1)}{hint}"))
        if len(self.unknown_fields) > _MAX_UNKNOWN:
            lines.append(("unknown fields", f"{len(self.unknown_fields) - _MAX_UNKNOWN} more"))
        return "\n".join(f"{name:<18}{value}" for name, value in lines)
