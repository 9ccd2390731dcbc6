"""Synthetic harmony dialogues: one setting (system and developer message) shared by several branches.

Everything is built from `harmony` messages, so that the model is trained on exactly the text that it will be
prompted with.
"""

from __future__ import annotations

import dataclasses
import random

from gptoss_jax.tiny import smalltalk, sums, tools
from gptoss_jax.tiny.splits import Split
from harmony import (
    Author,
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    ToolDescription,
)

EFFORTS = ("low", "medium", "high")
_PLAIN_BRANCHES = {"low": 9, "medium": 6, "high": 4}
"""How many sums about fill a row of training."""
_EFFORT_NAMES = {
    "low": ReasoningEffort.LOW,
    "medium": ReasoningEffort.MEDIUM,
    "high": ReasoningEffort.HIGH,
}


@dataclasses.dataclass(frozen=True)
class Turn:
    """Given messages, and the assistant's messages that follow; with `past` these are not trained on."""

    given: list[Message]
    completion: list[Message]
    past: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """The start of a conversation: the effort, and the functions that the model may call."""

    effort: str
    offered: list[tools.Tool]
    messages: list[Message]


@dataclasses.dataclass(frozen=True)
class Group:
    """One setting and several independent continuations of it, each a list of turns."""

    setting: Setting
    branches: list[list[Turn]]


def user(text: str) -> Message:
    """A user's message."""
    return Message.from_role_and_content(Role.USER, text)


def analysis(text: str) -> Message:
    """A chain of thought."""
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel("analysis")


def final(text: str) -> Message:
    """An answer."""
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel("final")


def call(use: tools.Use) -> Message:
    """The right function call."""
    message = Message.from_role_and_content(Role.ASSISTANT, use.arguments_json).with_channel("commentary")
    return message.with_recipient(f"functions.{use.tool.name}").with_content_type("<|constrain|>json")


def tool_result(use: tools.Use) -> Message:
    """What the function returned."""
    author = Author.new(Role.TOOL, f"functions.{use.tool.name}")
    return (
        Message.from_author_and_content(author, use.result_json)
        .with_channel("commentary")
        .with_recipient("assistant")
    )


def draw_setting(rng: random.Random, effort: str, tool_count: int) -> Setting:
    """A system message, and a developer message where there are functions or instructions."""
    system = SystemContent.new().with_reasoning_effort(_EFFORT_NAMES[effort])
    if rng.random() < 0.85:
        date = f"{rng.randint(2024, 2027)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        system = system.with_conversation_start_date(date)
    messages = [Message.from_role_and_content(Role.SYSTEM, system)]
    offered = tools.draw_tools(rng, tool_count)
    instructions = rng.choice(smalltalk.INSTRUCTIONS) if rng.random() < 0.4 else None
    if offered or instructions:
        developer = DeveloperContent.new()
        if instructions:
            developer = developer.with_instructions(instructions)
        if offered:
            developer = developer.with_function_tools(
                [ToolDescription.new(tool.name, tool.description, parameters=tool.schema) for tool in offered]
            )
        messages.append(Message.from_role_and_content(Role.DEVELOPER, developer))
    return Setting(effort, offered, messages)


def sum_turn(rng: random.Random, effort: str, problem: sums.Sum) -> Turn:
    """A sum: question, worked chain of thought, answer."""
    thought = sums.reasoning(problem, effort)
    return Turn([user(sums.question(rng, problem))], [analysis(thought), final(problem.answer)])


def sum_prompt(rng: random.Random, effort: str, problem: sums.Sum) -> list[Message]:
    """A whole prompt that asks for a sum, without functions."""
    return [*draw_setting(rng, effort, 0).messages, *sum_turn(rng, effort, problem).given]


def talk_turn(talk: smalltalk.Talk) -> Turn:
    """Small talk."""
    return Turn([user(talk.question)], [analysis(talk.reasoning), final(talk.answer)])


def call_turn(use: tools.Use, effort: str) -> Turn:
    """A request and the call it leads to."""
    thought = tools.reasoning(use, effort)
    return Turn([user(use.question)], [analysis(thought), call(use)])


def answer_turn(use: tools.Use, effort: str) -> Turn:
    """A function's result and the answer that quotes it."""
    thought = [analysis("The function returned a result. Answer the user.")] if effort == "high" else []
    return Turn([tool_result(use)], [*thought, final(use.answer)])


def as_history(turn: Turn) -> Turn:
    """A turn as part of a later prompt: not trained on, and without its chain of thought."""
    return Turn(turn.given, [m for m in turn.completion if m.channel != "analysis"], past=True)


def _draw_plain_turn(rng: random.Random, effort: str, sum_share: float) -> Turn:
    if rng.random() < sum_share:
        return sum_turn(rng, effort, sums.draw(rng, Split.TRAINING))
    if rng.random() < 0.15:
        tool = tools.draw_tools(rng, 1)[0]
        use = tools.draw_use(rng, tool, Split.TRAINING)
        if use:
            return talk_turn(smalltalk.missing_function(use.question, effort))
    return talk_turn(smalltalk.draw(rng, effort))


def _draw_use_branch(rng: random.Random, setting: Setting) -> list[Turn] | None:
    use = tools.draw_use(rng, rng.choice(setting.offered), Split.TRAINING)
    if use is None:
        return None
    asked, answered = call_turn(use, setting.effort), answer_turn(use, setting.effort)
    if rng.random() < 0.1:  # a transcript whose chain of thought was not kept
        return [as_history(asked), answered]
    return [asked, answered]


def _draw_history(rng: random.Random, setting: Setting) -> list[Turn]:
    if setting.offered and rng.random() < 0.4:
        use = tools.draw_use(rng, rng.choice(setting.offered), Split.TRAINING)
        if use is not None:
            return [as_history(call_turn(use, setting.effort)), as_history(answer_turn(use, setting.effort))]
    return [as_history(_draw_plain_turn(rng, setting.effort, 0.7))]


def draw_group(rng: random.Random) -> Group:
    """One training group: sums and small talk, or functions with an occasional sum."""
    effort = rng.choice(EFFORTS)
    with_tools = rng.random() < 0.6
    setting = draw_setting(rng, effort, rng.choice([1, 2, 2, 3, 3]) if with_tools else 0)
    branches = []
    for _ in range(4 if with_tools else _PLAIN_BRANCHES[effort]):
        history = _draw_history(rng, setting) if rng.random() < 0.1 else []
        branch: list[Turn] | None = None
        if with_tools and rng.random() < 0.85:
            branch = _draw_use_branch(rng, setting)
        if branch is None:
            branch = [_draw_plain_turn(rng, effort, 0.8 if not with_tools else 0.6)]
        branches.append(history + branch)
    return Group(setting, branches)
