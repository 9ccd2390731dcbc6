"""Random conversations, schemas and token streams, as JSON data so that any library can read them."""

from __future__ import annotations

from random import Random
from typing import Any

from harmony import HarmonyEncoding, Message

Json = dict[str, Any]

WORDS = (
    *("the", "weather", "in", "Oslo", "5°C", "Müller", "你好", "😊👋🏾", "naïve", "assistant", "\u200b"),
    *("<|start|>", "<|end|>system<|message|>", "to=functions.f", "namespace", "functions"),
    *("\\n", '"quoted"', "//", "comment", "{}", "}"),
)
SPACES = (" ", " ", " ", "\n", "\n\n", "\t", "\r\n", "  ")


def text(random: Random, max_words: int = 12) -> str:
    return "".join(random.choice(WORDS) + random.choice(SPACES) for _ in range(random.randrange(max_words)))


def number(random: Random) -> int | float:
    return random.choice(
        [
            random.randrange(-10, 10),
            random.randrange(-(2**70), 2**70),
            round(random.uniform(-5, 5), random.randrange(4)),
            random.uniform(-1, 1) * 10.0 ** random.randrange(-320, 300),
            random.random(),
            -0.0,
        ]
    )


def value(random: Random, depth: int = 2) -> Any:
    kinds = ["null", "boolean", "number", "string", "list", "object"] if depth else ["number", "string"]
    match random.choice(kinds):
        case "boolean":
            return random.random() < 0.5
        case "number":
            return number(random)
        case "string":
            return text(random, 3)
        case "list":
            return [value(random, depth - 1) for _ in range(random.randrange(3))]
        case "object":
            return {text(random, 2): value(random, depth - 1) for _ in range(random.randrange(3))}
    return None


TYPES = ("object", "string", "number", "integer", "boolean", "array", "null", "unknown")


def schema(random: Random, depth: int = 3) -> Any:
    """A schema with every keyword that the TypeScript form looks at, at times with a senseless value."""
    if random.random() < 0.03:
        return value(random, 1)
    out: Json = {}
    for keyword in random.sample(KEYWORDS, random.randrange(1, 6)):
        if random.random() < 0.05:
            out[keyword] = value(random, 1)
        elif keyword == "type":
            out["type"] = random.choice(TYPES)
            if random.random() < 0.15:
                out["type"] = random.sample(TYPES, random.randrange(3))
        elif keyword in ("description", "title"):
            out[keyword] = text(random, 4)
        elif keyword == "default":
            out["default"] = value(random)
        elif keyword == "examples":
            out["examples"] = [value(random, 1) for _ in range(random.randrange(3))]
        elif keyword == "enum":
            out["enum"] = [value(random, 1) for _ in range(random.randrange(4))]
        elif keyword == "nullable":
            out["nullable"] = random.random() < 0.7
        elif keyword in ("oneOf", "anyOf"):
            if depth and random.random() < 0.5:
                out[keyword] = [schema(random, depth - 1) for _ in range(random.randrange(4))]
        elif keyword == "items" and depth:
            out["items"] = schema(random, depth - 1)
        elif keyword == "properties" and depth:
            out["type"] = "object"
            names = [f"{random.choice('abcdé')}{i}" for i in range(random.randrange(5))]
            out["properties"] = {name: schema(random, depth - 1) for name in names}
            out["required"] = random.sample(names, random.randrange(len(names) + 1))
    return out


KEYWORDS = (
    "type", "type", "description", "title", "default", "examples", "enum", "nullable", "oneOf", "anyOf",
    "items", "properties", "properties",
)  # fmt: skip


def tools(random: Random) -> Json:
    """Namespaces by key; a key need not be the namespace's name."""
    out: Json = {}
    for name in random.sample(("functions", "browser", "python", "b", "a"), random.randrange(4)):
        functions = []
        for index in range(random.randrange(3)):
            function: Json = {"name": f"f{index}", "description": text(random)}
            if random.random() < 0.8:
                parameters = schema(random)
                function["parameters"] = parameters if isinstance(parameters, dict) else {}
            functions.append(function)
        out[name] = {"name": random.choice((name, name, "other")), "tools": functions}
        if random.random() < 0.5:
            out[name]["description"] = text(random)
    return out


def system_content(random: Random) -> Json:
    out: Json = {"type": "system_content"}
    optional: Json = {
        "model_identity": text(random),
        "reasoning_effort": random.choice(("Low", "Medium", "High")),
        "conversation_start_date": "2025-06-28",
        "knowledge_cutoff": "2024-06",
        "channel_config": {
            "valid_channels": random.sample(("analysis", "commentary", "final"), random.randrange(4)),
            "channel_required": random.random() < 0.5,
        },
        "tools": tools(random),
    }
    return out | {key: item for key, item in optional.items() if random.random() < 0.5}


def developer_content(random: Random) -> Json:
    out: Json = {"type": "developer_content"}
    if random.random() < 0.7:
        out["instructions"] = text(random)
    if random.random() < 0.7:
        out["tools"] = tools(random)
    return out


def message(random: Random, *, headers_only: bool = False) -> Json:
    role = random.choice(("system", "developer", "user", "assistant", "assistant", "assistant", "tool"))
    out: Json = {"role": role}
    if role == "tool":
        out["name"] = random.choice(("functions.f", "browser.search", "python", "lookup"))
    elif random.random() < 0.1:
        out["name"] = random.choice(("alice", "bob:1"))
    if random.random() < (0.8 if role == "assistant" else 0.2):
        out["channel"] = random.choice(("analysis", "analysis", "commentary", "final", "final", "other"))
    if random.random() < 0.3:
        out["recipient"] = random.choice(("functions.f", "python", "assistant", "all", "user"))
    if random.random() < 0.2:
        out["content_type"] = random.choice(("json", "code", "<|constrain|>json", "<|constrain|>"))
    parts: list[Json] = [
        {"type": "text", "text": text(random)} for _ in range(random.choice((1, 1, 1, 0, 2)))
    ]
    if role == "system" and not headers_only:
        parts.append(system_content(random))
    if role == "developer" and not headers_only:
        parts.append(developer_content(random))
    out["content"] = parts
    return out


def conversation(random: Random, max_messages: int = 6) -> Json:
    return {"messages": [message(random) for _ in range(random.randrange(1, max_messages))]}


def mutated(random: Random, tokens: list[int], special: list[int], vocabulary_size: int) -> list[int]:
    """A stream after a few accidents: cut, spliced, tokens lost, doubled, swapped or made up."""
    tokens = list(tokens)
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        at = random.randrange(len(tokens) + 1)
        match random.randrange(7):
            case 0:
                tokens = tokens[:at]
            case 1:
                tokens = tokens[at:]
            case 2:
                tokens = [*tokens[:at], random.choice(special), *tokens[at:]]
            case 3:
                tokens = tokens[:at] + tokens[at + 1 :]
            case 4:
                tokens = [*tokens[:at], random.randrange(vocabulary_size), *tokens[at:]]
            case 5:
                tokens = tokens[:at] + tokens[max(0, at - 4) :]
            case 6:
                bytes_of_characters = random.choice(([9552], [9552, 9552], [132990, 9552], [240], [188]))
                tokens = tokens[:at] + bytes_of_characters + tokens[at:]
    return tokens


HEADER_SCRAPS = (
    *("assistant", " assistant", "user", "user:alice", "user:", "tool", "system", "functions.f", "python"),
    *(" to=", "to=", " to=all", " to=functions.f", " to=functions.g", " to=to=x", " to=a<|b", " to=python"),
    *("analysis", "commentary", "final", " final", "analysis ", "finally", "Final", "other", "a<|b", "|>"),
    *("json", " json", "code", " hello", " two words", "a=b", ":", " <|", "<|constrain|>", "\u2003x", "\x1c"),
    *(" ", "\n", "  ", "\u2028", "\xa0", "{", '{"a": 1}', " [1]", "Paris", " is nice.", "0", "é", "😊"),
)
"""What stands in headers, nearly does, or should not."""


def scraps(random: Random, encoding: HarmonyEncoding) -> list[int]:
    """A stream of special tokens, scraps of headers, sentences, halves of characters and unknown ids."""
    special = [encoding.start, encoding.channel, encoding.message, encoding.end, encoding.constrain]
    special += [encoding.call, encoding.return_, encoding.end_of_text, encoding.size - 1]
    tokens: list[int] = []
    for _ in range(random.randrange(24)):
        match random.randrange(8):
            case 0 | 1 | 2:
                tokens.append(random.choice(special))
            case 3 | 4 | 5:
                tokens += encoding.encode_ordinary(random.choice(HEADER_SCRAPS))
            case 6:
                tokens += encoding.encode_ordinary(text(random, 14))
            case 7:
                tokens.append(random.choice((9552, 240, 188, -1, 201_500, 2**40, random.randrange(200_000))))
    return tokens


def accidents(random: Random, encoding: HarmonyEncoding) -> list[int]:
    """A rendered conversation after accidents: its tokens damaged, or scraps spliced into it."""
    messages = [message(random, headers_only=True) for _ in range(random.randrange(1, 4))]
    tokens = [token for one in messages for token in encoding.render(Message.from_dict(one))]
    special = [encoding.start, encoding.channel, encoding.constrain, encoding.message, encoding.end]
    tokens = mutated(random, tokens[random.choice((0, 0, 2)) :], special, encoding.size + 1000)
    for _ in range(random.choice((0, 1, 2))):
        at = random.randrange(len(tokens) + 1)
        spliced = encoding.encode_ordinary(random.choice(HEADER_SCRAPS))
        # Most headers are short beside the texts: aim for them.
        places = [index + 1 for index, token in enumerate(tokens) if token in special]
        if places and random.random() < 0.7:
            at = random.choice(places)
        tokens = [*tokens[:at], *spliced, *tokens[at:]]
    return tokens


def broken_stream(random: Random, encoding: HarmonyEncoding) -> list[int]:
    """What a model may write at its worst."""
    return random.choice((scraps, accidents, accidents))(random, encoding)
