"""Conversations in all their forms, with everything a form can hold, and the commands run on them."""

from __future__ import annotations

import json
from typing import Any

from harmony import Conversation, Message, load_harmony_encoding
from tests.cli.command_runner import run

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where"}},
    "required": ["city"],
}

HARMONY: dict[str, Any] = {
    "messages": [
        {
            "role": "system",
            "name": None,
            "content": [
                {
                    "type": "system_content",
                    "model_identity": "You are a test.",
                    "reasoning_effort": "High",
                    "conversation_start_date": "2025-06-28",
                    "knowledge_cutoff": "2024-06",
                    "channel_config": {"valid_channels": ["analysis", "final"], "channel_required": True},
                    "tools": {"python": {"name": "python", "description": "Runs code.", "tools": []}},
                }
            ],
        },
        {
            "role": "developer",
            "content": [
                {
                    "type": "developer_content",
                    "instructions": "Be brief.",
                    "tools": {
                        "functions": {
                            "name": "functions",
                            "tools": [
                                {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}
                            ],
                        }
                    },
                    "response_formats": [
                        {"name": "city", "description": "A city.", "json_schema": PARAMETERS}
                    ],
                }
            ],
        },
        {"role": "user", "name": "alice", "content": "Oslo?"},
        {"role": "assistant", "content": "I look it up.", "channel": "analysis"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": '{"city": "Oslo"}'}],
            "channel": "commentary",
            "recipient": "functions.weather",
            "content_type": "<|constrain|>json",
            "recipient_place": "channel",
        },
        {
            "role": "tool",
            "name": "functions.weather",
            "content": "5 °C",
            "channel": "commentary",
            "recipient": "assistant",
        },
        {"role": "assistant", "content": "It is 5 °C.", "channel": "final"},
    ]
}

_CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}

CHAT: dict[str, Any] = {
    "model": "gpt-oss-20b",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Oslo?"}]},
        {"role": "assistant", "reasoning": "I look it up.", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "5 °C"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "weather", "description": "", "parameters": PARAMETERS}}
    ],
    "tool_choice": "auto",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": PARAMETERS}},
}

RESPONSES: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Oslo?"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "I look it up."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "a", "output": "5 °C"},
    ],
    "tools": [{"type": "function", "name": "weather", "parameters": PARAMETERS}],
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "city", "schema": PARAMETERS}},
}

CHATML = """<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Oslo?<|im_end|>
<|im_start|>assistant
<think>
I look it up.
</think>

<tool_call>
{"name": "weather", "arguments": {"city": "Oslo"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
5 °C
</tool_response><|im_end|>
"""

ENCODING = load_harmony_encoding()
CONVERSATION = Conversation(messages=[Message.from_dict(message) for message in HARMONY["messages"]])


def command(*arguments: str, stdin: Any = HARMONY, terminal: bool = False) -> str:
    """The output of a command that succeeds without a word on standard error."""
    data = stdin if isinstance(stdin, str | bytes) else json.dumps(stdin)
    done = run("harmony", *arguments, stdin=data, terminal=terminal)
    assert (done.code, done.error) == (0, "")
    return done.text


def tokens_of(output: str) -> list[int]:
    """The ids that `render --tokens` printed."""
    return [int(word) for word in output.split()]
