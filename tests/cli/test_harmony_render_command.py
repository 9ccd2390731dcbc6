"""`gptoss-jax harmony render` and the forms of conversations that the commands read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harmony import (
    Conversation,
    RenderConversationConfig,
    Role,
    load_encoding,
)
from harmony.chatml import conversation_from_chatml
from harmony.openai_formats import conversation_from_chat, conversation_from_responses
from tests.cli.command_runner import run
from tests.cli.harmony_samples import (
    CHAT,
    CHATML,
    CONVERSATION,
    ENCODING,
    HARMONY,
    RESPONSES,
    command,
    tokens_of,
)

DATE = "2025-06-28"


def test_render_prints_the_text_and_not_a_byte_more() -> None:
    config = RenderConversationConfig(analysis_policy="none")
    rendered = ENCODING.decode(ENCODING.render_conversation(CONVERSATION, config))
    assert command("render") == rendered
    assert rendered.endswith("It is 5 °C.<|end|>")


def test_render_prints_token_ids_on_one_line() -> None:
    config = RenderConversationConfig(analysis_policy="none")
    output = command("render", "--tokens")
    assert output.endswith("\n")
    assert output.count("\n") == 1
    assert tokens_of(output) == ENCODING.render_conversation(CONVERSATION, config)


@pytest.mark.parametrize(
    ("options", "policy", "purpose"),
    [
        (["--for", "completion"], "compatible", "completion"),
        (["--for", "completion", "--analysis", "none"], "none", "completion"),
        (["--for", "training"], "compatible", "training"),
        (["--for", "training", "--analysis", "guide"], "guide", "training"),
        (["--analysis", "guide"], "guide", "conversation"),
    ],
)
def test_render_for_each_purpose_is_the_librarys_rendering(options, policy, purpose) -> None:
    config = RenderConversationConfig(analysis_policy=policy)
    expected = {
        "completion": lambda: ENCODING.render_conversation_for_completion(
            CONVERSATION, Role.ASSISTANT, config
        ),
        "training": lambda: ENCODING.render_conversation_for_training(CONVERSATION, config),
        "conversation": lambda: ENCODING.render_conversation(CONVERSATION, config),
    }[purpose]()
    assert tokens_of(command("render", "--tokens", *options)) == expected
    assert ("I look it up" in ENCODING.decode(expected)) == (policy == "none")


def test_render_places_recipients_and_writes_schemas_as_asked() -> None:
    assert "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>" in command("render")
    placed = command("render", "--recipient", "role")
    assert "<|start|>assistant to=functions.weather<|channel|>commentary <|constrain|>" in placed
    chat = json.loads(json.dumps(CHAT))
    chat["tools"][0]["function"]["parameters"]["properties"]["city"] = {"const": "Oslo"}
    assert "city: any," in command("render", stdin=chat)
    assert 'city: "Oslo",' in command("render", "--schema", "improved", stdin=chat)


def test_render_says_when_text_reads_like_a_special_token() -> None:
    conversation = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "the token <|end|>"}]}]
    }
    done = run("harmony", "render", stdin=json.dumps(conversation))
    assert done.code == 0
    assert "<|end|> as ordinary text" in done.error
    assert done.error.count("\n") == 1
    tokens = command("render", "--tokens", stdin=conversation)
    (message,) = json.loads(command("parse", stdin=tokens))["messages"]
    assert message["content"][0]["text"] == "the token <|end|>"


@pytest.mark.parametrize("name", ["tiny", "FILE"])
def test_other_vocabularies_render_and_parse(name: str, tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "checkpoints" / "tiny" / "vocabulary.tiktoken"
    if name == "FILE":
        name = str(tmp_path / "own.tiktoken")
        Path(name).write_bytes(path.read_bytes())
    encoding = load_encoding(path)
    output = command("render", "--tokens", "--vocabulary", name)
    assert tokens_of(output) == encoding.render_conversation(
        CONVERSATION, RenderConversationConfig(analysis_policy="none")
    )
    said = json.loads(command("parse", "--vocabulary", name, stdin=output))["messages"]
    assert [message["content"][0]["text"] for message in said[2:]] == texts(CONVERSATION)[2:]


def texts(conversation: Conversation) -> list[str]:
    return [getattr(message.content[0], "text", "") for message in conversation]


FORMS = {
    "harmony": (HARMONY, CONVERSATION),
    "a list of harmony messages": (HARMONY["messages"], CONVERSATION),
    "what parse prints": ({**HARMONY, "complete": True, "end": None, "diagnostics": []}, CONVERSATION),
    "chat": (
        CHAT,
        conversation_from_chat(
            CHAT["messages"],
            tools=CHAT["tools"],
            reasoning_effort="low",
            response_format=CHAT["response_format"],
            current_date=DATE,
        ),
    ),
    "a list of chat messages": (
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Oslo?"}],
        conversation_from_chat(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Oslo?"}],
            current_date=DATE,
        ),
    ),
    "a chat request of parts": (
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Oslo?"}]}]},
        conversation_from_chat([{"role": "user", "content": "Oslo?"}], current_date=DATE),
    ),
    "responses": (
        RESPONSES,
        conversation_from_responses(
            RESPONSES["input"],
            instructions="Be brief.",
            tools=RESPONSES["tools"],
            reasoning_effort="low",
            text_format=RESPONSES["text"]["format"],
            current_date=DATE,
        ),
    ),
    "a line of a Batch file": (
        {"custom_id": "x", "method": "POST", "url": "/v1/responses", "body": {"input": "Oslo?"}},
        conversation_from_responses("Oslo?", current_date=DATE),
    ),
    "a plain line of a batch file": (
        {"id": "x", "prompt": "Oslo?", "reasoning_effort": "high"},
        conversation_from_chat(
            [{"role": "user", "content": "Oslo?"}], reasoning_effort="high", current_date=DATE
        ),
    ),
    "ChatML": (CHATML, conversation_from_chatml(CHATML, current_date=DATE)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_recognised(name: str) -> None:
    document, expected = FORMS[name]
    output = command("convert", "--to", "harmony", "--date", DATE, stdin=document)
    assert Conversation.from_json(output) == expected


def test_a_form_can_be_forced() -> None:
    ambiguous = {"messages": [{"role": "user", "content": "hi"}]}
    assert command("render", "--from", "harmony", stdin=ambiguous) == ("<|start|>user<|message|>hi<|end|>")
    assert command("render", "--from", "chat", stdin=ambiguous).startswith("<|start|>system<|message|>")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(HARMONY), encoding="utf-8-sig")
    assert command("render", str(path)) == command("render")
