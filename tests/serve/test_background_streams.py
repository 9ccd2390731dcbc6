"""Streams of responses that are made in the background, and of stored ones."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gptoss_jax.openai_api.response_replay import replayed
from gptoss_jax.serve.event_log import EventLog
from gptoss_jax.serve.store import ResponseStore, Stored
from tests.openai_api.test_streams import replayed as put_together
from tests.serve.served import Scripted
from tests.serve.test_scripted import ANSWER, CALL, LONG, RESPONSE_TOOLS, events_of
from tests.serve.test_store import stored

EVENT = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def keeping(scripted, tmp_path: Path):
    """Starts servers that store responses."""

    def start(text: str, finish_reason: Any = "stop", **options: Any) -> Scripted:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
        return scripted(text, finish_reason, store=store_at(path), **options)

    return start


def store_at(path: Path) -> ResponseStore:
    return ResponseStore(path, max_bytes=10**7, max_age_seconds=1000.0)


def followed(server: Scripted, id: str, query: str = "") -> list[dict[str, Any]]:
    answer = server.http.get(f"/responses/{id}?stream=true{query}")
    assert answer.status_code == 200, answer.text
    return checked([json.loads(data) for data in events_of(answer)])


def checked(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for event in events:
        EVENT.validate_python(event)
    return events


def test_a_background_stream_that_is_cut_goes_on_where_it_was_cut(keeping) -> None:
    server = keeping(LONG, chunk=1)
    client = server.sdk
    seen = []
    with client.responses.create(model="m", input="Hi", background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if len(seen) == 9:
                break  # the client hangs up; the response does not
    id = seen[0].response.id
    assert [event.type for event in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    rest = list(client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number))
    assert [event.sequence_number for event in (*seen, *rest)] == list(range(len(seen) + len(rest)))
    whole = client.responses.retrieve(id)
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.model_dump() == whole.model_dump()
    deltas = [event.delta for event in (*seen, *rest) if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == "and so on " * 400


def test_many_follow_one_response_and_all_hear_the_same_during_and_after(keeping) -> None:
    server = keeping(CALL, chunk=1)
    server.engine.gate.clear()
    made = server.responses(background=True, tools=RESPONSE_TOOLS).json()
    heard: list[list[dict[str, Any]]] = [[] for _ in range(4)]

    def follow(number: int) -> None:
        heard[number] = followed(server, made["id"], f"&starting_after={number - 1}" if number else "")

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    server.engine.gate.set()
    for thread in threads:
        thread.join(20)
    assert heard[0][0]["response"]["status"] == "queued"
    for number in range(1, 4):
        assert heard[number] == heard[0][number:]
    assert followed(server, made["id"]) == heard[0]
    assert put_together(heard[0]) == server.wait_for(made["id"])["output"]


def test_the_stream_of_a_stored_response_adds_up_to_it(keeping) -> None:
    for text, reason in ((ANSWER, "stop"), (CALL, "stop"), (LONG, "length"), ("<|return|>", "stop")):
        server = keeping(text, reason)
        include = ["message.output_text.logprobs", "reasoning.encrypted_content"]
        made = server.responses(tools=RESPONSE_TOOLS, include=include).json()
        events = followed(server, made["id"], "&include_obfuscation=true&include=x")
        assert events[-1]["response"] == made
        assert put_together(events) == made["output"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert followed(server, made["id"], "&starting_after=1") == events[2:]
        assert followed(server, made["id"], "&starting_after=100000") == []
        assert server.http.get(f"/responses/{made['id']}?stream=false").json() == made


def test_a_cancelled_response_ends_its_stream(keeping) -> None:
    server = keeping(LONG, chunk=1)
    with server.sdk.responses.create(model="m", input="Hi", background=True, stream=True) as stream:
        heard = []
        for event in stream:
            heard.append(event)
            if event.type == "response.output_text.delta" and len(heard) < 10:
                assert server.sdk.responses.cancel(heard[0].response.id).status == "cancelled"
    assert heard[-1].type == "response.incomplete"
    assert heard[-1].response.status == "cancelled"
    again = followed(server, heard[0].response.id)
    assert [event["sequence_number"] for event in again] == [event.sequence_number for event in heard]
    assert again[-1]["response"] == server.http.get(f"/responses/{heard[0].response.id}").json()


def test_a_background_stream_fails_with_the_engine(keeping) -> None:
    server = keeping(LONG, chunk=1, fail_at=3)
    events = checked([json.loads(data) for data in events_of(server.responses(background=True, stream=True))])
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert "on fire" in events[-2]["message"]
    assert followed(server, events[0]["response"]["id"]) == events


def test_hidden_reasoning_is_in_no_stream_of_a_stored_response(keeping) -> None:
    server = keeping(ANSWER, settings={"hide_reasoning": True})
    for fields in ({}, {"background": True, "stream": True}):
        id = next(part for part in server.responses(**fields).text.split('"') if part.startswith("resp_"))
        server.wait_for(id)
        assert "Secret" not in json.dumps(followed(server, id))


def test_what_a_stream_cannot_be_asked_for_is_said(keeping) -> None:
    server = keeping(ANSWER)
    id = server.responses().json()["id"]
    for query in (
        "stream=x",
        "stream=true&starting_after=-1",
        "stream=true&starting_after=x",
        "starting_after=²",
    ):
        assert server.http.get(f"/responses/{id}?{query}").status_code == 400
    assert server.http.get("/responses/resp_none?stream=true").status_code == 404


def test_a_response_that_a_killed_server_left_has_a_stream_too(tmp_path: Path) -> None:
    file = store_at(tmp_path / "s")
    left = {"id": "resp_1", "status": "in_progress", "created_at": 2**40, "output": [], "error": None}
    file.put(Stored(left, None, [], []))
    file.close()
    failed = store_at(tmp_path / "s").get("resp_1")
    assert failed is not None
    assert [event["type"] for event in replayed(failed.response)][-2:] == ["error", "response.failed"]


def test_a_store_of_the_first_version_is_read(tmp_path: Path) -> None:
    store_at(tmp_path / "s").close()
    old = sqlite3.connect(tmp_path / "s")
    old.execute("ALTER TABLE responses DROP COLUMN events")
    old.execute("PRAGMA user_version=1")
    old.commit()
    old.close()
    file = store_at(tmp_path / "s")
    file.put(stored("resp_1"))
    assert file.get("resp_1") == Stored(**{**vars(stored("resp_1")), "response": file.get("resp_1").response})


events_strategy = st.lists(
    st.one_of(
        st.builds(
            lambda kind, delta: {"type": kind, "delta": delta}, st.sampled_from("ab"), st.text(max_size=3)
        ),
        st.builds(lambda at: {"type": "a", "at": at}, st.integers(0, 2)),
        st.builds(lambda at: {"type": "a", "at": at, "delta": {"x": 1}}, st.integers(0, 2)),
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(events=events_strategy, cut=st.integers(0, 30), after=st.integers(0, 40))
def test_a_log_tells_what_was_put_into_it(events: list[dict[str, Any]], cut: int, after: int) -> None:
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]

    async def run() -> None:
        log = EventLog()
        heard: list[dict[str, Any]] = []

        async def follow() -> None:
            async for event in log.follow(after):
                heard.append(event)

        task = asyncio.ensure_future(follow())
        log.add(numbered[:cut])
        await asyncio.sleep(0)
        assert list(log.since(after)) == numbered[:cut][after:]
        kept = EventLog.load(log.dump(numbered[cut:]))
        log.add(numbered[cut:])
        log.end()
        await task
        assert heard == numbered[after:] == list(kept.since(after))

    asyncio.run(run())


def test_a_log_is_no_larger_than_its_text_many_times_over() -> None:
    """Deltas are kept as they are, not as whole events: these would be many times as large."""

    async def run() -> None:
        log = EventLog()
        place = {"item_id": "msg_" + "0" * 32, "output_index": 1, "content_index": 0, "logprobs": []}
        deltas = [f"{number:5d}" for number in range(20_000)]
        log.add({"type": "d", "sequence_number": n, **place, "delta": text} for n, text in enumerate(deltas))
        assert len(log._runs) == 1
        assert len(log.dump()) < 2 * sum(map(len, deltas))

    asyncio.run(run())


def test_a_replayed_response_is_what_the_published_types_say() -> None:
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    item = {
        "id": "rs_1",
        "type": "reasoning",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "In short."}],
        "content": [{"type": "reasoning_text", "text": "At length."}],
        "encrypted_content": "x",
    }
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "m",
        "output": [item],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }
    Response.model_validate(response)
    kinds = [event["type"].removeprefix("response.") for event in checked(list(replayed(response)))]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "completed",
    ]
