"""Token for token and message for message what openai-harmony 0.0.8 does."""

from __future__ import annotations

import copy
import json
from random import Random
from types import ModuleType
from typing import Any

import pytest

import harmony
from harmony import HarmonyEncoding
from tests.harmony import generators as generate
from tests.harmony import odd_conversations

SLOW = pytest.mark.slow
FORMS = ("plain", "completion", "training", "keep analysis")


def outcome(function: Any, *arguments: Any) -> Any:
    """What a call returns, or that it raises."""
    try:
        return function(*arguments)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return "raises"


def render(library: Any, encoding: Any, conversation: Any, form: str) -> Any:
    if form == "completion":
        return encoding.render_conversation_for_completion(conversation, library.Role.ASSISTANT)
    if form == "training":
        return encoding.render_conversation_for_training(conversation)
    if form == "keep analysis":
        config = library.RenderConversationConfig(auto_drop_analysis=False)
        return encoding.render_conversation(conversation, config)
    return encoding.render_conversation(conversation)


@pytest.mark.parametrize("seeds", [range(200), pytest.param(range(200, 3200), marks=SLOW)], ids=len)
@pytest.mark.parametrize("form", FORMS)
def test_generated_conversations_render_to_the_known_tokens(
    form: str, seeds: range, encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    def rendered(library: ModuleType, encoding: Any, data: dict[str, Any]) -> Any:
        return render(library, encoding, library.Conversation.from_json(json.dumps(data)), form)

    raised = 0
    for seed in seeds:
        data = generate.conversation(Random(f"{form} {seed}"))
        expected = outcome(rendered, known, known_encoding, data)
        actual = outcome(rendered, harmony, encoding, copy.deepcopy(data))
        if expected == "raises" or actual == "raises":
            raised += 1
            assert expected == actual, (seed, data)
        else:
            assert encoding.decode(actual) == encoding.decode(expected), (seed, data)
            assert actual == expected, (seed, data)
    assert raised < len(seeds) / 5  # the generator must not test errors only


@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(300, 8_300), marks=SLOW)], ids=len)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_conversations_as_programs_make_them_render_to_the_known_tokens(
    seeds: range, encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    """Tuples, enums, subclasses, content types with spaces, fields set to what they may not be, NaN."""
    raised = 0
    for seed in seeds:
        data = generate.conversation(Random(seed))
        form = FORMS[seed % 4]

        def rendered(library: ModuleType, encoding: Any, data: Any = data, seed: int = seed) -> Any:
            conversation = odd_conversations.built(library, Random(f"odd {seed}"), data)
            if seed % 5 == 0:
                return [encoding.render(message) for message in conversation]
            return render(library, encoding, conversation, FORMS[seed % 4])

        expected = outcome(rendered, known, known_encoding)
        assert outcome(rendered, harmony, encoding) == expected, (seed, form)
        raised += expected == "raises"
    assert len(seeds) / 50 < raised < len(seeds) / 3


def test_generated_messages_render_alone_to_the_known_tokens(
    encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    for seed in range(300):
        data = generate.message(Random(seed))
        has_tools = seed % 2 == 0
        options = known.RenderOptions(conversation_has_function_tools=has_tools)
        expected = outcome(known_encoding.render, known.Message.from_dict(data), options)
        options = harmony.RenderOptions(conversation_has_function_tools=has_tools)
        assert outcome(encoding.render, harmony.Message.from_dict(data), options) == expected, data


def streams(encoding: HarmonyEncoding, seeds: range) -> Any:
    """Rendered conversations, most of them damaged, each with the role to parse it with."""
    special = [encoding.start, encoding.channel, encoding.constrain, encoding.message, encoding.end]
    special += [encoding.return_, encoding.call, 200018, encoding.end_of_text]
    for seed in seeds:
        random = Random(seed)
        messages = [generate.message(random, headers_only=True) for _ in range(random.randrange(1, 4))]
        conversation = harmony.Conversation.from_json(json.dumps({"messages": messages}))
        tokens = encoding.render_conversation(conversation)
        if random.random() < 0.5:
            tokens = tokens[2:]
        tokens = generate.mutated(random, tokens, special, 201_300)
        yield tokens, random.choice((None, None, "assistant", "assistant", "user", "tool"))


@pytest.mark.parametrize("seeds", [range(1500), pytest.param(range(1500, 9_500), marks=SLOW)], ids=len)
def test_damaged_streams_parse_to_the_known_messages(
    seeds: range, encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    parsed = {True: 0, False: 0}
    for tokens, role in streams(encoding, seeds):
        for strict in parsed:

            def parse(
                library: ModuleType,
                encoding: Any,
                tokens: list[int] = tokens,
                role: Any = role,
                strict: bool = strict,
            ) -> Any:
                author = None if role is None else library.Role(role)
                messages = encoding.parse_messages_from_completion_tokens(tokens, author, strict=strict)
                return [message.to_dict() for message in messages]

            expected = outcome(parse, known, known_encoding)
            assert outcome(parse, harmony, encoding) == expected, (tokens, role, strict)
            parsed[strict] += expected != "raises"
    assert min(parsed.values()) > len(seeds) // 4


def test_the_streaming_parser_shows_the_known_state_after_every_token(
    encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    def state(parser: Any) -> dict[str, Any]:
        names = ("channel", "recipient", "content_type", "content")
        role = parser.current_role
        return {
            **{name: getattr(parser, f"current_{name}") for name in names},
            "role": role and role.value,
            "delta": parser.last_content_delta,
            "state": parser.state.value,
            "data": parser.state_data,
            "tokens": parser.tokens,
            "messages": [message.to_dict() for message in parser.messages],
        }

    for tokens, role in streams(encoding, range(300)):
        expected = known.StreamableParser(known_encoding, role and known.Role(role))
        actual = harmony.StreamableParser(encoding, None if role is None else harmony.Role(role))
        for token in tokens:
            raised = outcome(expected.process, token) == "raises"
            assert (outcome(actual.process, token) == "raises") == raised, (tokens, role)
            assert state(actual) == state(expected), (tokens, role)


def test_errors_read_as_the_known_ones(encoding: HarmonyEncoding, known_encoding: Any, known: Any) -> None:
    cases = [
        ("<|start|><|message|>", None),
        ("<|start|>foo<|message|>", None),
        ("<|start|>user<|channel|><|message|>", None),
        ("x", None),
        ("a b c<|message|>", "assistant"),
        ("<|channel|>final", "assistant"),
    ]
    for text, role in cases:
        tokens = encoding.encode(text, allowed_special="all")
        with pytest.raises(known.HarmonyError) as expected:
            known_encoding.parse_messages_from_completion_tokens(tokens, role and known.Role(role))
        with pytest.raises(harmony.HarmonyError) as actual:
            encoding.parse_messages_from_completion_tokens(
                tokens, None if role is None else harmony.Role(role)
            )
        assert str(actual.value) == str(expected.value)


def test_tokens_and_special_tokens_are_the_known_ones(encoding: HarmonyEncoding, known_encoding: Any) -> None:
    assert encoding.name == known_encoding.name
    assert encoding.special_tokens_set == known_encoding.special_tokens_set
    assert sorted(encoding.stop_tokens()) == sorted(known_encoding.stop_tokens())
    assert sorted(encoding.stop_tokens_for_assistant_actions()) == sorted(
        known_encoding.stop_tokens_for_assistant_actions()
    )
    for seed in range(200):
        text = generate.text(Random(seed), 30)
        tokens = known_encoding.encode(text, disallowed_special=())
        assert encoding.encode(text, disallowed_special=()) == tokens
        assert encoding.encode_ordinary(text) == tokens
        assert encoding.decode_utf8(tokens) == text
        special = known_encoding.encode(text, allowed_special="all")
        assert encoding.encode(text, allowed_special="all") == special
        some = {"allowed_special": {"<|start|>", "<|end|>"}, "disallowed_special": ()}
        assert encoding.encode(text, **some) == known_encoding.encode(text, **some)
    for token in range(199_990, 201_089):
        assert encoding.decode([token]) == known_encoding.decode([token])
        assert encoding.is_special_token(token) == known_encoding.is_special_token(token)
