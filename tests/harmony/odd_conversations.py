"""Conversations as Python programs make them: tuples, enums, subclasses, wrong types. For any library.

Everything is drawn from `random` alone, so two libraries get the same conversation from equal generators.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
from random import Random
from typing import Any, NamedTuple

import pydantic

from tests.harmony import generators as generate


class Text(str):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Items(list):  # type: ignore[type-arg]
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


class Pair(NamedTuple):
    first: Any
    second: Any


class Level(enum.IntEnum):
    ONE = 1


class Unit(enum.StrEnum):
    CELSIUS = "celsius"


class Plain(enum.Enum):
    X = "x"


class Model(pydantic.BaseModel):
    type: str = "string"
    description: str | None = None


@dataclasses.dataclass
class Data:
    type: str = "string"


NOT_JSON: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, 10**400, {1, 2}, frozenset("a"), b"x", Plain.X, object, 1j, "\ud83d"),
)
ODD_JSON: tuple[Any, ...] = (
    *(
        Level.ONE,
        Unit.CELSIUS,
        Whole(7),
        Real(1.5),
        Pair("a", 1),
        Model(),
        Data(),
        "\ud83d\ude00",
        1e22,
        2**64,
    ),
    *((), ("string", "null"), {1: "a", None: "b", 1.5: ["c"]}, {"1": 1, 1: 2}, {Unit.CELSIUS: True}, -0.0),
)


@functools.lru_cache(maxsize=1024)
def member(value: str) -> str:
    """A member of an enum of strings, whose `str` is not its value."""
    return enum.Enum("Word", {"MEMBER": value}, type=str).MEMBER  # type: ignore[return-value]


def odd_string(random: Random, value: str) -> str:
    return random.choice((str, str, Text, member))(value)


def odd(random: Random, value: Any, oddness: float = 0.3) -> Any:
    """The same JSON value in other Python types; at times another value, or one that JSON cannot say."""
    if random.random() < oddness / 60:
        return random.choice(NOT_JSON)
    if random.random() < oddness / 8:
        return random.choice(ODD_JSON)
    is_odd = random.random() < oddness
    if isinstance(value, dict):
        pairs = [
            (odd_string(random, key) if random.random() < oddness / 3 else key, odd(random, item, oddness))
            for key, item in value.items()
        ]
        kinds = (Table, collections.OrderedDict, lambda items: collections.defaultdict(list, items))
        return random.choice(kinds)(pairs) if is_odd else dict(pairs)
    if isinstance(value, list):
        items = [odd(random, item, oddness) for item in value]
        return random.choice((tuple, tuple, Items))(items) if is_odd else items
    if isinstance(value, str):
        return odd_string(random, value) if is_odd else value
    if type(value) is int:
        return Whole(value) if is_odd else value
    if type(value) is float:
        return Real(value) if is_odd else value
    return value


@functools.cache  # making a pydantic model takes longer than rendering a conversation
def contents_of(library: Any) -> dict[str, type]:
    """Subclasses of a library's contents: with a text of their own, with more fields, of an unknown type."""

    class Shouted(library.TextContent):  # type: ignore[name-defined]
        def to_dict(self) -> dict[str, Any]:
            return {"type": "text", "text": self.text.upper()}

    class Numbered(library.TextContent):  # type: ignore[name-defined]
        number: int = 7

    class Quoted(library.Content):  # type: ignore[name-defined]
        quote: str

        def to_dict(self) -> dict[str, Any]:
            return {"type": "text", "text": Text(f"“{self.quote}”"), "source": None}

    class Picture(library.Content):  # type: ignore[name-defined]
        url: str

        def to_dict(self) -> dict[str, Any]:
            return {"type": "image", "url": self.url}

    class Unfinished(library.Content):  # type: ignore[name-defined]
        text: str

    class Marked(library.Message):  # type: ignore[name-defined]
        def to_dict(self) -> dict[str, Any]:
            return {**super().to_dict(), "channel": "commentary"}

    return {kind.__name__: kind for kind in (Shouted, Numbered, Quoted, Picture, Unfinished, Marked)}


CONTENT_TYPES = (
    *("json", "code", "a b c", " json", "json ", "two  words", "<|constrain|>json", "<|constrain|> json"),
    *("<|constrain|>", "<|constrain|> ", "<|constrain|>  json", "<|constrain|>json x y", "text/plain; a=b"),
)


def built(library: Any, random: Random, data: generate.Json) -> Any:
    """The conversation that `data` says, made by a library's own classes and methods."""
    kinds = contents_of(library)
    messages = tuple(_message(library, kinds, random, one) for one in data["messages"])
    return library.Conversation.from_messages(random.choice((tuple, list, iter))(messages))


def _message(library: Any, kinds: dict[str, type], random: Random, data: generate.Json) -> Any:
    role = random.choice((library.Role, str))(data["role"])
    author = library.Author(role=role, name=data.get("name") and odd_string(random, data["name"]))
    kind = kinds["Marked"] if random.random() < 0.03 else library.Message
    message = kind(author=author, content=[])
    for part in data["content"]:
        message.adding_content(_content(library, kinds, random, part))
    for name in ("channel", "recipient"):
        if name in data:
            getattr(message, f"with_{name}")(odd_string(random, data[name]))
    if random.random() < 0.3:
        message.with_content_type(odd_string(random, random.choice(CONTENT_TYPES)))
    if random.random() < 0.03:
        setattr(
            message, random.choice(("channel", "recipient", "content_type")), random.choice((5, b"x", ["x"]))
        )
    if random.random() < 0.05:
        message.author.role = random.choice((data["role"], "assistant", "user", "moderator", None))
    return message


def _content(library: Any, kinds: dict[str, type], random: Random, data: generate.Json) -> Any:
    if data["type"] == "text":
        text = random.choice((odd_string(random, data["text"]), data["text"]))
        match random.randrange(24):
            case 0:
                return kinds["Shouted"](text=text)
            case 1:
                return kinds["Numbered"](text=text)
            case 2:
                return kinds["Quoted"](quote=text)
            case 3 if random.random() < 0.1:
                return random.choice((kinds["Picture"](url=text), kinds["Unfinished"](text=text)))
            case 4:
                content = library.TextContent(text="")
                content.text = text if random.random() < 0.9 else random.choice((5, None, [text]))
                return content
        return random.choice((library.TextContent(text=text), text))
    content = library.SystemContent() if data["type"] == "system_content" else library.DeveloperContent()
    for name, value in data.items():
        if name in ("type", "tools"):
            continue
        if name == "channel_config":
            if random.random() < 0.3:
                value = {**value, "valid_channels": odd(random, value["valid_channels"])}
            else:
                value = library.ChannelConfig(**value)
        elif name == "reasoning_effort":
            value = random.choice((library.ReasoningEffort(value), value, Text(value)))
        else:
            value = odd(random, value)
        setattr(content, name, value)
    for key, namespace in data.get("tools", {}).items():
        tools = tuple(
            library.ToolDescription(
                name=odd_string(random, tool["name"]),
                description=odd_string(random, tool["description"]),
                parameters=_parameters(random, tool),
            )
            for tool in namespace["tools"]
        )
        config = library.ToolNamespaceConfig(
            name=namespace["name"], description=namespace.get("description"), tools=list(tools)
        )
        if key == "functions" and data["type"] == "developer_content" and random.random() < 0.5:
            content.with_function_tools(tools)
        elif random.random() < 0.9:
            content.tools = {**(content.tools or {}), key: config}
        else:
            content.tools = {**(content.tools or {}), odd_string(random, key): config.model_dump()}
    return content


def _parameters(random: Random, tool: generate.Json) -> Any:
    parameters = tool.get("parameters")
    if parameters is None:
        return None
    made = odd(random, parameters)
    return made if isinstance(made, dict) else parameters
