"""The arguments of the model: what `--model_args` may say."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gptoss_jax.engine.options import EngineKeywords
from gptoss_jax.engine.request import RequestError
from gptoss_jax.engine.values import integer_from, refuse
from harmony.errors import shown

_EFFORTS = ("low", "medium", "high")
_ENGINE = tuple(EngineKeywords.__annotations__)
_OTHER_NAMES = {
    **dict.fromkeys(("pretrained", "model", "model_path", "path"), "checkpoint"),
    **dict.fromkeys(("reasoning_effort", "reasoning"), "effort"),
    **dict.fromkeys(("max_model_len", "context_length"), "max_length"),
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens"), "max_tokens"),
    **dict.fromkeys(("tensor_parallel_size", "data_parallel_size", "parallelize"), "mesh"),
}
"""What other models of lm_eval call an argument → its name here."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of the model.

    checkpoint: the folder of a checkpoint, or "tiny" for the model in the package.
    effort: the reasoning effort: low, medium or high.
    max_gen_toks: the most tokens of an answer, its reasoning not counted, for tasks that do not say; None for
        as many as fit.
    max_tokens: the most tokens of reasoning and answer together; None for as many as fit.
    reasoning_budget: the tokens of reasoning after which the model is moved on to its answer; None for all
        that fit beside the answer, 0 for no limit.
    seed: the seed that those of the samples are made from.
    date: the date in the system message, `YYYY-MM-DD`.
    log_reasoning: a file that gets a JSON line for each answer, its reasoning included; None for none.
    dtype: what the model computes in: float32 or bfloat16; None for float32 on CPUs, else bfloat16.
    mesh: the sizes of the axes data, expert, tensor, or a dictionary of them; None chooses.
    engine: the engine's options that were given.
    """

    checkpoint: str = "tiny"
    effort: str = "medium"
    max_gen_toks: int | None = None
    max_tokens: int | None = None
    reasoning_budget: int | None = None
    seed: int = 0
    date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())
    log_reasoning: Path | None = None
    dtype: str | None = None
    mesh: Any = None
    engine: EngineKeywords = dataclasses.field(default_factory=lambda: EngineKeywords())


def arguments_from(given: Mapping[str, Any], batch_size: object = None) -> Arguments:
    """Checks the arguments of `--model_args`. Values of None are the same as leaving one out.

    `batch_size`: lm_eval's, which is the engine's `slots` where it is a number above 1; 1, "auto" and None
    leave `slots` at its default.

    Raises:
        RequestError: an argument is unknown, or its value is not allowed.
    """
    own = [field.name for field in dataclasses.fields(Arguments) if field.name != "engine"]
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in own and name not in _ENGINE:
            raise RequestError(_unknown(name, [*own, *_ENGINE]))
    engine: dict[str, Any] = {name: given[name] for name in _ENGINE if name in given}
    slots = _slots(batch_size)
    if slots is not None:
        engine.setdefault("slots", slots)
    values: dict[str, Any] = {name: given[name] for name in own if name in given}
    for name, check in _CHECKS.items():
        if name in values:
            values[name] = check(name, values[name])
    return Arguments(**values, engine=EngineKeywords(**engine))  # type: ignore[typeddict-item]


def _unknown(name: str, known: list[str]) -> str:
    near = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
    hint = f"; did you mean {near}?" if near else ""
    return f"{shown(name)} is no argument of gptoss-jax: there are {', '.join(known)}{hint}"


def _slots(batch_size: object) -> int | None:
    text = str(batch_size)
    if batch_size is None or text.split(":")[0] == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        refuse("batch_size", batch_size, "a whole number from 1, or auto")
    return int(text) if int(text) > 1 else None


def _words(name: str, value: object) -> str:
    """A text, also one that lm_eval read as a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Path) or value == "":
        refuse(name, value, "a text")
    return str(value)


def _file(name: str, value: object) -> Path:
    """A file that can be appended to; made if it is not there."""
    file = Path(_words(name, value)).expanduser()
    try:
        file.open("ab").close()
    except OSError as error:
        raise RequestError(f"{name}: {file} cannot be written: {error.strerror or error}") from None
    return file


def _effort(name: str, value: object) -> str:
    if value not in _EFFORTS:
        refuse(name, value, " or ".join(_EFFORTS))
    return str(value)


def _date(name: str, value: object) -> str:
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()
    except ValueError:
        refuse(name, value, "a date, YYYY-MM-DD")


_CHECKS: dict[str, Any] = {
    "checkpoint": _words,
    "effort": _effort,
    "max_gen_toks": lambda name, value: integer_from(name, value, 1),
    "max_tokens": lambda name, value: integer_from(name, value, 1),
    "reasoning_budget": lambda name, value: integer_from(name, value, 0),
    "seed": lambda name, value: integer_from(name, value, None),
    "date": _date,
    "log_reasoning": _file,
    "dtype": _words,
}
