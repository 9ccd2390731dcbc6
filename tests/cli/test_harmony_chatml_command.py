"""ChatML at the command line: side by side, converted, and what it loses."""

from __future__ import annotations

import json
import re

from harmony.chatml import chatml_from_conversation
from tests.cli.command_runner import run
from tests.cli.harmony_samples import CONVERSATION, ENCODING, HARMONY, command, tokens_of

DATE = "2025-06-28"


def test_side_by_side_has_both_texts_the_counts_of_each_and_what_is_lost(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = command("view", "--side-by-side", "chatml").splitlines()
    end = next(index for index, line in enumerate(lines) if line.startswith("── in all"))
    columns = [re.split(" │ ?", line, maxsplit=1) for line in lines[1:end]]
    for column, whole in ((0, command("render")), (1, chatml_from_conversation(CONVERSATION))):
        shown = "".join(cells[column] for cells in columns if "── " not in cells[column])
        assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", whole)
    counts = [re.findall(r"── (?:\S+ |\d+–?\d*: )?(\d+) tokens", " ".join(cells)) for cells in columns]
    rows = [tuple(map(int, count)) for count in counts if count]
    totals = tuple(map(int, re.findall(r"(\d+) tokens", lines[end])))
    assert totals == (sum(row[0] for row in rows), sum(row[1] for row in rows))
    assert totals[0] == len(tokens_of(command("render", "--tokens")))
    marked = chatml_from_conversation(CONVERSATION)
    parts = re.split(r"<\|im_(?:start|end)\|>", marked)
    assert totals[1] == len(parts) - 1 + sum(len(ENCODING.encode_ordinary(part)) for part in parts)
    lost = "\n".join(lines[end:])
    for words in ("the model's identity", "the tools python", "response formats city", "name alice"):
        assert words in re.sub(r"\s+", " ", lost).replace("built-in tools", "tools")


def test_side_by_side_shows_in_one_row_what_chatml_joins() -> None:
    said = [("developer", "Be brief."), ("developer", "Be kind."), ("user", "Hi")]
    conversation = [
        {"role": role, "channel": None, "content": [{"type": "text", "text": text}]} for role, text in said
    ]
    output = command("view", "--side-by-side", "chatml", stdin=conversation)
    assert re.findall(r"^── (\S+): \d+ tokens .*│ ── \d+ tokens$", output, re.MULTILINE) == ["0–1", "2"]


def test_conversion_to_chatml_says_on_standard_error_what_is_lost() -> None:
    done = run("harmony", "convert", "--to", "chatml", stdin=json.dumps(HARMONY))
    assert done.code == 0
    assert done.text == chatml_from_conversation(CONVERSATION)
    lines = done.error.splitlines()
    assert all(line.startswith("gptoss-jax: lost in ChatML: messages[") for line in lines)
    assert [re.findall(r"messages\[(\d)\]", line)[0] for line in lines] == ["0", "1", "2", "4"]
