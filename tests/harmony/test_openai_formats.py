"""API bodies to conversations and back."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import pytest

from harmony import Author, HarmonyEncoding, HarmonyFormatError, Message, Role
from harmony.openai_formats import (
    chat_message_from,
    conversation_from_body,
    conversation_from_chat,
    conversation_from_responses,
    responses_output_from,
)

DATE = "2025-06-28"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where."}},
    "required": ["city"],
}
CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: {effort}\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
FUNCTIONS_LINE = "\nCalls to these tools must go to the commentary channel: 'functions'."
TURN = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": "I'll look it up.",
        "reasoning": "Need the tool.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "5 °C"},
]
TURN_TEXT = (
    "<|start|>user<|message|>Weather in Oslo?<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|>Need the tool.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>I'll look it up.<|end|>"
    "<|start|>assistant to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
    '{"city":"Oslo"}<|call|>'
    "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>5 °C<|end|>"
)


def rendered(encoding: HarmonyEncoding, conversation: Any) -> str:
    return encoding.decode(encoding.render_conversation(conversation))


def test_a_chat_request_becomes_the_prompt_that_the_model_was_trained_on(encoding: HarmonyEncoding) -> None:
    conversation = conversation_from_chat(
        [{"role": "system", "content": "Be brief."}, *TURN], tools=CHAT_TOOLS, current_date=DATE
    )
    assert rendered(encoding, conversation) == (
        SYSTEM.format(effort="medium")
        + FUNCTIONS_LINE
        + "<|end|><|start|>developer<|message|># Instructions\n\nBe brief.\n\n"
        "# Tools\n\n## functions\n\nnamespace functions {\n\n"
        "type get_weather = (_: {\n// Where.\ncity: string,\n}) => any;\n\n"
        "} // namespace functions<|end|>" + TURN_TEXT
    )


def test_without_instructions_and_tools_there_is_no_developer_message(encoding: HarmonyEncoding) -> None:
    conversation = conversation_from_chat([{"role": "user", "content": "hi"}], current_date=DATE)
    text = SYSTEM.format(effort="medium") + "<|end|><|start|>user<|message|>hi<|end|>"
    assert rendered(encoding, conversation) == text


@pytest.mark.parametrize(
    ("word", "level"),
    [
        (None, "medium"),
        ("none", "low"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ],
)
def test_every_effort_word_maps_to_a_level(word: str | None, level: str, encoding: HarmonyEncoding) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for conversation in (
        conversation_from_chat(messages, reasoning_effort=word, current_date=DATE),
        conversation_from_responses("hi", reasoning_effort=word, current_date=DATE),
    ):
        assert rendered(encoding, conversation).startswith(SYSTEM.format(effort=level))


def test_the_date_is_todays_unless_given(encoding: HarmonyEncoding) -> None:
    before = datetime.date.today()
    text = rendered(encoding, conversation_from_chat([{"role": "user", "content": "hi"}]))
    after = datetime.date.today()
    found = re.search(r"Current date: (\S+)\n", text)
    assert found is not None
    assert found.group(1) in (before.isoformat(), after.isoformat())


def test_a_final_answer_and_its_reasoning_are_read_back(encoding: HarmonyEncoding) -> None:
    conversation = conversation_from_chat(
        [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4", "reasoning": "Easy."},
            {"role": "developer", "content": "Now in French."},
            {"role": "user", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": "+3?"}]},
        ],
        current_date=DATE,
    )
    roles = [(m.author.role, m.channel) for m in conversation.messages[1:]]
    assert roles == [
        (Role.USER, None),
        (Role.ASSISTANT, "analysis"),
        (Role.ASSISTANT, "final"),
        (Role.DEVELOPER, None),
        (Role.USER, None),
    ]
    assert rendered(encoding, conversation).endswith(
        "<|start|>assistant<|channel|>final<|message|>4<|end|>"
        "<|start|>developer<|message|># Instructions\n\nNow in French.<|end|>"
        "<|start|>user<|message|>3+3?<|end|>"
    )


def test_a_responses_request_becomes_the_same_prompt_as_the_chat_request(encoding: HarmonyEncoding) -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "not this"}],
            "content": [{"type": "reasoning_text", "text": "Need the tool."}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "I'll look it up."}]},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city":"Oslo"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "5 °C"},
    ]
    tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER}, {"type": "web_search"}]
    responses = conversation_from_responses(items, instructions="Be brief.", tools=tools, current_date=DATE)
    chat = conversation_from_chat(
        [{"role": "system", "content": "Be brief."}, *TURN], tools=CHAT_TOOLS, current_date=DATE
    )
    assert responses == chat


def test_what_a_model_said_survives_the_way_through_either_api() -> None:
    said = conversation_from_chat(TURN[:2], current_date=DATE).messages[2:]
    message = chat_message_from(said, call_id=lambda index: f"call_{index + 1}")
    assert message == TURN[1]
    items = responses_output_from(said, item_id=lambda kind, index: f"{kind}_{index}")
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert [item["id"] for item in items] == ["rs_0", "msg_1", "fc_2"]
    again = conversation_from_responses([{"role": "user", "content": "?"}, *items], current_date=DATE)
    assert again.messages[2:] == said


def test_calls_are_told_by_their_recipient_on_any_channel() -> None:
    def call(recipient: str, channel: str) -> Message:
        return (
            Message.from_role_and_content(Role.ASSISTANT, "{}")
            .with_channel(channel)
            .with_recipient(recipient)
        )

    message = chat_message_from(
        [call("functions.a", "analysis"), call("b", "final"), call("browser.search", "commentary")],
        call_id=str,
    )
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["a", "b", "browser.search"]
    assert [c["id"] for c in message["tool_calls"]] == ["0", "1", "2"]
    assert message["content"] is None
    assert "reasoning" not in message


def test_text_without_a_channel_is_answered_as_reasoning() -> None:
    said = [
        Message.from_role_and_content(Role.ASSISTANT, "maybe thoughts"),
        Message.from_role_and_content(Role.ASSISTANT, "4").with_channel("final"),
    ]
    assert chat_message_from(said, call_id=str) == {
        "role": "assistant",
        "content": "4",
        "reasoning": "maybe thoughts",
    }
    items = responses_output_from(said, item_id=lambda kind, index: kind, complete=False)
    assert [(item["type"], item["status"]) for item in items] == [
        ("reasoning", "completed"),
        ("message", "incomplete"),
    ]


def test_response_formats_of_both_apis_reach_the_prompt(encoding: HarmonyEncoding) -> None:
    form = {"name": "answer", "description": "An answer.", "schema": {"type": "object"}, "strict": True}
    user = [{"role": "user", "content": "hi"}]
    chat = conversation_from_chat(
        user, response_format={"type": "json_schema", "json_schema": form}, current_date=DATE
    )
    responses = conversation_from_responses(
        "hi", text_format={"type": "json_schema", **form}, current_date=DATE
    )
    assert chat == responses
    assert '# Response Formats\n\n## answer\n\n// An answer.\n{"type":"object"}<|end|>' in rendered(
        encoding, chat
    )
    plain = conversation_from_chat(user, response_format={"type": "text"}, current_date=DATE)
    assert plain == conversation_from_chat(user, current_date=DATE)


def test_tool_choice_leaves_out_what_must_not_be_called(encoding: HarmonyEncoding) -> None:
    tools = [*CHAT_TOOLS, {"type": "function", "function": {"name": "now"}}]
    user = [{"role": "user", "content": "hi"}]

    def functions(choice: Any) -> list[str]:
        conversation = conversation_from_chat(user, tools=tools, tool_choice=choice, current_date=DATE)
        return re.findall(r"type (\w+) =", rendered(encoding, conversation))

    assert functions(None) == functions("auto") == functions("required") == ["get_weather", "now"]
    assert functions("none") == []
    assert functions({"type": "function", "function": {"name": "now"}}) == ["now"]


USER = {"role": "user", "content": "hi"}


def call(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": "a", "function": function} | changes]}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"messages": []}, "messages is []"),
        ({"messages": "hi"}, 'messages is "hi": it must be a list'),
        ({"messages": ["hi"]}, 'messages[0] is "hi": it must be an object'),
        (
            {"messages": [USER, USER, {"role": "bot", "content": "x"}]},
            'messages[2].role is "bot": it must be system, developer, user, assistant or tool',
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content is null"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content is 3"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            'messages[0].content[0].type is "image_url"',
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone surrogate"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1] has no content"),
        ({"messages": [call(id=7)]}, "messages[0].tool_calls[0].id is 7: it must be a string"),
        ({"messages": [call(function=None)]}, "messages[0].tool_calls[0].function is null"),
        (
            {"messages": [call(function={"name": "f", "arguments": {}})]},
            "messages[0].tool_calls[0].function.arguments is {}: it must be a string",
        ),
        (
            {"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]},
            'messages[0].tool_call_id is "a": no earlier call has this id',
        ),
        ({"messages": [USER], "tools": {}}, "tools is {}: it must be a list"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function is null"),
        (
            {"messages": [USER], "tools": [{"type": "function", "function": {"name": "a b"}}]},
            'tools[0].function.name is "a b"',
        ),
        (
            {"messages": [USER], "tools": [CHAT_TOOLS[0], CHAT_TOOLS[0]]},
            'tools[1].function.name is "get_weather": another function has this name',
        ),
        (
            {
                "messages": [USER],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": float("nan")}}}],
            },
            "tools[0].function.parameters is not a JSON Schema: nan",
        ),
        ({"messages": [USER], "tool_choice": "always"}, 'tool_choice is "always"'),
        (
            {"messages": [USER], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            'tool_choice names "g"',
        ),
        (
            {"messages": [USER], "reasoning_effort": "huge"},
            'reasoning_effort is "huge": it must be one of none, minimal, low, medium, high, xhigh, max',
        ),
        ({"messages": [USER], "response_format": {"type": "xml"}}, 'response_format.type is "xml"'),
        (
            {"messages": [USER], "response_format": {"type": "json_schema"}},
            "response_format.json_schema is null",
        ),
        ({"messages": [USER], "current_date": "28 June"}, 'current_date is "28 June"'),
    ],
)
def test_a_bad_chat_request_is_one_line_naming_the_field(body: dict[str, Any], error: str) -> None:
    with pytest.raises(HarmonyFormatError) as caught:
        conversation_from_chat(body.pop("messages"), **body)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"input": []}, "input is []"),
        ({"input": 7}, "input is 7"),
        ({"input": [{"type": "item_reference"}]}, 'input[0].type is "item_reference"'),
        ({"input": [{"role": "tool", "content": "x"}]}, 'input[0].role is "tool"'),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, 'input[0].call_id is "a"'),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id is null"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, 'input[0].content is "x"'),
        ({"input": "hi", "instructions": 5}, "instructions is 5: it must be a string"),
        ({"input": "hi", "reasoning_effort": 1}, "reasoning.effort is 1"),
        ({"input": "hi", "text_format": {"type": "json_schema"}}, "text.format.name is null"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].name is null"),
    ],
)
def test_a_bad_responses_request_is_one_line_naming_the_field(body: dict[str, Any], error: str) -> None:
    with pytest.raises(HarmonyFormatError) as caught:
        conversation_from_responses(body.pop("input"), **body)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("body", "level"),
    [
        ({}, "Medium"),
        ({"reasoning_effort": "low"}, "Low"),
        ({"reasoning": {"effort": "low"}}, "Low"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "Low"),
        ({"reasoning": {"effort": None}, "reasoning_effort": None}, "Medium"),
        ({"reasoning": None}, "Medium"),
    ],
)
@pytest.mark.parametrize("form", ["chat", "responses"])
def test_a_body_names_its_effort_in_either_way(body: dict[str, Any], level: str, form: Any) -> None:
    body = {**body, "messages": MESSAGES, "input": "Hi"}
    system = conversation_from_body(body, form).messages[0].to_dict()["content"][0]
    assert system["reasoning_effort"] == level
    named = level != "Medium"
    system = conversation_from_body(body, form, reasoning_effort="high").messages[0].to_dict()["content"][0]
    assert system["reasoning_effort"] == (level if named else "High")


def test_every_field_of_a_body_is_picked() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "parameters": schema}
    others = {"model": "m", "temperature": 1, "stop": ["x"]}
    chat = {
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": function}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
        **others,
    }
    responses = {
        "input": "Hi",
        "instructions": "Be brief.",
        "tools": [{"type": "function", **function}],
        "text": {"format": {"type": "json_schema", "name": "c", "schema": schema}},
        **others,
    }
    for choice, names in (("auto", ["weather"]), ("none", None)):
        for body, form, instructions in ((chat, "chat", None), (responses, "responses", "Be brief.")):
            picked = conversation_from_body({**body, "tool_choice": choice}, form, current_date=DATE)
            system, developer, user = (message.content[0].to_dict() for message in picked.messages)
            assert system["conversation_start_date"] == DATE
            assert developer.get("instructions") == instructions
            assert user["text"] == "Hi"
            assert developer["response_formats"][0]["json_schema"] == schema
            tools = developer.get("tools")
            assert (tools and [tool["name"] for tool in tools["functions"]["tools"]]) == names


@pytest.mark.parametrize(
    ("body", "form", "error"),
    [
        ({}, "chat", "it has no messages: a Chat Completions request must"),
        ({"messages": MESSAGES}, "responses", "it has no input: a Responses request must"),
        ({"messages": MESSAGES, "reasoning": "low"}, "chat", 'reasoning is "low": it must be an object'),
        ({"input": "Hi", "text": "plain"}, "responses", 'text is "plain": it must be an object'),
        ({"input": "Hi", "reasoning_effort": ""}, "responses", 'reasoning.effort is "": it must be one of'),
    ],
)
def test_a_body_that_is_none_is_one_line(body: dict[str, Any], form: Any, error: str) -> None:
    with pytest.raises(HarmonyFormatError, match=f"^{re.escape(error)}"):
        conversation_from_body(body, form)


THOUGHT = Message.from_role_and_content(Role.ASSISTANT, "I compute.").with_channel("analysis")


def built_in_call(recipient: str, channel: str | None, content_type: str | None, place: Any) -> Message:
    call = Message.from_role_and_content(Role.ASSISTANT, "print(1)").with_recipient(recipient)
    call.channel, call.content_type, call.recipient_place = channel, content_type, place
    return call


CALLS = [
    built_in_call("python", "analysis", "code", "channel"),
    built_in_call("python", "analysis", None, "role"),
    built_in_call("browser.search", "analysis", "<|constrain|> json", "role"),
    built_in_call("browser.open", None, None, "role"),
    built_in_call("browser", "commentary", "json", "channel"),
    built_in_call("functions.python", "commentary", "<|constrain|>json", "role"),
    built_in_call("functions.python", "commentary", "json", "channel"),
]


def through_chat(call: Message) -> list[Message]:
    """The messages of a completion, sent out and back in with the call's result."""
    answer = chat_message_from([THOUGHT, call], call_id=lambda number: f"call_{number}")
    answer = json.loads(json.dumps(answer))
    result = {"role": "tool", "tool_call_id": "call_0", "content": "1"}
    return list(conversation_from_chat([USER, answer, result], current_date=DATE))[2:]


def through_responses(call: Message) -> list[Message]:
    items = responses_output_from([THOUGHT, call], item_id=lambda prefix, number: f"{prefix}_{number}")
    items = json.loads(json.dumps(items))
    result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "1"}
    return list(conversation_from_responses([USER, *items, result], current_date=DATE))[2:]


@pytest.mark.parametrize(
    "call", CALLS, ids=lambda call: f"{call.recipient} {call.channel} {call.content_type}"
)
@pytest.mark.parametrize("through", [through_chat, through_responses])
def test_calls_of_built_in_tools_are_the_same_messages_again(
    through: Any, call: Message, encoding: HarmonyEncoding
) -> None:
    thought, again, result = through(call)
    assert (thought, again) == (THOUGHT, call)
    assert encoding.render(again) == encoding.render(call)
    assert result.author == Author(role=Role.TOOL, name=call.recipient)
    assert result.recipient == "assistant"
    is_function = (call.recipient or "").startswith("functions.")
    assert result.channel == ("commentary" if is_function else call.channel)


@pytest.mark.parametrize(
    ("name", "declared", "recipient", "channel"),
    [
        ("python", [], "python", "analysis"),
        ("browser.find", [], "browser.find", "analysis"),
        ("python", ["python"], "functions.python", "commentary"),
        ("browsers", [], "functions.browsers", "commentary"),
    ],
)
def test_a_call_without_its_header_is_told_by_its_name(
    name: str, declared: list[str], recipient: str, channel: str
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": name, "arguments": "1"}}
    tools = [{"type": "function", "function": {"name": function}} for function in declared]
    messages = [USER, {"role": "assistant", "tool_calls": [call]}]
    made = conversation_from_chat(messages, tools=tools, tool_choice="none", current_date=DATE).messages[-1]
    assert (made.recipient, made.channel) == (recipient, channel)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (5, "extra_content.harmony is 5: it must be an object"),
        (
            {"recipient": "functions.other"},
            'harmony.recipient is "functions.other": it must be python or functions',
        ),
        ({"channel": "final<|message|>"}, 'harmony.channel is "final<|message|>": it must be a string that'),
        ({"content_type": "a\nb"}, 'harmony.content_type is "a\\nb"'),
        ({"content_type": 5}, "harmony.content_type is 5"),
        ({"recipient_place": "end"}, 'harmony.recipient_place is "end": it must be role or channel'),
    ],
)
def test_a_header_that_no_call_can_have_is_refused(header: Any, error: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "python", "arguments": "1"}}
    call["extra_content"] = {"harmony": header}
    with pytest.raises(HarmonyFormatError, match=re.escape(error)):
        conversation_from_chat([USER, {"role": "assistant", "tool_calls": [call]}], current_date=DATE)


def test_calls_of_functions_are_what_the_apis_know() -> None:
    call = built_in_call("functions.f", "commentary", "<|constrain|>json", "role")
    answer = chat_message_from([call], call_id=str)
    assert answer["tool_calls"] == [
        {"id": "0", "type": "function", "function": {"name": "f", "arguments": "print(1)"}}
    ]
