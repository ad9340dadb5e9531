"""The API process asks a worker once for each grammar, whatever becomes of the worker and of those who ask."""

import asyncio
import os
import signal
import sys

import pytest

from fakes import checkpoints
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.structured_outputs.grammar_validator import ENTRY_BYTES, GrammarValidator
from kvasir_runtime.wire import EngineRequest, Grammar, SamplingConfig

GOOD = Grammar(kind="regex", text="[ab]+")
GBNF = Grammar(kind="lark", text='root ::= "a" | "b"')
BAD = Grammar(kind="regex", text="(")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    checkpoints.write_tokenizer(path)
    return path


def job(grammar, *, num=1, field="guided_regex", tenant="", salt=b""):
    sampling = SamplingConfig(max_tokens=4, grammar=grammar)
    requests = tuple(
        EngineRequest(request_id=str(number), prompt=(1,), sampling=sampling, tenant=tenant, salt=salt)
        for number in range(num)
    )
    return GenerationRequest(
        answer_id="x",
        model="m",
        chat=False,
        stream=False,
        include_usage=False,
        requests=requests,
        num_prompts=1,
        prompt_tokens=1,
        stops=(),
        include_stop=False,
        grammar_field=field,
    )


def using(folder, work, **options):
    """Runs work with verdicts; what was observed comes with its result."""
    observed = []

    async def run():
        asking = GrammarValidator(folder, 320, observe=lambda seconds, refused: observed.append(refused), **options)
        try:
            return await asyncio.wait_for(work(asking), 60)
        finally:
            await asking.close()

    return asyncio.run(run()), observed


def test_without_a_grammar_nothing_is_started(folder):
    async def work(asking):
        return await asking.checked(job(None))

    assert using(folder, work, command=("/no/such/program",)) == (job(None), [])


def test_a_grammar_is_tried_once_and_sent_as_the_engine_takes_it(folder):
    async def work(asking):
        first = await asyncio.gather(*(asking.checked(job(GBNF)) for _ in range(5)))
        again = await asking.checked(job(GBNF, num=3))
        return first, again, await asking.checked(job(GOOD))

    (first, again, good), observed = using(folder, work)
    made = {one.requests[0].sampling.grammar for one in first} | {one.sampling.grammar for one in again.requests}
    assert len(made) == 1
    assert "start:" in made.pop().text
    assert good == job(GOOD)
    assert observed == [False, False]


def test_a_refusal_names_the_field_and_is_remembered(folder):
    async def work(asking):
        refusals = []
        for field in ("guided_regex", "structured_outputs"):
            with pytest.raises(Refused) as raised:
                await asking.checked(job(BAD, field=field))
            refusals.append(raised.value.error)
        return refusals

    refusals, observed = using(folder, work)
    assert [error.param for error in refusals] == ["guided_regex", "structured_outputs"]
    assert {(error.status, error.code) for error in refusals} == {(400, "invalid_grammar")}
    assert "unclosed group" in refusals[0].message
    assert observed == [True]


def test_a_worker_that_died_is_started_again(folder):
    async def work(asking):
        await asking.checked(job(GOOD))
        os.kill(asking.worker_pid, signal.SIGKILL)
        return await asking.checked(job(GBNF))

    made, observed = using(folder, work)
    assert made.requests[0].sampling.grammar != GBNF
    assert observed == [False, False]


def test_a_client_that_leaves_takes_the_answer_from_no_other(folder):
    async def work(asking):
        leaver = asyncio.create_task(asking.checked(job(GOOD)))
        stayer = asyncio.create_task(asking.checked(job(GOOD)))
        await asyncio.sleep(0)
        leaver.cancel()
        return await stayer

    assert using(folder, work)[0] == job(GOOD)


def test_a_tokenizer_that_cannot_guide_is_the_reason_for_everybody(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")

    async def work(asking):
        errors = []
        for grammar in (GOOD, GBNF):
            with pytest.raises(Refused) as raised:
                await asking.checked(job(grammar))
            errors.append(raised.value.error)
        return errors

    errors, _ = using(tmp_path, work)
    assert [error.status for error in errors] == [400, 400]
    assert all("cannot be used for guided decoding" in error.message for error in errors)


def test_a_worker_that_always_dies_is_our_failure(folder):
    async def work(asking):
        with pytest.raises(Refused) as raised:
            await asking.checked(job(GOOD))
        return raised.value.error.status

    assert using(folder, work, command=(sys.executable, "-c", "pass"))[0] == 500


def test_what_is_remembered_is_bounded(folder):
    async def work(asking):
        for number in range(6):
            await asking.checked(job(Grammar(kind="lark", text=f'root ::= "{str(number) * 900}"')))
        return asking.remembered_bytes

    size, observed = using(folder, work, max_bytes=4000)
    assert 0 < size <= 4000
    assert len(observed) == 6


SLOW = Grammar(kind="json_schema", text='{"type":"integer","multipleOf":999983}')


def test_who_waits_too_long_for_a_turn_may_come_again(folder):
    """Slow grammars take all turns, those of a worker that stands still; what is known already needs none."""

    async def work(asking):
        await asking.checked(job(GOOD))
        os.kill(asking.worker_pid, signal.SIGSTOP)
        slow = [
            Grammar(kind="json_schema", text=SLOW.text.replace("999983", str(999_983 - 2 * number)))
            for number in range(4)
        ]
        trials = [asyncio.create_task(asking.checked(job(grammar))) for grammar in slow]
        await asyncio.sleep(0)
        with pytest.raises(Refused) as raised:
            await asking.checked(job(GBNF))
        assert await asking.checked(job(GOOD)) == job(GOOD)
        os.kill(asking.worker_pid, signal.SIGCONT)
        for trial in trials:
            trial.cancel()
        await asyncio.gather(*trials, return_exceptions=True)
        return raised.value.error

    error, _ = using(folder, work, queue_s=0.05)
    assert (error.status, error.code) == (429, "overloaded")


def test_texts_that_wait_are_bounded(folder):
    async def work(asking):
        texts = [Grammar(kind="regex", text=f"{number}(" + "a" * 500_000) for number in range(80)]
        answers = await asyncio.gather(*(asking.checked(job(one)) for one in texts), return_exceptions=True)
        return [getattr(getattr(answer, "error", None), "status", 200) for answer in answers]

    statuses, _ = using(folder, work, queue_s=0.01)
    assert statuses.count(429) >= 80 - 64


def test_a_verdict_is_known_to_those_who_share_a_prefix_cache_alone(folder):
    """Else the time until one would show whether another tenant uses a schema."""

    async def work(asking):
        for salt in (b"one", b"two", b"one", b""):
            await asking.checked(job(GOOD, salt=salt))
        await asyncio.gather(*(asking.checked(job(GBNF, salt=salt)) for salt in (b"one", b"two")))

    _, observed = using(folder, work)
    assert len(observed) == 3 + 2


def test_a_tenant_waits_for_one_grammar_of_another_and_not_for_all(folder):
    async def work(asking):
        await asking.checked(job(GOOD))
        os.kill(asking.worker_pid, signal.SIGSTOP)
        ended = []

        async def check(tenant, number):
            await asking.checked(job(Grammar(kind="regex", text=f"a{{{number}}}"), tenant=tenant, salt=tenant.encode()))
            ended.append(tenant)

        tasks = [asyncio.create_task(check("greedy", number)) for number in range(2, 32)]
        tasks.append(asyncio.create_task(check("small", 99)))
        await asyncio.sleep(0)
        os.kill(asking.worker_pid, signal.SIGCONT)
        await asyncio.gather(*tasks)
        return ended.index("small")

    place, _ = using(folder, work)
    assert place < 16


def test_texts_of_one_tenant_do_not_take_the_place_of_others(folder):
    async def work(asking):
        await asking.checked(job(GOOD))
        os.kill(asking.worker_pid, signal.SIGSTOP)
        texts = [Grammar(kind="regex", text=f"a{{{number}}}") for number in range(10, 20)]
        greedy = [asyncio.create_task(asking.checked(job(one, tenant="greedy"))) for one in texts]
        small = [asyncio.create_task(asking.checked(job(one, tenant="small", salt=b"small"))) for one in texts]
        await asyncio.wait(small, return_when=asyncio.FIRST_COMPLETED)
        refused = [[task.done() for task in tasks].count(True) for tasks in (greedy, small)]
        os.kill(asking.worker_pid, signal.SIGCONT)
        await asyncio.gather(*greedy, *small, return_exceptions=True)
        return refused

    refused, _ = using(folder, work, max_waiting_bytes=40)
    assert refused == [2, 6], "of ten texts of 5 bytes; beside one other tenant a half may wait"


def test_a_server_that_ends_waits_for_no_verdict(folder):
    """Nor does what waited start another worker, which nothing would end."""

    async def work(asking):
        await asking.checked(job(GOOD))
        os.kill(asking.worker_pid, signal.SIGSTOP)
        owed = [asyncio.ensure_future(asking.checked(job(Grammar(kind="regex", text=f"{n}")))) for n in range(5)]
        await asyncio.sleep(0.02)
        await asking.close()
        with pytest.raises(Refused) as late:
            await asking.checked(job(GBNF))
        told = [*await asyncio.gather(*owed, return_exceptions=True), late.value]
        return told, asking.worker_pid, asking.remembered_bytes

    (told, worker, remembered), _ = using(folder, work)
    assert [type(one) for one in told] == [Refused] * 6
    assert {(one.error.status, one.error.code) for one in told} == {(503, "draining")}
    assert worker is None
    assert remembered == ENTRY_BYTES, "of the first grammar alone"


def test_a_worker_whose_start_ends_after_the_close_is_ended(folder, monkeypatch):
    make, made = asyncio.create_subprocess_exec, []

    async def work(asking):
        async def closing(*command, **options):
            made.append(await make(*command, **options))
            await asking.close()
            return made[0]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", closing)
        with pytest.raises(Refused) as raised:
            await asking.checked(job(GOOD))
        return raised.value.error, asking.worker_pid

    ((error, worker), _), (process,) = using(folder, work), made
    assert (error.status, error.code) == (503, "draining")
    assert worker is None
    assert process.returncode == -signal.SIGKILL
