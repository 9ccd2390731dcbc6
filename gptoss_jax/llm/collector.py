"""Makes requests of prompts, and generations of the requests' completions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gptoss_jax.answers import Sample, read_sample
from gptoss_jax.engine.engine_thread import NamedRequest
from gptoss_jax.engine.request import Request, RequestError, SamplingParams
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

Progress = bool | Callable[[int, int], None]
"""True shows a progress bar, False does not; a function is called with (finished prompts, all prompts)."""


def requests_of(
    prompts: Prompt | Sequence[Prompt],
    sampling: Sampling,
    options: PromptOptions,
    encoding: HarmonyEncoding,
    history: History,
    header_guard: bool,
    ids: Iterator[str],
) -> list[NamedRequest]:
    """Renders the prompts into requests, in their order. `ids` supplies the requests' ids.

    Raises:
        RequestError: a prompt or parameter is not allowed.
    """
    split = split_prompts(prompts)
    is_one = len(split) == 1 and split[0] is prompts
    names = [""] if is_one else [f"prompts[{index}]" for index in range(len(split))]
    requests = []
    for prompt, params, name in zip(split, _sampling_of_each(sampling, len(split)), names, strict=True):
        rendered = rendered_prompt(prompt, options, encoding, name, history=history)
        params = sampling_of(params, options, rendered.conversation, header_guard)
        requests.append(NamedRequest(Request(next(ids), rendered.tokens, params), name))
    return requests


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

    def __init__(self, requests: Sequence[NamedRequest], encoding: HarmonyEncoding) -> None:
        self._encoding = encoding
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
                samples[update.sample] = read_sample(update.completion, self._encoding)
                if len(samples) == request.sampling.n:
                    self._unfinished.discard(update.id)

    def generations(self) -> list[Generation]:
        """One generation for each request, in their order."""
        return [
            Generation(id, request.prompt, [self._samples[id][n] for n in sorted(self._samples[id])])
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
