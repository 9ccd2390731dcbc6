"""Safetensors files of every shape that a writer, a damaged disk or an attacker could leave behind."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

DTYPES = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    1 << 31,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    1 << 64,
    10**400,
    1.0,
    2.5,
    -0.0,
    1e300,
    "",
    "2",
    "F32",
    "f32",
    "F99",
    "\x7f",
    "é🙂",
    [],
    [0],
    [0, 0],
    [0, 8],
    [8, 0],
    [-4, 4],
    [0, 4, 8],
    [[2]],
    [True],
    [None, None],
    [1 << 63, 4, 0],
    [0, 1 << 63, 4],
    [1] * 100,
    {},
    {"F32": None},
    {"a": {"b": []}},
]
ODD_NAMES = ["", "a", "__metadata__", "__metadata__ ", "\x00", "\n", "é🙂", "x" * 5000, "../a", "a b"]
RAW = {  # replaces a JSON value by text that `json.dumps` cannot write
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-0",
    "1e0",
    "01",
    "+1",
    "0x1",
    ".5",
    "1.",
    "'a'",
    r'"\ud800"',
    r'"\udc00\ud800"',
    r'"\ud83d\ude00"',
    r'"\u00"',
    r'"\x41"',
    '"\x01"',
    "[1,]",
    "[,]",
    '{"a":1,}',
    '{"a":1,"a":2}',
    "{1:2}",
    "undefined",
    "",
    "1" * 5000,
    "[" * 60 + "]" * 60,
    "[" * 200 + "]" * 200,
    "[" * 100_000 + "]" * 100_000,
    "[" * 5000,
    "// a",
    "/* a */ 1",
}
_MARK = "@@raw@@"


def good_header(rng: random.Random) -> tuple[dict[str, Any], int]:
    """A valid header, its tensors in any order, and how many bytes of data it describes."""
    entries: dict[str, Any] = {}
    end = 0
    for number in range(rng.randrange(4)):
        dtype = rng.choice(list(DTYPES))
        shape = [rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.randrange(4))]
        if DTYPES[dtype] < 8:
            shape.append(4)
        count = DTYPES[dtype]
        for size in shape:
            count *= size
        start, end = end, end + count // 8
        entries[f"tensor{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    names = list(entries)
    rng.shuffle(names)
    header: dict[str, Any] = {name: entries[name] for name in names}
    if rng.random() < 0.5:
        metadata = rng.choice([{"format": "pt"}, {}, None, {"a": "b", "c": "\n"}])
        header = (
            {"__metadata__": metadata, **header}
            if rng.random() < 0.5
            else header | {"__metadata__": metadata}
        )
    return header, end


def variant(rng: random.Random) -> bytes:
    """A valid file, or one with one to three faults."""
    header, size = good_header(rng)
    raw = None
    for _ in range(rng.choice([0, 0, 0, 1, 1, 1, 2, 3])):
        raw = change(header, rng) or raw
    text = json.dumps(header, ensure_ascii=rng.random() < 0.5)
    if raw is not None:
        text = text.replace(json.dumps(_MARK), raw)
    encoded = text.encode(
        rng.choices(["utf-8", "utf-16", "utf-8-sig", "latin-1"], [40, 1, 1, 1])[0], "replace"
    )
    encoded = _around(encoded, rng)
    data = b"\0" * max(0, size + rng.choice([0] * 12 + [-1, 1, 8, -8, -size, 4096]))
    length = len(encoded) + rng.choice([0] * 30 + [-1, 1, 8, 1 << 20, 100_000_001, 1 << 62, (1 << 63) - 1])
    file = struct.pack("<Q", max(0, length)) + encoded + data
    if rng.random() < 0.04:
        file = file[: rng.randrange(len(file) + 1)]
    if rng.random() < 0.04 and file:
        place = rng.randrange(len(file))
        file = file[:place] + bytes([rng.randrange(256)]) + file[place + 1 :]
    return file


def _around(encoded: bytes, rng: random.Random) -> bytes:
    """White space and other bytes before and after the header."""
    before = rng.choices([b"", b" ", b"\n\t", b"\0", b"\x0b"], [30, 1, 1, 1, 1])[0]
    after = rng.choices([b"", b"    ", b" \n", b"\0\0", b"}", b"{}", b","], [30, 4, 1, 1, 1, 1, 1])[0]
    return before + encoded + after


def _odd(rng: random.Random, *others: Any) -> Any:
    return copy.deepcopy(rng.choice([*ODD_VALUES, *others]))


def change(header: dict[str, Any], rng: random.Random) -> str | None:
    """Puts one odd value into a header; returns the text that replaces `_MARK`, or None if it put no mark."""
    tensors = [name for name, entry in header.items() if isinstance(entry, dict) and name != "__metadata__"]
    if not tensors or rng.random() < 0.15:
        name = rng.choice([*ODD_NAMES, *header])
        header[name] = _odd(rng, {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, _MARK)
        return rng.choice(sorted(RAW))
    entry = header[rng.choice(tensors)]
    what = rng.randrange(7)
    key = rng.choice(["dtype", "shape", "data_offsets"])
    if what == 0:
        entry.pop(key, None)
    elif what == 1:
        entry[key] = _odd(rng)
    elif what == 2:
        entry[rng.choice(["x", "Dtype", "offsets", "é"])] = _odd(rng, _MARK)
    elif what == 3:
        offsets = entry.get("data_offsets")
        if isinstance(offsets, list) and offsets:
            offsets[rng.randrange(len(offsets))] = _odd(rng, _MARK, 1, 2, 4, 8)
    elif what == 4:
        shape = entry.get("shape")
        if isinstance(shape, list):
            shape.insert(rng.randrange(len(shape) + 1), _odd(rng, _MARK, 1, 1))
    elif what == 5:
        other = header[rng.choice(tensors)]
        keys = ["data_offsets"] if rng.random() < 0.5 else ["dtype", "shape", "data_offsets"]
        entry |= copy.deepcopy({key: other.get(key) for key in keys})
    else:
        offsets = entry.get("data_offsets")
        if isinstance(offsets, list) and all(type(offset) is int for offset in offsets):
            shift = rng.choice([-8, -1, 1, 4, 8])
            entry["data_offsets"] = [offset + shift for offset in offsets]
    return rng.choice(sorted(RAW))
