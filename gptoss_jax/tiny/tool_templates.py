"""Templates of functions: what they are called, how they are asked for, what they return."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from gptoss_jax.tiny import words

Value = str | int
Drawer = Callable[[random.Random], Value]


def _one_of(options: Sequence[str]) -> Drawer:
    return lambda rng: rng.choice(options)


def _between(low: int, high: int) -> Drawer:
    return lambda rng: rng.randint(low, high)


@dataclasses.dataclass(frozen=True)
class Option:
    """An optional enumerated parameter that a request may mention at its end."""

    names: list[str]
    values: list[str]


@dataclasses.dataclass(frozen=True)
class ToolTemplate:
    """Functions that do the same thing under different names.

    In the sentences `{noun}` is the function's own noun and `{a}` its article; `{0}`, `{1}`, … are the
    arguments in the order of `arguments`, and the keys of `results` stand for the results.
    """

    verbs: list[str]
    nouns: list[str]
    descriptions: list[str]
    parameters: list[tuple[str, ...]]
    arguments: tuple[Drawer, ...]
    questions: list[str]
    results: dict[str, Drawer]
    answer: str
    option: Option | None = None


_GET = ["get", "find", "check"]
_MAKE = ["add", "create"]

TOOL_TEMPLATES = {
    "weather": ToolTemplate(
        _GET,
        ["weather", "forecast"],
        ["Gets the {noun}.", "Returns the {noun} in a city.", "The {noun} for a place."],
        [("city",), ("city",), ("location",)],
        (words.city,),
        [
            "What is the {noun} in {0}",
            "How is the {noun} in {0}",
            "Tell me the {noun} in {0}",
            "Show me the {noun} for {0}",
            "What's the {noun} like in {0}",
            "I need the {noun} in {0}",
            "{noun} in {0}",
            "Is it cold in {0}",
            "Is it warm in {0} today",
        ],
        {"degrees": _between(-9, 39), "sky": _one_of(words.SKIES)},
        "It is {degrees} degrees and {sky} in {0}.",
        Option(["unit", "format"], ["celsius", "fahrenheit"]),
    ),
    "time": ToolTemplate(
        _GET,
        ["time", "hour"],
        ["Gets the {noun}.", "Returns the local {noun}.", "The {noun} in a city."],
        [("city",), ("city",), ("location",)],
        (words.city,),
        [
            "What {noun} is it in {0}",
            "What is the {noun} in {0}",
            "Tell me the {noun} in {0}",
            "{noun} in {0}",
            "What is the local {noun} in {0}",
        ],
        {"time": lambda rng: f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"},
        "It is {time} in {0}.",
    ),
    "population": ToolTemplate(
        _GET,
        ["population", "people"],
        ["Gets the {noun} of a place.", "Returns how many people live in a city."],
        [("city",), ("city",), ("place",)],
        (words.city,),
        [
            "What is the population of {0}",
            "How many people live in {0}",
            "Population of {0}",
            "How many people are in {0}",
        ],
        {"thousands": _between(1, 999)},
        "{thousands} thousand people live in {0}.",
    ),
    "distance": ToolTemplate(
        _GET,
        ["distance", "route"],
        ["Gets the {noun}.", "Returns the {noun} between two cities."],
        [("from", "to"), ("from", "to"), ("start", "end")],
        (words.city, words.city),
        [
            "How far is it from {0} to {1}",
            "What is the {noun} from {0} to {1}",
            "Tell me the {noun} from {0} to {1}",
            "{noun} from {0} to {1}",
        ],
        {"km": _between(10, 999)},
        "It is {km} km from {0} to {1}.",
    ),
    "price": ToolTemplate(
        _GET,
        ["price", "cost"],
        ["Gets the {noun}.", "Returns the {noun} of a product.", "The {noun} of something."],
        [("product",), ("product",), ("item",)],
        (_one_of(words.GOODS),),
        [
            "What is the {noun} of {0}",
            "How much is {0}",
            "Tell me the {noun} of {0}",
            "{noun} of {0}",
            "What does {0} cost",
        ],
        {"price": _between(1, 99), "currency": _one_of(words.CURRENCIES)},
        "The price is {price} {currency}.",
    ),
    "money": ToolTemplate(
        ["convert", "exchange"],
        ["money", "currency"],
        ["Converts {noun}.", "Converts an amount to another currency."],
        [("amount", "from", "to"), ("amount", "from", "to"), ("amount", "source", "target")],
        (_between(1, 999), _one_of(words.CURRENCIES), _one_of(words.CURRENCIES)),
        [
            "Convert {0} {1} to {2}",
            "How much is {0} {1} in {2}",
            "What is {0} {1} in {2}",
            "Change {0} {1} to {2}",
        ],
        {"result": _between(1, 999)},
        "That is {result} {2}.",
    ),
    "timer": ToolTemplate(
        ["set", "start"],
        ["timer", "alarm"],
        ["Starts {a} {noun}.", "Sets {a} {noun} in minutes."],
        [("minutes",), ("minutes",), ("duration",)],
        (_between(1, 99),),
        [
            "Set the {noun} for {0} minutes",
            "Start a {0} minute {noun}",
            "{noun} for {0} minutes",
            "I need the {noun} in {0} minutes",
        ],
        {"id": _between(1, 99)},
        "The {noun} is set, its id is {id}.",
    ),
    "translation": ToolTemplate(
        ["translate"],
        ["text", "words"],
        ["Translates {noun}.", "Translates {noun} to a language."],
        [("text", "language"), ("text", "language"), ("text", "target")],
        (words.phrase, _one_of(words.LANGUAGES)),
        ['Translate "{0}" to {1}', 'How do you say "{0}" in {1}', 'What is "{0}" in {1}', 'Say "{0}" in {1}'],
        {"translation": words.phrase},
        "In {1}: {translation}.",
    ),
    "message": ToolTemplate(
        ["send", "write"],
        ["message", "note"],
        ["Sends {a} {noun}.", "Sends {a} {noun} to a person."],
        [("to", "text"), ("to", "text"), ("name", "text")],
        (words.person, words.phrase),
        [
            'Send {0} the {noun} "{1}"',
            'Write {0} {a} {noun}: "{1}"',
            'Send {a} {noun} to {0}: "{1}"',
            'Tell {0} "{1}"',
        ],
        {"id": _between(1, 99)},
        "The {noun} was sent, its id is {id}.",
    ),
    "dice": ToolTemplate(
        ["roll", "throw"],
        ["dice", "die"],
        ["Rolls a {noun}.", "Rolls one {noun}."],
        [("sides",), ("sides",), ("max",)],
        (_between(2, 99),),
        [
            "Roll a {noun} with {0} sides",
            "Roll a {0} sided {noun}",
            "Throw a {0} sided {noun}",
            "Throw the {noun} with {0} sides",
        ],
        {"value": _between(1, 99)},
        "You rolled {value}.",
    ),
    "location": ToolTemplate(
        _GET,
        ["location", "position"],
        ["Gets the {noun} of the user.", "Where the user is."],
        [()],
        (),
        ["Where am I", "What is my {noun}", "Which city am I in", "Tell me my {noun}", "Show me my {noun}"],
        {"city": words.city},
        "You are in {city}.",
    ),
    "user": ToolTemplate(
        _GET,
        ["user", "customer"],
        ["Finds {a} {noun}.", "Gets {a} {noun} by number."],
        [("id",), ("id",), ("number",)],
        (_between(1, 999),),
        [
            "Who is {noun} {0}",
            "What is the name of {noun} {0}",
            "Find {noun} {0}",
            "Show me {noun} {0}",
            "Look up {noun} {0}",
        ],
        {"name": words.person},
        "The name is {name}.",
    ),
    "order": ToolTemplate(
        _GET,
        ["order", "package"],
        ["Finds {a} {noun}.", "Gets the state of the {noun}."],
        [("number",), ("number",), ("id",)],
        (_between(1, 999),),
        [
            "Where is {noun} {0}",
            "What is the state of {noun} {0}",
            "Is my {noun} {0} ready",
            "Check {noun} {0}",
            "Look up {noun} {0}",
        ],
        {"state": _one_of(words.STATES)},
        "The {noun} is {state}.",
    ),
    "event": ToolTemplate(
        _MAKE,
        ["event", "meeting"],
        ["Adds {a} {noun}.", "Creates a calendar {noun}."],
        [("title", "day"), ("title", "day"), ("name", "date")],
        (words.phrase, _one_of(words.DAYS)),
        [
            'Add the {noun} "{0}" on {1}',
            'Plan the {noun} "{0}" for {1}',
            'Put "{0}" on my calendar for {1}',
            'Create {a} {noun} "{0}" on {1}',
        ],
        {"id": _between(1, 99)},
        "The {noun} was added, its id is {id}.",
    ),
    "light": ToolTemplate(
        ["switch", "turn"],
        ["light", "lamp"],
        ["Sets the {noun} in a room.", "Turns a {noun} on or off."],
        [("room", "state"), ("room", "state"), ("place", "value")],
        (_one_of(words.ROOMS), _one_of(["on", "off"])),
        [
            "Turn the {noun} in the {0} {1}",
            "Switch the {0} {noun} {1}",
            "Turn {1} the {noun} in the {0}",
            "In the {0} turn the {noun} {1}",
        ],
        {"power": _between(0, 99)},
        "The {noun} is {1}, power {power}.",
    ),
    "product": ToolTemplate(
        ["multiply", "compute"],
        ["numbers", "values"],
        ["Multiplies two {noun}.", "Multiplies {noun} and returns the product."],
        [("a", "b"), ("a", "b"), ("x", "y")],
        (_between(2, 99), _between(2, 99)),
        [
            "What is {0} times {1}",
            "Multiply {0} by {1}",
            "{0} * {1}",
            "Compute {0} * {1}",
            "What is the product of {0} and {1}",
        ],
        {},
        "The result is {result}.",
    ),
    "search": ToolTemplate(
        ["search", "find"],
        ["book", "movie"],
        ["Finds a {noun}.", "Finds a {noun} about a topic."],
        [("topic",), ("topic",), ("query",)],
        (_one_of(words.TOPICS),),
        [
            "Find a {noun} about {0}",
            "I want a {noun} about {0}",
            "Is there a {noun} about {0}",
            "Show me a {noun} about {0}",
            "Which {noun} is about {0}",
        ],
        {"title": words.phrase},
        "Try this {noun}: {title}.",
    ),
}
"""Every template, by topic."""
