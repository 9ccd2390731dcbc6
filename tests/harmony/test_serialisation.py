"""JSON both ways, for every type, without loss."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel

import harmony
from harmony import (
    Author,
    ChannelConfig,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    Message,
    ParsedCompletion,
    RecoveringParser,
    RenderConversationConfig,
    RenderOptions,
    ResponseFormat,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
    event_from_dict,
    event_to_dict,
    parse_completion,
)
from tests.harmony import generators as generate


def conversations() -> list[Conversation]:
    made = []
    for seed in range(200):
        conversation = Conversation.from_json(json.dumps(generate.conversation(Random(seed))))
        system = SystemContent(
            model_identity=None, reasoning_effort=None, knowledge_cutoff=None, channel_config=None
        )
        developer = DeveloperContent.new().with_response_format("x", {"a": None})
        developer.with_tools(ToolNamespaceConfig.python())
        in_channel = Message.from_role_and_content(Role.ASSISTANT, "{}").with_recipient("functions.f")
        in_channel.recipient_place = "channel"
        conversation.messages += [
            Message.from_role_and_contents(Role.SYSTEM, [system, SystemContent.new().with_browser_tool()]),
            Message.from_role_and_content(Role.DEVELOPER, developer),
            in_channel,
        ]
        made.append(conversation)
    return made


def places(conversation: Conversation) -> list[str]:
    """What equality of messages ignores."""
    return [message.recipient_place for message in conversation.messages]


def test_conversations_and_messages_survive_json_by_every_way() -> None:
    for conversation in conversations():
        for again in (
            Conversation.from_json(conversation.to_json()),
            Conversation.model_validate(conversation.model_dump()),
            Conversation.model_validate_json(conversation.model_dump_json()),
            Conversation(messages=[Message.from_dict(message.to_dict()) for message in conversation]),
        ):
            assert again == conversation
            assert places(again) == places(conversation)


MODELS: list[BaseModel] = [
    Author.new(Role.TOOL, "functions.f"),
    Author(role=Role.USER),
    TextContent(text='a "quoted" 😊\n'),
    SystemContent.new().with_browser_tool().with_python_tool().with_required_channels(["final"]),
    SystemContent(model_identity=None, reasoning_effort=None, channel_config=None, tools={}),
    DeveloperContent.new().with_instructions("x").with_function_tools([ToolDescription(name="f")]),
    DeveloperContent.new().with_response_format("form", {"type": "object", "x": None}, "About it."),
    ToolDescription.new("f", "d", {"type": "object", "properties": {"a": {"default": None}}}),
    ToolDescription(name="f"),
    ToolNamespaceConfig.browser(),
    ToolNamespaceConfig(name="x", tools=[]),
    ChannelConfig(valid_channels=[], channel_required=False),
    ResponseFormat(name="x", json_schema={"a": [1, 2.5, None, True]}),
    RenderConversationConfig(analysis_policy="guide", schema_form="improved", recipient_place="channel"),
    RenderConversationConfig(auto_drop_analysis=False),
    RenderOptions(conversation_has_function_tools=True, recipient_place="role"),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_every_model_survives_json(model: BaseModel) -> None:
    kind = type(model)
    assert kind.model_validate_json(model.model_dump_json()) == model
    if isinstance(model, SystemContent | DeveloperContent):
        assert type(model).from_dict(json.loads(json.dumps(model.to_dict()))) == model


def test_no_model_is_left_out() -> None:
    public = {getattr(harmony, name) for name in harmony.__all__}
    models = {kind for kind in public if isinstance(kind, type) and issubclass(kind, BaseModel)}
    tested = {type(model) for model in MODELS}
    assert models - tested == {Message, Conversation, harmony.Content}


def recovered(encoding: HarmonyEncoding) -> list[tuple[list[Any], ParsedCompletion]]:
    """Events and completions of good, malformed and truncated streams."""
    texts = [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "<|channel|>analysis<|message|>Hm 😊 <|channel|>final<|message|>4<|return|>",
        "I must refuse<|end|><|start|>assistant<|channel|>final<|message|>No",
        "<|start|>functions.f to=assistant<|message|>x<|end|>",
    ]
    made = []
    for text in texts:
        tokens = encoding.encode(text, allowed_special="all")
        parser = RecoveringParser(encoding)
        events = [event for token in tokens for event in parser.feed([token])] + parser.finish()
        made.append((events, parse_completion(encoding, tokens)))
    return made


def test_events_survive_json(encoding: HarmonyEncoding) -> None:
    kinds = set()
    for events, _ in recovered(encoding):
        for event in events:
            again = event_from_dict(json.loads(json.dumps(event_to_dict(event))))
            assert again == event
            assert type(again) is type(event)
            kinds.add(event_to_dict(event)["type"])
    assert kinds == {"message_started", "content_delta", "message_finished", "call_ready", "stopped"}


def test_completions_and_their_diagnostics_survive_json(encoding: HarmonyEncoding) -> None:
    completions = [completion for _, completion in recovered(encoding)]
    assert any(completion.diagnostics for completion in completions)
    for completion in completions:
        assert ParsedCompletion.from_json(completion.to_json()) == completion
        assert ParsedCompletion.from_dict(completion.to_dict()) == completion
    places = [
        message.recipient_place for message in ParsedCompletion.from_json(completions[0].to_json()).messages
    ]
    assert places == ["channel"]


def test_what_is_no_event_is_one_line_of_error() -> None:
    with pytest.raises(
        ValueError, match="type is 'started': it must be one of message_started, content_delta"
    ):
        event_from_dict({"type": "started"})
    with pytest.raises(ValueError, match=r"stopped has \['start'\]: it must have end"):
        event_from_dict({"type": "stopped", "start": 1})
