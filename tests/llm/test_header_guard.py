"""Which prompts of `LLM` are answered under a header guard, and under which."""

import pytest

from gptoss_jax import LLM, SamplingParams
from gptoss_jax.engine.grammar import Grammar, HeaderGuard
from harmony import Message, Role, SystemContent, load_harmony_encoding
from tests.llm.fake_engine import FakeEngine, Script

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def encoding():
    return load_harmony_encoding("HarmonyGptOss")


def guards(encoding, prompts, sampling=None, *, header_guard=True, **options):
    """The guards of the requests that the engine is given."""
    said = encoding.encode("<|channel|>final<|message|>4<|return|>", allowed_special="all")
    engine = FakeEngine(lambda request, sample: Script(said))
    with LLM.from_engine(engine, encoding, header_guard=header_guard) as llm:
        llm.generate(prompts, sampling, **options)
        list(llm.stream(prompts[-1], sampling, **options))
    return [request.sampling.header_guard for _, request in sorted(engine.requests.items())]


def test_conversations_are_answered_under_the_guard_of_what_they_declare(encoding) -> None:
    assert guards(encoding, ["Hi", "Hello"]) == [HeaderGuard()] * 3
    assert guards(encoding, ["Hi"], tools=[LOOK]) == [HeaderGuard(("functions.look",))] * 2
    system = Message.from_role_and_content(Role.SYSTEM, SystemContent().with_python_tool())
    asked = [system, Message.from_role_and_content(Role.USER, "Hi")]
    assert guards(encoding, [asked]) == [HeaderGuard(("python",))] * 2


def test_token_ids_and_plain_system_text_declare_nothing_and_have_none(encoding) -> None:
    tokens = encoding.encode("<|start|>user<|message|>Hi<|end|><|start|>assistant", allowed_special="all")
    system = Message.from_role_and_content(Role.SYSTEM, "# Tools\n\n## python\n")
    asked = [system, Message.from_role_and_content(Role.USER, "Hi")]
    assert guards(encoding, [tokens]) == [None, None]
    assert guards(encoding, [asked]) == [None, None]


def test_a_callers_own_guard_or_grammar_stays(encoding) -> None:
    own = HeaderGuard(("python",), ("analysis", "final"))
    assert guards(encoding, ["Hi"], SamplingParams(header_guard=own)) == [own, own]
    assert guards(encoding, ["Hi"], SamplingParams(grammar=Grammar.json_object())) == [None, None]


def test_it_can_be_switched_off(encoding) -> None:
    assert guards(encoding, ["Hi"], header_guard=False) == [None, None]
