"""Conversations for benchmarks: of any length, reproducible, and with no two equal messages.

They are JSON data, so that every harmony library can read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

Json = dict[str, Any]

_COMMON_TEXT = (
    "the of and to in is that it for was on are as with they be at this have from or one had by word but not "
    "what all were we when your can said there use an each which she do how their if will up other about out "
    "many then them these so some her would make like him into time has look two more write go see number no "
    "way could people my than first water been call who oil its now find long down day did get come made may "
    "part reason weather request function result answer because between question example should temperature "
    "following information different important available database schedule customer"
)
_RARE = (
    *(
        "Tromsø",
        "Zürich",
        "naïve",
        "façade",
        "München",
        "Łódź",
        "Ελλάδα",
        "Москва",
        "погода",
        "東京",
        "天気予報",
    ),
    *(
        "北京",
        "你好世界",
        "서울",
        "مرحبا",
        "नमस्ते",
        "😊",
        "👩‍🚀",
        "→",
        "≈",
        "½",
        "°C",
        "€",
        "…",
        "“quoted”",
        "—",
    ),
)
_SYLLABLE_TEXT = "ka lo mi re tu sha ven dor qui zan pel ith or an el gra sto bri wex fu"
_COMMON, _SYLLABLES = _COMMON_TEXT.split(), _SYLLABLE_TEXT.split()
_CODE = (
    "def {0}_{1}({2}: int) -> str:\n    return f'{{{2} * {3}}} {0}'\n",
    "for (let {0} = 0; {0} < {3}; {0}++) {{ {1}.push({2}[{0}]); }}\n",
    "SELECT {0}, COUNT(*) FROM {1} WHERE {2} >= {3} GROUP BY {0};\n",
    "| {0} | {1} | {2} |\n|---|---|---|\n| {3} | 0.{3} | {3}e-7 |\n",
    "https://www.{0}.example/{1}?{2}={3}&page=2\n",
)


def conversation(messages: int, words: int, seed: int = 0) -> Json:
    """A conversation of `messages` messages with about `words` words each, including tool calls and results.

    The first two are the system and the developer message; the last one is a final answer.
    """
    random = Random(seed)
    said = [_system(), _developer(random, words)]
    turns = _turns(random, words)
    while len(said) < messages - 1:
        said.append(next(turns))
    said.append(_assistant("final", _text(random, words)))
    return {"messages": said}


def _turns(random: Random, words: int) -> Iterator[Json]:
    while True:
        yield {"role": "user", "content": [_part(_text(random, words))]}
        yield _assistant("analysis", _text(random, words))
        for _ in range(random.randrange(3)):
            function = f"functions.{random.choice(('lookup', 'get_weather', 'run_query'))}"
            call = _assistant("commentary", _json(random, words))
            yield {**call, "recipient": function, "content_type": "<|constrain|>json"}
            result = {"role": "tool", "name": function, "content": [_part(_json(random, words))]}
            yield {**result, "channel": "commentary", "recipient": "assistant"}
        yield _assistant("final", _text(random, words))


def _assistant(channel: str, text: str) -> Json:
    return {"role": "assistant", "channel": channel, "content": [_part(text)]}


def _part(text: str) -> Json:
    return {"type": "text", "text": text}


def _system() -> Json:
    content = {"type": "system_content", "conversation_start_date": "2025-06-28", "reasoning_effort": "High"}
    return {"role": "system", "content": [content]}


def _developer(random: Random, words: int) -> Json:
    properties = {
        "city": {"type": "string", "description": "The city, with its country."},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "array", "items": {"type": "integer"}},
    }
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    functions = [
        {"name": name, "description": f"What {name} does.", "parameters": parameters}
        for name in ("lookup", "get_weather", "run_query")
    ]
    content = {
        "type": "developer_content",
        "instructions": _text(random, words),
        "tools": {"functions": {"name": "functions", "tools": functions}},
    }
    return {"role": "developer", "content": [content]}


def _text(random: Random, words: int) -> str:
    """Sentences and paragraphs of common and rare words, numbers and code."""
    parts = []
    for _ in range(random.randint(words // 2 + 1, words + words // 2)):
        kind = random.random()
        if kind < 0.012:
            parts.append("\n\n" + random.choice(_CODE).format(*_names(random), random.randrange(1, 10**6)))
        else:
            parts.append(_word(random, kind))
        ending = random.random()
        parts.append(". " if ending < 0.06 else ", " if ending < 0.12 else ".\n\n" if ending < 0.13 else " ")
    return "".join(parts).strip()


def _word(random: Random, kind: float) -> str:
    if kind < 0.04:
        return random.choice(_RARE)
    if kind < 0.09:
        return random.choice(_names(random)).capitalize()
    if kind < 0.12:
        return str(round(random.uniform(-100, 10_000), random.randrange(4)))
    word = random.choice(_COMMON)
    return word.capitalize() if kind < 0.18 else word


def _names(random: Random) -> list[str]:
    return ["".join(random.choices(_SYLLABLES, k=random.randint(2, 4))) for _ in range(3)]


def _json(random: Random, words: int) -> str:
    data = {name: _text(random, max(2, words // 4)) for name in _names(random)}
    indent = random.choice((None, 2))
    return json.dumps(
        {**data, "limit": random.randrange(1000)}, ensure_ascii=random.random() < 0.2, indent=indent
    )
