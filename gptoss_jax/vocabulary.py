"""Loads the vocabulary of a checkpoint, and checks that the model was trained with it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from checkpoints import Checkpoint, CheckpointError
from checkpoints.files import open_regular, read_up_to, reason
from harmony import (
    HarmonyEncoding,
    HarmonyEncodingName,
    HarmonyFormatError,
    load_encoding,
    load_harmony_encoding,
)

PUBLISHED_TOKENIZER_SHA256 = "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"
"""SHA-256 of the `tokenizer.json` that is published with gpt-oss-20b and gpt-oss-120b."""

_MAX_BYTES = 64 << 20  # the largest vocabulary file that is read; the published tokenizer.json has 28 MB
_RETURN = "<|return|>"
_END_OF_TEXT = "<|endoftext|>"
_PROBE = "I've 12345 naïve  plans:\n\n\tx+=1; 日本語 🙂 HTTPServer's\r\n end  "
"""A text that encodes differently if a tokenizer splits text by other rules before it merges."""


def load_encoding_for(checkpoint: Checkpoint) -> HarmonyEncoding:
    """Loads the encoding of a checkpoint: its own ``vocabulary.tiktoken``, or the packaged o200k_harmony.

    The ids of special tokens in a ``vocabulary.tiktoken`` follow those of its ordinary tokens. If lines of
    the file are missing, the ids are wrong; the checkpoint's ``eos_token_id`` reveals that. A
    ``tokenizer.json`` in the checkpoint must describe the same vocabulary.

    Raises:
        CheckpointError: a vocabulary file cannot be read, or the model was trained with another vocabulary.
    """
    own = checkpoint.vocabulary
    try:
        if own:
            _check_file(own)
            encoding = load_encoding(own)
        else:
            encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    except HarmonyFormatError as error:
        raise CheckpointError(str(error)) from None
    name = own.name if own else "o200k_harmony (it brings no vocabulary of its own)"
    needed = max(encoding.stop_tokens()) + 1
    rows = checkpoint.config.vocabulary_size
    if needed > rows:
        raise CheckpointError(f"{checkpoint.path} has {rows} vocabulary rows: {name} needs at least {needed}")
    _check_end(checkpoint, encoding, name)
    if checkpoint.tokenizer:
        _check_tokenizer(checkpoint.tokenizer, encoding, name)
    return encoding


def _check_end(checkpoint: Checkpoint, encoding: HarmonyEncoding, name: str) -> None:
    """Checks that the checkpoint's `eos_token_id` is a token that ends an answer in the vocabulary."""
    ids = checkpoint.eos_token_ids
    ends = {text: _special(encoding, text) for text in (_RETURN, _END_OF_TEXT)}
    if not ids and checkpoint.vocabulary:
        raise CheckpointError(
            f"{checkpoint.path} has no eos_token_id, by which its {name} is checked: it must be the token of "
            f"{_RETURN}, {ends[_RETURN]} if the file is whole"
        )
    if ids and not set(ids).intersection(ends.values()):
        expected = " or ".join(f"{token} ({text})" for text, token in ends.items())
        raise CheckpointError(
            f"{checkpoint.path} has the eos_token_id {', '.join(map(str, ids))}: with {name} it must be "
            f"{expected}; the vocabulary is cut short or another model's"
        )


def _check_tokenizer(path: Path, encoding: HarmonyEncoding, name: str) -> None:
    """Checks that a `tokenizer.json` describes the same vocabulary as the encoding."""
    if _check_file(path) == PUBLISHED_TOKENIZER_SHA256 and encoding.name == str(
        HarmonyEncodingName.HARMONY_GPT_OSS.value
    ):
        return
    try:
        theirs = load_encoding(path)
    except HarmonyFormatError as error:
        raise CheckpointError(str(error)) from None
    if theirs.ordinary_tokens != encoding.ordinary_tokens:
        pairs = zip(theirs.ordinary_tokens, encoding.ordinary_tokens, strict=False)
        count = sum(one != other for one, other in pairs)
        count += abs(len(theirs.ordinary_tokens) - len(encoding.ordinary_tokens))
        raise CheckpointError(
            f"{path} describes another vocabulary than {name}: {count:,} of "
            f"{len(theirs.ordinary_tokens):,} ordinary tokens differ"
        )
    for text in sorted(theirs.special_tokens_set):
        token = _special(theirs, text)
        ours = encoding.token_bytes(token)
        if ours != text.encode():
            known = "no token" if ours is None else ours.decode(errors="replace")
            raise CheckpointError(f"{path} gives {text} the token {token}: in {name} that is {known}")
    if theirs.encode_ordinary(_PROBE) != encoding.encode_ordinary(_PROBE):
        raise CheckpointError(f"{path} splits text in another way than {name}")


def _special(encoding: HarmonyEncoding, text: str) -> int:
    (token,) = encoding.encode(text, allowed_special={text})
    return token


def _check_file(path: Path) -> str:
    """The SHA-256 of a file. Raises CheckpointError if it is too large, or is a pipe or a device."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > _MAX_BYTES:
                raise CheckpointError(f"{path} has {size:,} bytes: a vocabulary may have {_MAX_BYTES:,}")
            return hashlib.sha256(read_up_to(stream, size)).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason(error)}") from None
