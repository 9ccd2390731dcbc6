"""Checks an input without answering it: `gptoss-jax batch --check`. Loads no jax and no weights."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from gptoss_jax.batch.ids import IdTable
from gptoss_jax.batch.rows import RowContext, RowEngine, check_id, prepare, read_line
from gptoss_jax.batch.source import Source
from gptoss_jax.engine.request import Request, RequestError, SamplingParams
from gptoss_jax.openai_api import ApiError
from gptoss_jax.openai_api.rendering import History

if TYPE_CHECKING:
    from gptoss_jax.openai_api import UnknownField
    from harmony import HarmonyEncoding


class Problem(NamedTuple):
    """Why a line would become an error row. line: its number, from 1. code, message: those of the row."""

    line: int
    code: str
    message: str


@dataclasses.dataclass
class Check:
    """What was found so far.

    rows: lines that were checked. problems: code → lines that would become error rows. unknown: unknown field
    → lines that have it.
    """

    rows: int = 0
    problems: Counter[str] = dataclasses.field(default_factory=Counter)
    unknown: Counter[UnknownField] = dataclasses.field(default_factory=Counter)

    def __str__(self) -> str:
        bad = self.problems.total()
        codes = ", ".join(f"{count} {code}" for code, count in self.problems.most_common())
        lines = [f"{self.rows} rows, {bad} of them cannot be answered" + (f": {codes}" if bad else "")]
        for field, rows in self.unknown.most_common(_MAX_UNKNOWN):
            hint = "" if field.nearest is None else f"; {field.nearest}?"
            lines.append(f"unknown field {field.name}: {rows} row{'s' * (rows != 1)}{hint}")
        return "\n".join(lines)


_MAX_UNKNOWN = 1000
"""How many different unknown fields are counted."""


class _Checker:
    """An engine as far as a request is checked: what `Engine.check` refuses, from the same numbers."""

    def __init__(self, encoding: HarmonyEncoding, vocabulary_size: int, max_length: int) -> None:
        from gptoss_jax.engine.grammar import GrammarCompiler

        self.max_length = max_length
        self._size = vocabulary_size
        self._grammars = GrammarCompiler(encoding, vocabulary_size)

    def check(self, request: Request) -> None:
        """Raises RequestError, or GrammarError, if the request can never run."""
        sampling = request.sampling
        for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            for token in ids:
                if not 0 <= token < self._size:
                    raise RequestError(f"{name} holds token {token}: ids must be from 0 to {self._size - 1}")
        if sampling.grammar is not None:
            self._grammars.check(sampling.grammar)


def check_input(
    source: str | Path,
    encoding: HarmonyEncoding,
    found: Check,
    *,
    vocabulary_size: int,
    max_length: int,
    sampling: SamplingParams | None = None,
    effort: str | None = None,
    date: str = "2025-01-01",
    history: History = "guide",
    strict: bool = False,
    ignore_unknown_tools: bool = False,
) -> Iterator[Problem]:
    """Yields a problem for each line that would become an error row, in the order of the lines.

    Args:
        source: the input, as for `open_batch`.
        encoding: the encoding of the model.
        found: counts rows and problems as they come.
        vocabulary_size: the model's.
        max_length: the longest sequence, prompt and completion together, in tokens.
        sampling, effort, date, history, strict, ignore_unknown_tools: as for `open_batch`.

    Raises:
        BatchError: the input cannot be read.
    """
    checker = cast(RowEngine, _Checker(encoding, vocabulary_size, max_length))
    context = RowContext(
        checker,
        encoding,
        sampling or SamplingParams(),
        effort,
        date,
        0,
        history=history,
        strict=strict,
        ignore_unknown_tools=ignore_unknown_tools,
    )
    with Source(source) as lines, IdTable() as ids:
        for number, raw in lines.read():
            found.rows += 1
            try:
                _check_line(raw, number, context, ids, found)
            except ApiError as error:
                found.problems[error.code] += 1
                yield Problem(number, error.code, str(error))


def _check_line(raw: bytes, number: int, context: RowContext, ids: IdTable, found: Check) -> None:
    document, envelope = read_line(raw, number)
    check_id(envelope, ids)
    for field in prepare(document, envelope, context).unknown:
        if field in found.unknown or len(found.unknown) < _MAX_UNKNOWN:
            found.unknown[field] += 1
