"""What a header guard allows, token by token, and how it works with a request's other limits."""

from __future__ import annotations

import random

import numpy as np
import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine import ChannelLimit, Request, RequestError, SamplingParams
from gptoss_jax.engine.grammar import GrammarError, HeaderGuard
from gptoss_jax.engine.grammar.headers import HeaderMatcher, compile_headers
from gptoss_jax.engine.output_processor import OutputProcessor
from gptoss_jax.vocabulary import load_encoding_for
from harmony import (
    ChannelConfig,
    Conversation,
    DeveloperContent,
    Message,
    Role,
    SystemContent,
    ToolDescription,
    ToolNamespaceConfig,
)
from tests.engine.grammar_schemas import allowed
from tests.engine.processors import encode, encoding, make_processor, words

TINY = load_encoding_for(open_checkpoint("tiny"))
ROWS = TINY.size + 65
TOOLS = ("functions.look", "functions.look_up", "functions.l.o-k_" + "z" * 64, "browser.search", "python")
GUARD = HeaderGuard(TOOLS)
START = "<|start|>assistant"


def tiny(text: str) -> list[int]:
    return TINY.encode(text, allowed_special="all")


def matcher(guard: HeaderGuard = GUARD, prompt: str = f"<|start|>user<|message|>Hi<|end|>{START}"):
    return HeaderMatcher(compile_headers(guard, TINY, ROWS), tiny(prompt))


def refused_at(text: str, guard: HeaderGuard = GUARD) -> str | None:
    """The text from the first token on that is refused; None if all may come."""
    tokens, follower = tiny(text), matcher(guard)
    for index, token in enumerate(tokens):
        if not follower.take(token):
            return TINY.decode(tokens[index:])
    return None


VALID = [
    "<|channel|>final<|message|>4<|return|>",
    "<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
    "<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=python<|message|>1<|call|>",
    "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
    "<|channel|>final json<|message|>{}<|return|>",
    *(
        f"{header} {kind}<|message|>{{}}<|call|>".replace("  ", " ").replace(" <|message|>", "<|message|>")
        for header in (
            "<|channel|>commentary to=functions.look",
            "<|channel|>analysis to=functions.look_up",
            " to=browser.search<|channel|>commentary",
            f" to={TOOLS[2]}<|channel|>analysis",
        )
        for kind in ("", "<|constrain|>json", "json", "code")
    ),
    "<|channel|>commentary to=functions.look<|constrain|>json<|message|>{}<|call|>",
]


@pytest.mark.parametrize("text", VALID)
def test_what_the_published_model_writes_may_come_and_needs_no_mask(text: str) -> None:
    assert refused_at(text) is None
    follower = matcher()
    for token in tiny(text):
        assert follower.mask() is None
        follower.take(token)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<|message|>4", "<|message|>4"),
        ("<|channel|><|message|>4", "<|message|>4"),
        ("Hello<|message|>", "Hello<|message|>"),
        ("<|start|>user<|message|>", "<|start|>user<|message|>"),
        ("<|channel|>thoughts<|message|>", None),
        ("<|channel|>final to=python<|message|>", " to=python<|message|>"),
        ("<|channel|>commentary to=functions.loo<|message|>", "<|message|>"),
        ("<|channel|>commentary to=functions.look<|channel|>", "<|channel|>"),
        ("<|channel|>commentary to=functions.look<|constrain|>xml<|message|>", "xml<|message|>"),
        ("<|channel|>commentary to=python to=python<|message|>", None),
        ("<|channel|>commentary<|constrain|>json<|message|>", "<|constrain|>json<|message|>"),
        ("<|channel|>analysis json<|message|>", None),
        ("<|channel|>analysis<|message|>a<|return|>", "<|return|>"),
        ("<|channel|>analysis<|message|>a<|start|>assistant", "<|start|>assistant"),
        ("<|channel|>final<|message|>a<|end|>", "<|end|>"),
        ("<|channel|>final<|message|>a<|constrain|>", "<|constrain|>"),
        (" to=python<|channel|>commentary<|message|>1<|return|>", "<|return|>"),
        (" to=python<|message|>", "<|message|>"),
        (" to=python<|channel|>final<|message|>", None),
        ("<|channel|>analysis<|message|>a<|end|><|channel|>final", "<|channel|>final"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>user", "user"),
    ],
)
def test_what_is_none_of_that_is_refused_where_it_begins(text: str, rest: str | None) -> None:
    refused = refused_at(text)
    assert refused is not None
    assert rest is None or refused == rest


def test_undeclared_tools_are_refused_even_where_a_declared_one_begins_or_ends_so() -> None:
    for name in ("functions.l", "functions.look_u", "functions.look_upp", "look", "python.run", "pytho"):
        assert refused_at(f"<|channel|>commentary to={name} <|constrain|>json<|message|>") is not None
    assert refused_at(" to=python<|channel|>analysis<|message|>", HeaderGuard()) is not None


def test_the_mask_is_exactly_the_tokens_that_would_be_taken() -> None:
    chance, points = random.Random(3), 0
    while points < 12:
        follower = matcher()
        taken: list[int] = []
        while len(taken) < 30:
            begun = f"{START}{TINY.decode(taken)}"
            if not follower.take(TINY.end_of_text):
                mask = follower.mask()
                assert mask is not None
                assert mask.shape == ((ROWS + 31) // 32,) and mask.dtype == np.uint32
                ids = allowed(mask).tolist()
                if begun.endswith("<|message|>"):  # a wrong end of the content was refused
                    assert len(ids) == 1
                elif chance.random() < 0.2:
                    one_by_one = [id for id in range(-1, ROWS + 40) if matcher(prompt=begun).take(id)]
                    assert ids == one_by_one
                    points += 1
                taken.append(chance.choice(ids))
                assert follower.take(taken[-1])
            if taken and taken[-1] in (TINY.return_, TINY.call):
                break


def test_in_content_a_special_token_makes_room_for_text_and_a_wrong_end_for_the_right_one() -> None:
    for header, end in (
        ("<|channel|>analysis<|message|>", "<|end|>"),
        ("<|channel|>final<|message|>", "<|return|>"),
        (" to=python<|channel|>commentary<|message|>", "<|call|>"),
    ):
        (right,) = tiny(end)
        follower = matcher(prompt=f"{START}{header}")
        assert not follower.take(TINY.constrain)
        ids = set(allowed(follower.mask()).tolist())
        assert ids == {*range(len(TINY.ordinary_tokens)), right}
        assert follower.take(5) and follower.mask() is None and not follower.corrects
        ends = {*TINY.stop_tokens(), TINY.end_of_text, TINY.start, TINY.channel}
        for wrong in ends - {right}:
            assert not follower.take(wrong) and follower.corrects
            assert allowed(follower.mask()).tolist() == [right]
            assert set(allowed(follower.mask(banned=[right])).tolist()) == ids
        assert follower.take(right)


def test_a_prompt_may_leave_an_allowed_message_open_and_no_other() -> None:
    assert matcher(prompt=f"{START}<|channel|>commentary to=functions.look").take(TINY.message)
    assert matcher(prompt=f"{START}<|channel|>analysis<|message|>so far<|end|>").take(TINY.start)
    for prompt in (
        "plain text",
        "<|start|>user<|message|>Hi",
        "<|start|>user<|message|>Hi<|end|>",
        f"{START} to=functions.gone<|channel|>commentary<|message|>",
        f"{START}<|message|>",
    ):
        with pytest.raises(GrammarError, match="must end in '<|start|>assistant'".replace("|", r"\|")):
            matcher(prompt=prompt)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"recipients": "python"}, "recipients is 'python': it must be a tuple of words"),
        ({"recipients": ("a b",)}, "recipients holds 'a b'"),
        ({"recipients": ("a<|call|>",)}, "recipients holds"),
        ({"recipients": ("\ud800",)}, "recipients holds"),
        ({"channels": ("analysis",)}, "'final' must be one of them"),
        ({"recipients": ("python",), "channels": ("final",)}, "calls of the recipients need"),
        ({"content_types": (7,)}, "content_types holds 7"),
    ],
)
def test_a_guard_that_says_nonsense_is_refused_in_one_line(fields: dict, error: str) -> None:
    with pytest.raises(GrammarError) as caught:
        HeaderGuard(**fields)
    assert error in str(caught.value) and "\n" not in str(caught.value)


# What a conversation declares


def declared(system: object = None, developer: object = None) -> HeaderGuard | None:
    messages = [
        Message.from_role_and_content(Role.SYSTEM, system or SystemContent()),
        Message.from_role_and_content(Role.DEVELOPER, developer or DeveloperContent()),
        Message.from_role_and_content(Role.USER, "Hi"),
    ]
    return HeaderGuard.for_conversation(Conversation(messages=messages))


def test_a_conversation_declares_functions_built_in_tools_and_channels() -> None:
    assert declared() == HeaderGuard()
    system = SystemContent().with_browser_tool().with_python_tool()
    functions = [ToolDescription.new("look"), ToolDescription.new("l.o-k")]
    guard = declared(system, DeveloperContent().with_function_tools(functions))
    assert guard is not None
    assert set(guard.recipients) == {
        *("functions.look", "functions.l.o-k", "python"),
        *("browser.search", "browser.open", "browser.find"),
    }
    files = ToolNamespaceConfig(name="files", tools=[ToolDescription.new("read")])
    assert declared(developer=DeveloperContent().with_tools(files)) == HeaderGuard(("files.read",))


def test_channels_are_those_of_the_system_message_and_what_an_answer_and_calls_need() -> None:
    system = SystemContent().with_channel_config(ChannelConfig.require_channels(["analysis"]))
    guard = declared(system)
    assert guard is not None and guard.channels == ("analysis", "final")
    guard = declared(system.with_python_tool())
    assert guard is not None and guard.channels == ("analysis", "commentary", "final")


def test_there_is_no_guard_where_plain_text_may_declare_tools() -> None:
    assert declared(developer="# Tools\n\n## functions …") is None


# Beside a request's other limits

PROMPT = f"<|start|>user<|message|>Hi<|end|>{START}"


def guarded(guard: HeaderGuard = GUARD, prompt: str = PROMPT, **options):
    tokens = encode(prompt)
    headers = HeaderMatcher(compile_headers(guard, encoding(), 201_088), tokens)
    return make_processor(prompt=prompt, headers=headers, **options)


def test_nobody_waits_for_the_guard_until_it_refuses_a_token_and_again_after_the_header() -> None:
    processor = guarded()
    assert not processor.verifies and processor.mask() is None
    outcome = processor.process(encode("<|channel|>analysis<|message|> word<|end|><|start|>assistant"))
    assert (outcome.accepted, outcome.finish) == (7, None)
    assert not processor.verifies and processor.mask() is None
    assert processor.process(encode("<|message|> word")).accepted == 0
    assert processor.verifies
    assert set(allowed(processor.mask()).tolist()) >= set(encode("<|channel|> to"))
    assert processor.process(encode("<|channel|>")).accepted == 1
    assert processor.verifies and processor.mask() is not None
    outcome = processor.process(encode("final<|message|> word"))
    assert outcome.accepted == 3
    assert not processor.verifies and processor.mask() is None


def test_the_reasoning_budget_leads_to_final_and_the_guard_goes_on_there() -> None:
    processor = guarded(reasoning_budget=3)
    assert processor.process(encode("<|channel|>analysis<|message|>")).accepted == 3
    outcome = processor.process(words(3))
    assert outcome.forced == tuple(encode(f"<|end|>{START}<|channel|>final<|message|>"))
    assert processor.process(encode(" word<|end|>")).accepted == 1
    assert allowed(processor.mask()).tolist() == encode("<|return|>")


def test_tokens_before_the_least_are_text_where_the_right_end_is_banned() -> None:
    processor = guarded(min_tokens=6, prompt=f"{PROMPT}<|channel|>final<|message|>")
    assert processor.process(encode(" word<|end|>")).accepted == 1
    assert processor.mask() is not None
    ids = set(allowed(processor.mask()).tolist())
    assert set(words(1)) <= ids and not set(encode("<|end|>")) & ids


def test_a_channels_minimum_bans_its_end_and_the_guard_leaves_text() -> None:
    limits = {"analysis": ChannelLimit(min=4)}
    processor = guarded(channel_limits=limits, prompt=f"{PROMPT}<|channel|>analysis<|message|>")
    assert processor.process(encode(" word<|call|>")).accepted == 1
    banned, _ = processor.ban()
    assert set(encode("<|end|>")) <= set(banned)
    assert processor.process(words(3)).accepted == 3
    assert processor.process(encode("<|end|>")).accepted == 1


def test_a_completion_ends_where_every_allowed_token_is_banned() -> None:
    stops = encode("<|channel|>") + encode(" to") + encode(" t") + encode(" ")
    processor = guarded(HeaderGuard(), min_tokens=9, stop_token_ids=stops)
    outcome = processor.process(encode("<|message|>"))
    assert (outcome.accepted, outcome.finish) == (0, "length")


def test_stop_strings_end_the_text_for_the_user_under_the_guard_too() -> None:
    processor = guarded(stop=["word word"], prompt=f"{PROMPT}<|channel|>final<|message|>")
    outcome = processor.process(words(5))
    assert (outcome.accepted, outcome.stop) == (2, "word word")


def test_a_guard_needs_an_encoding() -> None:
    request = Request("r", [1], SamplingParams(header_guard=HeaderGuard()))
    with pytest.raises(RequestError, match="header_guard needs an engine with an encoding"):
        OutputProcessor(
            request, 0, encoding=None, stop_tokens=frozenset(), max_tokens=5, matcher=None, prompt=[1]
        )
    with pytest.raises(RequestError, match="header_guard is 3"):
        SamplingParams(header_guard=3)  # type: ignore[arg-type]
