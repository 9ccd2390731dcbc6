"""Built-in tools that fail, hang, or lose their client: nothing is a fault of the server, nothing stays."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.engine.request import SamplingParams
from gptoss_jax.openai_api import ApiError, Context, prepare
from gptoss_jax.serve.generation import EngineClient
from gptoss_jax.serve.metrics import Metrics
from gptoss_jax.serve.store import ResponseStore
from gptoss_jax.serve.tool_loop import ToolLimits
from harmony import HarmonyEncoding, Message
from tests.serve.fake_tools import FakeSession, FakeTool, engine_of_rounds
from tests.serve.served import Scripted
from tests.serve.test_built_in_tools import ANSWER, CHAT_TOOLS, CODE, ITEM_TOOLS, THINK, Serve, served
from tests.serve.test_scripted import leave

__all__ = ["served"]  # a fixture


class Failing(FakeTool):
    """A tool that fails where `place` says."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def session(self) -> FakeSession:
        if self.place == "session":
            raise RuntimeError("at /a/secret/path\nof the server")
        tool = self

        class Session(FakeSession):
            async def run(self, call: Message) -> Message:
                if tool.place == "run":
                    raise RuntimeError("it broke")
                return await super().run(call)

            async def close(self) -> None:
                await super().close()
                raise RuntimeError("it does not close")

        return Session(self, 1)


@pytest.mark.parametrize("place", ["session", "run", "close"])
def test_a_fault_of_a_tool_is_told_to_the_model_and_not_to_the_client(served: Serve, place: str) -> None:
    server = served([THINK + CODE, ANSWER], [Failing(place)])
    response = server.responses(tools=ITEM_TOOLS)
    assert (response.status_code, response.json()["status"]) == (200, "completed")
    assert response.json()["output"][-1]["content"][0]["text"] == "It is 42."
    assert ("<|message|>error: python" in server.decoded_prompt()) is (place != "close")
    assert "/a/secret/path" not in response.text
    server.wait_until_idle()
    assert "gptoss_jax_unfinished_samples 0.0" in server.figures()


def test_a_call_that_takes_too_long_is_interrupted_and_the_model_goes_on(served: Serve) -> None:
    tool = FakeTool()
    tool.waits = True
    server = served([THINK + CODE, ANSWER], [tool], tool_limits=ToolLimits(calls=5, seconds=0.05))
    response = server.responses(tools=ITEM_TOOLS).json()
    _, call, *_, message = response["output"]
    assert (call["status"], message["content"][0]["text"]) == ("failed", "It is 42.")
    assert "error: python was interrupted after 0.05 seconds" in server.decoded_prompt()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_a_client_that_leaves_ends_the_call_at_work(served: Serve, path: str, stream: bool) -> None:
    tool = FakeTool()
    tool.waits = True
    server = served([THINK + CODE, ANSWER], [tool])
    said = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"input": "Hi"}
    leave(server.url, f"/v1/{path}", {**said, "tools": CHAT_TOOLS, "stream": stream})
    until(lambda: "gptoss_jax_cancelled_requests_total 1.0" in server.figures())
    until(lambda: not tool.log or tool.closed == [1])
    assert "gptoss_jax_unfinished_samples 0.0" in server.figures()
    assert server.engine.unfinished == 0


def test_a_cancelled_response_ends_the_call_at_work(served: Serve, tmp_path: Path) -> None:
    tool = FakeTool()
    tool.waits = True
    store = ResponseStore(tmp_path / "store", max_bytes=1 << 20, max_age_seconds=1e6)
    server = served([THINK + CODE, ANSWER], [tool], store=store)
    id = server.responses(tools=ITEM_TOOLS, background=True).json()["id"]
    assert tool.begun.wait(20)
    assert server.http.post(f"/responses/{id}/cancel").json()["status"] == "cancelled"
    until(lambda: tool.closed == [1])
    assert len(server.engine.requests) == 1


def test_a_request_whose_time_is_up_during_a_call_ends_as_it_is(served: Serve) -> None:
    tool = FakeTool()
    tool.waits = True
    server = served([THINK + CODE, ANSWER], [tool], max_seconds=3.0)
    response = server.responses(tools=ITEM_TOOLS).json()
    kinds = [(item["type"], item["status"]) for item in response["output"]]
    assert kinds == [("reasoning", "completed"), ("code_interpreter_call", "incomplete")]
    assert response["status"] == "incomplete"
    until(lambda: tool.closed == [1])


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_fails_between_rounds_is_told(served: Serve, stream: bool) -> None:
    tool = FakeTool()
    server = served([CODE, ANSWER], [tool], engine={"fail_at": 2, "chunk": 1000})
    answer = server.responses(tools=ITEM_TOOLS, stream=stream)
    assert answer.status_code == (200 if stream else 503)
    assert "the device is on fire" in answer.text
    assert "response.failed" in answer.text or not stream
    until(lambda: tool.closed == [1])


def test_an_engine_that_is_closed_during_a_call_ends_the_request(encoding: HarmonyEncoding) -> None:
    tool = FakeTool()
    tool.waits = True
    engine = engine_of_rounds([CODE, ANSWER], encoding)
    built_in = {tool.name: tool.declaration}
    context = Context(engine, encoding, SamplingParams(), None, "2026-01-01", built_in=built_in)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": CHAT_TOOLS[:1]}
    prepared = prepare(body, "chat", context, id="req", seed=None)

    async def run() -> None:
        metrics = Metrics(engine, None)
        client = EngineClient(engine, encoding, metrics, name="x", max_samples=8, tools=[tool])
        generation = client.start(prepared.request, prepared.rounds)

        def close() -> None:
            tool.begun.wait(20)
            client.close()

        closing = threading.Thread(target=close)
        closing.start()
        with pytest.raises(ApiError) as caught:
            async for _ in generation:
                pass
        assert caught.value.status == 503
        generation.close()
        await client.close_tools()
        closing.join()

    asyncio.run(asyncio.wait_for(run(), 30))
    assert tool.closed == [1]


def test_the_most_calls_of_a_request_are_fewer_than_the_servers(served: Serve) -> None:
    def rounds(sample: int, number: int) -> str:
        return CODE if number < 2 else ANSWER

    tool = FakeTool()
    server = served(rounds, [tool])
    response = server.responses(tools=ITEM_TOOLS, max_tool_calls=2).json()
    assert (response["status"], len(tool.log)) == ("completed", 2)
    guards = [request.sampling.header_guard.recipients for request in server.engine.requests.values()]
    assert ["python" in guard for guard in guards] == [True, True, False]
    for value in (0, True, "2", 1.5):
        assert server.responses(tools=ITEM_TOOLS, max_tool_calls=value).status_code == 400


def until(holds: Any) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_the_python_tool_answers_what_python_does(served: Serve) -> None:
    pytest.importorskip("jupyter_client")
    from gptoss_jax.tools.python.tool import PythonTool

    first = "<|channel|>analysis to=python code<|message|>x = 6 * 7<|call|>"
    second = "<|channel|>analysis to=python code<|message|>print(x)<|call|>"
    server: Scripted = served([first, second, ANSWER], [PythonTool()])  # type: ignore[list-item]
    include = ["code_interpreter_call.outputs"]
    response = server.responses(tools=ITEM_TOOLS, include=include).json()
    assert response["status"] == "completed", response
    outputs = [item["outputs"][0]["logs"] for item in response["output"][:2]]
    assert outputs[1].strip() == "42"
