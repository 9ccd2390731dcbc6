"""A vocabulary beside a model must be the one that the model was trained with."""

import json
import os
import shutil

import pytest

from checkpoints import CheckpointError, open_checkpoint
from checkpoints.opening import TINY
from gptoss_jax import vocabulary
from gptoss_jax.vocabulary import load_encoding_for
from harmony.vocabulary import SPECIAL_TOKENS, read_tiktoken


@pytest.fixture
def folder(tmp_path):
    """A copy of the embedded checkpoint."""
    shutil.copytree(TINY, tmp_path / "tiny")
    return tmp_path / "tiny"


def load(folder):
    return load_encoding_for(open_checkpoint(folder))


def set_end(folder, value):
    fields = json.loads((folder / "config.json").read_text()) | {"eos_token_id": value}
    (folder / "config.json").write_text(json.dumps(fields))


def byte_text(token):
    """A token in the alphabet of byte-level tokenizers: bytes that are no visible character follow at 256."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return "".join(chr(byte if byte in visible else 256 + hidden.index(byte)) for byte in token)


def tokenizer_json(folder, tokens=None, special=None):
    """The folder's vocabulary as the `tokenizer.json` that Hugging Face's library would read."""
    if tokens is None:
        tokens = read_tiktoken((folder / "vocabulary.tiktoken").read_bytes(), "x")
    if special is None:
        special = {text: len(tokens) + number for number, text in enumerate(SPECIAL_TOKENS)}
    document = {
        "model": {"type": "BPE", "vocab": {byte_text(t): i for i, t in enumerate(tokens)}, "merges": []},
        "added_tokens": [{"content": text, "id": token} for text, token in special.items()],
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))


def test_the_embedded_checkpoint_says_what_ends_an_answer():
    checkpoint = open_checkpoint("tiny")
    assert checkpoint.eos_token_ids == (2040,)
    assert 2040 in load_encoding_for(checkpoint).stop_tokens()


@pytest.mark.parametrize("lost", [1, 2, 4, 6, 8, 100, 1700])
def test_a_vocabulary_that_lost_lines_is_refused(folder, lost):
    lines = (folder / "vocabulary.tiktoken").read_bytes().splitlines(keepends=True)
    (folder / "vocabulary.tiktoken").write_bytes(b"".join(lines[:-lost]))
    with pytest.raises(CheckpointError) as error:
        load(folder)
    assert "\n" not in str(error.value)
    if lost <= 100:
        assert "has the eos_token_id 2040: with vocabulary.tiktoken it must be" in str(error.value)
        assert f"{2040 - lost} (<|return|>)" in str(error.value)


@pytest.mark.parametrize("size", [0, 1, 24_900])
def test_a_vocabulary_cut_within_a_line_is_refused(folder, size):
    data = (folder / "vocabulary.tiktoken").read_bytes()
    (folder / "vocabulary.tiktoken").write_bytes(data[:size])
    with pytest.raises(CheckpointError):
        load(folder)


def test_a_vocabulary_that_nothing_vouches_for_is_refused(folder):
    set_end(folder, None)
    with pytest.raises(CheckpointError, match=r"no eos_token_id, .* <\|return\|>, 2040 if the file is whole"):
        load(folder)


@pytest.mark.parametrize("value", [2040, [2040], [7, 2040], [2039, 2046]])
def test_any_list_with_an_end_of_an_answer_will_do(folder, value):
    set_end(folder, value)
    assert load(folder).size == 2047


def test_a_checkpoint_for_another_vocabulary_than_the_packaged_one_is_refused(folder):
    (folder / "vocabulary.tiktoken").unlink()
    with pytest.raises(
        CheckpointError, match=r"has 2048 vocabulary rows: o200k_harmony .* needs at least 2000"
    ):
        load(folder)


def test_the_same_vocabulary_in_tokenizer_json_is_accepted(folder):
    tokenizer_json(folder)
    assert load(folder).size == 2047


def test_another_tokenizer_json_is_refused(folder):
    tokens = read_tiktoken((folder / "vocabulary.tiktoken").read_bytes(), "x")
    swapped = [*tokens[:300], tokens[301], tokens[300], *tokens[302:]]
    tokenizer_json(folder, swapped)
    with pytest.raises(
        CheckpointError, match=r"another vocabulary than .*: 2 of 2,038 ordinary tokens differ"
    ):
        load(folder)
    tokenizer_json(folder, tokens[:-3])
    with pytest.raises(CheckpointError, match="3 of 2,035 ordinary tokens differ"):
        load(folder)
    moved = {text: 2038 + (number + 1) % 9 for number, text in enumerate(SPECIAL_TOKENS)}
    tokenizer_json(folder, tokens, moved)
    with pytest.raises(
        CheckpointError, match=r"gives <\|call\|> the token 2038: in .* that is <\|startoftext\|>"
    ):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"model": {"vocab": 7}}', "[" * 100_000])
def test_a_tokenizer_json_that_cannot_be_read_is_refused(folder, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError) as error:
        load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocabulary.tiktoken"])
def test_pipes_devices_and_huge_files_are_refused_and_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=f"{name} is a pipe, socket or device: it must be a file"):
        load(folder)
    (folder / name).unlink()
    with (folder / name).open("wb") as stream:
        stream.truncate(100 << 20)
    with pytest.raises(CheckpointError, match="has 104,857,600 bytes: a vocabulary may have 67,108,864"):
        load(folder)


def test_the_published_tokenizer_json_is_known_by_its_hash(folder, monkeypatch):
    (folder / "vocabulary.tiktoken").unlink()
    (folder / "tokenizer.json").write_text("as published")
    monkeypatch.setattr(
        vocabulary,
        "PUBLISHED_TOKENIZER_SHA256",
        "f3b9e2ab0e03f4c9d3c28bc2d5df4a3a3a7c4d1c4f0c7f8f6f4f7e1f7f0d0000",
    )
    checkpoint = open_checkpoint(folder)
    object.__setattr__(checkpoint.config, "vocabulary_size", 201_088)
    checkpoint.eos_token_ids = (200_002,)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not JSON"):
        load_encoding_for(checkpoint)
    monkeypatch.setattr(
        vocabulary, "PUBLISHED_TOKENIZER_SHA256", vocabulary._check_file(folder / "tokenizer.json")
    )
    assert load_encoding_for(checkpoint).name == "HarmonyGptOss"
