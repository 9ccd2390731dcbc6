"""One engine, one thread, many callers: threads, event loops, failures, and the end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gptoss_jax.engine.request import RequestError, SamplingParams
from gptoss_jax.llm import LLM, EngineStopped, Finished, TextDelta
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script

ANSWER = "<|channel|>final<|message|>It is 5.<|return|>"


def cancelled(llm: LLM) -> list[str]:
    return [id for what, id in llm._engine.log if what == "cancel"]  # type: ignore[attr-defined]


def settle(llm: LLM) -> None:
    """Waits until the engine's thread has taken everything that was handed to it."""
    llm.generate("settle", SamplingParams(top_k=99))


def test_threads_share_one_engine_which_one_thread_runs(answering) -> None:
    llm = answering(lambda request, sample: f"<|channel|>final<|message|>{request.sampling.top_k}<|return|>")
    with ThreadPoolExecutor(8) as pool:
        outputs = pool.map(lambda k: llm.generate("x", SamplingParams(top_k=k))[0].text, range(40))
        assert list(outputs) == [str(k) for k in range(40)]
    assert len(llm._engine.threads) == 1
    assert threading.get_ident() not in llm._engine.threads


def test_nobody_waits_for_the_thousands_of_another(answering) -> None:
    llm = answering(ANSWER, slots=4)
    llm._engine.gate.clear()
    done: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(llm.generate, ["x"] * 1000, progress=lambda count, total: done.append(count))
        while not llm._engine.requests:
            time.sleep(0.001)
        stream = llm.stream("y")
        llm._engine.gate.set()
        assert isinstance(list(stream)[-1], Finished)
        assert not done or done[-1] < 500
        assert len(batch.result()) == 1000
    assert llm._engine.most_unfinished <= 8 + 1


def test_of_a_batch_the_longest_start_first(answering) -> None:
    llm = answering(ANSWER, slots=1)
    llm.generate(["x"] * 4, [SamplingParams(max_tokens=most) for most in (5, 500, 50, None)])
    assert [id for what, id in llm._engine.log if what == "add"] == ["0-3", "0-1", "0-2", "0-0"]


def test_what_is_cancelled_before_it_starts_never_does(answering, endless) -> None:
    llm = answering(lambda request, sample: ANSWER if request.sampling.top_k else endless, slots=1)
    with llm.stream("x"):
        other = llm.stream("x")
        waiting = [llm.stream("x") for _ in range(5)]
        other.close()
        for stream in waiting:
            stream.close()
    settle(llm)
    assert llm._engine.unfinished == 0
    assert len(llm._engine.requests) < 8


def test_coroutines_are_computed_together(answering) -> None:
    llm = answering(lambda request, sample: f"<|channel|>final<|message|>{request.sampling.top_k}<|return|>")

    async def ask(k: int) -> str:
        (output,) = await llm.agenerate("x", SamplingParams(top_k=k))
        return output.text

    async def main() -> list[str]:
        llm._engine.gate.clear()
        tasks = [asyncio.create_task(ask(k)) for k in range(4)]
        await asyncio.sleep(0)
        llm._engine.gate.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == ["0", "1", "2", "3"]
    assert llm._engine.most_together == 4


def test_an_async_stream_says_what_a_stream_says(answering) -> None:
    llm = answering(ANSWER)

    async def main() -> list:
        return [event async for event in llm.astream("x")]

    told, expected = asyncio.run(main()), list(llm.stream("x"))
    texts = ["".join(e.text for e in events if isinstance(e, TextDelta)) for events in (told, expected)]
    assert texts == ["It is 5.", "It is 5."]
    assert isinstance(told[-1], Finished)


def test_cancelling_a_task_ends_its_request_and_no_other(answering, endless) -> None:
    llm = answering(lambda request, sample: endless if request.sampling.top_k == 1 else ANSWER)

    async def consume() -> None:
        async for _ in llm.astream("x", SamplingParams(top_k=1)):
            pass

    async def main() -> str:
        generating = asyncio.create_task(llm.agenerate(["x", "x"], SamplingParams(top_k=1)))
        streaming = asyncio.create_task(consume())
        other = asyncio.create_task(llm.agenerate("y"))
        while len(llm._engine.requests) < 4:
            await asyncio.sleep(0.001)
        generating.cancel()
        streaming.cancel()
        results = await asyncio.gather(generating, streaming, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        return (await other)[0].text

    assert asyncio.run(main()) == "It is 5."
    settle(llm)
    assert sorted(cancelled(llm)) == ["0-0", "0-1", "0-2"]
    assert llm._engine.unfinished == 0


def test_closing_an_async_stream_ends_its_request(answering, endless) -> None:
    llm = answering(lambda request, sample: ANSWER if request.sampling.top_k else endless)

    async def main() -> None:
        async with llm.astream("x") as stream:
            await anext(stream)
        assert [event async for event in stream] == []
        stream = llm.astream("x")
        await anext(stream)
        await stream.aclose()

    asyncio.run(main())
    settle(llm)
    assert cancelled(llm) == ["0-0", "0-1"]


def test_an_exception_in_the_caller_ends_its_requests(answering, endless) -> None:
    llm = answering(lambda request, sample: endless if request.sampling.top_k == 1 else ANSWER)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        params = [SamplingParams(top_k=k) for k in (0, 1, 1)]
        llm.generate(["x"] * 3, params, progress=interrupt)
    settle(llm)
    assert sorted(cancelled(llm)) == ["0-1", "0-2"]


def test_a_failure_of_the_engine_reaches_every_caller(answering, endless) -> None:
    llm = answering(endless, fail_at=3)
    llm._engine.gate.clear()
    message = r"^the engine failed: ArithmeticError: the device is on fire$"

    async def main() -> list[BaseException]:
        async def consume() -> None:
            async for _ in llm.astream("x"):
                pass

        tasks = [asyncio.create_task(consume()), asyncio.create_task(llm.agenerate("x"))]
        threads = [asyncio.to_thread(llm.generate, "x"), asyncio.to_thread(lambda: list(llm.stream("x")))]
        waiting = asyncio.gather(*tasks, *threads, return_exceptions=True)
        while len(llm._engine.requests) < 1:
            await asyncio.sleep(0.001)
        llm._engine.gate.set()
        return await waiting

    failures = asyncio.run(main())
    assert len({id(failure) for failure in failures}) == 4
    for failure in failures:
        assert isinstance(failure, EngineStopped)
        with pytest.raises(EngineStopped, match=message) as caught:
            raise failure
        assert isinstance(caught.value.__cause__, ArithmeticError)
    with pytest.raises(EngineStopped, match=message):
        llm.generate("x")
    with pytest.raises(EngineStopped, match=message):
        llm.stream("x")
    assert llm._engine.closed


def test_a_refused_request_leaves_the_engine_at_work(answering) -> None:
    llm = answering(ANSWER, max_length=200)
    with pytest.raises(RequestError):
        llm.generate("Ho " * 300)
    assert llm.generate("x")[0].text == "It is 5."


def test_closing_tells_those_who_wait_and_closes_the_engine(answering, endless) -> None:
    llm = answering(endless)
    stream = llm.stream("x")
    next(stream)
    llm._engine.gate.clear()
    closing = threading.Thread(target=llm.close)
    closing.start()
    llm._engine.gate.set()
    with pytest.raises(EngineStopped, match=r"^the engine was closed$"):
        list(stream)
    closing.join(10)
    assert llm._engine.closed
    with pytest.raises(EngineStopped, match=r"^the engine was closed$"):
        llm.generate("x")
    llm.close()


def test_an_llm_that_nobody_refers_to_ends_its_thread(encoding: HarmonyEncoding, tokens_of) -> None:
    engine = FakeEngine(lambda request, sample: Script(tokens_of(ANSWER)))
    llm = LLM.from_engine(engine, encoding, "lost")
    llm.generate("x")
    stream = llm.stream("x")
    reference = weakref.ref(llm)
    del llm
    gc.collect()
    assert reference() is not None, "a stream in use keeps it"
    assert "".join(event.text for event in stream if isinstance(event, TextDelta)) == "It is 5."
    del stream
    gc.collect()
    assert reference() is None
    assert engine.closed
    assert not any(thread.name == "gptoss-jax lost" for thread in threading.enumerate())


EXITING = """
import sys, threading
from tests.llm.fake_engine import FakeEngine, Script
from checkpoints import open_checkpoint
from gptoss_jax.llm import LLM
from gptoss_jax.vocabulary import load_encoding_for

encoding = load_encoding_for(open_checkpoint("tiny"))
tokens = encoding.encode("<|channel|>final<|message|>" + "word " * 100000, allowed_special="all")
engine = FakeEngine(lambda request, sample: Script(tokens), chunk=1)
llm = LLM.from_engine(engine, encoding)
stream = llm.stream("x")
next(stream)
"""


@pytest.mark.parametrize("ending", ["", "1 / 0"])
def test_the_interpreter_exits_while_the_engine_works(ending) -> None:
    root = str(Path(__file__).parents[2])
    script = f"import sys; sys.path.insert(0, {root!r})\n{EXITING}\n{ending}\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if ending else 0), done.stderr
    if not ending:
        assert done.stderr == ""


def test_other_processes_follow_and_return_nothing(answering) -> None:
    llm = answering(ANSWER, is_leader=False)
    assert not llm.is_leader
    assert llm.generate(["x", "y"]) == []
    assert list(llm.stream("x")) == []

    async def main() -> None:
        assert await llm.agenerate("x") == []
        assert [event async for event in llm.astream("x")] == []

    asyncio.run(main())
    run = llm.run_tools("x", {})
    assert run.generation.samples == []
    llm.close()
    assert llm._engine.log == [("follow", "")], "they follow once, until the first process closes"
