"""Stored responses, conversations that go on from them, encrypted reasoning, background."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseItemList

from gptoss_jax.serve.sealing import Sealer
from gptoss_jax.serve.store import ResponseStore, Stored, StoreError
from tests.serve.served import Scripted

ANSWER = (
    "<|channel|>analysis<|message|>Secret thought.<|end|><|start|>assistant"
    "<|channel|>final<|message|>It is 5.<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>Secret thought.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
)
LONG = "<|channel|>final<|message|>" + "and so on " * 400 + "<|return|>"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": TOOLS[0]["parameters"]}}]
SEALED = "reasoning.encrypted_content"


def store_at(path: Path, **limits: Any) -> ResponseStore:
    return ResponseStore(path, **{"max_bytes": 10**6, "max_age_seconds": 1000.0, **limits})


@pytest.fixture
def keeping(scripted, tmp_path: Path):
    """Starts servers that store responses."""

    def start(text: str, finish_reason: Any = "stop", **options: Any) -> Scripted:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
        return scripted(text, finish_reason, store=store_at(path), sealer=Sealer(None), **options)

    return start


def stored(id: str, text: str = "x", previous: str | None = None, created: float | None = None) -> Stored:
    response = {"id": id, "status": "completed", "created_at": created or time.time()}
    return Stored(response, previous, [{"text": text}], [{"text": f"{text} back"}])


def test_the_same_conversation_stored_replayed_or_in_chat_has_the_same_prompts(keeping) -> None:
    server = keeping(CALL)
    begin = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    messages: list[Any] = list(begin)
    items: list[Any] = list(begin)
    new: list[Any] = list(begin)
    previous = None
    for turn in range(3):
        message = server.chat(messages=messages, tools=CHAT_TOOLS).json()["choices"][0]["message"]
        prompts = [server.prompt()]
        output = server.responses(input=items, tools=TOOLS, store=False).json()["output"]
        prompts.append(server.prompt())
        kept = server.responses(input=new, tools=TOOLS, previous_response_id=previous).json()
        prompts.append(server.prompt())
        assert prompts[0] == prompts[1] == prompts[2]
        previous = kept["id"]
        messages += [
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "7"},
            {"role": "user", "content": f"Again {turn}."},
        ]
        result = {"type": "function_call_output", "output": "7"}
        again = {"role": "user", "content": f"Again {turn}."}
        items += [*output, {**result, "call_id": output[-1]["call_id"]}, again]
        new = [{**result, "call_id": kept["output"][-1]["call_id"]}, again]


def test_a_stored_response_is_got_listed_and_deleted(keeping) -> None:
    server = keeping(ANSWER)
    client = server.sdk
    made = client.responses.create(model="m", input="Hi", metadata={"a": "b"})
    assert made.store is True
    got = client.responses.retrieve(made.id)
    assert got.model_dump() == made.model_dump()
    listed = server.http.get(f"/responses/{made.id}/input_items")
    ResponseItemList.model_validate_json(listed.text, strict=True)
    (item,) = client.responses.input_items.list(made.id)
    assert (item.role, item.content[0].text) == ("user", "Hi")
    client.responses.delete(made.id)
    for gone in (made.id, "resp_never"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(gone)
        with pytest.raises(openai.BadRequestError, match="no response"):
            client.responses.create(model="m", input="Hi", previous_response_id=gone)


def test_input_items_come_in_pages(keeping) -> None:
    server = keeping(ANSWER)
    items = [{"role": "user", "content": f"Turn {number}"} for number in range(25)]
    id = server.responses(input=items).json()["id"]
    texts = [item.content[0].text for item in server.sdk.responses.input_items.list(id, limit=7, order="asc")]
    assert texts == [item["content"] for item in items]
    page = server.http.get(f"/responses/{id}/input_items").json()
    assert (len(page["data"]), page["has_more"]) == (20, True)
    assert page["data"][0]["content"][0]["text"] == "Turn 24"
    for query in ("limit=0", "limit=x", "limit=101", "order=up", "after=nothing"):
        assert server.http.get(f"/responses/{id}/input_items?{query}").status_code == 400


def test_nothing_is_kept_that_must_not_be(keeping) -> None:
    server = keeping(ANSWER)
    for fields in ({"store": False}, {"store": False, "stream": True}):
        answer = server.responses(**fields)
        id = next(part for part in answer.text.split('"') if part.startswith("resp_"))
        assert server.http.get(f"/responses/{id}").status_code == 404
    assert server.responses(store=False).json()["store"] is False


def test_a_stream_is_stored_before_it_says_that_it_is_done(keeping) -> None:
    server = keeping(ANSWER)
    with server.sdk.responses.stream(model="m", input="Hi") as stream:
        final = stream.get_final_response()
    assert server.sdk.responses.retrieve(final.id).output_text == "It is 5."


def test_hidden_reasoning_goes_on_through_stored_responses(keeping) -> None:
    server = keeping(CALL, settings={"hide_reasoning": True})
    first = server.responses(tools=TOOLS)
    assert "Secret" not in first.text
    output = first.json()["output"]
    assert [item["type"] for item in output] == ["function_call"]
    result = {"type": "function_call_output", "call_id": output[0]["call_id"], "output": "7"}
    second = server.responses(input=[result], previous_response_id=first.json()["id"], tools=TOOLS)
    assert second.status_code == 200
    for path in ("", "/input_items"):
        assert "Secret" not in server.http.get(f"/responses/{second.json()['id']}{path}").text
    assert "Secret thought." in server.decoded_prompt()


def test_hidden_reasoning_goes_on_through_encrypted_content(keeping) -> None:
    server = keeping(CALL, settings={"hide_reasoning": True})
    items: list[Any] = [{"role": "user", "content": "Go."}]
    for stream in (False, True):
        answer = server.responses(input=items, tools=TOOLS, store=False, include=[SEALED], stream=stream)
        assert "Secret" not in answer.text
        whole = answer.json() if not stream else json.loads(answer.text.rpartition("data: ")[2])["response"]
        Response.model_validate(whole)
        assert [item["type"] for item in whole["output"]] == ["reasoning", "function_call"]
        assert "content" not in whole["output"][0]
        call = whole["output"][1]["call_id"]
        items += [*whole["output"], {"type": "function_call_output", "call_id": call, "output": "7"}]
    server.responses(input=items, tools=TOOLS, store=False)
    assert server.decoded_prompt().count("Secret thought.") == 2
    broken = [{**items[1], "encrypted_content": items[1]["encrypted_content"][:-8] + "AAAAAAA="}]
    refused = server.responses(input=[items[0], *broken])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input[1].encrypted_content"


def test_keys_decrypt_what_they_encrypted_and_nothing_else() -> None:
    one, two = ("A" * 43 + "=", "B" * 43 + "=")
    sealed = Sealer(one).seal("thought \ud800 é")
    assert Sealer(f"{two},{one}").open(sealed, "f") == "thought \ud800 é"
    for other in (two, None):
        with pytest.raises(ValueError, match="f was not encrypted with this server's key"):
            Sealer(other).open(sealed, "f")
    with pytest.raises(ValueError, match="32 bytes"):
        Sealer("short")


def test_a_background_response_is_polled_until_it_is_done(keeping) -> None:
    server = keeping(ANSWER)
    server.engine.gate.clear()
    made = server.sdk.responses.create(model="m", input="Hi", background=True)
    assert (made.status, made.background) == ("queued", True)
    refused = server.responses(previous_response_id=made.id)
    assert refused.json()["error"]["code"] == "previous_response_unfinished"
    server.engine.gate.set()
    assert server.wait_for(made.id)["status"] == "completed"
    assert server.sdk.responses.retrieve(made.id).output_text == "It is 5."
    assert server.sdk.responses.cancel(made.id).status == "completed"
    assert server.http.post(f"/responses/{server.responses().json()['id']}/cancel").status_code == 400


def test_a_background_response_can_be_cancelled(keeping) -> None:
    server = keeping(LONG, chunk=1)
    made = server.sdk.responses.create(model="m", input="Hi", background=True)
    request = f"req_{made.id.removeprefix('resp_')}"
    end = time.monotonic() + 30
    while request not in server.engine.requests:  # one that is cancelled before never reaches the engine
        assert time.monotonic() < end
        time.sleep(0.01)
    assert server.sdk.responses.cancel(made.id).status == "cancelled"
    server.wait_until_idle()
    assert server.sdk.responses.retrieve(made.id).status == "cancelled"
    assert ("cancel", request) in server.engine.log


def test_a_background_response_fails_with_the_engine(keeping) -> None:
    server = keeping(LONG, chunk=1, fail_at=3)
    made = server.sdk.responses.create(model="m", input="Hi", background=True)
    failed = server.wait_for(made.id)
    assert failed["status"] == "failed"
    assert "on fire" in failed["error"]["message"]


def test_what_needs_a_store_says_so_without_one(scripted) -> None:
    server = scripted(ANSWER)
    for fields in ({"previous_response_id": "resp_1"}, {"background": True}):
        refused = server.responses(**fields)
        assert (refused.status_code, "--store" in refused.json()["error"]["message"]) == (400, True)
    assert server.http.get("/responses/resp_1").status_code == 404
    assert server.responses(store=True).json()["store"] is False


def test_old_responses_make_room(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", max_bytes=3000, max_age_seconds=100)
    now = time.time()
    for number in range(20):
        store.put(stored(f"resp_{number}", "x" * 200, created=now + number))
    kept = [number for number in range(20) if store.get(f"resp_{number}") is not None]
    assert kept == list(range(kept[0], 20))
    assert 2 < len(kept) < 10
    store.put(stored("resp_old", created=now - 101))
    assert store.get("resp_old") is None


@pytest.mark.parametrize("id", ["resp_\ud800", "ä", "\0", "' OR 1=1"])
def test_an_id_of_any_letters_is_of_no_response(keeping, id: str) -> None:
    body = json.dumps({"model": "m", "input": "Go.", "previous_response_id": id})
    answer = httpx.post(f"{keeping(ANSWER).url}/v1/responses", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "previous_response_not_found"


def test_a_conversation_that_lost_a_turn_is_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    store.put(stored("resp_1", "one"))
    store.put(stored("resp_2", "two", "resp_1"))
    texts = [item["text"] for item in store.conversation("resp_2")]
    assert texts == ["one", "one back", "two", "two back"]
    store.delete("resp_1")
    with pytest.raises(ValueError, match="no response 'resp_1' is stored"):
        store.conversation("resp_2")


def test_a_file_that_is_no_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x" * 5000)
    for path in (tmp_path / "text", tmp_path / "none" / "s"):
        with pytest.raises(StoreError, match="cannot be a store") as error:
            store_at(path)
        assert "\n" not in str(error.value)
    other = sqlite3.connect(tmp_path / "newer")
    other.execute("PRAGMA user_version=9")
    other.close()
    with pytest.raises(StoreError, match="version 9"):
        store_at(tmp_path / "newer")


def test_two_servers_do_not_share_a_file(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    with pytest.raises(StoreError, match="locked"):
        store_at(tmp_path / "s")
    store.close()
    store_at(tmp_path / "s").close()


def test_the_file_shrinks_with_what_is_in_it(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", max_bytes=10**7)
    for number in range(40):
        store.put(stored(f"resp_{number}", "x" * 20_000))
    full = (tmp_path / "s").stat().st_size + (tmp_path / "s-wal").stat().st_size
    store.close()
    store = store_at(tmp_path / "s", max_bytes=50_000)
    store.put(stored("resp_last"))
    store.close()
    assert (tmp_path / "s").stat().st_size < full / 4


WRITER = """
import sys, time
from pathlib import Path
from gptoss_jax.serve.store import ResponseStore, Stored
store = ResponseStore(Path(sys.argv[1]), max_bytes=10**7, max_age_seconds=10**6)
number = int(sys.argv[2])
while True:
    response = {"id": f"resp_{number}", "status": "completed", "created_at": time.time(), "n": number}
    store.put(Stored(response, None, [{"text": "x" * 500}], []))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_what_was_stored_survives_kill_9(tmp_path: Path, kills: int) -> None:
    path, told = tmp_path / "s", 0
    for kill in range(kills):
        command = [sys.executable, "-c", WRITER, str(path), str(told)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            timer = threading.Timer(0.002 * kill, writer.send_signal, [signal.SIGKILL])
            said = [int(writer.stdout.readline())]
            timer.start()
            said += [int(line) for line in writer.stdout if line.endswith("\n")]
        told = said[-1] + 1
        store = store_at(path, max_bytes=10**7)
        for number in range(told):
            kept = store.get(f"resp_{number}")
            assert kept is not None
            assert kept.response["n"] == number
        store.close()


def test_work_that_a_killed_server_left_is_failed(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    response = {"id": "resp_1", "status": "in_progress", "created_at": time.time()}
    store.put(Stored(response, None, [], []))
    store.close()
    found = store_at(tmp_path / "s").get("resp_1")
    assert found is not None
    assert found.response["status"] == "failed"
