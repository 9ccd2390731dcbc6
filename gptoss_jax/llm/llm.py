"""`LLM`, the class behind the Python API."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from gptoss_jax.engine.engine_thread import (
    AsyncMailbox,
    EngineLike,
    EngineThread,
    Mailbox,
)
from gptoss_jax.engine.request import Request, RequestError, SamplingParams
from gptoss_jax.llm.collector import (
    Collector,
    Progress,
    RowId,
    RowIds,
    RowRequest,
    Sampling,
    named_request,
    reporting,
    requests_of,
    sampling_of,
    sampling_with_schema,
)
from gptoss_jax.llm.prompts import (
    Prompt,
    PromptOptions,
    check_options,
    conversation_of,
    declared_functions,
    rendered_prompt,
)
from gptoss_jax.llm.results import Generation, ToolRun
from gptoss_jax.llm.streams import AsyncStream, Stream
from gptoss_jax.llm.tool_loop import ToolLoop
from gptoss_jax.llm.tools import Toolbox, ToolFunction
from gptoss_jax.openai_api.rendering import History, check_history
from harmony.errors import shown

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.typing import DTypeLike

    from gptoss_jax.engine.options import EngineKeywords
    from harmony import HarmonyEncoding


class LLM:
    """A model that answers prompts and conversations.

    ::

        from gptoss_jax import LLM, SamplingParams

        questions = ["What is 2 + 3?", "What is 41 + 17?", "Who are you?"]

        with LLM("tiny") as llm:
            outputs = llm.generate(questions, SamplingParams(temperature=0), effort="low")
            for question, output in zip(questions, outputs, strict=True):
                print(question, "→", output.text)

    A prompt is one of these:

    - a string: the user's message;
    - a harmony `Conversation`, or a list of harmony `Message`s;
    - a list of chat messages: dictionaries with "role" and "content", as in Chat Completions;
    - a list of token ids, which ends where the assistant's message begins.

    Several prompts are a list of prompts. So a list of strings is many prompts, while a list of dictionaries,
    of messages or of integers is one prompt.

    All threads and event loops share one engine, which runs in a background thread. Requests of simultaneous
    calls are computed together. If a call ends early, by an exception, a closed stream or a cancelled task,
    its requests are cancelled at once.

    Callers may give their prompts ids. Without `SamplingParams.seed`, the random numbers of a prompt with an
    id depend on the `LLM`'s seed and this id alone: it gets the same samples in any order, beside any other
    prompts, in any process, and as a row of a batch with this id and seed. A request without an id is called
    ``SEED-NUMBER``, numbered in the order of the calls, and its random numbers depend on that: a script that
    makes the same calls in the same order gets the same samples.

    With several processes (`jax.distributed`), each process makes the `LLM` and makes the same calls. The
    first process is the leader (`is_leader`) and gets the results. In the other processes the first call, or
    `close`, takes part in the computation until the leader closes its `LLM`. Calls return nothing there: an
    empty list, a stream without events, or a `ToolRun` whose generation has no samples.
    """

    def __init__(
        self,
        checkpoint: str | Path = "tiny",
        *,
        dtype: DTypeLike | None = None,
        mesh: Mesh | Sequence[int] | Mapping[str, int] | None = None,
        seed: int = 0,
        history: History = "guide",
        header_guard: bool = True,
        **options: Unpack[EngineKeywords],
    ) -> None:
        """Loads a checkpoint. Compiled programs are kept on disk for the next run: see `keep_compiled`.

        Args:
            checkpoint: the folder of a checkpoint, or "tiny" for the model in the package.
            dtype: what the model computes in: float32 or bfloat16. None for float32 on CPUs, else bfloat16.
            mesh: how the model is split over devices: a mesh of `gptoss_jax.sharding`; the sizes of its axes
                (data, expert, tensor); or a dictionary of the sizes that are not 1. None chooses a mesh over
                all devices.
            seed: the seed of requests that have none of their own.
            history: how much of the earlier chain of thought stays in prompts. "guide": as the model was
                trained; reasoning before the last answer is left out. "compatible": as the `openai-harmony`
                package does. "all": everything stays.
            header_guard: True: headers of messages can name only the tools and channels that the conversation
                declares. False: headers are free. They are free, too, if the prompt is token ids or has a
                system or developer message of plain text, since its tools are not known then.
            options: the fields of `gptoss_jax.engine.options.EngineOptions`, such as `slots` (sequences that
                decode at the same time) and `max_length` (the longest sequence, prompt and completion
                together, in tokens). None leaves an option at its default.

        Raises:
            checkpoints.config.CheckpointError: the checkpoint is missing or broken.
            gptoss_jax.sizes.ShardingError: the mesh does not fit the devices or the model.
            gptoss_jax.engine.memory.EngineMemoryError: the engine does not fit in the devices' memory.
            RequestError: an option has a value that is not allowed.
        """
        from gptoss_jax.compilation_cache import keep_compiled
        from gptoss_jax.llm.loading import load_engine

        _check_seed(seed)
        check_history(history)
        keep_compiled()
        engine, encoding, opened = load_engine(checkpoint, dtype=dtype, mesh=mesh, **options)
        name = opened.path.name if str(checkpoint) != "tiny" else "tiny"
        self._start(cast(EngineLike, engine), encoding, name, seed, history, header_guard)

    @classmethod
    def from_engine(
        cls,
        engine: EngineLike,
        encoding: HarmonyEncoding,
        name: str = "gpt-oss",
        *,
        seed: int = 0,
        history: History = "guide",
        header_guard: bool = True,
    ) -> LLM:
        """Makes an `LLM` from an engine, which it owns from then on: `close` closes the engine too.

        `encoding`: the model's encoding. `name`: the model's name. `seed`, `history`,
        `header_guard`: as for `LLM`.
        """
        _check_seed(seed)
        llm = cls.__new__(cls)
        llm._start(engine, encoding, name, seed, check_history(history), header_guard)
        return llm

    def _start(
        self,
        engine: EngineLike,
        encoding: HarmonyEncoding,
        name: str,
        seed: int,
        history: History,
        header_guard: bool,
    ) -> None:
        self._engine = engine
        self.history = history
        """How much of the earlier chain of thought stays in prompts."""
        self.header_guard = header_guard
        """True if headers of messages can name only what a conversation declares."""
        self.encoding = encoding
        """The encoding that renders prompts and parses answers."""
        self.name = name
        """The name of the checkpoint."""
        self.is_leader = engine.is_leader
        """True in the process that gets the results: the first of several."""
        self._seed = seed
        self._numbers = map(f"{seed}-{{}}".format, itertools.count())  # thread-safe
        self._thread: EngineThread | None = None
        self._following = threading.Lock()
        self._followed = False
        if self.is_leader:
            self._thread = EngineThread(engine, name)
            self._finalizer = weakref.finalize(self, self._thread.close)
            self._finalizer.atexit = False  # the thread has an exit handler of its own
        else:
            atexit.register(self.close)

    @property
    def max_length(self) -> int:
        """The longest sequence, prompt and completion together, in tokens."""
        return self._engine.max_length

    def close(self) -> None:
        """Ends the engine. Waiting calls raise `EngineStopped`.

        In processes other than the leader, it takes part in the computation until the leader closes.
        """
        if self._thread is not None:
            self._finalizer()
        else:
            atexit.unregister(self.close)
            self._follow()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Whole answers

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling = None,
        *,
        ids: RowIds = None,
        progress: Progress = False,
        **options: Unpack[PromptOptions],
    ) -> list[Generation]:
        """Answers one prompt or many.

        Args:
            prompts: see `LLM`.
            sampling: the sampling parameters for all prompts, or a list with one for each; None for the
                defaults.
            ids: a name for each prompt, which decides its random numbers: see `LLM`. Strings or whole
                numbers, each another; the id itself for one prompt; None for prompts without names.
            progress: True shows a bar; a function is called with (finished prompts, all prompts).
            options: `instructions`, `effort`, `tools`, `date`, `response_schema`: see `PromptOptions`.

        Returns:
            One generation for each prompt, in their order.

        Raises:
            RequestError: a prompt or parameter is not allowed; then nothing is generated.
            gptoss_jax.engine.RequestFailed: the engine's own code failed on one of the requests.
            EngineStopped: the engine failed or was closed.
        """
        if self._thread is None:
            self._follow()
            return []
        requests = self._requests(prompts, sampling, options, ids)
        collector = Collector(requests, self.encoding)
        mailbox = Mailbox()
        self._thread.submit(requests, mailbox.deliver, whole=True)
        try:
            with reporting(progress, len(requests)) as report:
                while collector.unfinished:
                    collector.add(mailbox.get())
                    report(collector.finished)
        finally:
            self._thread.cancel(collector.unfinished)
        return collector.generations()

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling = None,
        *,
        ids: RowIds = None,
        progress: Progress = False,
        **options: Unpack[PromptOptions],
    ) -> list[Generation]:
        """Like `generate`, but does not block the event loop. Cancelling the task cancels the requests."""
        if self._thread is None:
            await asyncio.to_thread(self._follow)
            return []
        requests = self._requests(prompts, sampling, options, ids)
        collector = Collector(requests, self.encoding)
        mailbox = AsyncMailbox()
        self._thread.submit(requests, mailbox.deliver, whole=True)
        try:
            with reporting(progress, len(requests)) as report:
                while collector.unfinished:
                    collector.add(await mailbox.get())
                    report(collector.finished)
        finally:
            self._thread.cancel(collector.unfinished)
        return collector.generations()

    # Streams

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        id: RowId | None = None,
        **options: Unpack[PromptOptions],
    ) -> Stream:
        """Answers one prompt as an iterator of events.

        The events are deltas of reasoning, preamble and text, complete tool calls, and `Finished` for each
        sample. Closing the iterator cancels the request at once. It raises the same errors as `generate`; if
        the engine itself refuses the request, the first iteration raises the error. `id` is the prompt's
        name, as in the `ids` of `generate`; None for none.
        """
        return Stream(self._thread, self._request(prompt, sampling, options, id), self.encoding, self)

    def astream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        id: RowId | None = None,
        **options: Unpack[PromptOptions],
    ) -> AsyncStream:
        """Like `stream`, for ``async for``. Must be called while an event loop runs.

        Cancelling the task that iterates cancels the request.
        """
        return AsyncStream(self._thread, self._request(prompt, sampling, options, id), self.encoding, self)

    # Tools

    def run_tools(
        self,
        conversation: Prompt,
        functions: Mapping[str, ToolFunction],
        sampling: SamplingParams | None = None,
        *,
        max_rounds: int = 10,
        **options: Unpack[PromptOptions],
    ) -> ToolRun:
        """Lets the model call functions until it answers.

        In each round the model generates a turn; then the functions that it calls run, one after another, and
        their results are added to the conversation. Text that a function returns is the result as it is,
        anything else becomes JSON. If a function raises an exception, or the model calls an unknown function
        or gives invalid arguments, the result is the error in one line, so that the model can correct itself.

        Args:
            conversation: a prompt, but not token ids.
            functions: name → function. It is called with keyword arguments and may be a coroutine function.
            sampling: the sampling parameters of every round; `n` must be 1. None for the defaults.
            max_rounds: the most rounds. Calls in the last round are not run.
            options: as for `generate`. If neither `tools` nor the conversation declares functions, their
                schemas come from the functions' signatures and docstrings: see `gptoss_jax.llm.tools.Tool`.

        Raises:
            RequestError: an argument is not allowed, or the conversation has become too long.
            ToolError: a function cannot be a tool.
            gptoss_jax.engine.RequestFailed: the engine's own code failed on the request.
            EngineStopped: the engine failed or was closed.
        """
        toolbox, loop, sampling = self._tool_loop(conversation, functions, sampling, max_rounds, options)
        for left in reversed(range(max_rounds)):
            generations = self.generate(loop.conversation, sampling)
            if not generations:
                break
            calls = loop.add_answer(generations[0])
            if not calls or not left:
                return loop.finish(generations[0])
            for call in calls:
                loop.add_result(toolbox.run(call))
        return loop.finish(Generation("", [], []))

    async def arun_tools(
        self,
        conversation: Prompt,
        functions: Mapping[str, ToolFunction],
        sampling: SamplingParams | None = None,
        *,
        max_rounds: int = 10,
        **options: Unpack[PromptOptions],
    ) -> ToolRun:
        """Like `run_tools`, but does not block the event loop: plain functions run in threads."""
        toolbox, loop, sampling = self._tool_loop(conversation, functions, sampling, max_rounds, options)
        for left in reversed(range(max_rounds)):
            generations = await self.agenerate(loop.conversation, sampling)
            if not generations:
                break
            calls = loop.add_answer(generations[0])
            if not calls or not left:
                return loop.finish(generations[0])
            for call in calls:
                loop.add_result(await toolbox.arun(call))
        return loop.finish(Generation("", [], []))

    # What the methods share

    def _requests(
        self, prompts: Prompt | Sequence[Prompt], sampling: Sampling, options: PromptOptions, ids: RowIds
    ) -> list[RowRequest]:
        check_options(options)
        return requests_of(
            prompts,
            sampling,
            options,
            self.encoding,
            self.history,
            self.header_guard,
            self._numbers,
            ids,
            self._seed,
        )

    def _request(
        self, prompt: Prompt, sampling: SamplingParams | None, options: PromptOptions, id: RowId | None
    ) -> RowRequest:
        """The request of a stream."""
        if self._thread is None:
            self._follow()
            return RowRequest(Request("", []))
        check_options(options)
        rendered = rendered_prompt(prompt, options, self.encoding, history=self.history)
        sampling = sampling_of(sampling, options, rendered.conversation, self.header_guard)
        return named_request(next(self._numbers), id, rendered.tokens, sampling, self._seed)

    def _tool_loop(
        self,
        conversation: Prompt,
        functions: Mapping[str, ToolFunction],
        sampling: SamplingParams | None,
        max_rounds: int,
        options: PromptOptions,
    ) -> tuple[Toolbox, ToolLoop, SamplingParams]:
        check_options(options)
        if not isinstance(max_rounds, int) or isinstance(max_rounds, bool) or max_rounds < 1:
            raise RequestError(f"max_rounds is {shown(max_rounds)}: it must be a whole number from 1")
        toolbox = Toolbox(functions)
        start = rendered_prompt(conversation, options, self.encoding).conversation
        if start is None:
            raise RequestError("the prompt is a list of token ids: with tools it must be a conversation")
        if not declared_functions(start):
            start = conversation_of(start, {"tools": toolbox.schemas()})
        sampling = sampling_with_schema(sampling, options, start)
        if sampling.n != 1:
            raise RequestError(f"n is {sampling.n}: with tools it must be 1")
        return toolbox, ToolLoop(start, self.encoding), sampling

    def _follow(self) -> None:
        """Takes part in the computation until the leader closes. Later calls return at once."""
        with self._following:
            if not self._followed:
                self._followed = True
                self._engine.follow()
                self._engine.close()


def _check_seed(seed: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise RequestError(f"seed is {shown(seed)}: it must be a whole number")
