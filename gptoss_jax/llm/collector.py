"""Makes requests of prompts, and generations of the requests' completions."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gptoss_jax.answers import Sample, read_sample
from gptoss_jax.engine.engine_thread import NamedRequest
from gptoss_jax.engine.request import Request, RequestError, SamplingParams, row_seed
from gptoss_jax.llm.prompts import (
    Prompt,
    PromptOptions,
    declared_functions,
    rendered_prompt,
    response_schema_of,
    split_prompts,
)
from gptoss_jax.llm.results import Generation
from gptoss_jax.openai_api.rendering import with_header_guard
from harmony.errors import shown

if TYPE_CHECKING:
    from gptoss_jax.engine.request import Update
    from gptoss_jax.openai_api.rendering import History
    from harmony import Conversation, HarmonyEncoding

Sampling = SamplingParams | Sequence[SamplingParams] | None
"""The sampling parameters: one for all prompts, or a list with one for each; None for the defaults."""

RowId = str | int
"""A name that a caller gives a prompt; 7 and "7" are the same."""

RowIds = RowId | Sequence[RowId] | None
"""A list with the id of each prompt, or the id of the one prompt; None for prompts without names."""

Progress = bool | Callable[[int, int], None]
"""True shows a progress bar, False does not; a function is called with (finished prompts, all prompts)."""


def requests_of(
    prompts: Prompt | Sequence[Prompt],
    sampling: Sampling,
    options: PromptOptions,
    encoding: HarmonyEncoding,
    history: History,
    header_guard: bool,
    numbers: Iterator[str],
    ids: RowIds,
    seed: int,
) -> list[RowRequest]:
    """Renders the prompts into requests, in their order.

    `numbers` supplies the requests' ids in the engine. `ids` are the callers' own: with them, a request that
    has no seed gets one of `seed` and its own id.

    Raises:
        RequestError: a prompt, parameter or id is not allowed.
    """
    split = split_prompts(prompts)
    is_one = len(split) == 1 and split[0] is prompts
    names = [""] if is_one else [f"prompts[{index}]" for index in range(len(split))]
    given = _sampling_of_each(sampling, len(split))
    requests = []
    for prompt, params, name, id in zip(split, given, names, _ids_of_each(ids, len(split)), strict=True):
        rendered = rendered_prompt(prompt, options, encoding, name, history=history)
        params = sampling_of(params, options, rendered.conversation, header_guard)
        request = named_request(next(numbers), id, rendered.tokens, params, seed)
        requests.append(RowRequest(request.request, name, request.id))
    return requests


@dataclasses.dataclass(frozen=True)
class RowRequest(NamedRequest):
    """A request with the id that the caller knows it by: the caller's own, else the request's."""

    id: str = ""


def named_request(
    number: str, id: RowId | None, prompt: list[int], sampling: SamplingParams, seed: int
) -> RowRequest:
    """Returns the request of a prompt that the caller calls `id`; None if it has no name.

    `number` is its id in the engine, where two callers may use the same name at the same time.

    Raises:
        RequestError: the id is not allowed.
    """
    if id is None:
        return RowRequest(Request(number, prompt, sampling), "", number)
    id = _checked_id(id, "id")
    if sampling.seed is None:
        sampling = dataclasses.replace(sampling, seed=row_seed(seed, id))
    return RowRequest(Request(number, prompt, sampling), "", id)


def _ids_of_each(ids: RowIds, count: int) -> Sequence[str | None]:
    if ids is None:
        return [None] * count
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        ids = [_checked_id(ids, "ids")]
    if len(ids) != count:
        raise RequestError(f"ids has {len(ids)} entries for {count} prompts: it must have as many")
    first: dict[str, int] = {}
    for index, id in enumerate(ids):
        same = first.setdefault(_checked_id(id, f"ids[{index}]"), index)
        if same != index:
            raise RequestError(f"ids[{index}] is {shown(id)}, as ids[{same}] is: each must be another")
    return list(first)


def _checked_id(id: object, name: str) -> str:
    if isinstance(id, bool) or not isinstance(id, str | numbers.Integral) or id == "":
        raise RequestError(f"{name} is {shown(id)}: it must be a string that is not empty, or a whole number")
    return str(id)


def sampling_with_schema(
    sampling: SamplingParams | None, options: PromptOptions, conversation: Conversation | None
) -> SamplingParams:
    """Returns the sampling parameters with a grammar for `response_schema`, if the options have one.

    The grammar constrains the answer, and the arguments of the functions that the conversation declares.

    Raises:
        RequestError: the sampling parameters have a grammar already.
    """
    sampling = _checked(sampling, "sampling")
    schema = response_schema_of(options)
    if schema is None or conversation is None:
        return sampling
    if sampling.grammar is not None:
        raise RequestError("response_schema and sampling.grammar are both given: give one of them")
    from gptoss_jax.engine.grammar import Grammar

    grammar = Grammar.json_schema(schema)
    functions = declared_functions(conversation)
    if functions:
        grammar = grammar.with_calls({function.name: function.parameters for function in functions})
    return dataclasses.replace(sampling, grammar=grammar)


def sampling_of(
    sampling: SamplingParams | None,
    options: PromptOptions,
    conversation: Conversation | None,
    header_guard: bool,
) -> SamplingParams:
    """As `sampling_with_schema`; with `header_guard`, under the guard of what the conversation declares."""
    sampling = sampling_with_schema(sampling, options, conversation)
    return with_header_guard(sampling, conversation) if header_guard and conversation else sampling


def _sampling_of_each(sampling: Sampling, count: int) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [_checked(sampling, "sampling")] * count
    if not isinstance(sampling, Sequence) or isinstance(sampling, str):
        return [_checked(sampling, "sampling")]
    if len(sampling) != count:
        raise RequestError(f"sampling has {len(sampling)} entries for {count} prompts: it must have as many")
    return [_checked(params, f"sampling[{index}]") for index, params in enumerate(sampling)]


def _checked(sampling: object, name: str) -> SamplingParams:
    if sampling is None:
        return SamplingParams()
    if not isinstance(sampling, SamplingParams):
        raise RequestError(f"{name} is {shown(sampling)}: it must be a SamplingParams")
    return sampling


class Collector:
    """Collects the completions of requests. Parses each one at once, while the device computes others."""

    def __init__(self, requests: Sequence[RowRequest], encoding: HarmonyEncoding) -> None:
        self._encoding = encoding
        self._ids = {named.request.id: named.id for named in requests}
        self._requests = {named.request.id: named.request for named in requests}
        self._samples: dict[str, dict[int, Sample]] = {id: {} for id in self._requests}
        self._unfinished = set(self._requests)

    @property
    def unfinished(self) -> list[str]:
        """The ids of the requests that lack samples."""
        return list(self._unfinished)

    @property
    def finished(self) -> int:
        """How many requests have all their samples."""
        return len(self._requests) - len(self._unfinished)

    def add(self, updates: Iterable[Update]) -> None:
        """Adds the completions among the updates."""
        for update in updates:
            if update.completion is not None:
                request = self._requests[update.id]
                samples = self._samples[update.id]
                completion = dataclasses.replace(update.completion, id=self._ids[update.id])
                samples[update.sample] = read_sample(completion, self._encoding)
                if len(samples) == request.sampling.n:
                    self._unfinished.discard(update.id)

    def generations(self) -> list[Generation]:
        """One generation for each request, in their order."""
        return [
            Generation(
                self._ids[id], request.prompt, [self._samples[id][n] for n in sorted(self._samples[id])]
            )
            for id, request in self._requests.items()
        ]


@contextmanager
def reporting(progress: Progress, total: int) -> Iterator[Callable[[int], object]]:
    """Yields a function to call with the number of finished prompts, of `total`."""
    if callable(progress):
        yield lambda done: progress(done, total)
    elif not progress:
        yield lambda done: None
    else:
        from tqdm import tqdm

        with tqdm(total=total, unit=" prompts") as bar:
            yield lambda done: bar.update(done - bar.n)
