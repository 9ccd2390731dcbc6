"""Who answers: a model in this process. `gptoss_jax.evals.remote` asks servers."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from gptoss_jax.answers import read_sample
from gptoss_jax.engine.engine_thread import EngineStopped, EngineThread, Mailbox, NamedRequest
from gptoss_jax.engine.errors import RequestError, RequestFailed
from gptoss_jax.evals.types import Answer, EvaluationError
from gptoss_jax.openai_api import ApiError, Context, prepare

if TYPE_CHECKING:
    from gptoss_jax.answers import Sample
    from gptoss_jax.engine.engine_thread import EngineLike
    from gptoss_jax.engine.request import SamplingParams
    from harmony import HarmonyEncoding
    from harmony.json_types import JsonObject


class AskError(ValueError):
    """A request got no answer. The message is one line that says why.

    Attributes:
        code: for programs, such as "context_length_exceeded".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code


class LocalModel:
    """Answers chat bodies with an engine, which belongs to it. Use it as a context manager.

    Bodies become requests as the rows of a batch do. Any thread may call it.
    """

    def __init__(
        self,
        engine: EngineLike,
        encoding: HarmonyEncoding,
        *,
        sampling: SamplingParams,
        date: str,
        effort: str | None = None,
        header_guard: bool = True,
    ) -> None:
        """Starts the engine's thread.

        Args:
            engine: the engine.
            encoding: the model's encoding.
            sampling: the sampling parameters of bodies that do not set them.
            date: the date in the system message, YYYY-MM-DD.
            effort: the reasoning effort of bodies that do not set it; None for medium.
            header_guard: as in `gptoss_jax.batch.opening.open_batch`.
        """
        self._context = Context(engine, encoding, sampling, effort, date, header_guard=header_guard)
        self._preparing = threading.Lock()  # an engine's checks are for one thread at a time
        self._ids = map("ask-{}".format, itertools.count())
        self._thread = EngineThread(engine, "evaluation")

    def __call__(self, body: JsonObject) -> Answer:
        """See `gptoss_jax.evals.types.Ask`."""
        try:
            with self._preparing:
                prepared = prepare(body, "chat", self._context, id=next(self._ids), seed=None)
            return _answer(self._sample(NamedRequest(prepared.request)))
        except ApiError as error:
            raise AskError(error.code, str(error)) from None
        except RequestError as error:
            raise AskError("invalid_request", str(error)) from None
        except RequestFailed as error:
            raise AskError("internal_error", str(error)) from None
        except EngineStopped as error:
            raise EvaluationError(" ".join(str(error).split())) from error

    def close(self) -> None:
        """Ends the engine. Threads that wait get an error."""
        self._thread.close()

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sample(self, request: NamedRequest) -> Sample:
        mailbox = Mailbox()
        self._thread.submit([request], mailbox.deliver, whole=True)
        while True:
            for update in mailbox.get():
                if update.completion is not None:
                    return read_sample(update.completion, self._context.encoding)


def _answer(sample: Sample) -> Answer:
    usage: JsonObject = {
        "prompt_tokens": sample.usage.prompt_tokens,
        "completion_tokens": sample.usage.generated_tokens,
        "reasoning_tokens": sample.usage.reasoning_tokens,
    }
    return Answer(sample.text, sample.reasoning, sample.finish_reason, usage)
