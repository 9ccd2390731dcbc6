"""What became of the answers: a line of figures, and a file with the reasoning."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gptoss_jax.answers import Sample
    from harmony.json_types import JsonObject

Cut = Literal["reasoning", "answer"]


def cut_of(sample: Sample) -> Cut | None:
    """Where a limit cut the sample: in its reasoning, so that there is no answer, or in the answer."""
    if sample.finish_reason != "length":
        return None
    return "answer" if sample.text else "reasoning"


@dataclasses.dataclass
class Tally:
    """Figures of some answers, as one line."""

    answers: int = 0
    tokens: int = 0
    reasoning_tokens: int = 0
    cut_answers: int = 0
    cut_reasoning: int = 0
    empty: int = 0

    def add(self, sample: Sample, answer: str) -> None:
        """Counts an answer, and the sample that it comes from."""
        cut = cut_of(sample)
        self.answers += 1
        self.tokens += sample.usage.generated_tokens
        self.reasoning_tokens += sample.usage.reasoning_tokens
        self.cut_answers += cut == "answer"
        self.cut_reasoning += cut == "reasoning"
        self.empty += cut is None and not answer

    @property
    def worrying(self) -> bool:
        """Whether some answers are not what the model would have said."""
        return bool(self.cut_answers or self.cut_reasoning or self.empty)

    def __str__(self) -> str:
        mean = self.tokens / max(1, self.answers)
        share = self.reasoning_tokens / max(1, self.tokens)
        told = [f"{self.answers} answers of {mean:.0f} tokens on average, {share:.0%} of them reasoning"]
        told += [f"{self.cut_answers} cut by max_gen_toks or max_tokens"] * bool(self.cut_answers)
        told += [f"{self.cut_reasoning} cut while still reasoning"] * bool(self.cut_reasoning)
        told += [f"{self.empty} empty, by the model itself or by an `until` at their beginning"] * bool(
            self.empty
        )
        return "; ".join(told)


def append_row(file: Path, row: JsonObject) -> None:
    """Appends a JSON line to a file, with a single write.

    Raises:
        OSError: the file cannot be written.
    """
    line = json.dumps(row, ensure_ascii=False) + "\n"
    with file.open("ab", buffering=0) as out:
        out.write(line.encode("utf-8", "surrogatepass"))
