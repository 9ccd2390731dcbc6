"""The items of a request's `input`: as they are kept, listed and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gptoss_jax.openai_api.errors import ApiError

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
    """The items, those of reasoning that have no text with the text that was encrypted.

    `unseal` is called with what is encrypted and the name of its field.

    Raises:
        ApiError: what `unseal` raises.
    """
    read = []
    for index, item in enumerate(items):
        sealed = item.get("encrypted_content")
        if item.get("type") == "reasoning" and isinstance(sealed, str) and not item.get("content"):
            text = unseal(sealed, f"input[{index}].encrypted_content")
            item = {**item, "content": [{"type": "reasoning_text", "text": text}]}
        read.append(item)
    return read


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


def page_of(items: Items, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of items: at most `limit`, 1 to 100 (default 20), in the `order` asc or desc (default), those
    behind the one whose id is `after`.

    Raises:
        ApiError: a value is none that is allowed.
    """
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise ApiError("invalid_request", f"order is {order!r}: it must be asc or desc", "order")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= 100):
        message = f"limit is {limit[:20]!r}: it must be a whole number from 1 to 100"
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
