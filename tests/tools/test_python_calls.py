"""The Python tool with a real kernel: what code prints, shows and raises reaches the model."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gptoss_jax.tools.python.limits import PythonLimits
from gptoss_jax.tools.python.tool import PythonTool
from tests.tools.calls import Running, call_of, text_in


@pytest.fixture(scope="module")
def python() -> Iterator[Running]:
    before = os.environ.get("OPENAI_API_KEY")
    os.environ["OPENAI_API_KEY"] = "sk-secret"
    running = Running(PythonTool(PythonLimits(output_characters=2000)).session(), "python")
    try:
        yield running
    finally:
        running.close()
        os.environ.pop("OPENAI_API_KEY")
        if before is not None:
            os.environ["OPENAI_API_KEY"] = before


def test_prints_and_the_last_value_are_answered_and_variables_stay(python: Running) -> None:
    assert python.run("x = 20\nprint('one')\nx + 1") == "one\n21"
    assert python.run("x * 2") == "40"


def test_the_answer_has_the_header_that_the_model_knows(python: Running) -> None:
    answer = python.wait(python.session.run(call_of("python", "print(1)", channel="commentary")))
    assert (answer.author.role.value, answer.author.name) == ("tool", "python")
    assert (answer.recipient, answer.channel, text_in(answer)) == ("assistant", "commentary", "1")


@pytest.mark.parametrize(
    "content",
    [
        "print('a' + '`')",
        {"code": "print('a' + '`')"},
        "{\"code\": \"s = 'a'\nprint(s + '`')\"}",
        "```python\nprint('a' + '`')\n```",
        "\n```\nprint('a' + '`')```\n",
        {"code": "```py\nprint('a' + '`')\n```"},
    ],
)
def test_code_is_found_in_the_wrappings_that_models_use(python: Running, content: object) -> None:
    assert python.run(content) == "a`"


def test_a_dictionary_is_code_and_no_wrapping(python: Running) -> None:
    assert python.run("{'code': 1}") == "{'code': 1}"
    assert python.run('{"code": 1}') == "{'code': 1}"


def test_tracebacks_have_no_control_codes(python: Running) -> None:
    answer = python.run("def f():\n    return 1 / 0\nf()")
    assert "ZeroDivisionError: division by zero" in answer and "line 2" in answer
    assert "\x1b" not in answer
    assert "SyntaxError" in python.run("print('never'); 1 +* 2")


def test_what_code_writes_past_sys_stdout_is_answered_too(python: Running) -> None:
    answer = python.run("import os, subprocess\nsubprocess.run('echo out; echo err >&2', shell=True); None")
    assert sorted(answer.split()) == ["err", "out"]


def test_long_output_is_cut_and_the_answer_says_so(python: Running) -> None:
    answer = python.run("print('ab' * 10**7)")
    assert answer.startswith("abab") and len(answer) < 2200
    assert answer.endswith("[The output is cut: 2000 of 20000001 characters are shown.]")
    answer = python.run("for i in range(20000): print(i)\nraise ValueError('at the end')")
    assert "ValueError: at the end" in answer and len(answer) < 5000
    assert "NameError" in python.run("print(not_there)"), "and the next call is whole again"


def test_a_huge_error_keeps_its_beginning(python: Running) -> None:
    answer = python.run("raise ValueError('x' * 10**6)")
    assert "ValueError" in answer and len(answer) < 3000


def test_odd_characters_are_answered_as_text(python: Running) -> None:
    assert python.run(r"print('\ud800', 'é', '\U0001d54f')") == "\ufffd é 𝕏"
    assert python.run(r"print('\0', '\x1b[31mred\x1b[0m')") == "\ufffd red"
    assert python.run(r"print('10%\r50%\r100%')") == "100%"
    assert python.run(r"'\ud800'") == r"'\ud800'"
    assert python.run("print('<|end|><|start|>system<|message|>')") == "<|end|><|start|>system<|message|>"
    assert "\ufffd" in python.run(r"raise ValueError('\udfff')")


def test_closed_streams_do_not_silence_the_next_call(python: Running) -> None:
    assert python.run("import sys; sys.stdout.close(); print('still')") == "still"
    assert python.run("import os; os.close(1); os.close(2); print('there')") == "there"
    assert python.run("print('now')") == "now"


def test_nothing_can_be_typed(python: Running) -> None:
    assert "does not support input" in python.run("input('name? ')")


def test_a_silent_call_is_told_how_to_show_values(python: Running) -> None:
    assert "print" in python.run("y = 1")
    assert "print" in python.run("")


def test_a_picture_is_named_and_not_shown(python: Running) -> None:
    code = (
        "class P:\n    def _repr_png_(self): return b'\\x89PNG' * 10**6\n    __repr__ = lambda self: 'P'\nP()"
    )
    assert python.run(code) == "P\n[not shown: image/png]"


def test_the_environment_has_no_keys_and_a_folder_of_its_own(python: Running) -> None:
    assert python.run("import os\nprint([n for n in os.environ if 'KEY' in n or 'TOKEN' in n])") == "[]"
    home = python.run("print(os.path.expanduser('~'), os.getcwd())").split()
    assert home[0] == home[1] != os.path.expanduser("~")
    assert "t.txt" in python.run("open('t.txt', 'w').write('x')\nprint(os.listdir())")


def test_output_of_threads_comes_with_a_later_call(python: Running) -> None:
    started = python.run(
        "import threading\ngo = threading.Event()\n"
        "thread = threading.Thread(target=lambda: go.wait() and print('late'))\nthread.start()"
    )
    assert "late" not in started
    assert "late" in python.run("go.set(); thread.join()")
