"""The comparison with openai-harmony: what it measures, what it prints, and that it checks first."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from typing import Any

import pytest

import harmony
from gptoss_jax import cli
from gptoss_jax.bench import comparison, text_encoding, texts
from gptoss_jax.bench import harmony as bench
from gptoss_jax.bench.conversations import conversation


def tokens_of(data: dict[str, Any]) -> list[int]:
    parsed = harmony.Conversation.from_json(json.dumps(data))
    return harmony.load_harmony_encoding().render_conversation(parsed)


@pytest.mark.parametrize(
    ("name", "tokens"), [("short", 13_000), pytest.param("long", 369_000, marks=pytest.mark.slow)]
)
def test_the_conversations_have_the_size_that_is_asked_for(name: str, tokens: int) -> None:
    messages, words = bench.CONVERSATIONS[name]
    data = conversation(messages, words)
    assert len(data["messages"]) == messages
    assert abs(len(tokens_of(data)) - tokens) < 0.05 * tokens


def test_the_conversations_are_varied_and_always_the_same() -> None:
    data = conversation(100, 30)
    assert data == conversation(100, 30)
    assert data != conversation(100, 30, seed=1)
    said = [json.dumps(message) for message in data["messages"]]
    assert len(set(said)) == len(said)
    assert {message.get("channel") for message in data["messages"]} == {
        None,
        "analysis",
        "commentary",
        "final",
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CONVERSATIONS", {"short": (8, 5)})
    monkeypatch.setattr(text_encoding, "ORDINARY_SIZE", 500)
    monkeypatch.setattr(text_encoding, "RUNS", {"spaces": text_encoding.RUNS["n spaces, then x"]})
    monkeypatch.setattr(text_encoding, "RUN_SIZES", [100, 200, 400, 800, 1600, 3200])
    monkeypatch.setattr(text_encoding, "MIXTURE_SIZE", 30)
    monkeypatch.setattr(text_encoding, "PERIODS", (2, 20))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_run_tells_of_every_kind_of_work_in_a_table_or_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai_harmony")
    assert cli.main(["bench", "harmony", "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["against"] == "openai-harmony 0.0.8"
    assert all(len(row["ours_seconds"]) == len(row["theirs_seconds"]) == 1 for row in report["comparisons"])
    assert {row["target"] for row in report["comparisons"]} == {1.0, 1.5, 2.0, 3.0, None}
    assert {row["target"] for row in report["encoding_against_tiktoken"]} == {0.5}
    assert [len(run["ours_seconds"]) for run in report["long_runs"]] == [6]
    assert [row["period"] for row in report["mixtures"]] == [2, 20]
    assert len(report["mixtures"][0]["ours_seconds_a_character"]) == len(texts.CLASSES) ** 2

    rows = [comparison.Comparison(row["work"], row["data"], [1], [2], 3) for row in report["comparisons"]]
    encoded = [comparison.Comparison("encode", "digits", [1], [0.75], 0.5)]
    runs = [text_encoding.Run("spaces", report["long_runs"][0]["ours_seconds"], 1.0)]
    pairs = [("digits", "marks"), ("marks", "digits")]
    mixtures = [text_encoding.Mixtures(20, pairs, [3e-9, 5e-9], [4e-9, 4e-9])]
    same = bench.Report(report["tokens"], rows, encoded, runs, mixtures)
    monkeypatch.setattr(bench, "run", lambda rounds: same)
    assert cli.main(["bench", "harmony"]) == 0
    printed = capsys.readouterr().out
    assert "2.00x" in printed
    assert "3x missed by 33%" in printed
    assert "0.5x holds" in printed
    for words in ("render_conversation", "render for completion", "parse_messages", "events of 1 token"):
        assert words in printed
    for words in ("import until short rendered", "until first text encoded", "until first token decoded"):
        assert words in printed
    assert "load_harmony_encoding again" not in printed  # a load that finds what the first one made
    assert "spaces" in printed and "3,200" in printed
    assert re.search(r"^marks +digits +20 +4 +5 +4 +4$", printed, re.MULTILINE)


def test_mixtures_have_runs_of_the_period_and_all_classes_are_different() -> None:
    text = texts.mixture("digits", "slashes", 3, 10)
    assert len(text) == 10
    assert text[:3].isdigit() and text[3:6] == "///" and text[6:9].isdigit()
    assert text == texts.mixture("digits", "slashes", 3, 10)
    characters = "".join(texts.CLASSES.values())
    assert len(set(characters)) == len(characters)
    assert len(texts.CLASSES) >= 12


def test_ordinary_texts_have_the_size_that_is_asked_for() -> None:
    for name, text in texts.ordinary_texts(20_000).items():
        assert abs(len(text) - 20_000) < 2000, name


@pytest.mark.usefixtures("small")
def test_nothing_is_measured_when_the_outputs_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai_harmony")
    monkeypatch.setattr(harmony.StreamableParser, "last_content_delta", "x")
    monkeypatch.setattr(bench, "in_turns", lambda *arguments: pytest.fail("timed before the check"))
    assert cli.main(["bench", "harmony"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "stream: process, its delta of the short conversation differs" in printed.err


def test_without_the_known_library_the_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    assert cli.main(["bench", "harmony"]) == 1
    assert capsys.readouterr().err == (
        "gptoss-jax: this benchmark needs openai-harmony 0.0.8 (pip install openai-harmony==0.0.8): "
        "it is not installed\n"
    )


def test_another_version_of_the_known_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai_harmony")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.9")
    assert cli.main(["bench", "harmony"]) == 1
    assert "0.0.9 is installed" in capsys.readouterr().err


def test_a_ratio_is_of_the_medians_and_is_held_against_the_target() -> None:
    row = comparison.Comparison("work", "data", ours=[1, 2, 9], theirs=[3, 30, 6], target=4)
    assert row.ratio == 3
    assert sorted(row.ratios) == [6 / 9, 3, 15]
    assert row.verdict == "4x missed by 25%"
    assert comparison.Comparison("work", "data", [1], [4], 4).verdict == "4x holds"
    assert comparison.Comparison("work", "data", [1], [4]).verdict == ""


def test_the_sides_take_turns_in_going_first() -> None:
    order: list[str] = []
    comparison.in_turns(3, lambda: order.append("ours"), lambda: order.append("theirs"))
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
