"""HealthBench of openai/gpt-oss, run as it is: what gptoss_jax.evals.healthbench is compared with.

`python -m tests.evals.harness_healthbench CHECKOUT` writes healthbench_golden.json, what the harness makes of
the cases of healthbench_cases.py, for runs without a checkout.

The harness takes the grader's replies in the order in which they arrive, and gives the first one to the first
rubric item. Only with the variable `debug`, which makes it ask one at a time, are they in order.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.evals import healthbench_cases as cases

GOLDEN = Path(__file__).with_name("healthbench_golden.json")
LETTERS = {True: "t", False: "f", None: "-"}
"""What is read from a reply, as it stands in the golden file."""


def load(checkout: Path) -> Any:
    """The module `gpt_oss.evals.healthbench_eval`; its packages for storage and pages are stood in for."""
    for name in ("blobfile", "jinja2", "pandas"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = mock.MagicMock()
    sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module("gpt_oss.evals.healthbench_eval")
    finally:
        sys.path.remove(str(checkout))


def graded(
    harness: Any, example: dict[str, Any], text: str, reply: Callable[[str], str], *, in_order: bool = True
) -> dict[str, Any]:
    """What the harness makes of one answer: its prompts for the grader, metrics, and graded rubric items.

    `reply` answers the grader's prompts. `in_order`: True asks for one item after another.
    """
    prompts: list[str] = []

    def sampler(messages: list[dict[str, str]]) -> Any:
        (message,) = messages
        assert message["role"] == "user"
        prompts.append(message["content"])
        return mock.Mock(response_text=reply(message["content"]))

    evaluation = harness.HealthBenchEval.__new__(harness.HealthBenchEval)
    evaluation.grader_model = sampler
    items = [harness.RubricItem.from_dict(item) for item in example["rubrics"]]
    with (
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch.dict(os.environ, {"debug": "1"} if in_order else {}),
    ):
        metrics, _, graded_items = evaluation.grade_sample(
            example["prompt"], text, example["example_tags"], items
        )
    return {"prompts": prompts, "metrics": metrics, "items": graded_items}


def read(harness: Any, reply: str) -> bool | None:
    """The label that the harness reads from a reply; None if it asks again, or if its code fails."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            found = harness.parse_json_to_dict(reply)
            label = "criteria_met" in found and found["criteria_met"]
            return label if label is True or (label is False and "criteria_met" in found) else None
        except (RecursionError, TypeError, ValueError):
            return None


def verdict_of(prompt: str) -> bool:
    """A verdict that depends on nothing but the prompt."""
    return digest(prompt)[0] in "01234567"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def reply(prompt: str) -> str:
    """A grader's reply that depends on nothing but the prompt."""
    return json.dumps({"explanation": "so", "criteria_met": verdict_of(prompt)})


def drawn(harness: Any, examples: int, of: int) -> list[str]:
    """The ids of the examples that the harness draws from a file of `of` examples."""
    lines = [json.dumps(example).encode() for example in cases.examples(of)]
    with mock.patch.object(harness.bf, "BlobFile") as file:
        file.return_value.__enter__.return_value = lines
        evaluation = harness.HealthBenchEval(grader_model=None, num_examples=examples)
    return [example["prompt_id"] for example in evaluation.examples]


def evaluated(harness: Any, lines: list[str], answer: Callable[[Any], str]) -> Any:
    """The result of the harness' whole evaluation of some examples, with verdicts in order."""

    def sampler(messages: list[dict[str, str]]) -> Any:
        return mock.Mock(
            response_text=answer(messages), response_metadata={}, actual_queried_message_list=messages
        )

    def grader(messages: list[dict[str, str]]) -> Any:
        return mock.Mock(response_text=reply(messages[0]["content"]))

    with mock.patch.object(harness.bf, "BlobFile") as file, mock.patch.dict(os.environ, {"debug": "1"}):
        file.return_value.__enter__.return_value = lines
        return harness.HealthBenchEval(grader_model=grader)(sampler)


def main(checkout: Path) -> None:
    harness = load(checkout)
    graded_examples = [
        graded(harness, example, cases.text_of(number), reply)
        for number, example in enumerate(cases.examples(40))
    ]
    golden = {
        "template": digest(harness.GRADER_TEMPLATE),
        "graded": [[digest("".join(sorted(g["prompts"])))[:16], g["metrics"]] for g in graded_examples],
        "read": "".join(LETTERS[read(harness, text)] for text in cases.replies(600)),
        "drawn": {str(count): drawn(harness, count, of=20) for count in (3, 19, 20)},
    }
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
