"""Batches over HTTP, from the upload to the rows."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types import Batch, FileDeleted, FileObject
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.batch_api.batching import CHAT, RESPONSES, Client, lines, row


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
def test_a_batch_answers_each_row_once_and_bad_bodies_are_in_the_error_file(
    client: Client, endpoint: str
) -> None:
    good = [row(f"row {number}", f"text {number}", endpoint) for number in range(40)]
    bad = [row("bad", "x", endpoint, temperature="hot"), row("worse", "x", endpoint, stop=5)]
    made = client.start([*good[:20], *bad, *good[20:]], endpoint, metadata={"a": "b"})
    Batch.model_validate(made.model_dump(), strict=True)
    assert made.status == "validating"
    batch = client.ended(made.id)
    assert (batch.status, batch.endpoint, batch.metadata, batch.errors) == (
        "completed",
        endpoint,
        {"a": "b"},
        None,
    )
    assert batch.request_counts is not None and batch.usage is not None
    assert batch.request_counts.model_dump() == {"total": 42, "completed": 40, "failed": 2}
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert batch.expires_at == batch.created_at + 86400
    answers, errors = client.rows(batch.output_file_id), client.rows(batch.error_file_id)
    assert list(answers) == [one["custom_id"] for one in good]  # in the order of the input
    assert list(errors) == ["bad", "worse"]
    total = 0
    for number in range(40):
        answer = answers[f"row {number}"]
        assert answer.keys() == {"id", "custom_id", "response", "error"}
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        body = answer["response"]["body"]
        if endpoint == CHAT:
            completion = ChatCompletion.model_validate_json(json.dumps(body), strict=True)
            assert completion.choices[0].message.content == f"text {number}"
            total += completion.usage.total_tokens  # type: ignore[union-attr]
        else:
            response = Response.model_validate_json(json.dumps(body), strict=True)
            assert response.output_text == f"text {number}"
            total += response.usage.total_tokens  # type: ignore[union-attr]
    assert batch.usage.total_tokens == total
    assert len({one["id"] for one in (*answers.values(), *errors.values())}) == 42
    assert errors["bad"]["response"]["status_code"] == 400
    assert "temperature" in errors["bad"]["response"]["body"]["error"]["message"]


def test_files_are_uploaded_listed_read_and_deleted(client: Client) -> None:
    content = lines([row("1", "Grüße")])
    made = client.upload(content, "Grüße.jsonl", expires_after={"anchor": "created_at", "seconds": 3600})
    FileObject.model_validate(made.model_dump(), strict=True)
    assert (made.bytes, made.filename, made.purpose) == (len(content), "Grüße.jsonl", "batch")
    assert made.expires_at == made.created_at + 3600
    assert client.sdk.files.retrieve(made.id) == made
    assert client.sdk.files.content(made.id).content == content
    others = [client.upload(content, f"{number}").id for number in range(6)]
    assert [one.id for one in client.sdk.files.list(order="asc", limit=2)] == [made.id, *others]
    assert [one.id for one in client.sdk.files.list()] == [*others[::-1], made.id]
    assert list(client.sdk.files.list(purpose="batch_output")) == []
    gone = client.sdk.files.delete(made.id)
    FileDeleted.model_validate(gone.model_dump(), strict=True)
    for ask in (client.sdk.files.retrieve, client.sdk.files.content, client.sdk.files.delete):
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            ask(made.id)
    assert made.id not in [one.id for one in client.sdk.files.list()]


def test_batches_are_listed_the_newest_first_in_pages(client: Client) -> None:
    made = [client.start([row("1", "x")]).id for _ in range(5)]
    assert [one.id for one in client.sdk.batches.list(limit=2)] == made[::-1]
    for id in made:
        client.ended(id)
    with pytest.raises(openai.BadRequestError, match="limit is '0'"):
        client.sdk.batches.list(limit=0)
    with pytest.raises(openai.NotFoundError, match="there is no batch"):
        client.sdk.batches.retrieve("batch_none")


def test_rows_without_a_seed_draw_anew_in_each_batch(start) -> None:
    with start() as (client, engine):
        first = client.ended(client.start([row("1", "x")]).id)
        second = client.ended(client.start([row("1", "x")]).id)
        seeds = [request.sampling.seed for request in engine.requests.values()]
        assert None not in seeds
        assert len(set(seeds)) == 2
        ids = [client.rows(batch.output_file_id)["1"]["id"] for batch in (first, second)]
        assert len(set(ids)) == 2


def test_a_batch_that_is_cancelled_keeps_what_it_has(start) -> None:
    with start({"chunk": 1}) as (client, engine):
        many = [row(f"row {number}", "long" if number else "short") for number in range(50)]
        id = client.start(many).id
        client.until(id, lambda batch: batch.request_counts.completed > 0)
        cancelling = client.sdk.batches.cancel(id)
        assert cancelling.status in ("cancelling", "cancelled")
        assert cancelling.cancelling_at is not None
        batch = client.ended(id)
        assert batch.status == "cancelled"
        assert batch.cancelled_at is not None
        answers, errors = client.rows(batch.output_file_id), client.rows(batch.error_file_id)
        assert "row 0" in answers
        assert sorted([*answers, *errors]) == sorted(one["custom_id"] for one in many)
        assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
        counts = {"total": 50, "completed": len(answers), "failed": len(errors)}
        assert batch.request_counts.model_dump() == counts
        assert client.sdk.batches.cancel(id).status == "cancelled"
        client.until(id, lambda batch: not engine.unfinished)


def test_what_has_ended_cannot_be_cancelled(client: Client) -> None:
    id = client.start([row("1", "x")]).id
    client.ended(id)
    with pytest.raises(openai.BadRequestError, match='is "completed": it cannot be cancelled'):
        client.sdk.batches.cancel(id)
    with pytest.raises(openai.NotFoundError):
        client.sdk.batches.cancel("batch_none")


def test_a_batch_that_takes_too_long_expires(start) -> None:
    with start(window_seconds=1) as (client, engine):
        engine.gate.clear()
        batch = client.ended(client.start([row(str(number), "x") for number in range(20)]).id)
        assert batch.status == "expired"
        assert batch.expired_at is not None
        assert batch.output_file_id is None
        errors = client.rows(batch.error_file_id)
        assert list(errors) == [str(number) for number in range(20)]
        assert {one["error"]["code"] for one in errors.values()} == {"batch_expired"}


def test_requests_come_before_batches(start) -> None:
    with start({"slots": 2, "chunk": 1}) as (client, engine):
        id = client.start([row(str(number), "long") for number in range(8)]).id
        client.until(id, lambda batch: engine.unfinished >= 2)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "quick"}]}
        for _ in range(3):
            answer = client.http.post("/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == "quick"
            assert engine.most_unfinished <= 3  # the batch fills the slots, and no more
        client.sdk.batches.cancel(id)
        client.ended(id)


def test_with_hide_cot_no_row_has_the_chain_of_thought(start) -> None:
    with start(settings={"hide_reasoning": True}) as (client, _):
        for endpoint in (CHAT, RESPONSES):
            batch = client.ended(client.start([row("1", "x", endpoint)], endpoint).id)
            assert batch.output_file_id is not None
            content = client.sdk.files.content(batch.output_file_id).content
            assert b"x" in content
            assert b"Secret" not in content


def test_an_input_is_not_deleted_under_its_batch(start) -> None:
    with start() as (client, engine):
        engine.gate.clear()
        made = client.start([row("1", "x")])
        with pytest.raises(openai.BadRequestError, match="cancel the batch first"):
            client.sdk.files.delete(made.input_file_id)
        engine.gate.set()
        client.ended(made.id)
        assert client.sdk.files.delete(made.input_file_id).deleted
