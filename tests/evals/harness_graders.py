"""AIME and GPQA of openai/gpt-oss, run as they are: what ours are compared with.

`scripts/make_eval_golden CHECKOUT` writes grader_golden.json, what the harness makes of the cases of
grader_cases.py, for runs without a checkout. It needs pandas and jinja2.
"""

from __future__ import annotations

import hashlib
import html
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.evals import grader_cases

GOLDEN = Path(__file__).with_name("grader_golden.json")
ATTEMPTS = 8


def module(checkout: Path, name: str) -> Any:
    """A module of `gpt_oss.evals`; packages that only its pages and data need may be missing."""
    for package in ("blobfile", "jinja2", "pandas"):
        try:
            importlib.import_module(package)
        except ImportError:
            sys.modules[package] = mock.MagicMock()
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return importlib.import_module(f"gpt_oss.evals.{name}")


def letter_of(checkout: Path) -> Callable[[str], str]:
    """The harness' grader of GPQA."""
    grader: Callable[[str], str] = module(checkout, "abcd_grader").extract_abcd
    return grader


def number_of(checkout: Path) -> Callable[[str], str | None]:
    """The harness' grader of AIME: the number that it compares, written out."""
    extract = module(checkout, "aime_eval").extract_boxed_text

    def read(text: str) -> str | None:
        try:
            return str(int(extract(text)))
        except (ValueError, TypeError):
            return None

    return read


def asked(checkout: Path, folder: Path, evaluation: str, attempts: int, examples: int | None) -> list[Any]:
    """What the harness asks on the data of a folder, in its order: (messages, right answer). Needs pandas."""
    import pandas

    types, report = module(checkout, "types"), module(checkout, "report")
    readers = {"read_csv": pandas.read_csv, "read_json": pandas.read_json}
    messages = []

    def local(name: str) -> Callable[..., Any]:
        return lambda address, **options: readers[name](folder / address.rpartition("/")[2], **options)

    class Sampler:
        def _pack_message(self, role: str, content: str) -> dict[str, str]:
            return {"role": role, "content": content}

        def __call__(self, prompt: list[Any]) -> Any:
            messages.append(prompt)
            return types.SamplerResponse("", prompt, {})

    def in_order(call: Callable[[Any], Any], rows: Iterable[Any], **_: Any) -> list[Any]:
        return [call(row) for row in rows]

    with (
        mock.patch.multiple(pandas, **{name: local(name) for name in readers}),
        mock.patch.object(report, "map_with_progress", in_order),
    ):
        name, kind = {"aime": ("aime_eval", "AIME25Eval"), "gpqa": ("gpqa_eval", "GPQAEval")}[evaluation]
        made = getattr(module(checkout, name), kind)(n_repeats=attempts, num_examples=examples)
        pages = made(Sampler()).htmls
    right = [html.unescape(re.search(r"<p>Correct Answer: (.*?)</p>", page)[1]) for page in pages]  # type: ignore[index]
    return list(zip(messages, right, strict=True))


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def main(checkout: Path) -> None:
    """Writes the golden file."""
    answers = grader_cases.answers()
    letter, number = letter_of(checkout), number_of(checkout)
    with tempfile.TemporaryDirectory() as folder:
        grader_cases.write_data(Path(folder))
        prompts = {
            f"{evaluation} {attempts} {examples}": digest(
                asked(checkout, Path(folder), evaluation, attempts, examples)
            )
            for evaluation in ("aime", "gpqa")
            for attempts, examples in ((ATTEMPTS, None), (1, 7))
        }
    golden = {
        "answers": digest(answers),
        "letters": [letter(answer) for answer in answers],
        "numbers": [found and hashed(found) for found in map(number, answers)],
        "prompts": prompts,
    }
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


def hashed(number: str) -> str:
    """A number as the golden file has it: the hash of a long one."""
    return number if len(number) < 40 else digest(number)[:16]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
