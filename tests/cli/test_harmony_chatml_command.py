"""ChatML at the command line: side by side, converted, and what it loses."""

from __future__ import annotations

import json
import re

from command_runner import run
from harmony_samples import CONVERSATION, ENCODING, HARMONY, command, tokens_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gptoss_jax.commands.harmony.losses import lost_in_chatml
from harmony import (
    Author,
    Conversation,
    Message,
    Role,
    SystemContent,
)
from harmony.chatml import chatml_from_conversation, conversation_from_chatml

DATE = "2025-06-28"


def test_side_by_side_has_both_texts_the_counts_of_each_and_what_is_lost(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = command("view", "--side-by-side", "chatml").splitlines()
    end = next(index for index, line in enumerate(lines) if line.startswith("── in all"))
    columns = [re.split(" │ ?", line, maxsplit=1) for line in lines[1:end]]
    for column, whole in ((0, command("render")), (1, chatml_from_conversation(CONVERSATION))):
        shown = "".join(cells[column] for cells in columns if "── " not in cells[column])
        assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", whole)
    counts = [re.findall(r"── (?:\S+ |\d+–?\d*: )?(\d+) tokens", " ".join(cells)) for cells in columns]
    rows = [tuple(map(int, count)) for count in counts if count]
    totals = tuple(map(int, re.findall(r"(\d+) tokens", lines[end])))
    assert totals == (sum(row[0] for row in rows), sum(row[1] for row in rows))
    assert totals[0] == len(tokens_of(command("render", "--tokens")))
    marked = chatml_from_conversation(CONVERSATION)
    parts = re.split(r"<\|im_(?:start|end)\|>", marked)
    assert totals[1] == len(parts) - 1 + sum(len(ENCODING.encode_ordinary(part)) for part in parts)
    lost = "\n".join(lines[end:])
    for words in ("the model's identity", "the tools python", "response formats city", "name alice"):
        assert words in re.sub(r"\s+", " ", lost).replace("built-in tools", "tools")


def test_side_by_side_shows_in_one_row_what_chatml_joins() -> None:
    said = [("developer", "Be brief."), ("developer", "Be kind."), ("user", "Hi")]
    conversation = [
        {"role": role, "channel": None, "content": [{"type": "text", "text": text}]} for role, text in said
    ]
    output = command("view", "--side-by-side", "chatml", stdin=conversation)
    assert re.findall(r"^── (\S+): \d+ tokens .*│ ── \d+ tokens$", output, re.MULTILINE) == ["0–1", "2"]


def test_conversion_to_chatml_says_on_standard_error_what_is_lost() -> None:
    done = run("harmony", "convert", "--to", "chatml", stdin=json.dumps(HARMONY))
    assert done.code == 0
    assert done.text == chatml_from_conversation(CONVERSATION)
    lines = done.error.splitlines()
    assert all(line.startswith("gptoss-jax: lost in ChatML: messages[") for line in lines)
    assert [re.findall(r"messages\[(\d)\]", line)[0] for line in lines] == ["0", "1", "2"]


PLAIN_TEXT = st.text(st.characters(categories=["L", "N", "Zs"]), min_size=1, max_size=8)


@st.composite
def turns(draw: st.DrawFn) -> Message:
    """Messages that ChatML can say, or nearly."""
    role = draw(st.sampled_from([Role.USER, Role.ASSISTANT, Role.ASSISTANT, Role.TOOL]))
    message = Message.from_role_and_content(role, draw(PLAIN_TEXT))
    if role is Role.ASSISTANT:
        message.channel = draw(st.sampled_from(["analysis", "commentary", "final", "final", None]))
        if draw(st.booleans()):
            message.content[0].text = draw(st.sampled_from(['{"a": 1}', '{"a":1}', "no"]))
            message.channel = draw(st.sampled_from(["commentary", "commentary", "analysis"]))
            message.recipient = draw(st.sampled_from(["functions.f", "functions.g", "python"]))
            message.content_type = "<|constrain|>json"
    elif role is Role.TOOL:
        message.author.name = draw(st.sampled_from(["functions.f", "functions.g"]))
        message.channel = "commentary"
        message.recipient = "assistant"
    if draw(st.integers(0, 9)) == 0:
        message.content_type = draw(st.sampled_from([None, "json"]))
    return message


CALL = (
    Message.from_role_and_content(Role.ASSISTANT, '{"a": 1}')
    .with_channel("commentary")
    .with_recipient("functions.f")
    .with_content_type("<|constrain|>json")
)
RESULT = (
    Message.from_author_and_content(Author.new(Role.TOOL, "functions.f"), "5")
    .with_channel("commentary")
    .with_recipient("assistant")
)
THOUGHT = Message.from_role_and_content(Role.ASSISTANT, "so").with_channel("analysis")


@given(st.lists(turns(), min_size=1, max_size=6))
@example([CALL, THOUGHT, RESULT])
@example([CALL, CALL, RESULT, CALL, RESULT, RESULT])
@settings(max_examples=400, deadline=None)
def test_what_is_not_listed_as_lost_comes_back_from_chatml(said: list[Message]) -> None:
    system = Message.from_role_and_content(
        Role.SYSTEM, SystemContent.new().with_conversation_start_date(DATE)
    )
    conversation = Conversation(messages=[system, *said])
    lost = lost_in_chatml(conversation)
    assert lost[0].startswith("messages[0]: ")  # the system message; reading puts the same defaults back
    if len(lost) == 1:
        back = conversation_from_chatml(chatml_from_conversation(conversation), current_date=DATE)
        assert back == conversation
