"""Checkpoint folders broken at random: headers, indices, configs, vocabularies, conversions, file kinds.

Only what can be noticed is broken. A flipped bit among the weights, or within a token of a vocabulary, leaves
a checkpoint as good as any other, since the formats have no checksums.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.checkpoints.header_variants import ODD_NAMES, ODD_VALUES, RAW
from tests.checkpoints.header_variants import change as change_header

MORE_VALUES: list[Any] = [
    10**9,
    -(10**9),
    1e-300,
    1e39,
    "24",
    "mxfp4",
    ["sliding_attention"],
    ["full_attention"] * 5000,
    {"rope_type": "yarn"},
    "x" * 100_000,
    json.loads("[" * 90 + "]" * 90),
]
HUGE = 1 << 40


def json_files(folder: Path) -> list[Path]:
    """Every file of JSON, those of arrays included."""
    return [path for path in all_files(folder) if path.suffix == ".json" or path.name == ".zarray"]


def weight_files(folder: Path) -> list[Path]:
    """Every safetensors file beside the configuration."""
    return [path for path in all_files(folder) if path.suffix == ".safetensors" and path.parent == folder]


def all_files(folder: Path) -> list[Path]:
    """Every regular file of a normal size: a fault must not read a file that an earlier one made huge."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if path.stat().st_size < 1 << 24)


def read_header(file: Path) -> tuple[dict[str, Any], bytes]:
    data = file.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:end]), data[end:]


def write_header(file: Path, header: dict[str, Any] | bytes, data: bytes) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def odd_json(folder: Path, rng: random.Random) -> None:
    """Changes a value, or adds, removes or repeats a key, anywhere in a JSON file."""
    file = rng.choice(json_files(folder))
    document = json.loads(file.read_text())
    places = [(document, key) for key in document]
    places += [(value, key) for value in document.values() if isinstance(value, dict) for key in value]
    if not places:
        return
    place, key = rng.choice(places)
    what = rng.randrange(5)
    if what == 0:
        del place[key]
    elif what == 1:
        place[rng.choice([*ODD_NAMES, "num_experts", "mscale", "partial_rotary_factor", "num_layers"])] = odd(
            rng
        )
    elif what == 2:
        place[rng.choice(list(place))] = place[key]
    else:
        place[key] = odd(rng)
    file.write_text(json.dumps(document))


def odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice([*ODD_VALUES, *MORE_VALUES]))


def odd_text(folder: Path, rng: random.Random) -> None:
    """Puts something into a JSON file that `json` would not write."""
    file = rng.choice(json_files(folder))
    text = file.read_text()
    what = rng.randrange(5)
    if what == 0:
        cut = rng.randrange(len(text))
        text = text[:cut] + chr(rng.randrange(1, 0x300)) + text[cut + 1 :]
    elif what == 1:
        text = text.replace(": ", f": {rng.choice(sorted(RAW))}, {json.dumps('x')}: ", 1)
    elif what == 2:
        text = text.replace("{", '{"model_type": "gpt_oss", "model_type": "gpt_oss", ', 1)
    elif what == 3:
        text = rng.choice(sorted(RAW))
    else:
        file.write_bytes(text.encode(rng.choice(["utf-16", "utf-8-sig", "utf-32"])))
        return
    file.write_text(text)


def odd_kind(folder: Path, rng: random.Random) -> None:
    """Replaces a file by a pipe, a device, a folder, a broken or circular link, or removes it."""
    file = rng.choice(all_files(folder))
    file.unlink()
    rng.choice(
        [
            os.mkfifo,
            lambda path: path.symlink_to("/dev/zero"),
            lambda path: path.symlink_to("/dev/random"),
            lambda path: path.symlink_to(path),
            lambda path: path.symlink_to("/nowhere"),
            Path.mkdir,
            Path.touch,
            lambda path: None,
        ]
    )(file)


def cut(folder: Path, rng: random.Random) -> None:
    """Truncates a file."""
    file = rng.choice(all_files(folder))
    os.truncate(file, rng.randrange(max(1, file.stat().st_size)))


def longer(folder: Path, rng: random.Random) -> None:
    """Appends to a file; the file is sparse, so that a terabyte takes no space."""
    file = rng.choice(all_files(folder))
    if rng.random() < 0.5:
        with file.open("ab") as stream:
            stream.write(rng.choice([b"\0", b"x", b"}", b"\n", rng.randbytes(5000)]))
    else:
        os.truncate(file, rng.choice([1 << 27, 1 << 33, HUGE]))


def odd_header(folder: Path, rng: random.Random) -> None:
    """Changes the header of a safetensors file."""
    files = weight_files(folder)
    if not files:
        return
    file = rng.choice(files)
    header, data = read_header(file)
    if rng.random() < 0.3:
        names = [name for name in header if name != "__metadata__"]
        first, second = rng.choice(names), rng.choice(names)
        header[first]["data_offsets"], header[second]["data_offsets"] = (
            header[second]["data_offsets"],
            header[first]["data_offsets"],
        )
        if first != second and header[first]["shape"] == header[second]["shape"]:
            return  # two tensors of one shape have changed places, which nobody can notice
    else:
        change_header(header, rng)
    write_header(file, header, data)


def raw_header(folder: Path, rng: random.Random) -> None:
    """Changes bytes of a safetensors header, or gives it an absurd length."""
    files = weight_files(folder)
    if not files:
        return
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    if rng.random() < 0.5:
        data[:8] = struct.pack("<Q", rng.choice([0, 1, 7, 1 << 20, 100_000_001, 1 << 40, (1 << 64) - 1]))
    else:
        end = struct.unpack("<Q", data[:8])[0] + 8
        for _ in range(rng.choice([1, 3, 50])):
            data[rng.randrange(8, end)] = rng.choice(b'{}[]",:0129 \x00\xff\n')
    file.write_bytes(data)


def surplus(folder: Path, rng: random.Random) -> None:
    """Adds a file or a folder."""
    name = rng.choice(
        [
            "junk.safetensors",
            "again.safetensors",
            "\udcff\udcfe.safetensors",
            "a\nb.safetensors",
            "layers.99",
            "layers.0/layers.0.moe.surprise",
            "pytorch_model.bin",
            "tokenizer.json",
            "conversion.json",
            "checkpoint.json",
            "model.safetensors.index.json",
        ]
    )
    path = folder / name
    if name.startswith("layers."):
        path.mkdir(parents=True, exist_ok=True)
    elif name == "again.safetensors" and (files := weight_files(folder)):
        shutil.copy(rng.choice(files), path)
    elif not path.exists():
        path.write_bytes(rng.choice([b"", b"{}", b"[]", b"\x80\x02}q\x00.", rng.randbytes(200)]))


def missing(folder: Path, rng: random.Random) -> None:
    """Removes a file or a folder."""
    path = rng.choice(sorted(folder.rglob("*")))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def renamed(folder: Path, rng: random.Random) -> None:
    """Gives a part the name of another one."""
    path = rng.choice([path for path in sorted(folder.iterdir()) if path.suffix != ".lock"])
    others = ["layers.1", "checkpoint.json", "config.json", "model.safetensors", "vocabulary.tiktoken", "x"]
    target = folder / rng.choice(others)
    if target.is_dir():
        shutil.rmtree(target)
    path.rename(target)


def fewer_tokens(folder: Path, rng: random.Random) -> None:
    """Removes, repeats or reorders lines of a vocabulary."""
    file = folder / "vocabulary.tiktoken"
    if file not in all_files(folder):
        return
    lines = file.read_bytes().splitlines(keepends=True)
    what, place = rng.randrange(4), rng.randrange(len(lines))
    if what == 0:
        lines = lines[: -rng.choice([1, 2, 4, 6, 8, 500])]
    elif what == 1:
        del lines[place]
    elif what == 2:
        lines.insert(place, lines[place])
    else:
        lines[place] = rng.choice(
            [b"\n", b"IQ==\n", b"! 3\n", b"\xff\xfe 7\n", b"IQ== 99999999999999999999\n"]
        )
    file.write_bytes(b"".join(lines))


def other_index(folder: Path, rng: random.Random) -> None:
    """Moves tensors to other files in an index."""
    file = folder / "model.safetensors.index.json"
    if file not in all_files(folder):
        return
    index = json.loads(file.read_text())
    files = sorted(set(index["weight_map"].values()))
    tensor = rng.choice(list(index["weight_map"]))
    elsewhere = [
        *files,
        f"../{files[0]}",
        str(folder / files[0]),
        "..",
        "",
        "/dev/zero",
        "config.json",
        "x\n.safetensors",
    ]
    index["weight_map"][rng.choice([tensor, "", "surprise"])] = rng.choice([*elsewhere, *ODD_VALUES])
    if rng.random() < 0.3:
        index["weight_map"].pop(tensor, None)
    file.write_text(json.dumps(index))


FAULTS: list[Callable[[Path, random.Random], None]] = [
    odd_json,
    odd_json,
    odd_text,
    odd_kind,
    cut,
    longer,
    odd_header,
    odd_header,
    raw_header,
    surplus,
    missing,
    renamed,
    fewer_tokens,
    other_index,
]


def break_checkpoint(source: Path, folder: Path, rng: random.Random) -> str:
    """Copies a checkpoint and breaks the copy in one or two ways; returns their names."""
    whole = contents(source)
    while True:
        shutil.copytree(source, folder)
        names = []
        for fault in rng.sample(FAULTS, rng.choice([1, 1, 2])):
            names.append(fault.__name__)
            try:
                fault(folder, rng)
            except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error):
                names[-1] += " (not after the one before)"
        if contents(folder) != whole:
            return f"{source.name}: {', '.join(names)}"
        shutil.rmtree(folder)


def contents(folder: Path) -> dict[str, Any]:
    """Every path of a folder with its kind and size, and its contents if it can be read."""
    readable = set(all_files(folder))
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        size = 0 if path.is_dir() else status.st_size
        found[str(path.relative_to(folder))] = (
            status.st_mode,
            size,
            path.read_bytes() if path in readable else None,
        )
    return found
