"""What users of openai-harmony complain about, one test for each complaint; where it was seen in brackets.

"oh" is openai/harmony.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from harmony import (
    Author,
    CallReady,
    ContentDelta,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyError,
    Message,
    MessageFinished,
    ParsedCompletion,
    RecoveringParser,
    RenderConversationConfig,
    Role,
    ToolDescription,
    load_harmony_encoding,
    parse_completion,
)
from harmony.openai_formats import chat_message_from

ENCODING = load_harmony_encoding()


def parse(text: str, role: Role | None = Role.ASSISTANT) -> ParsedCompletion:
    return parse_completion(ENCODING, ENCODING.encode(text, allowed_special="all"), role)


def read(parsed: ParsedCompletion) -> list[tuple[str | None, str | None, str | None, str]]:
    return [(m.channel, m.recipient, m.content_type, m.content[0].text) for m in parsed.messages]


def said(channel: str, text: str, recipient: str | None = None) -> Message:
    message = Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)
    message.recipient = recipient
    return message


def result(name: str, text: str) -> Message:
    return Message.from_author_and_content(Author.new(Role.TOOL, name), text).with_channel("commentary")


def test_a_malformed_header_does_not_raise_keeps_its_text_and_says_what_was_wrong() -> None:
    """[oh#38, #60, #80; vllm#23567, #22515, #43408; llama.cpp#27720]"""
    text = "<|channel|>commentary to=functions.f code here we go<|message|>x<|call|>"
    with pytest.raises(HarmonyError):
        ENCODING.parse_messages_from_completion_tokens(
            ENCODING.encode(text, allowed_special="all"), Role.ASSISTANT
        )
    parsed = parse(text)
    assert [(m.channel, m.recipient) for m in parsed.messages] == [("commentary", "functions.f")]
    assert "code here we go" in str(read(parsed))
    assert [(d.what, d.where) for d in parsed.diagnostics] == [("text_in_header", 0)]
    assert "code here we go" in parsed.diagnostics[0].raw


def test_an_answer_stranded_in_any_messages_header_becomes_its_content() -> None:
    """[vllm#45736, #47062]"""
    parsed = parse(
        "<|channel|>analysis The user asks.<|end|>"
        "<|start|>assistant<|channel|>final The answer is 4.<|return|>"
    )
    assert read(parsed) == [
        ("analysis", None, None, "The user asks."),
        ("final", None, None, "The answer is 4."),
    ]


def test_a_stream_cut_inside_a_header_gives_the_finished_messages_and_is_incomplete() -> None:
    """[oh#33]"""
    parsed = parse("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>fin")
    assert read(parsed) == [("analysis", None, None, "Hm.")]
    assert (parsed.complete, parsed.end) == (False, None)
    parsed = parse(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>The an"
    )
    assert read(parsed)[1] == ("final", None, None, "The an")
    assert (parsed.complete, parsed.end) == (False, None)


@pytest.mark.parametrize(
    ("header", "kind"), [("final <|constrain|>json", "<|constrain|>json"), ("final json", "json")]
)
def test_a_bare_word_after_the_channel_is_the_content_type_not_the_recipient(header: str, kind: str) -> None:
    """[oh#144, #56; vllm#45571]"""
    assert read(parse(f"<|channel|>{header}<|message|>{{}}<|return|>")) == [("final", None, kind, "{}")]


@pytest.mark.parametrize(
    "header",
    [
        "<|constrain|>json to=functions.f<|channel|>commentary",
        "<|channel|>commentary <|constrain|>json to=functions.f",
        "<|channel|>commentary<|constrain|>json to=functions.f<|channel|>commentary",
    ],
)
def test_headers_are_read_in_any_order_and_with_the_channel_twice(header: str) -> None:
    parsed = parse(f"{header}<|message|>{{}}<|call|>")
    assert read(parsed) == [("commentary", "functions.f", "<|constrain|>json", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
    ],
)
def test_the_place_of_the_recipient_is_kept_when_history_is_rendered(text: str) -> None:
    """[oh#27, #49, #81, #114]"""
    (message,) = parse(text, None).messages
    assert ENCODING.decode(ENCODING.render(message)) == text


def test_control_tokens_never_become_part_of_a_tools_name() -> None:
    """[vllm#35906, ollama#11704]"""
    parsed = parse("<|channel|>commentary to=functions.get<|channel|>commentary<|message|>{}<|call|>")
    assert parsed.messages[0].recipient == "functions.get"
    parsed = parse(" to=functions.get<|constrain|>json<|channel|>commentary<|message|>{}<|call|>")
    assert (parsed.messages[0].recipient, parsed.messages[0].channel) == ("functions.get", "commentary")
    with pytest.raises(HarmonyError, match="it must be one word"):
        ENCODING.render(said("commentary", "{}", "functions.get<|channel|>commentary"))


def test_a_completion_may_repeat_its_start() -> None:
    parsed = parse("<|start|>assistant<|channel|>final<|message|>4<|return|>")
    assert read(parsed) == [("final", None, None, "4")]
    assert parsed.diagnostics == []


@pytest.mark.parametrize(
    "message",
    [
        result("functions.f", "5 °C"),
        Message.from_author_and_content(Author.new(Role.USER, "alice"), "hi"),
    ],
)
def test_every_rendered_message_is_parsed_back(message: Message) -> None:
    """[oh#62, #63]"""
    parsed = parse_completion(ENCODING, ENCODING.render(message), None)
    assert parsed.messages == [message]
    assert parsed.diagnostics == []


def test_tokens_after_a_stop_token_are_tolerated() -> None:
    """[vllm#50690]"""
    parsed = parse("<|channel|>final<|message|>4<|return|><|endoftext|>\n")
    assert read(parsed) == [("final", None, None, "4")]
    assert parsed.complete
    assert {d.what for d in parsed.diagnostics} == {"tokens_after_stop"}


def test_an_unknown_token_is_one_replacement_character_and_the_text_goes_on() -> None:
    tokens = ENCODING.encode("<|channel|>final<|message|>a", allowed_special="all")
    parsed = parse_completion(ENCODING, [*tokens, 250_000, *ENCODING.encode("bc"), ENCODING.return_])
    assert read(parsed) == [("final", None, None, "a\ufffdbc")]


def test_a_start_inside_content_begins_a_message_and_final_text_stays_out_of_analysis() -> None:
    parsed = parse(
        "<|channel|>analysis<|message|>Hm. <|start|>assistant<|channel|>final<|message|>4<|return|>"
    )
    assert read(parsed) == [("analysis", None, None, "Hm. "), ("final", None, None, "4")]


def test_the_deltas_add_up_to_the_content_also_when_the_last_character_is_cut() -> None:
    tokens = ENCODING.encode("<|channel|>final<|message|>ok", allowed_special="all")
    cut = ENCODING.encode_ordinary("𝒳")[:-1]
    parser = RecoveringParser(ENCODING)
    events = [event for token in [*tokens, *cut] for event in parser.feed([token])] + parser.finish()
    deltas = "".join(event.text for event in events if isinstance(event, ContentDelta))
    assert deltas == read(parser.completion)[0][3] == "ok\ufffd"


HISTORY = [
    Message.from_role_and_content(Role.USER, "q1"),
    said("analysis", "a1"),
    said("final", "f1"),
    Message.from_role_and_content(Role.USER, "q2"),
    said("analysis", "a2"),
    said("final", "f2"),
]


@pytest.mark.parametrize(
    ("policy", "kept"), [("compatible", "a2 f1 f2"), ("guide", "f1 f2"), ("none", "a1 a2 f1 f2")]
)
def test_how_much_chain_of_thought_is_dropped_has_a_name(policy: Any, kept: str) -> None:
    """[oh#96; vllm#35907]"""
    config = RenderConversationConfig(analysis_policy=policy)
    text = ENCODING.decode(ENCODING.render_conversation(Conversation.from_messages(HISTORY), config))
    assert sorted(word for word in ("a1", "a2", "f1", "f2") if f"<|message|>{word}<" in text) == kept.split()


def test_a_dropped_call_takes_its_result_along() -> None:
    messages = [said("analysis", "print(1)", "python"), result("python", "1"), said("final", "One.")]
    config = RenderConversationConfig(analysis_policy="guide")
    tokens = ENCODING.render_conversation(Conversation.from_messages(messages), config)
    assert tokens == ENCODING.render(messages[2])


def test_loading_needs_no_network_and_no_file_from_outside() -> None:
    """[oh#46, #95, #101; vllm#22525; sglang#18074]"""
    script = (
        "import socket, os\n"
        "def refuse(*arguments, **named): raise OSError('no network')\n"
        "socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse\n"
        "for name in list(os.environ):\n"
        "    if 'TIKTOKEN' in name: del os.environ[name]\n"
        "import harmony; print(harmony.load_harmony_encoding().encode('Hello'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[13225]"


def test_model_dump_keeps_the_content() -> None:
    """[oh#78; vllm#26185]"""
    developer = DeveloperContent.new().with_instructions("Be brief.")
    message = Message.from_role_and_content(Role.DEVELOPER, developer).adding_content("And kind.")
    dumped = message.model_dump()
    assert dumped["content"][0]["instructions"] == "Be brief."
    assert dumped["content"][1]["text"] == "And kind."
    assert Message.model_validate(dumped) == message
    assert Message.model_validate_json(message.model_dump_json()) == message


def test_other_threads_run_during_a_long_render() -> None:
    """[oh#110, #111, #87; vllm#38318, #49471]"""
    steps: list[int] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            steps.append(len(steps))
            time.sleep(0.001)

    message = Message.from_role_and_content(Role.USER, "The quick brown fox, 12 times. " * 200_000)
    ENCODING.encode("ready")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread that holds the interpreter now keeps it
    thread = threading.Thread(target=work)
    try:
        thread.start()
        before = len(steps)
        ENCODING.render(message)
        after = len(steps)
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert after > before


def test_messages_can_be_rendered_one_by_one_and_their_tokens_kept() -> None:
    config = RenderConversationConfig(auto_drop_analysis=False)
    whole = ENCODING.render_conversation(Conversation.from_messages(HISTORY), config)
    assert whole == [token for message in HISTORY for token in ENCODING.render(message)]


def test_several_tokens_at_a_step_give_the_same_messages_and_text() -> None:
    """[vllm#30204, #26291, #37070]"""
    tokens = ENCODING.encode(
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>4 it is.<|return|>",
        allowed_special="all",
    )
    for size in range(1, len(tokens) + 1):
        parser = RecoveringParser(ENCODING)
        events = [e for i in range(0, len(tokens), size) for e in parser.feed(tokens[i : i + size])]
        deltas = [event for event in events if isinstance(event, ContentDelta)]
        texts = ["".join(d.text for d in deltas if d.number == number) for number in (0, 1)]
        assert texts == ["Hm.", "4 it is."]
        assert [e.message.channel for e in events if isinstance(e, MessageFinished)] == ["analysis", "final"]


@pytest.mark.parametrize("channel", ["analysis", "commentary", "final"])
@pytest.mark.parametrize("recipient", ["functions.f", "f"])
def test_a_call_is_a_call_on_any_channel_and_by_a_bare_name(channel: str, recipient: str) -> None:
    """[vllm#28139, #42454; sglang#12713]"""
    parser = RecoveringParser(ENCODING)
    text = f"<|channel|>{channel} to={recipient}<|message|>{{}}<|call|>"
    events = parser.feed(ENCODING.encode(text, allowed_special="all"))
    (call,) = [event for event in events if isinstance(event, CallReady)]
    answer = chat_message_from([call.message], call_id=str)
    assert answer["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_a_tool_needs_no_description() -> None:
    """[vllm#44686]"""
    developer = DeveloperContent.new().with_function_tools([ToolDescription(name="now")])
    text = ENCODING.decode(ENCODING.render(Message.from_role_and_content(Role.DEVELOPER, developer)))
    assert "namespace functions {\n\ntype now = () => any;\n\n}" in text


@pytest.mark.parametrize("word", ["a<|message|>", "a b", "a\n", "<|end|>"])
def test_special_tokens_and_spaces_in_header_words_are_refused(word: str) -> None:
    """[transformers#29279]"""
    for message in (
        said(word, "x"),
        said("commentary", "x", word),
        result(word, "x"),
        said("final", "x").with_content_type("json\n" + word),
    ):
        with pytest.raises(HarmonyError, match=r"it must be (one word|words)"):
            ENCODING.render(message)


@pytest.mark.parametrize("run", ["a" * 2_000_000, " " * 2_000_000 + "x", "\n" * 2_000_000 + "x"])
def test_long_runs_neither_take_for_ever_nor_crash(run: str, encoding: HarmonyEncoding) -> None:
    tokens = encoding.render(Message.from_role_and_content(Role.USER, run))
    assert encoding.decode(tokens) == f"<|start|>user<|message|>{run}<|end|>"
