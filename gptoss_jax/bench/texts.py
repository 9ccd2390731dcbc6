"""Texts to encode: ordinary texts, and texts that could make splitting or merging slow.

Always the same ones.
"""

from __future__ import annotations

import base64
import json
from random import Random

from .conversations import conversation

CLASSES = {
    "small letters": "etaoinshrdlu",
    "capitals": "ETAOINSHRDLU",
    "title case": "ǅǈǋǲ",
    "letters without case": "中文字東京日本語",
    "digits": "0123456789",
    "punctuation": "!?.,;:-_=+*#",
    "apostrophes": "'",
    "slashes": "/",
    "spaces and tabs": " \t",
    "line breaks": "\r\n",
    "other spaces": "\xa0\x85\u2003\u3000\u2028",
    "marks": "\u0301\u0308\u0903",
    "emoji": "😀🎉👍\u200d",
}
"""Classes of characters that the pattern of `o200k_base` treats alike, or nearly so."""


def mixture(first: str, second: str, period: int, size: int) -> str:
    """A text of `size` characters: `period` random ones of one class, as many of the other, and so on."""
    random = Random(period)
    parts: list[str] = []
    while len(parts) * period < size:
        parts += ["".join(random.choices(CLASSES[name], k=period)) for name in (first, second)]
    return "".join(parts)[:size]


def ordinary_texts(size: int) -> dict[str, str]:
    """Name → a text of about `size` characters, such as people and programs write."""
    random = Random(0)
    messages = conversation(20 + size // 2000, 442)["messages"]
    prose = "\n\n".join(part.get("text", "") for message in messages for part in message["content"])
    return {
        "prose, code and JSON": prose[:size],
        "indented JSON": json.dumps(messages, ensure_ascii=False, indent=4)[:size],
        "Chinese": "".join(_chinese_sentence(random) for _ in range(size // 20)),
        "base64": base64.b64encode(random.randbytes(size * 3 // 4)).decode(),
        "hexadecimal": random.randbytes(size // 2).hex(),
        "digits": "".join(random.choices("0123456789", k=size)),
    }


def _chinese_sentence(random: Random) -> str:
    characters = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生"
    return "".join(random.choices(characters, k=random.randrange(8, 30))) + random.choice("，。？！；")
