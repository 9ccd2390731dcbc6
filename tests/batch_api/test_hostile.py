"""What strangers send: every answer is OpenAI's error object or a batch that says what is wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import Batch

from tests.batch_api.batching import CHAT, RESPONSES, Client, lines, row

GOOD = json.dumps(row("1", "x")).encode()


@pytest.mark.parametrize(
    ("content", "code", "line", "param"),
    [
        (b"", "empty_file", None, None),
        (b"\n \r\n\n", "empty_file", None, None),
        (b"hello\n", "invalid_json_line", 1, None),
        (GOOD + b"\n[1]\n", "invalid_json_line", 2, None),
        (GOOD + b"\n" + b"\0" * 100, "invalid_json_line", 2, None),
        (b"\x1f\x8b\x08\x00" + b"z" * 50, "invalid_json_line", 1, None),
        ("\ufeff{}".encode("utf-16"), "invalid_json_line", 1, None),
        (b'{"custom_id": "1", "a": ' + b"[" * 1500, "invalid_json_line", 1, None),
        (lines([row("1", "x" * 3000)]), "line_too_long", 1, None),
        (lines([row("1", "x" * 3000)]).rstrip(), "line_too_long", 1, None),
        (lines([row("1", "x"), row("2", "x"), row("1", "y")]), "duplicate_custom_id", 3, "custom_id"),
        (lines([row("1", "x", RESPONSES)]), "invalid_url", 1, "url"),
        (lines([row("1", "x", "/v1/embeddings")]), "invalid_url", 1, "url"),
        (lines([{**row("1", "x"), "url": 5}]), "invalid_url", 1, "url"),
        (lines([{**row("1", "x"), "method": "GET"}]), "invalid_value", 1, "method"),
        (lines([{**row("1", "x"), "custom_id": 1}]), "invalid_value", 1, "custom_id"),
        (lines([{**row("1", "x"), "custom_id": ""}]), "invalid_value", 1, "custom_id"),
        (lines([{**row("1", "x"), "body": "x"}]), "invalid_value", 1, "body"),
        (lines([{**row("1", "x"), "body": None}]), "missing_required_parameter", 1, "body"),
        (lines([{"id": "1", "prompt": "x"}]), "missing_required_parameter", 1, "custom_id"),
        (lines([{**row("1", "x"), "prompt": "x"}]), "invalid_value", 1, "prompt"),
        (lines([row(str(number), "x") for number in range(60)]), "too_many_requests", 51, None),
    ],
)
def test_a_file_that_is_no_input_fails_with_the_line_that_is_wrong(
    small, content: bytes, code: str, line: int | None, param: str | None
) -> None:
    client, engine, _ = small
    id = client.upload(content).id
    made = client.sdk.batches.create(input_file_id=id, endpoint=CHAT, completion_window="24h")
    batch = client.ended(made.id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None and batch.errors.data is not None
    (error,) = batch.errors.data
    assert (error.code, error.line, error.param) == (code, line, param)
    assert error.message and "\n" not in error.message
    assert (batch.output_file_id, batch.error_file_id, engine.requests) == (None, None, {})


def test_byte_order_mark_windows_line_ends_blank_lines_and_surrogates_are_read(client: Client) -> None:
    odd = row("\ud800", "x")
    content = (
        b"\xef\xbb\xbf"
        + GOOD
        + b"\r\n\r\n"
        + json.dumps(odd).encode()
        + b"\n"
        + json.dumps(row("3", "y")).encode()
    )
    id = client.upload(content).id
    batch = client.ended(
        client.sdk.batches.create(input_file_id=id, endpoint=CHAT, completion_window="24h").id
    )
    assert batch.status == "completed"
    assert list(client.rows(batch.output_file_id)) == ["1", "\ud800", "3"]


def test_only_the_first_hundred_errors_are_told(client: Client) -> None:
    batch = client.ended(client.start([b"no"] * 1000).id)
    assert batch.errors is not None and batch.errors.data is not None
    assert len(batch.errors.data) == 100


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "a\r\nX-Evil: 1",
        '";x="',
        "",
        "x" * 5000,
        "\u202e",
        "file-",
    ],
)
def test_a_name_of_a_file_is_never_a_path_or_a_header(small, name: str) -> None:
    client, _, folder = small
    head = '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    quoted = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    part = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n\r\n'
    body = head.encode() + part.encode() + GOOD + b"\r\n--b--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = client.http.post("/files", content=body, headers=kind)
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        made = answer.json()
        got = client.http.get(f"/files/{made['id']}/content")
        assert got.content == GOOD
        assert "x-evil" not in got.headers
    known = {file.id for file in client.sdk.files.list()}
    assert {path.name for path in (folder / "files").iterdir()} == known
    assert {path.name for path in folder.parent.iterdir()} == {"data"}


@pytest.mark.parametrize(
    "id", ["..%2f..%2frecords.sqlite", "%00", "x" * 5000, "records.sqlite", "file-%ff", "%ed%a0%80"]
)
def test_an_id_is_never_a_path(small, id: str) -> None:
    client, *_ = small
    for method, address in [
        ("GET", f"/files/{id}"),
        ("GET", f"/files/{id}/content"),
        ("DELETE", f"/files/{id}"),
        ("GET", f"/batches/{id}"),
        ("POST", f"/batches/{id}/cancel"),
    ]:
        answer = client.http.request(method, address)
        assert answer.status_code == 404, address
        assert answer.json()["error"]["code"] == "not_found"


def form(client: Client, **parts: Any) -> httpx.Response:
    return client.http.post("/files", files=parts)


def test_forms_that_are_none_are_refused_in_one_line(start) -> None:
    with start(max_file_bytes=1000) as (client, _):
        file = ("in.jsonl", io.BytesIO(GOOD))
        batch = (None, "batch")
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        wrong = [
            (form(client, file=file), 400, "must have purpose once"),
            (form(client, purpose=batch), 400, "the form has no file"),
            (form(client, purpose=batch, file=(None, "text")), 400, "it must be a file"),
            (form(client, purpose=(None, "assistants"), file=file), 400, 'purpose must be "batch"'),
            (form(client, purpose=(None, "x" * 9999), file=file), 400, "the form"),
            (form(client, purpose=("a", b"batch"), file=file), 400, "the form"),
            (form(client, purpose=batch, file=("x", b"x" * 1001)), 413, "more than 1000 bytes"),
            (form(client, purpose=batch, file=("x", b"x" * 200_000)), 413, "more than 1000 bytes"),
            (client.http.post("/files", json={"purpose": "batch"}), 422, "must be a form"),
            (client.http.post("/files", content=b"junk", headers=kind), 400, "the form"),
            (client.http.post("/files", content=b"", headers=kind), 400, ""),
            (
                client.http.post("/files", content=b"", headers={"Content-Type": "multipart/form-data"}),
                400,
                "the form",
            ),
        ]
        for name, value in [("anchor", "now"), ("seconds", "60"), ("seconds", "x"), ("seconds", "1e9")]:
            policy = {"expires_after[anchor]": (None, "created_at"), "expires_after[seconds]": (None, "3600")}
            policy[f"expires_after[{name}]"] = (None, value)
            wrong.append((form(client, purpose=batch, file=file, **policy), 400, "expires_after"))
        for answer, status, message in wrong:
            assert answer.status_code == status, answer.text
            assert message in answer.json()["error"]["message"]
        assert list(client.sdk.files.list()) == []


def test_what_does_not_fit_is_refused_until_there_is_room(start) -> None:
    with start(max_files=2, max_bytes=1000) as (client, _):
        kept = [client.upload(b"x" * 400).id, client.upload(b"x" * 400).id]
        answer = form(client, purpose=(None, "batch"), file=("x", b"x"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "storage_full")
        client.sdk.files.delete(kept[0])
        answer = form(client, purpose=(None, "batch"), file=("x", b"x" * 700))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "storage_full")
        client.upload(b"x")


VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    10**30,
    "",
    "\ud800",
    "x" * 3000,
    [],
    [1],
    {},
    {"a": 1},
    {"\ud800": "\udfff"},
]


def test_no_type_of_a_field_is_a_fault_of_the_server(client: Client) -> None:
    id = client.upload(GOOD).id
    good: dict[str, Any] = {"input_file_id": id, "endpoint": CHAT, "completion_window": "24h"}
    refused = 0
    for name in (*good, "metadata", "output_expires_after", "unknown"):
        for value in VALUES:
            answer = client.http.post("/batches", content=json.dumps({**good, name: value}))
            assert answer.status_code in (200, 400, 404), (name, value, answer.text)
            if answer.status_code == 200:
                Batch.model_validate_json(answer.text, strict=True)
                assert name in ("metadata", "output_expires_after", "unknown")
                client.ended(answer.json()["id"])
            else:
                refused += 1
                assert answer.json()["error"]["param"].startswith(name) or answer.status_code == 404
    assert refused > 4 * len(VALUES)
    for seconds in (3599, 2592001, True, "3600"):
        policy = {"anchor": "created_at", "seconds": seconds}
        answer = client.http.post("/batches", json={**good, "output_expires_after": policy})
        assert answer.json()["error"]["param"] == "output_expires_after.seconds"
    for body in (b"", b"[]", b"x", b"\xff"):
        assert client.http.post("/batches", content=body).status_code == 422


def test_bodies_of_every_type_become_rows(client: Client) -> None:
    """Whatever stands in a body, its row is an answer or an error, and the others are answered."""
    names = (
        "messages",
        "model",
        "temperature",
        "stream",
        "n",
        "tools",
        "stop",
        "store",
        "previous_response_id",
    )
    rows = [
        row(f"{name} {number}", "x", **{name: value}) for name in names for number, value in enumerate(VALUES)
    ]
    batch = client.ended(client.start(rows[:50]).id)
    assert batch.status == "completed"
    others = client.ended(client.start(rows[50:]).id)
    found = [
        name
        for one in (batch, others)
        for file in (one.output_file_id, one.error_file_id)
        for name in client.rows(file)
    ]
    assert sorted(found) == sorted(one["custom_id"] for one in rows)


def test_without_a_folder_every_address_says_so(encoding) -> None:
    from gptoss_jax.batch_api import BatchApi
    from gptoss_jax.serve import ServerSettings
    from tests.batch_api.batching import echo
    from tests.llm.fake_engine import FakeEngine
    from tests.serve.served import serving

    api = BatchApi(None, ServerSettings(), {})
    with serving(FakeEngine(echo(encoding)), encoding, extensions=[api]) as url:
        for method, address in [
            ("POST", "files"),
            ("GET", "files/x"),
            ("POST", "batches"),
            ("GET", "batches"),
        ]:
            answer = httpx.request(method, f"{url}/v1/{address}")
            assert answer.status_code == 404
            assert "--data FOLDER" in answer.json()["error"]["message"]


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path, capsys) -> None:
    from gptoss_jax.cli import main

    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "records.sqlite").write_text("x" * 5000)
    for folder in ("file", "broken", "none/none"):
        assert main(["serve", "--data", str(tmp_path / folder)]) == 2
        said = capsys.readouterr().err
        assert "cannot hold files and batches" in said
        assert said.count("\n") == 1
