"""The fields of a request that are about its delivery and its keeping, and not about the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gptoss_jax.openai_api.errors import bad_value, read_flag

_OWN_FIELDS = ("background", "max_tool_calls", "previous_response_id")
"""Those that only a server can honour: who reads the rest of a body refuses them."""

SEALED = "reasoning.encrypted_content"
"""What stands in `include` of a request that wants the chain of thought encrypted."""


@dataclasses.dataclass(frozen=True)
class Delivery:
    """How an answer is to come, and what is to be kept of it.

    stream: as events while it is generated, or whole.
    include_usage: whether a chat stream ends with the usage.
    store: whether the response may be kept. A request that does not say allows it.
    background: whether the answer to the request is only where the response can be asked for.
    previous: the id of the response that the request goes on from; None if it has all of the conversation.
    sealed: whether reasoning is to come with its text encrypted.
    most_calls: how many calls of built-in tools may be run; None for as many as the server allows.
    """

    stream: bool
    include_usage: bool
    store: bool
    background: bool
    previous: str | None
    sealed: bool
    most_calls: int | None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Delivery:
        """What a body says.

        Raises:
            ApiError: a field is of a wrong type.
        """
        options = body.get("stream_options")
        if options is None:
            options = {}
        elif not isinstance(options, Mapping):
            raise bad_value("stream_options", options, "an object")
        previous, include = body.get("previous_response_id"), body.get("include")
        if previous is not None and not isinstance(previous, str):
            raise bad_value("previous_response_id", previous, "the id of a response")
        store, most_calls = body.get("store"), body.get("max_tool_calls")
        is_count = isinstance(most_calls, int) and not isinstance(most_calls, bool) and most_calls > 0
        if most_calls is not None and not is_count:
            raise bad_value("max_tool_calls", most_calls, "a whole number from 1")
        return cls(
            stream=read_flag(body.get("stream"), "stream"),
            include_usage=read_flag(options.get("include_usage"), "stream_options.include_usage"),
            store=store is None or read_flag(store, "store"),
            background=read_flag(body.get("background"), "background"),
            previous=previous,
            sealed=isinstance(include, list) and SEALED in include,
            most_calls=most_calls,
        )


def without_own_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without the fields that are a server's alone."""
    return {name: value for name, value in body.items() if name not in _OWN_FIELDS}
