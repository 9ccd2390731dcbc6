"""Laws of the recovering parser, and the malformed turns that models are known to produce."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harmony import (
    Author,
    CallReady,
    Content,
    ContentDelta,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyError,
    Message,
    MessageFinished,
    MessageStarted,
    ParsedCompletion,
    RecoveringParser,
    Role,
    Stopped,
    SystemContent,
    TextContent,
    load_harmony_encoding,
    parse_completion,
)
from harmony.recovered_header import CONTENT_TYPES
from tests.harmony import generators as generate

ENCODING = load_harmony_encoding()
SLOW = pytest.mark.slow

# One word of a header: no white space, no delimiter of a special token.
WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda word: not re.search(r"\s|<\||\|>", word) and word == "".join(word.split()) and word[:3] != "to="
)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from(generate.WORDS)).map(" ".join),
)
ROLE_WORDS = {"system", "developer", "user", "assistant"}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(Role))
    if role is Role.TOOL:
        name = draw(WORD.filter(lambda word: word.split(":")[0] not in ROLE_WORDS))
    else:
        name = draw(st.none() | WORD)
    message = Message.from_author_and_content(Author(role=role, name=name), draw(TEXT))
    message.channel = draw(st.none() | st.sampled_from(["analysis", "commentary", "final"]) | WORD)
    message.recipient = draw(st.none() | WORD.filter(lambda word: word != "all"))
    types = st.none() | WORD.map("<|constrain|>".__add__) | WORD.map("<|constrain|> ".__add__)
    is_call = message.recipient is not None and message.channel != "final"
    if role is Role.ASSISTANT and message.channel in ("commentary", "final") and not is_call:
        message.content_type = draw(types | st.sampled_from(sorted(CONTENT_TYPES)))
    else:
        message.content_type = draw(types | WORD)
    return message


def text_of(message: Message) -> str:
    (part,) = message.content
    assert isinstance(part, TextContent)
    return part.text


def parse(text: str, role: Role | None = Role.ASSISTANT) -> ParsedCompletion:
    return parse_completion(ENCODING, ENCODING.encode(text, allowed_special="all"), role)


@given(st.lists(messages(), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_parsing_what_was_rendered_gives_the_messages_back(originals: list[Message]) -> None:
    tokens = [token for message in originals for token in ENCODING.render(message)]
    parsed = parse_completion(ENCODING, tokens, role=None)
    assert parsed.messages == originals
    assert parsed.complete
    assert parsed.diagnostics == []


ANY_WORD = (
    st.text(max_size=8)
    | WORD
    | st.lists(
        st.sampled_from(["a", " ", "to=", "<|end|>", "<|", "|>", ":", "<", "user", "\u2028", "\x1c"])
    ).map("".join)
)


def is_surely_type(message: Message) -> bool:
    """Whether the content type comes back: it is one word, and where users read it no word of an answer."""
    constrained = (message.content_type or "").startswith("<|constrain|>")
    words = (message.content_type or "").removeprefix("<|constrain|>").split(" ")
    is_call = message.recipient is not None and message.channel != "final"
    is_read = message.author.role is Role.ASSISTANT and message.channel in ("commentary", "final")
    is_usual = constrained or is_call or not is_read or words[0] in CONTENT_TYPES
    return message.content_type is None or (is_usual and len(words) == 1)


def squeezed(message: Message) -> str:
    return "".join(f"{message.content_type or ''}{text_of(message)}".split())


@given(messages(), ANY_WORD, ANY_WORD, ANY_WORD, ANY_WORD)
@settings(max_examples=200, deadline=None)
def test_any_message_is_refused_or_comes_back(
    message: Message, name: str, channel: str, recipient: str, content_type: str
) -> None:
    changes = {"channel": channel, "recipient": recipient, "content_type": content_type}
    author = Author(role=message.author.role, name=name)
    for change in ({"author": author}, *({key: value} for key, value in changes.items()), changes):
        changed = message.model_copy(update=change)
        try:
            tokens = ENCODING.render(changed)
        except (HarmonyError, ValueError):
            continue
        if changed.recipient == "all":  # is not written, as in openai-harmony
            changed = changed.model_copy(update={"recipient": None})
        (read,) = parse_completion(ENCODING, tokens, role=None).messages
        if not is_surely_type(changed):
            assert squeezed(read) == squeezed(changed)  # such words may be text, and are read as text
            read.content, read.content_type = changed.content, changed.content_type
        assert read == changed


@given(
    st.sampled_from([Role.SYSTEM, Role.DEVELOPER]),
    st.lists(TEXT | st.just(SystemContent.new()) | st.just(DeveloperContent.new().with_instructions("x"))),
)
@settings(max_examples=100, deadline=None)
def test_several_contents_come_back_as_one_text(role: Role, contents: list[str | Content]) -> None:
    fits = {Role.SYSTEM: (str, SystemContent), Role.DEVELOPER: (str, DeveloperContent)}[role]
    parts = [
        TextContent(text=part) if isinstance(part, str) else part
        for part in contents
        if isinstance(part, fits)
    ]
    (message,) = parse_completion(
        ENCODING, ENCODING.render(Message.from_role_and_contents(role, parts)), role=None
    ).messages
    alone = [
        text_of(
            *parse_completion(
                ENCODING, ENCODING.render(Message.from_role_and_content(role, part)), None
            ).messages
        )
        for part in parts
    ]
    assert text_of(message) == "".join(alone)
    for part, text in zip(parts, alone, strict=True):
        if isinstance(part, TextContent):
            assert text == part.text
        else:
            assert text


@given(messages(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_truncated_stream_gives_the_finished_messages_and_the_start_of_the_last(
    last: Message, data: st.DataObject
) -> None:
    first = Message.from_role_and_content(Role.USER, "hi")
    whole = ENCODING.render(first) + ENCODING.render(last)
    cut = data.draw(st.integers(len(ENCODING.render(first)) + 1, len(whole) - 1))
    parsed = parse_completion(ENCODING, whole[:cut], role=None)
    assert not parsed.complete
    assert parsed.messages[0] == first
    assert "truncated" in {diagnostic.what for diagnostic in parsed.diagnostics}
    if ENCODING.message in whole[cut - 1 : cut] or whole[:cut].count(ENCODING.message) == 2:
        partial = parsed.messages[1]
        # A character cut in the middle shows as U+FFFD.
        assert text_of(last).startswith(text_of(partial).rstrip("\ufffd"))
        assert partial.model_copy(update={"content": last.content}) == last


def random_streams(count: int) -> Iterator[list[int]]:
    """Streams of special tokens, header words, sentences and bytes of characters, in any order."""
    e = ENCODING
    special = [e.start, e.channel, e.constrain, e.message, e.end, e.return_, e.call, e.end_of_text, 200010]
    words = ["assistant", "analysis", "final", " commentary", " to=functions.f", " to=", "json", "user", "\n"]
    for seed in range(count):
        random = Random(seed)
        tokens: list[int] = []
        for number in range(random.randrange(14)):
            match random.randrange(7):
                case 0 | 1:
                    tokens.append(random.choice(special))
                case 2:
                    tokens += e.encode(random.choice(words))
                case 3:
                    tokens += e.encode(f" zq{number}z")
                case 4:
                    tokens += e.encode("".join(f" zq{number}x{i}z" for i in range(12)))
                case 5:
                    channel = random.choice(("analysis", "final", "final", "commentary to=functions.f"))
                    tokens += e.encode(f"<|channel|>{channel}<|message|>", allowed_special="all")
                case 6:
                    tokens.append(random.choice([9552, 240, 188, -1, 201_500, 10**9]))
        yield tokens


@pytest.mark.parametrize("count", [3000, pytest.param(20_000, marks=SLOW)])
def test_no_stream_raises_or_loses_a_word(count: int) -> None:
    for number, tokens in enumerate(random_streams(count)):
        role = (None, Role.ASSISTANT, Role.TOOL)[number % 3]
        parsed = parse_completion(ENCODING, tokens, role)
        contents = " ".join(map(text_of, parsed.messages))
        anywhere = contents + " ".join(str(message.to_dict()) for message in parsed.messages)
        anywhere += " ".join(diagnostic.raw for diagnostic in parsed.diagnostics)
        markers = re.findall(r"zq\d+z|zq\d+x\d+z", ENCODING.decode(t for t in tokens if 0 <= t < 200_000))
        for marker in markers:
            # A word may be read as part of a header; a sentence is never.
            assert marker in (contents if "x" in marker else anywhere), (tokens, role, marker)


def announced_as_final(tokens: list[int]) -> str:
    """The text that the model wrote after `<|channel|>final`, up to another channel, message or stop."""
    boundaries = {ENCODING.start, ENCODING.end, ENCODING.return_, ENCODING.call, ENCODING.end_of_text}
    is_final = False
    kept = []
    for index, token in enumerate(tokens):
        if token in boundaries:
            is_final = False
        elif token == ENCODING.channel:
            following = ENCODING.decode(t for t in tokens[index + 1 : index + 2] if 0 <= t < 201_000)
            if following.strip() in ("analysis", "commentary", "final"):
                is_final = following.strip() == "final"
        if not is_final:
            kept.append("|")
        elif 0 <= token < 199_998:
            kept.append(ENCODING.decode([token]))
    return "".join(kept)


def test_analysis_glued_to_a_word_inside_final_is_not_final() -> None:
    thought = "<|channel|>analysisassistant " + "the secret thought goes on " * 20
    tokens = ENCODING.encode("<|channel|>final<|message|>Hello" + thought, allowed_special="all")
    messages = parse_completion(ENCODING, tokens).messages
    assert [(message.channel, "secret" in text_of(message)) for message in messages] == [
        ("final", False),
        ("analysis", True),
    ]


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=SLOW)])
def test_text_is_final_only_where_the_model_said_so_before_it(count: int) -> None:
    finals = 0
    for tokens in random_streams(count):
        announced = announced_as_final(tokens)
        for message in parse_completion(ENCODING, tokens).messages:
            if message.author.role is Role.ASSISTANT and message.channel == "final":
                said = re.findall(r"zq\d+(?:x\d+)?z", text_of(message))
                finals += bool(said)
                assert all(marker in announced for marker in said), tokens
    assert finals > count // 80


@pytest.mark.parametrize("seeds", [range(4000), pytest.param(range(4000, 104_000), marks=SLOW)], ids=len)
def test_every_stream_parses_to_messages_that_can_be_rendered_and_read_back(seeds: range) -> None:
    """And no text of it is lost: it stands in a message, or in a diagnostic."""
    for seed in seeds:
        random = Random(seed)
        tokens = generate.broken_stream(random, ENCODING)
        role = random.choice((None, None, *Role))
        parsed = parse_completion(ENCODING, tokens, role)
        for message in parsed.messages:
            rendered = ENCODING.render(message)
            assert parse_completion(ENCODING, rendered, None).messages == [message], (seed, message)
        kept = "".join(str(said(message)) for message in parsed.messages)
        kept += "".join(diagnostic.raw for diagnostic in parsed.diagnostics)
        texts = (ENCODING.token_bytes(token) if 0 <= token < 199_998 else b" " for token in tokens)
        runs = "".join([(text or b"").decode(errors="replace") for text in texts])
        for word in re.findall(r"\w+", re.sub(r"to=(all\b)?", " ", runs)):
            assert word in kept, (seed, word)


def said(message: Message) -> list[str]:
    """Everything that a message says."""
    author, header = message.author, (message.channel, message.recipient, message.content_type)
    return [author.role.value, author.name or "", *(part or "" for part in header), text_of(message)]


def test_events_add_up_to_the_messages_however_the_stream_is_cut() -> None:
    for seed, tokens in enumerate(random_streams(600)):
        random = Random(seed)
        parser = RecoveringParser(ENCODING)
        events = []
        rest = tokens
        while rest:
            size = random.randrange(1, 5)
            events += parser.feed(rest[:size])
            rest = rest[size:]
        events += parser.finish()
        assert parser.completion == parse_completion(ENCODING, tokens)

        started = [event for event in events if isinstance(event, MessageStarted)]
        finished = [event for event in events if isinstance(event, MessageFinished)]
        assert [event.number for event in started] == list(range(len(started)))
        assert [event.message for event in finished] == parser.completion.messages
        assert [event.number for event in finished] == list(range(len(started)))
        for event, end in zip(started, finished, strict=True):
            deltas = [d for d in events if isinstance(d, ContentDelta) and d.number == event.number]
            assert "".join(delta.text for delta in deltas) == text_of(end.message)
            assert {(d.channel, d.recipient) for d in deltas} <= {(event.channel, event.recipient)}
            assert end.message.channel == event.channel


SPECIAL = [ENCODING.start, ENCODING.channel, ENCODING.constrain, ENCODING.message, ENCODING.end]
SPECIAL += [ENCODING.return_, ENCODING.call, ENCODING.end_of_text]
TOKENS = st.lists(
    st.sampled_from(SPECIAL)
    | st.integers(-3, 202_000)
    | st.sampled_from(ENCODING.encode("assistant final analysis commentary to=functions.f json 😊 𝒳 ไ")),
    max_size=60,
)


@given(TOKENS, st.lists(st.integers(1, 7), min_size=1), st.sampled_from([None, *Role]))
@settings(max_examples=500, deadline=None)
def test_no_stream_raises_and_its_deltas_add_up(
    tokens: list[int], sizes: list[int], role: Role | None
) -> None:
    parser = RecoveringParser(ENCODING, role)
    events = []
    rest = tokens
    for size in itertools.cycle(sizes):
        events += parser.feed(rest[:size])
        rest = rest[size:]
        if not rest:
            break
    events += parser.finish()
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, ContentDelta):
            assert event.text
            texts[event.number] = texts.get(event.number, "") + event.text
    messages = parser.completion.messages
    assert [texts.get(number, "") for number in range(len(messages))] == list(map(text_of, messages))
    assert parser.completion == parse_completion(ENCODING, tokens, role)


def test_sampling_loops_learn_of_calls_and_of_the_end() -> None:
    text = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    events = RecoveringParser(ENCODING).feed(ENCODING.encode(text, allowed_special="all"))
    assert [type(event) for event in events] == [
        MessageStarted,
        ContentDelta,
        MessageFinished,
        CallReady,
        Stopped,
    ]
    assert events[-1] == Stopped("<|call|>")


def test_a_character_split_over_tokens_comes_in_one_delta() -> None:
    tokens = ENCODING.encode("<|channel|>final<|message|>", allowed_special="all")
    smile = ENCODING.encode("😊" * 2)
    split = [ENCODING.encode_ordinary("x")[0], *(t for t in smile)]
    parser = RecoveringParser(ENCODING)
    parser.feed(tokens)
    deltas = [event.text for token in split for event in parser.feed([token])]
    assert "".join(deltas) == "x😊😊"
    assert "\ufffd" not in "".join(deltas)


@pytest.mark.parametrize("channel", ["", "analysis"])
@pytest.mark.parametrize("before", range(55, 70))
def test_a_long_possible_header_cuts_no_character(before: int, channel: str) -> None:
    said = f"<|channel|>final<|message|>a<|channel|>{channel}{' x' * before}👋🏾🫠 and on<|return|>"
    messages = parse(said).messages
    text = "".join(map(text_of, messages))
    assert "👋🏾🫠 and on" in text and "\ufffd" not in text
    assert [message.channel for message in messages] == ["final", "analysis"][: 1 + bool(channel)]


CASES = [
    # (what the model wrote after `<|start|>assistant`, (channel, recipient, content type, text)…, problems)
    (
        "I must refuse<|end|><|start|>assistant<|channel|>final<|message|>No.<|return|>",
        [(None, None, None, "I must refuse"), ("final", None, None, "No.")],
        {"missing_message", "text_in_header"},
    ),
    (
        "<|channel|>analysis I must refuse<|end|><|start|>assistant<|channel|>final<|message|>No.<|return|>",
        [("analysis", None, None, "I must refuse"), ("final", None, None, "No.")],
        {"missing_message", "text_in_header"},
    ),
    (
        "<|channel|>final json<|message|>{}<|return|>",
        [("final", None, "json", "{}")],
        set(),
    ),
    (
        "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
        [("final", None, "<|constrain|>json", "{}")],
        set(),
    ),
    (
        "<|constrain|>json to=functions.f<|channel|>commentary<|message|>{}<|call|>",
        [("commentary", "functions.f", "<|constrain|>json", "{}")],
        set(),
    ),
    (
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
        [("commentary", "functions.f", "<|constrain|>json", "{}")],
        set(),
    ),
    (
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>",
        [("commentary", "functions.f", "<|constrain|>json", "{}")],
        set(),
    ),
    (
        '<|channel|>commentary to=functions.f {"a": 1}<|call|>',
        [("commentary", "functions.f", None, '{"a": 1}')],
        {"missing_message", "text_in_header"},
    ),
    (
        '<|channel|>commentary to=functions.f <|constrain|>json{"a": 1}<|call|>',
        [("commentary", "functions.f", "<|constrain|>json", '{"a": 1}')],
        {"missing_message", "text_in_header"},
    ),
    (
        "<|channel|>analysis<|channel|>final<|message|>x<|return|>",
        [("analysis", None, None, "x")],
        {"two_channels"},
    ),
    (
        "<|start|>assistant<|channel|>final<|message|>x<|return|>",
        [("final", None, None, "x")],
        set(),
    ),
    (
        "<|channel|>analysis<|message|>a <|start|>assistant<|channel|>final<|message|>b<|return|>",
        [("analysis", None, None, "a "), ("final", None, None, "b")],
        {"missing_end"},
    ),
    (
        "<|channel|>analysis<|message|>a <|channel|>final<|message|>b<|return|>",
        [("analysis", None, None, "a "), ("final", None, None, "b")],
        {"missing_end"},
    ),
    (
        "<|channel|>analysis<|message|>a <|start|>so it goes<|end|>",
        [("analysis", None, None, "a "), ("analysis", None, None, "so it goes")],
        {"missing_end", "missing_message", "missing_role", "text_in_header"},
    ),
    (
        "<|channel|>final<|message|>Hi. <|channel|>analysis The user wants<|return|>",
        [("final", None, None, "Hi. "), ("analysis", None, None, "The user wants")],
        {"missing_end", "missing_message"},
    ),
    (
        "<|channel|>final<|message|>the token <|channel|> means a channel<|return|>",
        [("final", None, None, "the token <|channel|> means a channel")],
        {"special_token_in_content"},
    ),
    (
        "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>",
        [("analysis", None, None, "a"), ("final", None, None, "b")],
        {"missing_start"},
    ),
    (
        "Let me think about it <|channel|>final<|message|>b<|return|>",
        [(None, None, None, "Let me think about it"), ("final", None, None, "b")],
        {"text_in_header"},
    ),
    (
        "<|channel|>final<|message|>b<|return|><|endoftext|><|endoftext|>\n",
        [("final", None, None, "b")],
        {"tokens_after_stop"},
    ),
    (
        "<|channel|>final<|message|>b<|endoftext|>",
        [("final", None, None, "b")],
        {"ended_by_endoftext"},
    ),
]


@pytest.mark.parametrize(("text", "expected", "problems"), CASES, ids=[case[0][:60] for case in CASES])
def test_known_malformed_turns_are_read_as_meant(text: str, expected: list, problems: set[str]) -> None:
    parsed = parse(text)
    read = [(m.channel, m.recipient, m.content_type, text_of(m)) for m in parsed.messages]
    assert read == expected
    assert {diagnostic.what for diagnostic in parsed.diagnostics} == problems
    assert all(message.author.role is Role.ASSISTANT for message in parsed.messages)
    assert parsed.complete


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("", []),
        ("<|channel|>fin", []),
        ("<|channel|>final<|message|>4<|end|><|start|>assis", ["4"]),
        ("<|channel|>final<|message|>4<|end|><|start|>assistant<|channel|>comm", ["4"]),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", ["a", "b"]),
        ("The whole answer without any header", ["The whole answer without any header"]),
    ],
)
def test_a_cut_turn_says_that_it_is_incomplete(text: str, contents: list[str]) -> None:
    parsed = parse(text)
    assert [text_of(message) for message in parsed.messages] == contents
    assert not parsed.complete
    assert parsed.end is None


def test_an_unknown_token_costs_one_character() -> None:
    tokens = ENCODING.encode("<|channel|>final<|message|>a", allowed_special="all")
    tokens += [10**9, *ENCODING.encode("b")]
    parsed = parse_completion(ENCODING, [*tokens, ENCODING.return_])
    assert text_of(parsed.messages[0]) == "a\ufffdb"
    (diagnostic,) = parsed.diagnostics
    assert (diagnostic.what, diagnostic.where) == ("unknown_token", 4)


def test_the_end_token_is_told(encoding: HarmonyEncoding) -> None:
    assert parse("<|channel|>final<|message|>b<|return|>").end == "<|return|>"
    assert parse("<|channel|>commentary to=f<|message|>b<|call|>").end == "<|call|>"
    assert parse("<|channel|>analysis<|message|>b<|end|>").end == "<|end|>"


def test_a_tool_that_quotes_a_channel_token_does_not_speak_as_the_assistant() -> None:
    text = "<|start|>functions.f to=assistant<|message|>a<|channel|>final<|message|>b<|end|>"
    (message,) = parse(text, role=None).messages
    assert message.author == Author(role=Role.TOOL, name="functions.f")
    assert text_of(message) == "a<|channel|>final<|message|>b"


@pytest.mark.parametrize(
    "unit", ["<|channel|>x", "<|channel|>final x to=y ", "<|start|>", "a<|constrain|>", "a "]
)
@pytest.mark.parametrize("prefix", ["", "<|channel|>final<|message|>"])
def test_twenty_thousand_repetitions_leave_few_copies_of_the_text(unit: str, prefix: str) -> None:
    tokens = ENCODING.encode(prefix, allowed_special="all")
    tokens += ENCODING.encode(unit, allowed_special="all") * 20_000
    parsed = parse_completion(ENCODING, tokens)
    kept = sum(len(text_of(message)) for message in parsed.messages)
    kept += sum(len(raw) for raw in {diagnostic.raw for diagnostic in parsed.diagnostics})
    assert kept < 20 * len(ENCODING.decode(tokens)) + 1000
