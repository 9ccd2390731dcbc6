"""`harmony` against openai-harmony 0.0.8: the same input in the same run, equal output asserted first."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import harmony
from harmony import vocabulary

from .comparison import BenchError, Comparison, comparison_table, cpu_seconds, in_turns, table
from .conversations import conversation

KNOWN_VERSION = "0.0.8"
CONVERSATIONS = {"short": (200, 28), "long": (500, 442)}
"""Messages and words a message: about 13,000 and 369,000 tokens."""

RENDER_TARGET, STREAM_TARGET, LOAD_TARGET = 1.5, 2.0, 5.0

RUNS = {
    "'a' n times": lambda n: "a" * n,
    "n spaces, then x": lambda n: " " * n + "x",
    "n line breaks, then x": lambda n: "\n" * n + "x",
    "'!' n times": lambda n: "!" * n,
    "'中' n times": lambda n: "中" * n,
}
RUN_SIZES = [31_250 * 2**doubling for doubling in range(7)]  # up to two million
"""0.0.8 is only shown the first: it is quadratic on "a", and its process dies of a million spaces."""


@dataclass(frozen=True)
class Report:
    """What the benchmark found."""

    conversations: dict[str, int]
    """Their tokens."""
    comparisons: list[Comparison]
    runs: list[tuple[str, list[float], float]]
    """A long run's name, the seconds of each size, and the known library's at the smallest."""

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        runs = [
            {"text": name, "sizes": RUN_SIZES, "ours_seconds": ours, "theirs_seconds_at_the_first": theirs}
            for name, ours, theirs in self.runs
        ]
        return {
            "against": f"openai-harmony {KNOWN_VERSION}",
            "tokens": self.conversations,
            "comparisons": [row.as_json() for row in self.comparisons],
            "long_runs": runs,
        }

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {tokens:,} tokens" for name, tokens in self.conversations.items())
        rounds = len(self.comparisons[0].ours)
        return "\n\n".join(
            [
                f"harmony against openai-harmony {KNOWN_VERSION}: equal output, then CPU time, medians of "
                f"{rounds} rounds in turns\n{sizes}",
                comparison_table(self.comparisons),
                "Encoding long runs, milliseconds (growth: of the time per character; 1 or less is linear)\n"
                + self._run_table(),
            ]
        )

    def _run_table(self) -> str:
        head = ["text", "", *(f"{size:,}" for size in RUN_SIZES), f"0.0.8 at {RUN_SIZES[0]:,}", "growth"]
        rows = []
        for name, ours, theirs in self.runs:
            # The largest three sizes against the three before.
            per_character = [seconds / size for seconds, size in zip(ours, RUN_SIZES, strict=True)]
            growth = statistics.median(per_character[-3:]) / statistics.median(per_character[-6:-3])
            rows.append([name, "", *(f"{s * 1e3:.3g}" for s in ours), f"{theirs * 1e3:.3g}", f"{growth:.2f}"])
        return table(head, rows)


def run(rounds: int) -> Report:
    """Compares and times everything. Raises BenchError."""
    with known_library() as (known, environment):
        sides = Sides(known)
        comparisons: list[Comparison] = []
        tokens = {}
        for name, (messages, words) in CONVERSATIONS.items():
            tokens[name], rows = compare_conversation(sides, name, conversation(messages, words), rounds)
            comparisons += rows
        comparisons += compare_loading(sides, rounds, environment)
        return Report(tokens, comparisons, [time_run(sides, name) for name in RUNS])


@contextmanager
def known_library() -> Iterator[tuple[ModuleType, dict[str, str]]]:
    """openai-harmony, reading its vocabulary from a folder written from this package, and that setting.

    Raises BenchError if it is not installed, or in another version.
    """
    needed = (
        f"this benchmark needs openai-harmony {KNOWN_VERSION} (pip install openai-harmony=={KNOWN_VERSION})"
    )
    try:
        version = importlib.metadata.version("openai-harmony")
        known = importlib.import_module("openai_harmony")
    except ImportError:
        raise BenchError(f"{needed}: it is not installed") from None
    if version != KNOWN_VERSION:
        raise BenchError(f"{needed}: {version} is installed")
    setting = "TIKTOKEN_ENCODINGS_BASE"
    before = os.environ.get(setting)
    with tempfile.TemporaryDirectory() as folder:
        published = vocabulary.to_tiktoken(vocabulary.o200k_base())
        Path(folder, "o200k_base.tiktoken").write_bytes(published)
        os.environ[setting] = folder
        try:
            yield known, {**os.environ}
        finally:
            if before is None:
                del os.environ[setting]
            else:
                os.environ[setting] = before


class Sides:
    """The two libraries and their encodings."""

    def __init__(self, known: ModuleType) -> None:
        self.known = known
        self.known_encoding = known.load_harmony_encoding("HarmonyGptOss")
        self.encoding = harmony.load_harmony_encoding()


def same(what: str, ours: object, theirs: object) -> None:
    """Raises BenchError unless the two are equal."""
    if ours != theirs:
        raise BenchError(f"{what} differs between harmony and openai-harmony: nothing was measured")


def compare_conversation(
    sides: Sides, name: str, data: dict[str, Any], rounds: int
) -> tuple[int, list[Comparison]]:
    """Rendering, parsing and streaming of one conversation; also the number of its tokens."""
    text = json.dumps(data)
    ours, theirs = sides.encoding, sides.known_encoding
    our_messages = harmony.Conversation.from_json(text)
    their_messages = sides.known.Conversation.from_json(text)
    tokens = ours.render_conversation(our_messages)
    our_role, their_role = harmony.Role.ASSISTANT, sides.known.Role.ASSISTANT

    def process() -> list[str]:
        return processed(harmony.StreamableParser(ours, None), tokens)

    def their_process() -> list[str]:
        return processed(sides.known.StreamableParser(theirs, None), tokens)

    def feed(steps: Sequence[Sequence[int]]) -> list[str]:
        return fed(harmony.RecoveringParser(ours, None), steps)

    # As tuples, which the garbage collector stops visiting: these steps are no part of the work.
    one_by_one, by_eight = (
        [tuple(tokens[i : i + size]) for i in range(0, len(tokens), size)] for size in (1, 8)
    )

    rows: list[tuple[str, Callable[[], Any], Callable[[], Any], Callable[[Any], Any], float | None]] = [
        (
            "render_conversation",
            lambda: ours.render_conversation(our_messages),
            lambda: theirs.render_conversation(their_messages),
            list,
            RENDER_TARGET,
        ),
        (
            "render for completion",
            lambda: ours.render_conversation_for_completion(our_messages, our_role),
            lambda: theirs.render_conversation_for_completion(their_messages, their_role),
            list,
            RENDER_TARGET,
        ),
        (
            "parse_messages",
            lambda: ours.parse_messages_from_completion_tokens(tokens),
            lambda: theirs.parse_messages_from_completion_tokens(tokens),
            lambda messages: [message.to_dict() for message in messages],
            None,
        ),
        ("stream: process, its delta", process, their_process, list, STREAM_TARGET),
        ("stream: events of 1 token", lambda: feed(one_by_one), their_process, list, STREAM_TARGET),
        ("stream: events of 8 tokens", lambda: feed(by_eight), their_process, "".join, STREAM_TARGET),
    ]
    for work, our_call, their_call, comparable, _ in rows:
        same(f"{work} of the {name} conversation", comparable(our_call()), comparable(their_call()))
    comparisons = []
    for work, our_call, their_call, _, target in rows:
        times = in_turns(rounds, partial(cpu_seconds, our_call), partial(cpu_seconds, their_call))
        comparisons.append(Comparison(work, name, *times, target))
    return len(tokens), comparisons


def processed(parser: Any, tokens: Sequence[int]) -> list[str]:
    """The deltas that either library's `StreamableParser` shows after each token."""
    deltas = []
    for token in tokens:
        parser.process(token)
        delta = parser.last_content_delta
        if delta is not None:
            deltas.append(delta)
    return deltas


def fed(parser: harmony.RecoveringParser, steps: Sequence[Sequence[int]]) -> list[str]:
    """The deltas among the events of the tokens of each step of a sampling loop."""
    delta = harmony.ContentDelta
    deltas = []
    for tokens in steps:
        for event in parser.feed(tokens):
            if type(event) is delta:
                deltas.append(event.text)
    return deltas


_FRESH = """
import json, sys, time
library, text = sys.argv[1], sys.argv[2]
times = [time.process_time()]
module = __import__(library)
times.append(time.process_time())
encoding = module.load_harmony_encoding("HarmonyGptOss")
times.append(time.process_time())
result = encoding.encode(text) if text else encoding.decode([13225])
times.append(time.process_time())
print(json.dumps([result, *(after - before for before, after in zip(times, times[1:]))]))
"""


def compare_loading(sides: Sides, rounds: int, environment: dict[str, str]) -> list[Comparison]:
    """What a load costs in a process that has loaded before, and what the first one costs in a fresh one."""
    again = in_turns(
        rounds,
        partial(cpu_seconds, harmony.load_harmony_encoding),
        partial(cpu_seconds, lambda: sides.known.load_harmony_encoding("HarmonyGptOss")),
    )
    rows = [Comparison("load_harmony_encoding again", "same process", *again, LOAD_TARGET)]
    for text, work in (("", "first token decoded"), ("Hello", "first text encoded")):
        ours, theirs = in_turns(
            rounds,
            partial(_fresh, "harmony", text, environment),
            partial(_fresh, "openai_harmony", text, environment),
        )
        same(work, {output for output, _ in ours}, {output for output, _ in theirs})
        if not text:
            rows.append(_fresh_row("import", ours, theirs, slice(0, 1), None))
            rows.append(_fresh_row("load_harmony_encoding", ours, theirs, slice(1, 2), LOAD_TARGET))
        rows.append(_fresh_row(f"load until {work}", ours, theirs, slice(1, 3), LOAD_TARGET))
    return rows


Fresh = tuple[str, list[float]]


def _fresh(library: str, text: str, environment: dict[str, str]) -> Fresh:
    """In a process of its own: the output, and the seconds of importing, loading and coding."""
    command = [sys.executable, "-c", _FRESH, library, text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"a fresh process could not load {library}: {done.stderr.strip().splitlines()[-1]}")
    output, *seconds = json.loads(done.stdout)
    return str(output), seconds


def _fresh_row(
    work: str, ours: list[Fresh], theirs: list[Fresh], steps: slice, target: float | None
) -> Comparison:
    our_times, their_times = ([sum(seconds[steps]) for _, seconds in side] for side in (ours, theirs))
    return Comparison(work, "fresh process", our_times, their_times, target)


def time_run(sides: Sides, name: str) -> tuple[str, list[float], float]:
    """The best of three encodings of a long run at each size, and the known library's at the smallest."""
    texts = [RUNS[name](size) for size in RUN_SIZES]
    known = partial(sides.known_encoding.encode, texts[0], disallowed_special=())
    same(f"the tokens of {name}", sides.encoding.encode_ordinary(texts[0]), known())
    ours = [
        min(cpu_seconds(partial(sides.encoding.encode_ordinary, text)) for _ in range(3)) for text in texts
    ]
    return name, ours, cpu_seconds(known)
