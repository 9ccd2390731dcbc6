"""The items of a request's `input`: as they are kept, listed and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gptoss_jax.openai_api.built_in import CODE, ITEM_TYPES
from gptoss_jax.openai_api.errors import ApiError, bad_value

Items = list[dict[str, Any]]

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def items_of(given: object) -> Items | None:
    """The items of `input`: text is a message of the user. None if it is neither text nor items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if isinstance(given, Sequence) and all(isinstance(item, Mapping) for item in given):
        return [dict(item) for item in given]
    return None


def opened(items: Items, unseal: Callable[[str, str], str]) -> Items:
    """The items, those without what was encrypted with it: the text of reasoning, a built-in tool's call.

    `unseal` is called with what is encrypted and the name of its field.

    Raises:
        ApiError: what `unseal` raises.
    """
    read = []
    for index, item in enumerate(items):
        sealed = item.get("encrypted_content")
        is_call = item.get("type") in ITEM_TYPES and not item.get("extra_content")
        if is_call and isinstance(sealed, str):
            text = unseal(sealed, f"input[{index}].encrypted_content")
            item = {**item, "extra_content": {"harmony": json.loads(text)}}
        if item.get("type") == "reasoning" and isinstance(sealed, str) and not item.get("content"):
            text = unseal(sealed, f"input[{index}].encrypted_content")
            item = {**item, "content": [{"type": "reasoning_text", "text": text}]}
        read.append(item)
    return read


def with_calls(items: Items) -> Items:
    """The items, those of built-in tools' calls as calls of functions and their results.

    A call that does not say what it was and what came of it is left out, as reasoning without text is.

    Raises:
        ApiError: what an item says of its call is not what it must be.
    """
    read = []
    for index, item in enumerate(items):
        if item.get("type") in ITEM_TYPES:
            read += _call_and_result(item, index)
        else:
            read.append(item)
    return read


def _call_and_result(item: dict[str, Any], index: int) -> Items:
    field = f"input[{index}]"
    extras = item.get("extra_content")
    header = extras.get("harmony") if isinstance(extras, Mapping) else None
    if isinstance(header, Mapping):
        header = dict(header)
        given, output = header.pop("input", None), header.pop("output", None)
    elif item["type"] == CODE:
        header = {"recipient": "python", "channel": "analysis", "content_type": "code"}
        given, output = item.get("code"), _logs(item.get("outputs"))
    else:
        return []
    if given is None or output is None:
        return []
    id = item.get("id")
    call_id = id if isinstance(id, str) else field
    name = header.get("recipient")
    if not isinstance(name, str):
        raise bad_value(f"{field}.extra_content.harmony.recipient", name, "the tool that was called")
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": given}
    return [
        {**call, "extra_content": {"harmony": header}},
        {"type": "function_call_output", "call_id": call_id, "output": output},
    ]


def _logs(outputs: object) -> str | None:
    """The texts of a code interpreter's outputs; None if they are not there."""
    if not isinstance(outputs, list):
        return None
    return "".join(str(part.get("logs", "")) for part in outputs if isinstance(part, Mapping))


def listed(items: Items, unique: str) -> Items:
    """The items as `input_items` lists them: each with an id, and texts as parts. `unique` makes the ids."""
    return [_listed(item, index, unique) for index, item in enumerate(items)]


def _listed(item: dict[str, Any], index: int, unique: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    prefix = _PREFIXES.get(kind, "item")
    whole = {"status": "completed", **item, "type": kind}
    whole["id"] = item.get("id") or f"{prefix}_{unique}in{index:03d}"
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        if item.get("role") == "assistant":
            whole["content"] = [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
        else:
            whole["content"] = [{"type": "input_text", "text": content}]
    return whole


def page_of(items: Items, query: Mapping[str, str], *, most: int = 100, usual: int = 20) -> dict[str, Any]:
    """A page of items: at most `limit`, 1 to `most` (default `usual`), in the `order` asc or desc (default),
    those behind the one whose id is `after`.

    Raises:
        ApiError: a value is none that is allowed.
    """
    order, limit, after = query.get("order", "desc"), query.get("limit", str(usual)), query.get("after")
    if order not in ("asc", "desc"):
        raise ApiError("invalid_request", f"order is {order!r}: it must be asc or desc", "order")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= most):
        message = f"limit is {limit[:20]!r}: it must be a whole number from 1 to {most}"
        raise ApiError("invalid_request", message, "limit")
    found = items if order == "asc" else items[::-1]
    if after is not None:
        places = [place for place, item in enumerate(found) if item["id"] == after]
        if not places:
            raise ApiError("invalid_request", f"after is {after[:80]!r}: no item has this id", "after")
        found = found[places[0] + 1 :]
    page = found[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(found) > len(page),
    }
