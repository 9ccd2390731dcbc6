"""`harmony` against openai-harmony 0.0.8, on the same input in the same run.

Both must give the same output.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
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
from harmony.text_encoder import WARM_UP

from . import text_encoding
from .comparison import BenchError, Comparison, comparison_table, cpu_seconds, frozen_heap, in_turns, same
from .conversations import conversation

KNOWN_VERSION = "0.0.8"
CONVERSATIONS = {"short": (200, 28), "long": (500, 442)}
"""Name → number of messages, and of words per message. They have about 13,000 and 369,000 tokens."""

RENDER_TARGET, STREAM_TARGET = 1.5, 2.0
IMPORT_TARGET, DECODED_TARGET, ENCODED_TARGET = 1.0, 3.0, 1.5


@dataclass(frozen=True)
class Report:
    """The results of the benchmark."""

    conversations: dict[str, int]
    """Name → number of tokens."""
    comparisons: list[Comparison]
    """Rendering, parsing, streaming and loading, against openai-harmony."""
    ordinary: list[Comparison]
    """Encoding of ordinary texts, against plain tiktoken."""
    runs: list[text_encoding.Run]
    """Encoding of long runs of one character."""
    mixtures: list[text_encoding.Mixtures]
    """Encoding of mixtures of runs, against plain tiktoken."""

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        runs = [
            {
                "text": run.name,
                "sizes": text_encoding.RUN_SIZES,
                "ours_seconds": run.ours,
                "theirs_seconds_at_the_first": run.known,
            }
            for run in self.runs
        ]
        mixtures = [
            {
                "period": row.period,
                "pairs": row.pairs,
                "ours_seconds_a_character": row.ours,
                "tiktoken_seconds_a_character": row.plain,
            }
            for row in self.mixtures
        ]
        return {
            "against": f"openai-harmony {KNOWN_VERSION}",
            "tokens": self.conversations,
            "comparisons": [row.as_json() for row in self.comparisons],
            "encoding_against_tiktoken": [row.as_json() for row in self.ordinary],
            "long_runs": runs,
            "mixtures": mixtures,
        }

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {tokens:,} tokens" for name, tokens in self.conversations.items())
        rounds = len(self.comparisons[0].ours)
        return "\n\n".join(
            [
                f"harmony against openai-harmony {KNOWN_VERSION}: equal output, then CPU time, medians of "
                f"{rounds} rounds in turns\n{sizes}",
                comparison_table(self.comparisons),
                "Encoding ordinary text against plain tiktoken: equal tokens, then as above\n"
                + comparison_table(self.ordinary),
                "Encoding long runs, milliseconds (growth: of the time per character; 1 or less is linear)\n"
                + text_encoding.run_table(self.runs),
                "Encoding mixtures of runs, all ordered pairs of character classes: equal tokens, then "
                "nanoseconds a character\n" + text_encoding.mixture_table(self.mixtures),
            ]
        )


def run(rounds: int) -> Report:
    """Compares the outputs of both sides and times them, `rounds` times. Raises BenchError."""
    with known_library() as (known, environment), frozen_heap():
        sides = Sides(known)
        comparisons: list[Comparison] = []
        tokens = {}
        for name, (messages, words) in CONVERSATIONS.items():
            tokens[name], rows = compare_conversation(sides, name, conversation(messages, words), rounds)
            comparisons += rows
        comparisons += compare_loading(rounds, environment)
        plain = text_encoding.plain_tiktoken()
        return Report(
            tokens,
            comparisons,
            text_encoding.compare_ordinary(sides.encoding, plain, rounds),
            [
                text_encoding.time_run(sides.encoding, sides.known_encoding, name)
                for name in text_encoding.RUNS
            ],
            [text_encoding.time_mixtures(sides.encoding, plain, period) for period in text_encoding.PERIODS],
        )


@contextmanager
def known_library() -> Iterator[tuple[ModuleType, dict[str, str]]]:
    """openai-harmony, and the environment variables with which it loads in other processes.

    It reads its vocabulary from a temporary folder, so it needs no network. Raises BenchError if it is not
    installed, or in another version.
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
    """openai-harmony (`known`), and the encodings of both libraries."""

    def __init__(self, known: ModuleType) -> None:
        self.known = known
        self.known_encoding = known.load_harmony_encoding("HarmonyGptOss")
        self.encoding = harmony.load_harmony_encoding()
        # Fresh processes show what is encoded before tiktoken is made; here it has been.
        self.encoding.encode_ordinary(" warm" * WARM_UP)


def compare_conversation(
    sides: Sides, name: str, data: dict[str, Any], rounds: int
) -> tuple[int, list[Comparison]]:
    """The number of tokens of one conversation, and the times of rendering, parsing and streaming it."""
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

    # Tuples of integers, which the garbage collector need not visit: making the steps is not part of the
    # work.
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
    """The deltas of a `StreamableParser` of either library, one for each token that adds text."""
    deltas = []
    for token in tokens:
        parser.process(token)
        delta = parser.last_content_delta
        if delta is not None:
            deltas.append(delta)
    return deltas


def fed(parser: harmony.RecoveringParser, steps: Sequence[Sequence[int]]) -> list[str]:
    """The deltas among the events of a parser that is fed the tokens of one step after another."""
    delta = harmony.ContentDelta
    deltas = []
    for tokens in steps:
        for event in parser.feed(tokens):
            if type(event) is delta:
                deltas.append(event.text)
    return deltas


_FRESH = """
import json, sys, time
library, work, data = sys.argv[1:]
times = [time.process_time()]
module = __import__(library)
times.append(time.process_time())
encoding = module.load_harmony_encoding("HarmonyGptOss")
if work == "decode":
    result = encoding.decode([13225])
elif work == "encode":
    result = encoding.encode("Hello")
elif work == "render":
    result = encoding.render_conversation(module.Conversation.from_json(open(data).read()))
else:
    result = encoding.parse_messages_from_completion_tokens(json.load(open(data)))
times.append(time.process_time())
if work == "parse":
    result = [message.to_dict() for message in result]
print(json.dumps([result, *(after - before for before, after in zip(times, times[1:]))]))
"""


def compare_loading(rounds: int, environment: dict[str, str]) -> list[Comparison]:
    """The time until the first result, in a new process each time.

    `harmony` imports its modules only when they are needed, so some of that time is not in the row "import".
    The rows that begin with the import include all of it.
    """
    said = conversation(*CONVERSATIONS["short"])
    with tempfile.TemporaryDirectory() as folder:
        rendered, parsed = Path(folder, "conversation.json"), Path(folder, "tokens.json")
        rendered.write_text(json.dumps(said))
        messages = harmony.Conversation.from_json(rendered.read_text())
        parsed.write_text(json.dumps(harmony.load_harmony_encoding().render_conversation(messages)))
        fresh = {
            work: in_turns(
                rounds,
                partial(_fresh, "harmony", work, data, environment),
                partial(_fresh, "openai_harmony", work, data, environment),
            )
            for work, data in (("decode", ""), ("encode", ""), ("render", rendered), ("parse", parsed))
        }
    for work, (ours, theirs) in fresh.items():
        same(f"the first {work}", [output for output, _ in ours], [output for output, _ in theirs])
    importing, loading, both = slice(0, 1), slice(1, 2), slice(0, 2)
    rows = [
        ("import", "decode", importing, IMPORT_TARGET),
        ("load until first token decoded", "decode", loading, DECODED_TARGET),
        ("import until first token decoded", "decode", both, DECODED_TARGET),
        ("load until first text encoded", "encode", loading, ENCODED_TARGET),
        ("import until first text encoded", "encode", both, ENCODED_TARGET),
        ("import until short rendered", "render", both, None),
        ("import until short parsed", "parse", both, None),
    ]
    return [_fresh_row(name, *fresh[work], steps, target) for name, work, steps, target in rows]


Fresh = tuple[Any, list[float]]


def _fresh(library: str, work: str, data: str | Path, environment: dict[str, str]) -> Fresh:
    """The output of a new process, and its seconds: those of the import, and those of all the rest."""
    command = [sys.executable, "-c", _FRESH, library, work, str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"a fresh process could not load {library}: {done.stderr.strip().splitlines()[-1]}")
    output, *seconds = json.loads(done.stdout)
    return output, seconds


def _fresh_row(
    work: str, ours: list[Fresh], theirs: list[Fresh], steps: slice, target: float | None
) -> Comparison:
    our_times, their_times = ([sum(seconds[steps]) for _, seconds in side] for side in (ours, theirs))
    return Comparison(work, "fresh process", our_times, their_times, target)
