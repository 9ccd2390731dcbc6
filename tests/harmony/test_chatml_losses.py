"""What ChatML carries comes back from it, and what is said to be lost is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyFormatError,
    Message,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
)
from harmony.chatml import chatml_from_conversation, conversation_from_chatml
from harmony.chatml_losses import LOST_IN_CHATML, Lost, lost_in_chatml

DATE = "2025-06-28"
SYSTEM = Message.from_role_and_content(Role.SYSTEM, SystemContent.new())
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "description": "<tools>\n</tools>"}}}

TEXTS = st.one_of(
    st.sampled_from(["", "x", "\n", " x\n", "a\n\nb", "{}", "\u2028", "# Tools", "</think>", "</tool_call>"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6),
)
ARGUMENTS = st.sampled_from(
    [
        *('{"a": 1}', '{"a":1}', "no", "", '"quoted"', "7", "[1]", '{"a": 1e999}', '{"a": NaN}', "[" * 300),
        *('{"a": "<|im_end|></tool_call>"}', '{"a": "\\u003c|im_end|>"}', '{"a": "\\ud800"}', '{"a": "é"}'),
    ]
)
NAMES = st.sampled_from(["f", "f", "g", "f.g"])


def rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * (6 * len(others)) + list(others))


@st.composite
def tools(draw: st.DrawFn) -> dict[str, ToolNamespaceConfig]:
    listed = [
        ToolDescription.new(
            draw(rarely("f", "g", "no name")),
            draw(st.sampled_from(["", "Goes.\n</tools>"])),
            draw(rarely(SCHEMA, None, {}, {"type": "object"}, {"a": 1e999})),
        )
        for _ in range(draw(rarely(1, 0, 2)))
    ]
    functions = ToolNamespaceConfig(
        name=draw(rarely("functions", "x")), description=draw(rarely(None, "")), tools=listed
    )
    return draw(rarely({"functions": functions}, {}, {"x": functions}))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any kind of message, mostly as ChatML can have it."""
    kind = draw(
        st.sampled_from(["user", "text", "text", "text", "call", "call", "result", "result", "rules"])
    )
    if kind == "user":
        message = Message.from_role_and_content(Role.USER, draw(TEXTS))
    elif kind == "text":
        message = Message.from_role_and_content(Role.ASSISTANT, draw(TEXTS))
        message.channel = draw(st.sampled_from(["analysis", "commentary", "final", "final"]))
    elif kind == "call":
        message = Message.from_role_and_content(Role.ASSISTANT, draw(ARGUMENTS)).with_channel("commentary")
        message.recipient = draw(rarely(f"functions.{draw(NAMES)}", "python", "functions.", "functions.a b"))
        message.content_type = "<|constrain|>json"
    elif kind == "result":
        author = Author.new(Role.TOOL, f"functions.{draw(NAMES)}")
        message = Message.from_author_and_content(author, draw(TEXTS)).with_channel("commentary")
        message.recipient = "assistant"
    else:
        role = draw(rarely(Role.DEVELOPER, Role.SYSTEM))
        content = DeveloperContent(
            instructions=draw(st.none() | TEXTS), tools=draw(rarely(None, draw(tools()), draw(tools())))
        )
        if draw(rarely(False, True)):
            content.with_response_format("a", {})
        message = Message.from_role_and_content(role, draw(rarely(content, "text", SystemContent.new())))
    if draw(rarely(False, True)):
        change: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {"channel": "other"},
                    {"channel": None},
                    {"channel": "final"},
                    {"content_type": "json"},
                    {"content_type": None},
                    {"recipient": "all"},
                    {"recipient": None},
                    {"content": []},
                    {"content": [TextContent(text="a"), TextContent(text="b")]},
                    {"author": Author(role=message.author.role, name="alice")},
                ]
            )
        )
        message = message.model_copy(update=change)
    if message.recipient is not None and draw(rarely(False, True)):
        message.recipient_place = "channel"
    return message


def said(channel: str, text: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def call(name: str = "f", arguments: str = '{"a": 1}') -> Message:
    message = said("commentary", arguments).with_recipient(f"functions.{name}")
    return message.with_content_type("<|constrain|>json")


def result(name: str = "f") -> Message:
    author = Author.new(Role.TOOL, f"functions.{name}")
    return Message.from_author_and_content(author, "5").with_channel("commentary").with_recipient("assistant")


def user(text: str = "x") -> Message:
    return Message.from_role_and_content(Role.USER, text)


def developer(**fields: Any) -> Message:
    return Message.from_role_and_content(Role.DEVELOPER, DeveloperContent(**fields))


FUNCTIONS = {"functions": ToolNamespaceConfig(name="functions", tools=[ToolDescription.new("f", "", SCHEMA)])}
CARRIED = {
    "a thought between a call and its result": [call(), said("analysis", "so"), result()],
    "an answer between a call and its result": [call(), said("final", "Wait."), result()],
    "instructions between a call and its result": [user(), call(), developer(instructions="x"), result()],
    "several calls before their results": [
        call("f"),
        said("analysis", "so"),
        call("g"),
        result(),
        result("g"),
    ],
    "a result later than others": [call(), call("g"), result(), said("analysis", "so"), result("g")],
    "a call that the user cut short": [call(), user(), call("g"), result("g")],
    "white space around instructions, beside functions": [developer(instructions=" x\n", tools=FUNCTIONS)],
    "empty instructions beside functions": [developer(instructions="", tools=FUNCTIONS)],
    "functions alone": [developer(tools=FUNCTIONS), user()],
    "a preamble": [said("analysis", "so"), said("commentary", "I look."), call(), result()],
    "arguments that are no object": [call(arguments='"quoted"'), call(arguments="no"), call(arguments="")],
    "tags in arguments": [call(arguments='{"a": "</tool_call><|im_end|>"}')],
    "an empty answer": [user(), said("final", "")],
}


def sent_and_read(conversation: Conversation) -> list[dict[str, Any]]:
    """What comes back, without the system message that reading puts before it."""
    back = conversation_from_chatml(chatml_from_conversation(conversation), current_date=DATE)
    assert back.messages[0].author.role is Role.SYSTEM
    return [message.to_dict() for message in back.messages[1:]]


@pytest.mark.parametrize("name", CARRIED)
def test_chatml_carries(name: str) -> None:
    conversation = Conversation.from_messages([SYSTEM, *CARRIED[name]])
    assert {lost.message for lost in lost_in_chatml(conversation)} == {0}
    assert sent_and_read(conversation) == [message.to_dict() for message in CARRIED[name]]


@given(st.lists(messages(), max_size=5), st.booleans())
@example([call(), said("analysis", "so"), result()], True)
@example([call(), user(), result()], True)
@settings(max_examples=400, deadline=None)
def test_a_conversation_comes_back_from_chatml_but_for_what_is_listed(
    said: list[Message], with_system: bool
) -> None:
    conversation = Conversation(messages=[*([SYSTEM] if with_system else []), *said])
    is_lossy = any(lost.message >= with_system for lost in lost_in_chatml(conversation))
    try:
        chatml = chatml_from_conversation(conversation)
    except HarmonyFormatError:
        assume(False)
    try:
        back = sent_and_read(conversation)
    except HarmonyFormatError as error:
        assume("messages is []" not in str(error))
        assert is_lossy, (chatml, error)
        return
    assert (back != [message.to_dict() for message in said]) == is_lossy, chatml
    whole = "\n\n".join(part.get("text", "") for message in back for part in message["content"])
    for message in said:
        if message.author.role in (Role.USER, Role.ASSISTANT, Role.TOOL) and not message.is_call:
            assert all(
                part.text.rstrip() in whole for part in message.content if isinstance(part, TextContent)
            )


LOSING: dict[str, list[Message]] = {
    "settings": [user()],
    "instructions": [Message.from_role_and_content(Role.DEVELOPER, "Be brief.")],
    "tools": [user(), developer(instructions="x", tools=FUNCTIONS)],
    "formats": [developer(instructions="x", response_formats=[])],
    "header": [Message.from_author_and_content(Author.new(Role.USER, "alice"), "x")],
    "result": [call("f"), call("g"), result("g")],
    "phase": [said("commentary", "I look."), user()],
    "borders": [said("final", "a"), said("final", "b")],
    "silence": [said("analysis", ""), said("final", "x")],
    "layout": [call(arguments='{"a":1}')],
}


def test_every_loss_that_is_stated_is_found_in_some_conversation() -> None:
    assert list(LOSING) == list(LOST_IN_CHATML)
    for what, others in LOSING.items():
        found = lost_in_chatml(Conversation.from_messages([SYSTEM, *others]))
        assert {lost.what for lost in found} == {"settings", what}
    found = lost_in_chatml(Conversation.from_messages([user(), *LOSING["layout"]]))
    assert found == [Lost(1, "layout", "how the JSON of its arguments is laid out")]
