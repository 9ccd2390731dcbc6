"""A response that has ended → the events of a stream that add up to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gptoss_jax.openai_api.built_in import ITEM_TYPES, begin_events, end_events

Event = dict[str, Any]

_DELTA = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}


def replayed(response: dict[str, Any]) -> Iterator[Event]:
    """The events of a response that has ended, in the published order, each text in one delta."""
    for number, event in enumerate(_events(response)):
        yield {"type": event.pop("type"), "sequence_number": number, **event}


def _events(response: dict[str, Any]) -> Iterator[Event]:
    begun = {
        **response,
        "status": "in_progress",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        if item["type"] in ITEM_TYPES:
            yield from begin_events(item, index)
            yield from end_events(item, index)
        else:
            yield from _item_events(item, index)
    status, error = response["status"], response["error"]
    if status == "failed":
        yield {"type": "error", "code": error["code"], "message": error["message"], "param": None}
    kind = status if status in ("completed", "failed") else "incomplete"
    yield {"type": f"response.{kind}", "response": response}


def _item_events(item: dict[str, Any], index: int) -> Iterator[Event]:
    place = {"item_id": item["id"], "output_index": index}
    begun = {name: value for name, value in item.items() if name != "encrypted_content"}
    if "status" in item:
        begun["status"] = "in_progress"
    empty: dict[str, Any] = {"content": [], "summary": [], "arguments": ""}
    begun.update((name, value) for name, value in empty.items() if name in item)
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    for number, part in enumerate(item.get("content") or ()):
        yield from _part_events(part, {**place, "content_index": number})
    for number, part in enumerate(item.get("summary") or ()):
        at, kind = {**place, "summary_index": number}, "response.reasoning_summary"
        yield {"type": f"{kind}_part.added", **at, "part": {**part, "text": ""}}
        yield {"type": f"{kind}_text.delta", **at, "delta": part["text"]}
        yield {"type": f"{kind}_text.done", **at, "text": part["text"]}
        yield {"type": f"{kind}_part.done", **at, "part": part}
    if item["type"] == "function_call":
        kind, arguments = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{kind}.delta", **place, "delta": arguments}
        yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": arguments}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(part: dict[str, Any], place: dict[str, Any]) -> Iterator[Event]:
    kind, text = _DELTA[part["type"]], part["text"]
    scores = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    begun = {**part, "text": "", **({"logprobs": []} if scores else {})}
    yield {"type": "response.content_part.added", **place, "part": begun}
    yield {"type": f"{kind}.delta", **place, "delta": text, **scores}
    yield {"type": f"{kind}.done", **place, "text": text, **scores}
    yield {"type": "response.content_part.done", **place, "part": part}
