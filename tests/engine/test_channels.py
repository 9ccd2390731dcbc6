"""Whose content a token is: the messages of a completion, followed token by token."""

import pytest

from gptoss_jax.engine.channels import Channels
from tests.engine.processors import TO_FINAL, encode, encoding, words


def test_content_of_a_channel_is_counted_in_all_its_messages():
    completion = encode("<|channel|>analysis<|message|>") + words(3)
    completion += encode("<|end|><|start|>assistant<|channel|>analysis to=python code<|message|>") + words(2)
    completion += encode(TO_FINAL) + words(4) + encode("<|return|>")
    channels = Channels(encoding())
    assert sum(map(channels.take, completion)) == 9
    assert channels.counts == {"analysis": 5, "final": 4}


@pytest.mark.parametrize(
    ("header", "channel", "is_call"),
    [
        ("<|channel|>final", "final", False),
        ("<|channel|>final <|constrain|>json", "final", False),
        ("<|channel|>final<|constrain|>json", "final", False),
        ("<|channel|>commentary to=functions.f <|constrain|>json", "commentary", True),
        (" to=functions.f<|channel|>commentary json", "commentary", True),
        (" to=functions.f<|constrain|>json<|channel|>commentary", "commentary", True),
        ("<|channel|>commentary to=all", "commentary", False),
        ("<|channel|>final<|channel|>analysis", "analysis", False),
        ("<|channel|> to=f<|channel|>commentary", "commentary", True),
        ("<|channel|>", None, False),
        (" nothing", None, False),
    ],
)
def test_headers_say_the_channel_and_whether_a_tool_is_called(header, channel, is_call):
    channels = Channels(encoding(), encode("<|start|>assistant"))
    for token in encode(f"{header}<|message|>"):
        assert not channels.take(token)
    assert (channels.in_content, channels.channel, channels.is_call) == (True, channel, is_call)
    assert channels.take(words(1)[0])
    assert not channels.take(encoding().end) and not channels.in_content
