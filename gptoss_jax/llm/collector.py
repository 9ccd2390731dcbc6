"""Prompts → requests, and the requests' completions → generations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gptoss_jax.engine.request import Request, RequestError, SamplingParams
from gptoss_jax.llm.prompts import (
    Prompt,
    PromptOptions,
    declared_functions,
    prepare,
    response_schema_of,
    split_prompts,
)
from gptoss_jax.llm.results import Generation, Sample, read_sample
from harmony.errors import shown

if TYPE_CHECKING:
    from gptoss_jax.engine.request import Update
    from harmony import Conversation, HarmonyEncoding

Sampling = SamplingParams | Sequence[SamplingParams] | None
"""How tokens are chosen: the same for all prompts, or one for each; None for the defaults."""

Progress = bool | Callable[[int, int], None]
"""True for a progress bar; or a function that is told how many prompts are done, and of how many."""


@dataclasses.dataclass(frozen=True)
class NamedRequest:
    """A request, and what errors call it: nothing where it is the only one."""

    request: Request
    name: str = ""


def requests_of(
    prompts: Prompt | Sequence[Prompt],
    sampling: Sampling,
    options: PromptOptions,
    encoding: HarmonyEncoding,
    ids: Iterator[str],
) -> list[NamedRequest]:
    """The requests of the prompts, in their order.

    Raises:
        RequestError: a prompt or parameter is not what it must be.
    """
    split = split_prompts(prompts)
    is_one = len(split) == 1 and split[0] is prompts
    names = [""] if is_one else [f"prompts[{index}]" for index in range(len(split))]
    requests = []
    for prompt, params, name in zip(split, _sampling_of_each(sampling, len(split)), names, strict=True):
        prepared = prepare(prompt, options, encoding, name)
        params = sampling_with_schema(params, options, prepared.conversation)
        requests.append(NamedRequest(Request(next(ids), prepared.tokens, params), name))
    return requests


def sampling_with_schema(
    sampling: SamplingParams | None, options: PromptOptions, conversation: Conversation | None
) -> SamplingParams:
    """The sampling under the grammar of the options' `response_schema`, if there is one.

    It constrains the answer, and the arguments of the functions that the conversation declares.

    Raises:
        RequestError: the sampling has a grammar of its own.
    """
    sampling = _checked(sampling, "sampling")
    schema = response_schema_of(options)
    if schema is None or conversation is None:
        return sampling
    if sampling.grammar is not None:
        raise RequestError("response_schema is given, and sampling.grammar too: give one")
    from gptoss_jax.engine.grammar import Grammar

    grammar = Grammar.json_schema(schema)
    functions = declared_functions(conversation)
    if functions:
        grammar = grammar.with_calls({function.name: function.parameters for function in functions})
    return dataclasses.replace(sampling, grammar=grammar)


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
    """Gathers what comes of requests; parses each completion at once, while the device computes others."""

    def __init__(self, requests: Sequence[NamedRequest], encoding: HarmonyEncoding) -> None:
        self._encoding = encoding
        self._requests = {named.request.id: named.request for named in requests}
        self._samples: dict[str, dict[int, Sample]] = {id: {} for id in self._requests}
        self._unfinished = set(self._requests)

    @property
    def unfinished(self) -> list[str]:
        """The ids of requests of which samples are missing."""
        return list(self._unfinished)

    @property
    def finished(self) -> int:
        """How many requests are whole."""
        return len(self._requests) - len(self._unfinished)

    def take(self, updates: Iterable[Update]) -> None:
        """Takes the completions among the updates."""
        for update in updates:
            if update.completion is not None:
                request = self._requests[update.id]
                samples = self._samples[update.id]
                samples[update.sample] = read_sample(update.completion, request, self._encoding)
                if len(samples) == request.sampling.n:
                    self._unfinished.discard(update.id)

    def generations(self) -> list[Generation]:
        """What came of each request, in their order."""
        return [
            Generation(id, request.prompt, [self._samples[id][n] for n in sorted(self._samples[id])])
            for id, request in self._requests.items()
        ]


@contextmanager
def reporting(progress: Progress, total: int) -> Iterator[Callable[[int], object]]:
    """A function that reports how many of `total` prompts are done, as `progress` wants it."""
    if callable(progress):
        yield lambda done: progress(done, total)
    elif not progress:
        yield lambda done: None
    else:
        from tqdm import tqdm

        with tqdm(total=total, unit=" prompts") as bar:
            yield lambda done: bar.update(done - bar.n)
