"""Functions as a developer defines them, and requests that call them."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

from gptoss_jax.tiny.splits import Split, split_of
from gptoss_jax.tiny.tool_templates import TOOL_TEMPLATES, ToolTemplate, Value

_QUESTION_WORDS = {"what", "what's", "how", "who", "where", "which", "is"}
_COMMANDS = set(
    "Tell Show Convert Change Set Start Translate Say Send Write Roll Throw Find Look Check Add Plan Put "  # noqa: SIM905
    "Create Turn Switch Multiply Compute".split()
)


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeo" else "a"


@dataclasses.dataclass(frozen=True)
class Tool:
    """One function made from a template, under one name."""

    template: ToolTemplate
    verb: str
    noun: str
    description: str
    parameters: tuple[str, ...]
    option: str | None
    schema: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The function's name, `verb_noun`."""
        return f"{self.verb}_{self.noun}"


@dataclasses.dataclass(frozen=True)
class Use:
    """A request for a function, the right call, what the function returns and the answer that quotes it."""

    tool: Tool
    question: str
    arguments: dict[str, Value]
    result: dict[str, Value]
    answer: str

    @property
    def arguments_json(self) -> str:
        """The content of the call."""
        return json.dumps(self.arguments, separators=(",", ":"))

    @property
    def result_json(self) -> str:
        """The content of the tool's message."""
        return json.dumps(self.result, separators=(",", ":"))


def draw_tool(rng: random.Random, topic: str) -> Tool:
    """A function made from the template `topic`; its JSON Schema is None when it takes no arguments."""
    template = TOOL_TEMPLATES[topic]
    verb, noun = rng.choice(template.verbs), rng.choice(template.nouns)
    parameters = rng.choice(template.parameters)
    option = rng.choice(template.option.names) if template.option and rng.random() < 0.4 else None
    properties: dict[str, Any] = {}
    for name, argument in zip(parameters, template.arguments, strict=True):
        kind = "string" if isinstance(argument(random.Random(0)), str) else rng.choice(["number", "integer"])
        properties[name] = {"type": kind}
        if rng.random() < 0.25:
            properties[name]["description"] = rng.choice(["The {}", "The {} of the request"]).format(name)
    if option and template.option:
        properties[option] = {"type": "string", "enum": template.option.values}
        if rng.random() < 0.5:
            properties[option]["default"] = template.option.values[0]
    schema = (
        {"type": "object", "properties": properties, "required": list(parameters)} if properties else None
    )
    description = rng.choice(template.descriptions).format(noun=noun, a=_article(noun))
    return Tool(template, verb, noun, description, parameters, option, schema)


def draw_tools(rng: random.Random, count: int) -> list[Tool]:
    """`count` functions made from different templates."""
    return [draw_tool(rng, topic) for topic in rng.sample(list(TOOL_TEMPLATES), count)]


def draw_use(rng: random.Random, tool: Tool, split: Split) -> Use | None:
    """A request for `tool` whose call belongs to `split`; None if a few draws find none."""
    for _ in range(40):
        use = _draw_use(rng, tool)
        if split_of(tool.name + use.arguments_json) is split:
            return use
    return None


def _draw_use(rng: random.Random, tool: Tool) -> Use:
    template = tool.template
    values: list[Value] = []
    for argument in template.arguments:
        value = argument(rng)
        while value in values and isinstance(value, str):
            value = argument(rng)
        values.append(value)
    arguments = dict(zip(tool.parameters, values, strict=True))
    question = rng.choice(template.questions).format(*values, noun=tool.noun, a=_article(tool.noun))
    if tool.option and template.option and rng.random() < 0.5:
        arguments[tool.option] = rng.choice(template.option.values)
        question += f" in {arguments[tool.option]}"
    question = question[0].upper() + question[1:]
    asks = question.split()[0].lower() in _QUESTION_WORDS
    draw = rng.random()
    if draw < 0.1:
        question = question[0].lower() + question[1:]
    elif draw < 0.2 and question.split()[0] in _COMMANDS:
        question = f"Please {question[0].lower()}{question[1:]}"
    question += rng.choice(["?", "?", "?", ""] if asks else [".", ".", ".", "", " please"])
    result = {key: drawer(rng) for key, drawer in template.results.items()}
    if not result:
        first, second = values
        result = {"result": int(first) * int(second)}
    answer = template.answer.format(*values, noun=tool.noun, **result)
    return Use(tool, question, arguments, result, answer)


def reasoning(use: Use, effort: str) -> str:
    """The chain of thought before a call: what the user asks for, then the function's name."""
    choice = f"For {use.tool.noun} use {use.tool.name}."
    if effort == "low":
        return choice
    if effort == "medium":
        return f"The user needs a function. {choice}"
    return (
        "The user wants something that I can not do myself. A function can help, so I look at what is "
        f"offered. {choice} Then I wait for the result."
    )
