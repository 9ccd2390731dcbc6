"""`gptoss-jax harmony`: what each command prints, and that they fit together with pipes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_runner import run
from harmony_samples import CHAT, CHATML, HARMONY, RESPONSES
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.commands.harmony.terminal import display_width, printable, wrapped
from harmony import (
    Conversation,
    Message,
    RenderConversationConfig,
    Role,
    SystemContent,
    load_encoding,
    load_harmony_encoding,
    parse_completion,
)
from harmony.chatml import chatml_from_conversation, conversation_from_chatml
from harmony.openai_formats import conversation_from_chat, conversation_from_responses

ENCODING = load_harmony_encoding()
CONVERSATION = Conversation(messages=[Message.from_dict(message) for message in HARMONY["messages"]])
DATE = "2025-06-28"


def command(*arguments: str, stdin: Any = HARMONY, terminal: bool = False) -> str:
    """The output of a command that succeeds without a word on standard error."""
    data = stdin if isinstance(stdin, str | bytes) else json.dumps(stdin)
    done = run("harmony", *arguments, stdin=data, terminal=terminal)
    assert (done.code, done.error) == (0, "")
    return done.text


def tokens_of(output: str) -> list[int]:
    return [int(word) for word in output.split()]


# render


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


# forms


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


# parse

WORD = st.from_regex(r"[a-z_.]{1,8}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))
    message: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": draw(TEXT)}]}
    message["name"] = f"functions.{draw(WORD)}" if role == "tool" else None
    optional = {"channel": WORD, "recipient": WORD, "content_type": WORD.map("<|constrain|>".__add__)}
    for name, values in optional.items():
        value = draw(st.none() | values)
        if value is not None and value != "all":
            message[name] = value
    return message


@given(st.lists(messages(), max_size=4))
@settings(max_examples=100, deadline=None)
def test_parsing_the_tokens_of_render_gives_the_messages_back(conversation: list[dict[str, Any]]) -> None:
    options = ("--from", "harmony", "--vocabulary", "tiny")
    rendered = command("render", "--tokens", *options, stdin={"messages": conversation})
    parsed = json.loads(command("parse", "--vocabulary", "tiny", stdin=rendered))
    assert parsed["messages"] == conversation
    assert parsed["complete"] == bool(conversation)


def test_text_and_every_way_of_writing_tokens_parse_alike() -> None:
    text = "<|channel|>analysis<|message|>a\n<|end|><|start|>assistant<|channel|>final<|message|>é<|return|>"
    tokens = ENCODING.encode(text, allowed_special="all")
    expected = command("parse", stdin=text)
    parsed = json.loads(expected)
    assert [m["content"][0]["text"] for m in parsed["messages"]] == ["a\n", "é"]
    assert (parsed["complete"], parsed["end"], parsed["diagnostics"]) == (True, "<|return|>", [])
    for written in (
        text + "\n",
        " ".join(map(str, tokens)),
        ", ".join(map(str, tokens)) + "\n",
        "\n".join(map(str, tokens)),
        json.dumps(tokens),
        json.dumps(tokens, indent=2),
    ):
        assert command("parse", stdin=written) == expected


def test_parse_recovers_and_says_what_was_wrong() -> None:
    parsed = json.loads(command("parse", stdin="I must refuse<|end|>"))
    assert parsed["messages"][0]["content"][0]["text"] == "I must refuse"
    assert {"what": "text_in_header", "where": 0, "raw": "I must refuse"} in parsed["diagnostics"]


def test_parse_keeps_a_partial_message() -> None:
    parsed = json.loads(command("parse", stdin="<|channel|>final<|message|>It is\n"))
    assert parsed["messages"][0]["content"][0]["text"] == "It is\n"
    assert (parsed["complete"], parsed["end"]) == (False, None)


def test_parse_takes_ids_outside_the_vocabulary_as_diagnostics() -> None:
    head = ENCODING.encode("<|channel|>final<|message|>a", allowed_special="all")
    parsed = json.loads(command("parse", stdin=" ".join(map(str, [*head, 999_999_999, ENCODING.end]))))
    assert parsed["messages"][0]["content"][0]["text"] == "a\ufffd"
    assert [d["what"] for d in parsed["diagnostics"]] == ["unknown_token"]


@pytest.mark.parametrize(
    ("options", "text", "role"),
    [
        ([], "<|message|>hi<|end|>", "assistant"),
        ([], "<|start|>user<|message|>hi<|end|>", "user"),
        (["--role", "user"], "<|message|>hi<|end|>", "user"),
        (["--role", "none"], "<|start|>developer<|message|>hi<|end|>", "developer"),
        (["--role", "system", "--strict"], "<|message|>hi<|end|>", "system"),
    ],
)
def test_parse_knows_in_whose_header_the_input_begins(options, text, role) -> None:
    (message,) = json.loads(command("parse", *options, stdin=text))["messages"]
    assert message["role"] == role


def test_strict_parsing_refuses_and_names_the_token() -> None:
    text = "<|channel|>final<|message|>a<|end|>stray"
    done = run("harmony", "parse", "--strict", stdin=text)
    assert done.code == 2
    assert done.output == b""
    assert "standard input, token 5: Unexpected token" in done.error
    assert run("harmony", "parse", stdin=text).code == 0


def test_numbers_are_text_if_one_says_so() -> None:
    parsed = json.loads(command("parse", "--from", "text", stdin="4"))
    assert parsed["messages"][0]["content"][0]["text"] == "4"


def test_what_parse_prints_can_be_rendered_and_viewed() -> None:
    parsed = command("parse", stdin=command("render", "--tokens"))
    assert command("render", "--from", "harmony", stdin=parsed) == command("render")
    assert "messages" in command("view", stdin=parsed)


@given(st.binary(max_size=60) | st.lists(st.integers(0, 2**70)).map(lambda n: json.dumps(n).encode()))
@settings(max_examples=150, deadline=None)
def test_parse_answers_any_bytes_with_json_or_one_line(data: bytes) -> None:
    done = run("harmony", "parse", "--vocabulary", "tiny", stdin=data)
    if done.code:
        assert done.code == 2
        assert done.error.startswith("gptoss-jax: standard input")
        assert done.error.count("\n") == 1
    else:
        assert set(json.loads(done.output)) == {"messages", "complete", "end", "diagnostics"}


# view


def test_view_shows_every_header_and_content_with_its_tokens(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = command("view").splitlines()
    heads = [line for line in lines if line.startswith("── ")]
    sizes = [len(ENCODING.render(message)) for message in CONVERSATION]
    assert [re.sub(" ─+ ", "|", head) for head in heads[2:]] == [
        f"── 2 user:alice|{sizes[2]} tokens",
        f"── 3 assistant · analysis|{sizes[3]} tokens",
        f"── 4 assistant · commentary · call functions.weather · <|constrain|>json|{sizes[4]} tokens",
        f"── 5 tool functions.weather · commentary · to assistant|{sizes[5]} tokens",
        f"── 6 assistant · final|{sizes[6]} tokens",
    ]
    assert all(display_width(head) == 100 for head in heads)
    for text in ("  You are a test.", "  Reasoning: high", "  Be brief.", "  I look it up.", "  5 °C"):
        assert text in lines
    whole = ENCODING.render_conversation(CONVERSATION, RenderConversationConfig(analysis_policy="none"))
    prompt = ENCODING.render_conversation_for_completion(CONVERSATION, Role.ASSISTANT)
    assert lines[-2:] == [
        f"7 messages, {len(whole)} tokens",
        f"as a prompt for the assistant: {len(prompt)} tokens",
    ]


def test_view_shows_tokens_that_add_up_to_the_text() -> None:
    output = command("view", "--tokens", "--from", "harmony", stdin=[{"role": "user", "content": "Hi é\n𓀀"}])
    shown = re.findall(r"(\d+) (<\|\w+\|>|\"(?:[^\"\\]|\\.)*\"|b'[^']*')", output.partition("\n")[2])
    tokens = [int(token) for token, _ in shown]
    message = Message.from_role_and_content(Role.USER, "Hi é\n𓀀")
    assert tokens == ENCODING.render(message)
    assert [text for token, text in shown if ENCODING.is_special_token(int(token))] == [
        "<|start|>",
        "<|message|>",
        "<|end|>",
    ]
    assert '"Hi"' in output


HOSTILE = "\x1b[2J\x07\x9b31m\r\u202eevil\u200b\u2028\U000e0041\x7f"
ACTING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["view"],
        ["view", "--tokens"],
        ["view", "--side-by-side", "chatml"],
        ["parse"],
        ["convert", "--to", "harmony"],
    ],
)
def test_nothing_in_a_conversation_acts_on_the_terminal(arguments: list[str]) -> None:
    name = "n\x1b[31m\u202e"
    conversation: Any = [
        {"role": "user", "name": name, "content": f"a{HOSTILE}b"},
        {"role": "assistant", "channel": name, "recipient": name, "content_type": name, "content": HOSTILE},
        {"role": "tool", "name": name, "content": HOSTILE},
    ]
    stdin = conversation
    if arguments == ["parse"]:
        stdin = command("render", stdin=conversation)
    done = run("harmony", *arguments, stdin=stdin if isinstance(stdin, str) else json.dumps(stdin))
    assert done.code == 0
    assert not ACTING.search(done.text)
    assert not ACTING.search(done.error.replace("\n", ""))
    assert r"\x1b" in done.text or r"\u001b" in done.text


def test_errors_show_no_character_that_acts_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\u202e.json"
    for data in ("{", json.dumps([{"role": "\x1b[2J\u202e"}])):
        path.write_text(data)
        error = run("harmony", "view", str(path)).error
        assert not ACTING.search(error.removesuffix("\n"))


def test_colour_is_for_terminals_and_for_those_who_ask(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain = command("view")
    assert "\x1b" not in plain
    coloured = command("view", "--color", "always")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]+m", "", coloured) == plain
    assert command("view", terminal=True) == coloured
    assert command("view", "--color", "never", terminal=True) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert command("view", terminal=True) == plain
    assert command("view", "--color", "always") == coloured
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert command("view", terminal=True) == plain


def test_on_a_terminal_rendered_text_cannot_act_and_ends_its_line() -> None:
    conversation = [{"role": "user", "channel": "x", "content": "\x1b[2J"}]
    assert command("render", stdin=conversation, terminal=True) == (
        "<|start|>user<|channel|>x<|message|>\\x1b[2J<|end|>\n"
    )


@given(st.text(st.sampled_from("ab é漢\u0301 \n\t<|"), max_size=200), st.integers(4, 40))
def test_wrapping_keeps_the_width_and_every_character_but_spaces(text: str, width: int) -> None:
    lines = list(wrapped(text, width))
    assert all(display_width(line) <= width for line in lines)
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)
    if all(display_width(line) <= width for line in text.expandtabs(4).split("\n")):
        assert "\n".join(lines) == text.expandtabs(4)


def test_a_long_content_is_shown_whole(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = " ".join(f"word{number}" for number in range(20_000)) + "x" * 100_000
    output = command("view", stdin=[{"role": "user", "channel": "c", "content": text}])
    body = output.split("\n", 1)[1].rpartition("\n\n")[0]
    assert re.sub(r"\s", "", body) == text.replace(" ", "")


def test_printable_text_is_left_as_it_is() -> None:
    text = "naïve 漢字 👩‍👩‍👧 می‌خواهم\n\tx"
    assert printable(text) == text


# ChatML


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


@given(st.lists(turns(), min_size=1, max_size=6))
@settings(max_examples=600, deadline=None)
def test_what_is_not_listed_as_lost_comes_back_from_chatml(said: list[Message]) -> None:
    from gptoss_jax.commands.harmony.losses import lost_in_chatml

    system = Message.from_role_and_content(
        Role.SYSTEM, SystemContent.new().with_conversation_start_date(DATE)
    )
    conversation = Conversation(messages=[system, *said])
    lost = lost_in_chatml(conversation)
    assert lost[0].startswith("messages[0]: ")  # the system message; reading puts the same defaults back
    if len(lost) == 1:
        back = conversation_from_chatml(chatml_from_conversation(conversation), current_date=DATE)
        assert back == conversation


# errors


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ("", "standard input: it is empty"),
        ("{", "it is not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ('{"messages": []}\n{"messages": []}', "a second JSON value begins at line 2, column 1"),
        ("<|start|>user<|message|>", "`gptoss-jax harmony parse` reads text with special tokens"),
        ("7", "it is 7: it must be an object, or a list of messages"),
        ('{"model": "m"}', "its keys are 'model': it must have messages"),
        ('{"input": 7}', "input is 7: it must be a string or a list"),
        ('{"prompt": 7}', "prompt is 7: it must be a string"),
        ('{"body": 7}', "body is 7: it must be an object"),
        ('{"messages": 7}', "messages is 7: it must be a list"),
        ('{"messages": [7]}', "messages[0] is 7: it must be an object"),
        ('[{"role": "bot", "content": []}]', "messages[0].role is 'bot': it must be user, assistant,"),
        ('[{"role": "user", "channel": 7, "content": "x"}]', "messages[0].channel is 7: it must be a string"),
        ('[{"role": "user", "channel": "x"}]', "messages[0].content is None: it must be a string or a list"),
        ('[{"role": "user", "content": [7]}]', "messages[0].content[0] is 7: it must be an object"),
        (
            '[{"role": "user", "content": [{"type": []}]}]',
            "messages[0].content[0].type is []: it must be text",
        ),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "messages[0].content[0].text is missing"),
        (
            '[{"role": "system", "content": [{"type": "system_content", "reasoning_effort": "huge"}]}]',
            "messages[0].content[0].reasoning_effort is 'huge': it must be 'Low', 'Medium' or 'High'",
        ),
        (
            '[{"role": "user", "channel": "a b", "content": ""}]',
            "messages[0] cannot be rendered: channel is 'a b': it must be one word",
        ),
        ('[{"role": "tool", "channel": "c", "content": ""}]', "messages[0] cannot be rendered: Tools should"),
        ('[{"role": "user", "content": "\\ud800"}]', "[0].content is '\\ud800': it has a lone surrogate"),
        ('[{"role": "user", "content": NaN}]', "it has NaN, which is no JSON number"),
        ('[{"role": "user", "content": ' + "9" * 5000 + "}]", "a whole number of thousands of digits"),
        ("[" * 5000 + "]" * 5000, "nested"),
        ("[" * 200 + "]" * 200, "nested more than 64 levels deep"),
        (
            '{"tools": [], "messages": [{"role": "user", "channel": "c", "content": ""}]}',
            "tools is a field of Chat Completions, but the messages are harmony's",
        ),
        ("<|im_start|>bot\n<|im_end|>", "message 0 has the role 'bot'"),
        (b"\xff\xfe\x00", "standard input is not UTF-8 text: invalid start byte at byte 1"),
    ],
)
def test_a_wrong_conversation_is_one_line_that_names_the_place(stdin: str | bytes, words: str) -> None:
    done = run("harmony", "render", stdin=stdin)
    assert done.code == 2
    assert done.output == b""
    assert done.error.startswith("gptoss-jax: standard input")
    assert done.error.count("\n") == 1
    assert words in done.error


@pytest.mark.parametrize("name", ["render", "parse", "view"])
def test_files_that_cannot_be_read_are_named(name: str, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "missing.json", "No such file"), (tmp_path, "Is a directory")):
        done = run("harmony", name, str(path))
        assert (done.code, done.output) == (2, b"")
        assert done.error == f"gptoss-jax: cannot read {path}: {done.error.rpartition(': ')[2]}"
        assert words in done.error


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("v.tiktoken", b"hello"),
        ("v.json", b"{"),
        ("v.json", b"{}"),
        ("v.json", b'{"model": {"vocab": {"a": []}}, "added_tokens": [{"content": [], "id": 1}]}'),
        ("v.json", b"[" * 100_000),
    ],
)
def test_a_wrong_vocabulary_is_one_line_that_names_it(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    done = run("harmony", "render", "--vocabulary", str(path), stdin=json.dumps(HARMONY))
    assert (done.code, done.output) == (2, b"")
    assert str(path) in done.error
    assert done.error.count("\n") == 1


WRONG_VALUES = [
    None,
    True,
    7,
    -1.5,
    10**400,
    1e999,
    "",
    "\x00 \n<|end|>",
    "\ud800",
    [],
    [7],
    {},
    {"x": 7},
    [[]],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("document", [HARMONY, CHAT, RESPONSES], ids=["harmony", "chat", "responses"])
def test_wrong_values_at_any_key_are_one_line_and_never_a_stack_trace(document: Any) -> None:
    names = [
        ["view"],
        ["render", "--schema", "improved", "--for", "completion"],
        ["convert", "--to", "chatml"],
        ["render", "--tokens", "--for", "training"],
        ["view", "--side-by-side", "chatml"],
    ]
    failed = 0
    for number, place in enumerate(places(document)):
        for other, value in enumerate(WRONG_VALUES):
            stdin = json.dumps(changed(document, place, value)).replace("Infinity", "1e999")
            name, *options = names[(number + other) % len(names)]
            if name != "convert":
                options += ["--vocabulary", "tiny"]
            done = run("harmony", name, *options, stdin=stdin)
            assert done.code in (0, 2), (place, value)
            if done.code == 2:
                failed += 1
                assert done.output == b""
                assert done.error.count("\n") == 1, (place, value)
    assert failed > 100


@given(st.text() | st.binary())
@settings(deadline=None)
def test_any_input_is_a_conversation_or_one_line(data: str | bytes) -> None:
    stdin = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    done = run("harmony", "view", "--vocabulary", "tiny", stdin=stdin)
    assert done.code in (0, 2)
    assert done.error.count("\n") == (1 if done.code else 0)


# processes


def script(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gptoss_jax.cli", "harmony", *arguments]


def test_the_commands_fit_together_with_pipes(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(HARMONY), encoding="utf-8")
    render = subprocess.Popen(script("render", "--tokens", str(path)), stdout=subprocess.PIPE)
    parse = subprocess.run(script("parse"), stdin=render.stdout, capture_output=True, check=True)
    assert render.wait() == 0
    expected = parse_completion(ENCODING, tokens_of(command("render", "--tokens")), role=None)
    assert json.loads(parse.stdout)["messages"] == [message.to_dict() for message in expected.messages]


def test_a_reader_that_leaves_is_no_reason_for_a_stack_trace() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(script("view"), **pipes)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.write(json.dumps(HARMONY).encode())
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["render"], 0),
        (["parse"], 2),
        (["view", "--side-by-side", "chatml"], 0),
        (["convert", "--to", "chatml"], 0),
        (["view", "--vocabulary", "missing"], 2),
        (["render", "--vocabulary", "tiny"], 0),
    ],
)
def test_no_command_loads_jax_not_even_to_refuse(arguments: list[str], code: int) -> None:
    program = (
        "import sys; from gptoss_jax import cli\n"
        f"code = cli.main(['harmony', *{arguments!r}])\n"
        "heavy = {'jax', 'flax', 'numpy', 'orbax'} & set(sys.modules); assert not heavy, heavy\n"
        f"assert code == {code}, code"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(HARMONY),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_help_loads_nothing_slow() -> None:
    program = (
        "import sys; from gptoss_jax import cli\n"
        "for name in ([], ['render'], ['parse'], ['view'], ['convert']):\n"
        "    try: cli.main(['harmony', *name, '--help'])\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "heavy = {'jax', 'pydantic', 'tiktoken', 'harmony'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: gptoss-jax harmony") == 5
