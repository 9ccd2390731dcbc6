"""Summaries of the chain of thought: made by a plug-in or the model, in items and in streams."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gptoss_jax.engine.request import Request
from gptoss_jax.serve.store import ResponseStore
from gptoss_jax.serve.summaries import load_summarizer
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script
from tests.openai_api.test_streams import replayed as put_together
from tests.serve.served import Scripted, serving
from tests.serve.test_scripted import ANSWER, CALL, RESPONSE_TOOLS, events_of

EVENT = TypeAdapter(ResponseStreamEvent)
ASKED = {"reasoning": {"summary": "auto"}}
TWO = ANSWER.replace(
    "<|start|>assistant<|channel|>final",
    "<|start|>assistant<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant<|channel|>analysis"
    "<|message|>Another thought.<|end|><|start|>assistant<|channel|>final",
)


def shout(text: str) -> str:
    return text.upper()[:6]


async def later(text: str) -> str:
    await asyncio.sleep(0)
    return shout(text)


def streamed(server: Scripted, **fields: Any) -> list[dict[str, Any]]:
    events = [json.loads(data) for data in events_of(server.responses(stream=True, **ASKED, **fields))]
    for event in events:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


@pytest.mark.parametrize("function", [shout, later])
@pytest.mark.parametrize("hide", [False, True])
def test_an_item_has_its_summary_streamed_or_not(scripted, function: Any, hide: bool) -> None:
    for text, summaries in ((ANSWER, ["SECRET"]), (CALL, ["SECRET"]), (TWO, ["SECRET", "ANOTHE"])):
        server = scripted(text, settings={"summarizer": function, "hide_reasoning": hide})
        answer = server.responses(tools=RESPONSE_TOOLS, **ASKED)
        whole = Response.model_validate(answer.json())
        made = [item.summary[0].text for item in whole.output if item.type == "reasoning"]
        assert made == summaries
        assert whole.reasoning is not None
        assert whole.reasoning.summary == "auto"
        events = streamed(server, tools=RESPONSE_TOOLS)
        final = events[-1]["response"]
        told = [item["summary"] for item in final["output"] if item["type"] == "reasoning"]
        assert [part["text"] for (part,) in told] == summaries
        assert put_together(events) == final["output"]
        if hide:
            assert "thought" not in answer.text + json.dumps(events)


def test_the_events_of_a_summary_have_the_published_order(scripted) -> None:
    kinds = [
        event["type"].removeprefix("response.")
        for event in streamed(scripted(ANSWER, chunk=100, settings={"summarizer": shout}))
    ]
    assert kinds[2:12] == [
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
    ]


def test_no_summary_is_made_that_nobody_asked_for(scripted) -> None:
    called: list[str] = []

    def note(text: str) -> str:
        called.append(text)
        return "x"

    server = scripted(ANSWER, settings={"summarizer": note})
    for fields in ({}, {"reasoning": {"summary": None}}, {"reasoning": {"effort": "low"}}):
        assert server.responses(**fields).json()["output"][0]["summary"] == []
    assert called == []
    without = scripted(ANSWER).responses(**ASKED).json()
    assert (without["output"][0]["summary"], without["reasoning"]["summary"]) == ([], None)


def test_a_summarizer_that_fails_leaves_the_summary_empty(scripted, caplog: pytest.LogCaptureFixture) -> None:
    never = threading.Event()

    def raises(text: str) -> str:
        raise ArithmeticError(text)

    def hangs(text: str) -> str:
        never.wait(20)
        return "too late"

    def gives_no_text(text: str) -> Any:
        return 5

    try:
        for function, told in ((raises, "ArithmeticError"), (hangs, "more than 0.1"), (gives_no_text, "int")):
            settings = {"summarizer": function, "summary_seconds": 0.1}
            server = scripted(ANSWER, settings=settings)
            answer = server.responses(**ASKED)
            assert (answer.status_code, answer.json()["output"][0]["summary"]) == (200, [])
            assert streamed(server)[-1]["response"]["output"][0]["summary"] == []
            assert told in caplog.text
    finally:
        never.set()
    assert "Secret" not in caplog.text


def test_summaries_are_stored_and_streamed_again(scripted, tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "s", max_bytes=10**6, max_age_seconds=1000.0)
    server = scripted(ANSWER, store=store, settings={"summarizer": shout, "hide_reasoning": True})
    for fields in ({}, {"background": True}):
        id = server.responses(**ASKED, **fields).json()["id"]
        whole = server.wait_for(id)
        assert whole["output"][0]["summary"] == [{"type": "summary_text", "text": "SECRET"}]
        again = server.http.get(f"/responses/{id}?stream=true")
        assert "reasoning_summary_text.delta" in again.text
        assert "thought" not in again.text
        server.responses(previous_response_id=id)
        assert "SECRET" not in server.decoded_prompt()  # what the model goes on with is not the summary
    assert "Secret" not in json.dumps(server.http.get(f"/responses/{id}").json())


def test_the_model_summarises_itself(encoding: HarmonyEncoding, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="gptoss_jax")

    def script(request: Request, sample: int) -> Script:
        about = encoding.decode(request.prompt)
        said = "<|channel|>final<|message|>They think.<|return|>" if "Secret thought." in about else ANSWER
        return Script(encoding.encode(said, allowed_special="all"))

    engine = FakeEngine(script, slots=1)
    with serving(engine, encoding, summarizer="model", hide_reasoning=True) as url:
        server = Scripted(url, engine, encoding)
        for answer in (server.responses(**ASKED), server.responses(stream=True, **ASKED)):
            assert "They think." in answer.text
            assert "Secret" not in answer.text
        server.wait_until_idle()
        server.http.close()
        server.sdk.close()
    assert "Secret" not in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json", "'json' must be model, or module:function"),
        ("nothing_here:f", "'nothing_here:f' cannot be loaded: ModuleNotFoundError"),
        ("json:nothing", "'json:nothing' cannot be loaded: AttributeError"),
        ("json:__name__", "'json:__name__' is no function"),
    ],
)
def test_a_name_of_no_function_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load_summarizer(name)
    assert "\n" not in str(error.value)


def test_a_function_of_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_notes.py").write_text("def first(text):\n    return text[:1]\n")
    monkeypatch.chdir(tmp_path)
    function: Any = load_summarizer("own_notes:first")
    assert function("abc") == "a"
