"""The page of a run: whole, safe, and made without holding it."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gptoss_jax.evals import data
from gptoss_jax.evals.figures import figures_of
from gptoss_jax.evals.page import page_of
from gptoss_jax.evals.records import read_run
from gptoss_jax.evals.report import write_report
from gptoss_jax.evals.types import EvaluationError
from tests.evals import made_runs
from tests.evals.made_runs import cut, failed, graded, row

EVIL = (
    "</div></details></style><script>window.hit=1</script><img src=x onerror='window.hit=1'>"
    '"><a href="javascript:window.hit=1">&lt;&#0;\x00\x1b]0;x\x07\u202etxt\ud800\r\n--><!-- ]]>'
)
RUN = {"evaluation": "aime", "model": "tiny", "effort": "low", "problems": 3, "attempts": 2}


class Parsed(HTMLParser):
    """A page as a parser reads it: its elements in their order, and the text in each kind of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.said: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
            self.said.setdefault(f"{tag}.{dict(attrs).get('class') or ''}", []).append("")
            self.last = f"{tag}.{dict(attrs).get('class') or ''}"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.said[self.last][-1] += data


def page(path: Path) -> str:
    write_report(path)
    return path.with_suffix(".html").read_text(encoding="utf-8")


def rows_saying(text: str) -> list[dict[str, Any]]:
    """Rows with a text in every place that a model, a server, a grader or a data set can fill."""
    messages = [
        {"role": text, "content": text},
        {"role": "user", "content": [{"type": "text", "text": text}]},
    ]
    grade = {"answer": text, "score": 0.0}
    said = {"messages": messages, "reasoning": text, "text": text, "finish_reason": text}
    item = {"criterion": text, "explanation": text, "points": text, "tags": [text], "criteria_met": False}
    details = {
        "rubric_items": [item],
        "metrics": {"overall_score": 0.5, text: 0.5},
        "grader": text,
        text: text,
    }
    return [
        row(text, 0, 0.0, **said, expected=text, harness=grade, strict=grade),
        row(text, 1, 0.0, **said, expected=text, harness=grade, strict=grade, details={text: text}),
        failed("p", 0) | {"error": {"code": text, "message": text}},
        failed("p", 1) | {"error": {"code": text, "message": text}},
        row("h", 0, None, **said, expected=None, details=details, strict=None) | {"harness": {"score": 0.5}},
        row("h", 1, None, **said, expected=None, details=details, strict=None) | {"harness": {"score": 0.5}},
    ]


def run_saying(text: str) -> dict[str, Any]:
    return {**RUN, "evaluation": text, "model": text, "effort": text, "subset": text, text: [text]}


def elements_saying(folder: Path, text: str) -> list[tuple[str, dict[str, str | None]]]:
    run = read_run(made_runs.write(folder / "out.jsonl", rows_saying(text), **run_saying(text)))
    parsed = Parsed("".join(page_of(run, figures_of(run))))
    assert parsed.open == []
    return parsed.elements


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, dict[str, str | None]]]:
    """The elements of the page whose texts are all "a"."""
    return elements_saying(tmp_path_factory.mktemp("plain"), "a")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=[])).map(lambda text: "a" + text))
def test_no_text_is_anything_but_text(tmp_path: Path, plain: list[Any], text: str) -> None:
    assert elements_saying(tmp_path, text) == plain


def test_hostile_text_is_shown_and_not_obeyed(tmp_path: Path, plain: list[Any]) -> None:
    made = page(made_runs.write(tmp_path / "out.jsonl", rows_saying(EVIL), **run_saying(EVIL)))
    parsed = Parsed(made)
    assert parsed.elements == plain
    for character in "\x00\x1b\x07\u202e\r":
        assert character not in made
    assert "<script>window.hit=1</script>" in "".join(parsed.said["div.say"])
    policy = [given["content"] for tag, given in parsed.elements if "http-equiv" in given]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_needs_no_script_and_no_network(tmp_path: Path) -> None:
    parsed = Parsed(page(made_runs.write(tmp_path / "out.jsonl", made_runs.aime(4, 3), **RUN)))
    assert not {tag for tag, _ in parsed.elements} & {"script", "link", "img", "iframe", "form", "base"}
    for tag, attributes in parsed.elements:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "srcset")}, tag
        assert (attributes.get("href") or "#").startswith("#")


def test_every_attempt_is_on_the_page_once_with_all_it_said(tmp_path: Path) -> None:
    rows = [
        row("p", 0, reasoning="Thought one.", text="Answer one."),
        row("p", 1, 0.0, reasoning="Thought two.", text="Answer two."),
        cut("q", 0) | {"reasoning": "Thought three", "text": ""},
        failed("q", 1),
    ]
    made = page(made_runs.write(tmp_path / "out.jsonl", rows, **RUN))
    parsed = Parsed(made)
    for text in ("Thought one.", "Answer one.", "Thought two.", "Answer two.", "Thought three"):
        assert made.count(text) == 1
    assert made.count("What is p?") == 1, "the prompt of all attempts at a problem is shown once"
    assert "cut: the limit of tokens was reached" in made
    assert "timeout: no answer within 600 s" in made
    assert "The answer is empty." in made
    ids = [given["id"] for tag, given in parsed.elements if (given.get("id") or "").startswith("row-")]
    links = [given["href"] for tag, given in parsed.elements if tag == "a" and "href" in given]
    assert sorted(links) == sorted(f"#{name}" for name in ids) == [f"#row-{line}" for line in (1, 2, 3, 4)]


def test_prompts_that_differ_stand_with_their_attempts(tmp_path: Path) -> None:
    rows = [
        row("p", attempt, messages=[{"role": "user", "content": f"(A) {order}"}], expected="AB"[attempt])
        for attempt, order in enumerate(("first", "second"))
    ]
    made = page(made_runs.write(tmp_path / "out.jsonl", rows, **RUN))
    assert made.index("(A) first") < made.index("(A) second")
    assert made.count("(A) first") == 1
    assert "differs" in made


def test_rubrics_are_shown_item_by_item(tmp_path: Path) -> None:
    made = page(made_runs.write(tmp_path / "out.jsonl", [graded("h", 0.63, theme=0.63)], **RUN))
    assert "Asks for the age" in made and "63.0%" in made and ">met<" in made


def test_a_large_run_is_never_in_memory(tmp_path: Path) -> None:
    rows = (row(f"p{number}", 0, reasoning="long thought " * 10_000) for number in range(60))  # 8 MB
    path = made_runs.write(tmp_path / "out.jsonl", rows, **{**RUN, "problems": 60, "attempts": 1})
    tracemalloc.start()
    try:
        run = read_run(path)
        size = sum(len(part) for part in page_of(run, figures_of(run)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 7.5e6
    assert peak < 2.5e6


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made_runs.write(tmp_path / "out.jsonl", [row("p", 0)], **RUN)
    before = page(path)

    def fails(*_: object) -> Any:
        yield "half a page"
        raise EvaluationError("the rows were changed")

    monkeypatch.setattr("gptoss_jax.evals.report.page_of", fails)
    with pytest.raises(EvaluationError):
        write_report(path)
    assert path.with_suffix(".html").read_text() == before
    assert not list(tmp_path.glob("*.part"))


def test_rows_that_change_below_the_page_end_it(tmp_path: Path) -> None:
    path = made_runs.write(tmp_path / "out.jsonl", [row("p", 0), row("q", 0)], **RUN)
    run = read_run(path)
    path.write_bytes(path.read_bytes()[7:])
    with pytest.raises(EvaluationError, match="was changed while its report was made"):
        list(page_of(run, figures_of(run)))


def test_the_report_says_the_same_in_text_and_json(tmp_path: Path) -> None:
    path = made_runs.write(
        tmp_path / "out.jsonl", made_runs.aime(6, 4), **{**RUN, "problems": 6, "attempts": 4}
    )
    said = write_report(path)
    document = json.loads(path.with_name("out.report.json").read_text())
    assert f"{document['harness']['score']:.1%}" in said
    assert len(document["by_problem"]) == 6
    mean = sum(problem["score"] for problem in document["by_problem"]) / 6
    assert mean == pytest.approx(document["harness"]["score"])
    assert document["run"]["model"] == "tiny"
    assert max(map(len, said.splitlines()[:-2])) <= 100  # but for the paths


def test_figures_of_the_sample_are_not_called_those_of_the_evaluation(tmp_path: Path) -> None:
    folder = Path(data.__file__).parent / "samples" / "aime"
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    said = write_report(made_runs.write(tmp_path / "out.jsonl", [row("p", 0)], **RUN, data=hashes))
    assert said.startswith("The sample of AIME 2025 · tiny")
    others = dict.fromkeys(hashes, "0" * 64)
    said = write_report(made_runs.write(tmp_path / "out.jsonl", [row("p", 0)], **RUN, data=others))
    assert said.startswith("AIME 2025 · tiny")


def test_the_terminal_is_not_controlled_by_what_a_run_is_called(tmp_path: Path) -> None:
    said = write_report(made_runs.write(tmp_path / "out.jsonl", rows_saying(EVIL), **run_saying(EVIL)))
    assert not {character for character in said if ord(character) < 32 and character != "\n"}
    assert "\u202e" not in said
