"""`LLM`: a model behind a few methods."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from gptoss_jax.engine.request import Request, RequestError, SamplingParams
from gptoss_jax.llm.collector import (
    Collector,
    NamedRequest,
    Progress,
    Sampling,
    reporting,
    requests_of,
    sampling_with_schema,
)
from gptoss_jax.llm.engine_thread import AsyncMailbox, EngineLike, EngineThread, Mailbox
from gptoss_jax.llm.prompts import (
    Prompt,
    PromptOptions,
    check_options,
    conversation_of,
    declared_functions,
    prepare,
)
from gptoss_jax.llm.results import Generation, ToolRun
from gptoss_jax.llm.streams import AsyncStream, Stream
from gptoss_jax.llm.tool_loop import ToolLoop
from gptoss_jax.tools import Toolbox
from harmony.errors import shown

if TYPE_CHECKING:
    from types import TracebackType

    from jax.sharding import Mesh
    from jax.typing import DTypeLike

    from harmony import HarmonyEncoding


class LLM:
    """A model for scripts: prompts or conversations in, parsed answers out.

    ::

        from gptoss_jax import LLM, SamplingParams

        questions = ["What is 2 + 3?", "What is 41 + 17?", "Who are you?"]

        with LLM("tiny") as llm:
            outputs = llm.generate(questions, SamplingParams(temperature=0), effort="low")
            for question, output in zip(questions, outputs, strict=True):
                print(question, "→", output.text)

    A prompt is a string (the user's message), a harmony `Conversation`, a list of harmony `Message`s, a list
    of chat messages (dictionaries with "role" and "content", as in Chat Completions), or a list of token ids,
    which must end where the assistant is to speak. Several prompts are a list of these; so a list of strings
    is many prompts, and a list of dictionaries, of messages or of numbers is one.

    All calls, of all threads and event loops, share one engine, which one background thread runs: what is
    asked at the same time is computed together. A call that ends early, by an exception, a closed stream or a
    cancelled task, gives up its requests at once.

    Requests are named ``SEED-NUMBER`` in the order in which they are made, and unless `SamplingParams.seed`
    is set, random numbers depend on that name alone: a script that makes the same calls in the same order
    gets the same samples.

    Of several processes (`jax.distributed`), each makes the `LLM` and calls it alike; the first one speaks
    (`speaks`). In the others the first call, or `close`, takes part in the computation until the first
    process closes its `LLM`; calls there return no results: an empty list, a stream without events, a
    `ToolRun` whose generation has no samples.
    """

    def __init__(
        self,
        checkpoint: str | Path = "tiny",
        *,
        dtype: DTypeLike | None = None,
        mesh: Mesh | Sequence[int] | Mapping[str, int] | None = None,
        slots: int | None = None,
        max_length: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Loads a checkpoint. Compiled programs are kept for the next run: see `keep_compiled`.

        Args:
            checkpoint: a checkpoint's folder, or "tiny" for the one in the package.
            dtype: what the model computes in: float32 or bfloat16; by default what suits the device.
            mesh: how the model is spread over devices: a mesh of `gptoss_jax.sharding`, the sizes of its axes
                (data, expert, tensor), or a dictionary of those that are not 1; by default what suits it.
            slots: requests that decode side by side.
            max_length: the longest sequence, prompt and completion together, in tokens.
            seed: of all random draws of requests without a seed of their own.
            options: the engine's other options: those of `gptoss_jax.engine.options.EngineOptions`.

        Raises:
            checkpoints.config.CheckpointError: the checkpoint is none.
            gptoss_jax.sharding.ShardingError: the mesh does not fit the devices or the model.
            RequestError: an option is not what it must be.
        """
        from gptoss_jax.compilation_cache import keep_compiled
        from gptoss_jax.llm.loading import load_engine

        _check_seed(seed)
        keep_compiled()
        engine, encoding, opened = load_engine(
            checkpoint, dtype=dtype, mesh=mesh, slots=slots, max_length=max_length, **options
        )
        name = opened.path.name if str(checkpoint) != "tiny" else "tiny"
        self._start(cast(EngineLike, engine), encoding, name, seed)

    @classmethod
    def from_engine(
        cls, engine: EngineLike, encoding: HarmonyEncoding, name: str = "gpt-oss", *, seed: int = 0
    ) -> LLM:
        """An `LLM` on an engine that exists; it belongs to the `LLM` from now on, and is closed with it."""
        _check_seed(seed)
        llm = cls.__new__(cls)
        llm._start(engine, encoding, name, seed)
        return llm

    def _start(self, engine: EngineLike, encoding: HarmonyEncoding, name: str, seed: int) -> None:
        self._engine = engine
        self.encoding = encoding
        """What renders prompts and parses answers."""
        self.name = name
        """The checkpoint's name."""
        self.speaks = engine.speaks
        """Whether this process has the results: False in all but the first of several."""
        self._ids = map(f"{seed}-{{}}".format, itertools.count())  # which threads may draw from at once
        self._thread: EngineThread | None = None
        self._following = threading.Lock()
        self._followed = False
        if self.speaks:
            self._thread = EngineThread(engine, name)
            self._finalizer = weakref.finalize(self, self._thread.close)
            self._finalizer.atexit = False  # the thread sees to the interpreter's exit itself
        else:
            atexit.register(self.close)

    @property
    def max_length(self) -> int:
        """The longest sequence, prompt and completion together, in tokens."""
        return self._engine.max_length

    def close(self) -> None:
        """Ends the engine; calls that wait raise `EngineStopped`. In other processes: see `speaks`."""
        if self._thread is not None:
            self._finalizer()
        else:
            atexit.unregister(self.close)
            self._follow()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Whole answers

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling = None,
        *,
        progress: Progress = False,
        **options: Unpack[PromptOptions],
    ) -> list[Generation]:
        """Answers one prompt or many.

        Args:
            prompts: see `LLM`.
            sampling: for all prompts, or a list with one for each.
            progress: True shows a bar; a function is called with the numbers of prompts done and in all.
            options: `instructions`, `effort`, `tools`, `date`, `response_schema`: see `PromptOptions`.

        Returns:
            One generation for each prompt, in their order.

        Raises:
            RequestError: a prompt or parameter is not what it must be; nothing was generated then.
            EngineStopped: the engine failed or was closed.
        """
        if self._thread is None:
            self._follow()
            return []
        requests = self._requests(prompts, sampling, options)
        collector = Collector(requests, self.encoding)
        mailbox = Mailbox()
        self._thread.submit(requests, mailbox.deliver, whole=True)
        try:
            with reporting(progress, len(requests)) as report:
                while collector.unfinished:
                    collector.take(mailbox.get())
                    report(collector.finished)
        finally:
            self._thread.cancel(collector.unfinished)
        return collector.generations()

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling = None,
        *,
        progress: Progress = False,
        **options: Unpack[PromptOptions],
    ) -> list[Generation]:
        """As `generate`, without blocking the event loop. Cancelling the task ends the requests."""
        if self._thread is None:
            await asyncio.to_thread(self._follow)
            return []
        requests = self._requests(prompts, sampling, options)
        collector = Collector(requests, self.encoding)
        mailbox = AsyncMailbox()
        self._thread.submit(requests, mailbox.deliver, whole=True)
        try:
            with reporting(progress, len(requests)) as report:
                while collector.unfinished:
                    collector.take(await mailbox.get())
                    report(collector.finished)
        finally:
            self._thread.cancel(collector.unfinished)
        return collector.generations()

    # Streams

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Unpack[PromptOptions]
    ) -> Stream:
        """Answers one prompt, as an iterator of events: deltas of reasoning, preamble and text, calls that
        are ready, and `Finished` for each sample.

        Closing the iterator ends the request at once. Raises as `generate`; what the engine refuses is
        raised by the first step of the iteration.
        """
        return Stream(self._thread, self._request(prompt, sampling, options), self.encoding, self)

    def astream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Unpack[PromptOptions]
    ) -> AsyncStream:
        """As `stream`, for ``async for``; to be called while an event loop runs. Cancelling the task that
        iterates ends the request."""
        return AsyncStream(self._thread, self._request(prompt, sampling, options), self.encoding, self)

    # Tools

    def run_tools(
        self,
        conversation: Prompt,
        functions: Mapping[str, Callable[..., Any]],
        sampling: SamplingParams | None = None,
        *,
        max_rounds: int = 10,
        **options: Unpack[PromptOptions],
    ) -> ToolRun:
        """Lets the model call functions until it answers.

        Each round asks the model, runs the functions that it calls, one after another, and adds their results
        to the conversation. A result is what the function returns: text as it is, anything else as JSON. What
        goes wrong, be it an exception of the function, a name that is none or arguments that do not fit, is
        told to the model as the result, in one line.

        Args:
            conversation: a prompt, but not token ids.
            functions: name → function, which is called with keyword arguments; it may be a coroutine
                function.
            sampling: for every round; `n` must be 1.
            max_rounds: the most times that the model is asked. Calls in the last round are not run.
            options: as for `generate`. Without `tools`, and unless the conversation declares functions, their
                schemas come from the functions' signatures and docstrings: see `gptoss_jax.tools.Tool`.

        Raises:
            RequestError: an argument is not what it must be, or the conversation has grown too long.
            ToolError: a function cannot be a tool.
            EngineStopped: the engine failed or was closed.
        """
        toolbox, loop, sampling = self._tool_loop(conversation, functions, sampling, max_rounds, options)
        for left in reversed(range(max_rounds)):
            generations = self.generate(loop.conversation, sampling)
            if not generations:
                break
            calls = loop.take(generations[0])
            if not calls or not left:
                return loop.finish(generations[0])
            for call in calls:
                loop.add(toolbox.run(call))
        return loop.finish(Generation("", [], []))

    async def arun_tools(
        self,
        conversation: Prompt,
        functions: Mapping[str, Callable[..., Any]],
        sampling: SamplingParams | None = None,
        *,
        max_rounds: int = 10,
        **options: Unpack[PromptOptions],
    ) -> ToolRun:
        """As `run_tools`, without blocking the event loop: plain functions run in a thread."""
        toolbox, loop, sampling = self._tool_loop(conversation, functions, sampling, max_rounds, options)
        for left in reversed(range(max_rounds)):
            generations = await self.agenerate(loop.conversation, sampling)
            if not generations:
                break
            calls = loop.take(generations[0])
            if not calls or not left:
                return loop.finish(generations[0])
            for call in calls:
                loop.add(await toolbox.arun(call))
        return loop.finish(Generation("", [], []))

    # What the methods share

    def _requests(
        self, prompts: Prompt | Sequence[Prompt], sampling: Sampling, options: PromptOptions
    ) -> list[NamedRequest]:
        check_options(options)
        return requests_of(prompts, sampling, options, self.encoding, self._ids)

    def _request(self, prompt: Prompt, sampling: SamplingParams | None, options: PromptOptions) -> Request:
        """The only request of a stream."""
        if self._thread is None:
            self._follow()
            return Request("", [])
        check_options(options)
        prepared = prepare(prompt, options, self.encoding)
        sampling = sampling_with_schema(sampling, options, prepared.conversation)
        return Request(next(self._ids), prepared.tokens, sampling)

    def _tool_loop(
        self,
        conversation: Prompt,
        functions: Mapping[str, Callable[..., Any]],
        sampling: SamplingParams | None,
        max_rounds: int,
        options: PromptOptions,
    ) -> tuple[Toolbox, ToolLoop, SamplingParams]:
        check_options(options)
        if not isinstance(max_rounds, int) or isinstance(max_rounds, bool) or max_rounds < 1:
            raise RequestError(f"max_rounds is {shown(max_rounds)}: it must be a whole number from 1")
        toolbox = Toolbox(functions)
        prepared = prepare(conversation, options, self.encoding).conversation
        if prepared is None:
            raise RequestError("the prompt is a list of token ids: with tools it must be a conversation")
        if not declared_functions(prepared):
            prepared = conversation_of(prepared, {"tools": toolbox.schemas()})
        sampling = sampling_with_schema(sampling, options, prepared)
        if sampling.n != 1:
            raise RequestError(f"n is {sampling.n}: with tools it must be 1")
        return toolbox, ToolLoop(prepared, self.encoding), sampling

    def _follow(self) -> None:
        """Takes part until the process that speaks has closed; the first call does, later ones return."""
        with self._following:
            if not self._followed:
                self._followed = True
                self._engine.follow()
                self._engine.close()


def _check_seed(seed: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise RequestError(f"seed is {seed!r}: it must be a whole number")
