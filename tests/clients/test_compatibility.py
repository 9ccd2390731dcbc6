"""Calls in every form in which the model writes them, through both APIs, streamed or not: none is lost.

OpenAI's own compatibility test asks the same of a server. It runs here where the variable
GPTOSS_JAX_COMPATIBILITY_TEST names its folder, with its packages and `tsx` installed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harmony import HarmonyEncoding
from tests.clients.installed import Node
from tests.clients.scripted_calls import FORMS, CallingModel
from tests.llm.fake_engine import FakeEngine
from tests.serve.served import serving

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "agents.mjs"
FOLDER = os.environ.get("GPTOSS_JAX_COMPATIBILITY_TEST", "")
TRIES = 5


def schema(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
CASES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    # Each function's parameters, and the arguments that a question is answered with.
    "ping": (
        {"type": "object", "properties": {}},
        {text: {} for text in ("Are you there?", "Ping.", "Wake up!", "Still alive?", "Say pong.")},
    ),
    "convert": (
        schema(amount=NUMBER, unit={"type": "string", "enum": ["km", "kg", "°C"]}),
        {
            "How far is 3.5 km?": {"amount": 3.5, "unit": "km"},
            "12 kg, please.": {"amount": 12, "unit": "kg"},
            "It has −40 °C.": {"amount": -40, "unit": "°C"},
            "A light year?": {"amount": 9.46e12, "unit": "km"},
            "Nothing at all.": {"amount": 0, "unit": "kg"},
        },
    ),
    "write_note": (
        schema(text=TEXT),
        {
            "Note two lines.": {"text": "one\ntwo\t\"three\" \\ four"},
            "Note nothing.": {"text": ""},
            "Note how a message ends.": {"text": "<|end|><|start|>assistant<|message|>No<|call|><|return|>"},
            "Note a greeting.": {"text": "Grüße, 你好, שלום, 👩‍🚀\u2028"},
            "Note some code.": {"text": "if (a < b && b > c) { return `${a}`; } // </script>"},
        },
    ),
    "plan_meeting": (
        schema(title=TEXT, people={"type": "array", "items": TEXT}, minutes={"type": "integer"}),
        {
            "Ada and I, half an hour.": {"title": "Talk", "people": ["Ada", "me"], "minutes": 30},
            "Block my day.": {"title": "Busy", "people": [], "minutes": 480},
            "Meet Jürgen.": {"title": "", "people": ["Jürgen Müller"], "minutes": 15},
            "All hands!": {"title": "All", "people": [f"p{n}" for n in range(40)], "minutes": 60},
            "An odd one.": {"title": "a: {b}, [c]", "people": ["{}", "[]", "null"], "minutes": 1},
        },
    ),
    "draw_line": (
        schema(points={"type": "array", "items": {"type": "array"}}, closed={"type": "boolean"}),
        {
            "From 0,0 to 1,2.": {"points": [[0, 0], [1, 2]], "closed": False},
            "A triangle.": {"points": [[0, 0], [1, 0], [0.5, 0.866]], "closed": True},
            "No line.": {"points": [], "closed": False},
            "A dot.": {"points": [[1e-9, -1e-9]], "closed": True},
            "Far away.": {"points": [[2**40, -(2**40)]], "closed": False},
        },
    ),
    "look_up_2": (
        schema(
            query={"type": "object", "properties": {"all": {"type": "array", "items": {"type": "object"}}}},
            note={"type": ["string", "null"]},
        ),
        {
            "Who is Ada?": {"query": {"all": [{"name": "Ada"}]}, "note": None},
            "Everyone.": {"query": {}, "note": None},
            "Nested.": {"query": {"all": [{"a": {"b": {"c": [[{}]]}}}]}, "note": "deep"},
            "Booleans.": {"query": {"all": [{"on": True, "off": False}]}, "note": "null"},
            "Unicode keys.": {"query": {"all": [{"größe": "ß", "": " "}]}, "note": " "},
        },
    ),
}  # fmt: skip


def written(arguments: dict[str, Any], number: int) -> str:
    """The arguments as JSON, in one of the ways in which a model writes it."""
    ways: list[dict[str, Any]] = [
        {"separators": (",", ":"), "ensure_ascii": False},
        {"ensure_ascii": False},
        {"indent": 2, "ensure_ascii": False},
        {"ensure_ascii": True},
    ]
    return json.dumps(arguments, **ways[number % len(ways)])


def case_of(prompt: str) -> tuple[str, str]:
    """The function and the arguments that a prompt asks for."""
    (name,) = re.findall(r"CASE (\S+) ", prompt)
    (number, form) = re.findall(r"NUMBER (\d) FORM (\d+)", prompt)[0]
    return name, written(list(CASES[name][1].values())[int(number)], int(number) + int(form))


def test_calls_in_all_forms_reach_the_client(node: Node, encoding: HarmonyEncoding) -> None:
    """6 functions with 5 questions each, 5 times through each API, whole and streamed."""
    runs, expected = [], []
    ways = list(itertools.product(("responses", "chat"), (False, True)))
    turn = 0
    for _, (name, (_, questions)) in itertools.product(range(TRIES), CASES.items()):
        for number, (asked, arguments) in enumerate(questions.items()):
            turn += 1
            form = turn % len(FORMS)
            for api, stream in ways:
                instructions = f"CASE {name} NUMBER {number} FORM {form}"
                runs.append(
                    {"api": api, "stream": stream, "tool": name, "input": asked, "instructions": instructions}
                )
                expected.append((name, written(arguments, number + form), arguments))

    def form_of(prompt: str) -> Any:
        return FORMS[int(re.findall(r"FORM (\d+)", prompt)[0])]

    model = CallingModel(encoding, case_of, form_of)
    tools = {
        name: {"parameters": parameters, "output": f"{name}: ok"} for name, (parameters, _) in CASES.items()
    }
    with serving(FakeEngine(model, chunk=12, slots=8), encoding) as url:
        came = node.run(PROGRAM, url, {"tools": tools, "runs": runs})
    assert len(came) == 30 * TRIES * len(ways)
    for run, result, (name, text, arguments) in zip(runs, came, expected, strict=True):
        assert "error" not in result, (run, result)
        assert result["calls"] == [[name, text]], run
        assert result["executed"] == [arguments], run
        assert result["final"] == f"It says {name}: ok", run
    assert set(model.written) == set(FORMS)
    assert min(model.written.values()) >= TRIES


@pytest.mark.skipif(not FOLDER, reason="GPTOSS_JAX_COMPATIBILITY_TEST names no folder of OpenAI's test")
@pytest.mark.parametrize(
    ("api", "options", "preambles"),
    [("responses", [], True), ("chat", [], False), ("chat", ["--streaming"], True)],
)
def test_openais_own_test_finds_nothing(
    encoding: HarmonyEncoding, tmp_path: Path, api: str, options: list[str], preambles: bool
) -> None:
    """What cannot pass for any server is left out.

    Its streaming mode crashes in its own code for Responses. The SDK that it uses ignores the calls of a
    whole chat completion that has text besides.
    """
    source, folder = Path(FOLDER), tmp_path / "test"
    folder.mkdir()
    for file in (*source.glob("*.ts"), source / "package.json", source / "cases.jsonl"):
        shutil.copy(file, folder)
    node = Node(source / "node_modules", folder)
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()]

    def asked(prompt: str) -> tuple[str, str]:
        user = prompt.split("<|start|>user<|message|>")[1].split("<|end|>")[0]
        (case,) = [case for case in cases if case["input"] == user]
        return case["tool_name"], case["expected_arguments"]

    model = CallingModel(encoding, asked, forms=[form for form in FORMS if preambles or not form.preamble])
    with serving(FakeEngine(model, chunk=7, slots=8, max_length=4000), encoding) as url:
        provider = {"apiBaseUrl": f"{url}/v1", "apiKey": "none", "apiType": [api], "modelName": "tiny"}
        text = f"export const PROVIDERS = {json.dumps({'here': {**provider, 'providerDetails': {}}})};\n"
        (folder / "providers.ts").write_text(text, encoding="utf-8")
        command = [
            "node_modules/.bin/tsx",
            "index.ts",
            "--provider",
            "here",
            "--strict",
            "-k",
            str(TRIES),
            *options,
        ]
        node.command(command, timeout=600)
    (rollout,) = folder.glob("rollout_*.jsonl")
    rows = [json.loads(line) for line in rollout.read_text(encoding="utf-8").splitlines()]
    assert [row for row in rows if not row.get("success")] == []
    assert len(rows) == len(cases) * TRIES
    (analysis,) = folder.glob("analysis_*.json")
    figures = json.loads(analysis.read_text(encoding="utf-8"))
    assert figures["passAtKByK"] == figures["passHatKByK"] == [1] * TRIES
    assert figures["wrongInputToolCalls"] == 0
    assert figures["invalidByApiType"] == {}
    assert Counter(row["result"]["apiType"] for row in rows) == {api: len(cases) * TRIES}
