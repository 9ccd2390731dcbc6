"""A chat with a server: what is sent to it, and what becomes of all that it may send."""

from __future__ import annotations

import pytest

from gptoss_jax.chat import Answer, ChatError, Piece
from gptoss_jax.chat.remote import RemoteBackend
from tests.chat.scripted_server import DONE, USAGE, chunk, saying, serving

HELLO = [{"role": "user", "content": "Hello"}]


def answer_of(server, messages=HELLO, effort=None, **options) -> tuple[list[Piece], Answer]:
    backend = RemoteBackend(server.url, **options)
    try:
        *pieces, answer = backend.answer(messages, effort)
    finally:
        backend.close()
    return pieces, answer


def test_pieces_come_as_they_are_sent_and_add_up_to_the_answer() -> None:
    with serving(saying("It is 5.", "Two and three.")) as server:
        pieces, answer = answer_of(server)
    assert pieces == [
        Piece("reasoning", "Two and three."),
        *(Piece("content", word) for word in ("It", " is", " 5.")),
    ]
    assert answer == Answer(
        {"role": "assistant", "content": "It is 5.", "reasoning": "Two and three."}, "stop", 12, 5
    )


def test_the_request_is_one_of_chat_completions() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    with serving(saying("Hi")) as server:
        answer_of(server, effort="high", key="secret", fields={"temperature": 0.5}, tools=tools)
    assert server.paths == ["/v1/models", "/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.bodies == [
        {
            "model": "scripted",
            "messages": HELLO,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "tools": tools,
            "reasoning_effort": "high",
        }
    ]


def test_without_a_key_and_options_none_are_sent() -> None:
    with serving(saying("Hi")) as server:
        answer_of(server, model="other")
    assert server.paths == ["/v1/chat/completions"]
    assert "Authorization" not in server.headers[0]
    assert server.bodies[0].keys() == {"model", "messages", "stream", "stream_options"}
    assert server.bodies[0]["model"] == "other"


def test_reasoning_goes_back_in_the_field_that_it_came_in() -> None:
    thinking = [chunk(reasoning_content="Hm."), chunk(content="Hi"), chunk("stop"), DONE]
    with serving(thinking, saying("Hi")) as server:
        backend = RemoteBackend(server.url)
        *_, answer = backend.answer(HELLO, None)
        cut = {"role": "assistant", "content": "So", "finish_reason": "cancelled"}
        list(backend.answer([*HELLO, answer.message, *HELLO, cut, *HELLO], None))
        backend.close()
    assert answer.message["reasoning"] == "Hm."
    sent = server.bodies[1]["messages"]
    assert sent[1] == {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
    assert sent[3] == {"role": "assistant", "content": "So"}


def test_reasoning_that_comes_in_two_fields_counts_once() -> None:
    both = [chunk(reasoning="Hm.", reasoning_content="Hm."), chunk("stop", content="Hi"), DONE]
    with serving(both) as server:
        assert answer_of(server)[1].message["reasoning"] == "Hm."


@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
def test_calls_are_put_together_from_their_parts(reason) -> None:
    def part(index, **function):
        return {"index": index, "function": function}

    parts = [
        chunk(tool_calls=[{**part(0, name="add", arguments=""), "id": "c1", "type": "function"}]),
        chunk(tool_calls=[part(0, arguments='{"a"')]),
        chunk(tool_calls=[part(0, arguments=":1}"), {**part(1, name="now", arguments="{}"), "id": "c2"}]),
        chunk(reason),
        DONE,
    ]
    with serving(parts) as server:
        answer = answer_of(server)[1]
    assert answer.finish_reason == "tool_calls"
    assert answer.message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }


def test_calls_that_a_limit_cut_are_left_out() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a'}}
    with serving([chunk(tool_calls=[call]), chunk("length"), DONE]) as server:
        answer = answer_of(server)[1]
    assert (answer.finish_reason, "tool_calls" in answer.message) == ("length", False)


def test_a_server_that_does_not_stream_is_understood() -> None:
    body = '{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}'
    with serving((200, "application/json", body)) as server:
        pieces, answer = answer_of(server)
    assert pieces == [Piece("content", "Hi")]
    assert (answer.generated_tokens, answer.reasoning_tokens) == (None, None)


@pytest.mark.parametrize(
    "odd",
    [
        [{"choices": None}, {"choices": [None, {"index": 1, "delta": {"content": "other"}}]}],
        [{"choices": [{"delta": None}]}, {"choices": [{"delta": {"content": 5, "tool_calls": 7}}]}],
        [": a comment\n\n", "event: ping\ndata: {}\n\n", {"usage": {"completion_tokens": "many"}}],
        [{"choices": [{"delta": {"tool_calls": [None]}}]}, {"usage": 3}],
    ],
)
def test_odd_chunks_are_passed_over(odd) -> None:
    with serving([*odd, *saying("Hi")[:-2], DONE]) as server:
        assert answer_of(server)[1].message == {"role": "assistant", "content": "Hi"}


def test_lone_surrogates_of_a_server_can_be_sent_back() -> None:
    with serving(
        ['data: {"choices":[{"delta":{"content":"a\\ud800"},"finish_reason":"stop"}]}\n\n']
    ) as server:
        assert answer_of(server)[1].message["content"] == "a\ufffd"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((404, "application/json", '{"error":{"message":"no model x"}}'), "says 404: no model x"),
        ((400, "application/json", '{"detail":"bad\\nbody"}'), "says 400: bad body"),
        ((401, "application/json", '{"error":"no key"}'), "says 401: no key"),
        ((503, "text/html", "<h1>Busy</h1>"), "says 503: <h1>Busy</h1>"),
        ((307, "text/plain", ""), "says 307: moved"),
        ((200, "text/html", "<h1>Welcome</h1>"), "content type 'text/html'"),
        ((200, "application/json", "{"), "not JSON"),
        (["data: {\n\n"], "not JSON"),
        (["data: [1]\n\n"], "no JSON object"),
        ([chunk(content="So"), {"error": {"message": "out of memory"}}], "says: out of memory"),
        ([chunk(content="So")], "before the answer was whole"),
        ([chunk(content="So"), DONE], "before the answer was whole"),
        ([], "before the answer was whole"),
    ],
)
def test_what_goes_wrong_is_one_line(reply, words) -> None:
    with serving(reply) as server, pytest.raises(ChatError) as error:
        answer_of(server, model="x")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_server_that_is_not_there_is_one_line() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(ChatError, match=r"cannot reach http://127\.0\.0\.1"):
        RemoteBackend(url)
    with pytest.raises(ChatError, match="cannot reach"):
        list(RemoteBackend(url, "x").answer(HELLO, None))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host/v1", "http://[", "http://host:port/v1"])
def test_a_wrong_url_is_one_line(url) -> None:
    with pytest.raises(ChatError) as error:
        RemoteBackend(url)
    assert url in str(error.value)


@pytest.mark.parametrize("key", ["ключ", "two\nlines"])
def test_a_key_that_no_header_can_carry_is_not_shown(key) -> None:
    with serving() as server, pytest.raises(ChatError) as error:
        RemoteBackend(server.url, key=key)
    assert "API key" in str(error.value)
    assert key not in str(error.value)


@pytest.mark.parametrize("proxy", ["pigeon://post", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_one_line(proxy, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(ChatError, match="a proxy that cannot be used"):
        RemoteBackend("http://127.0.0.1:1/v1", "x")


@pytest.mark.parametrize("models", [(), ("a", "b")])
def test_the_model_must_be_chosen_where_the_server_has_not_just_one(models) -> None:
    with serving(models=models) as server, pytest.raises(ChatError, match="choose with --model"):
        RemoteBackend(server.url)


def test_closing_the_answer_hangs_up() -> None:
    def endless():
        while True:
            yield chunk(content=" the")

    with serving(endless()) as server:
        backend = RemoteBackend(server.url)
        answer = backend.answer(HELLO, None)
        assert next(answer) == Piece("content", " the")
        answer.close()
        assert server.hung_up.wait(20)
        backend.close()


def test_usage_may_come_before_or_after_the_reason() -> None:
    with serving([chunk(content="Hi"), USAGE, chunk("stop"), DONE]) as server:
        assert answer_of(server)[1].generated_tokens == 12
