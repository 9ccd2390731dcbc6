"""The `response` object of a request, at each of its stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from gptoss_jax.answers import Sample, Usage
from gptoss_jax.openai_api.output_items import ItemMaker, Seal

if TYPE_CHECKING:
    from gptoss_jax.openai_api.errors import ApiError
    from gptoss_jax.openai_api.request import Prepared
    from harmony import HarmonyEncoding

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Items = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ResponseMaker:
    """Makes the `response` objects of one request.

    unique: what tells the response from all others; its id and those of its items are made of it.
    created: a Unix time in seconds.
    seal: what encrypts the chain of thought for the client to send back; None if it did not ask for that.
    summaries: the summaries of reasoning, by the numbers of its messages, filled as they are made; None if
        none are wanted.
    store, background, previous_response_id: as the response says of itself.
    """

    prepared: Prepared
    encoding: HarmonyEncoding
    unique: str
    model: str
    created: int
    seal: Seal | None = None
    summaries: dict[int, str] | None = None
    store: bool = False
    background: bool = False
    previous_response_id: str | None = None

    @property
    def id(self) -> str:
        """The response's id."""
        return f"resp_{self.unique}"

    @property
    def item_maker(self) -> ItemMaker:
        """What makes the items of its output."""
        include = self.prepared.body.get("include") or ()
        with_outputs = "code_interpreter_call.outputs" in include
        shown = self.prepared.with_reasoning
        return ItemMaker(self.encoding, self.unique, shown, self.seal, with_outputs, self.summaries)

    def whole(self, sample: Sample) -> dict[str, Any]:
        """The response of a sample that has ended, for whatever reason."""
        return self.ended(sample, self.item_maker.items(sample))

    def ended(self, sample: Sample, output: Items) -> dict[str, Any]:
        """The same with items that were made already."""
        status = _STATUS.get(sample.finish_reason, "completed")
        return self._object(status, output, usage=sample.usage)

    def unfinished(self, status: Status) -> dict[str, Any]:
        """The response before there is any output."""
        return self._object(status, [])

    def failed(self, error: ApiError, output: Items) -> dict[str, Any]:
        """The response of a request on which the engine failed, with the items that it had finished."""
        return self._object("failed", output, error={"code": "server_error", "message": str(error)})

    def cancelled(self, output: Items) -> dict[str, Any]:
        """The response of a request that was cancelled, with the items that it had finished."""
        return self._object("cancelled", output)

    def _object(
        self,
        status: Status,
        output: Items,
        *,
        usage: Usage | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        body, sampling = self.prepared.body, self.prepared.request.sampling
        text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
        cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": self.background,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {
                "effort": reasoning.get("effort"),
                "summary": None if self.summaries is None else reasoning.get("summary"),
            },
            "store": self.store,
            "temperature": sampling.temperature,
            "text": {"format": text.get("format") or {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": self.prepared.tools,
            "top_logprobs": sampling.logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else response_usage(usage),
        }


_STATUS: Mapping[str, Status] = {"length": "incomplete", "cancelled": "cancelled"}
"""By the reason why a sample ended; all other reasons complete the response."""


def response(
    prepared: Prepared,
    sample: Sample,
    encoding: HarmonyEncoding,
    *,
    unique: str,
    model: str,
    created: int,
) -> dict[str, Any]:
    """The `response` of a request's only sample. `created` is a Unix time in seconds."""
    return ResponseMaker(prepared, encoding, unique, model, created).whole(sample)


def response_usage(usage: Usage) -> dict[str, Any]:
    """The `usage` of a `response`."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
