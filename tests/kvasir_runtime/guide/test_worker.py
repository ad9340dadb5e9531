"""The worker as a process: hostile grammars die in forks of it, within their limits, and others go on meanwhile."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time

import msgspec
import pytest

from kvasir_runtime.frontend.structured_outputs.grammar_validator import ONE_THREAD, WORKER_COMMAND
from kvasir_runtime.guide.protocol import (
    HEAD,
    LOADED,
    MEMORY_BYTES,
    WALL_S,
    Verdict,
    VerdictReply,
    VerdictRequest,
    framed,
)
from kvasir_runtime.guide.worker import death
from kvasir_runtime.wire import Grammar

ANY = {"type": "object"}
TOO_LONG = "it is too complex: it took more than 3 s to compile"
TOO_MUCH = "it is too complex: it took more than 256 MB to compile"


def schema(document):
    return Grammar(kind="json_schema", text=json.dumps(document))


def lark(text):
    return Grammar(kind="lark", text=text)


def regex(text):
    return Grammar(kind="regex", text=text)


def nested(depth):
    document = {"type": "null"}
    for _ in range(depth):
        document = {"type": "array", "items": document}
    return document


POWER = {"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]}
HOSTILE = {
    "intersections that multiply": schema({"allOf": [POWER] * 24, "type": "object"}),
    "a huge multiple": schema({"type": "integer", "multipleOf": 999_983}),
    "nested groups": regex("(" * 5000 + "a" + ")" * 5000),
    "an intersection of languages": lark(
        "start: A\nA: " + " & ".join(f"/(?s:.*)[a-z]{{{n}}}(?s:.*)[0-9]{{{n}}}(?s:.*)/" for n in range(2, 22))
    ),
    "rules of repetitions": lark(
        "start: " + " ".join(f"a{i}" for i in range(9000)) + "\n" + "\n".join(f'a{i}: "x"~0..900' for i in range(9000))
    ),
    "rules without end": lark('start: "a" start'),
    "rules that double": lark("start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(40)) + '\na40: "x"'),
    "an empty class": regex(r"[^\s\S]"),
    "rules in a circle": lark("start: a\na: b\nb: a"),
    "look-around": regex("(?=a)b"),
    "a reference to elsewhere": schema({"$ref": "https://example.com/schema.json"}),
    "a reference to a file": schema({"$ref": "file:///etc/passwd"}),
    "a reference to itself": schema({"$ref": "#"}),
    "required of itself": schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "false": schema(False),
    "contradictions": schema({"type": "string", "minLength": 5, "maxLength": 4}),
    "an empty enum": schema({"enum": []}),
    "no JSON": Grammar(kind="json_schema", text="{" * 1000),
    "GBNF that is none": lark("root ::= (((((" * 2000),
}
HARMLESS = {
    "counted repetitions of repetitions": regex("((((a{1,200}){1,200}){1,200}){1,200}){1,200}"),
    "a complement": lark("start: A\nA: ~/(?s:.*)(a|b)(?s:.){24}(c|d)(?s:.{20})/ & /[a-d]{30,400}/"),
    "many choices": Grammar(kind="choice", text=json.dumps([f"value {i}" for i in range(16_384)])),
    "a large enum": schema({"enum": [f"value-{i}" for i in range(20_000)]}),
    "deep": schema(nested(40)),
    "many items": schema({"type": "array", "items": {"type": "null"}, "minItems": 1_000_000}),
    "a long text": schema({"type": "string", "minLength": 1_000_000, "maxLength": 10_000_000}),
    "catastrophic elsewhere": regex("(a+)+$"),
    "alternatives": regex("(" + "|".join(f"w{i}x" for i in range(10_000)) + ")"),
    "left recursion": lark('start: start "a" | "b"'),
    "ambiguity": lark('start: e\ne: e e | "a" | e e e'),
}


class Worker:
    """Answers by the name of the question, in the order they come."""

    def __init__(self, process):
        self.process, self.told = process, {}

    async def ask(self, grammars):
        names = list(grammars)
        for number, name in enumerate(names):
            self.process.stdin.write(framed(VerdictRequest(number, grammars[name])))
        await self.process.stdin.drain()
        found = {}
        while len(found) < len(names):
            told = await self.hear()
            found[names[told.number]] = told
        return found

    async def hear(self):
        (length,) = HEAD.unpack(await self.process.stdout.readexactly(HEAD.size))
        return msgspec.msgpack.decode(await self.process.stdout.readexactly(length), type=VerdictReply)


def with_worker(folder, work):
    async def run():
        command = (*WORKER_COMMAND, str(folder), "330")
        pipes = dict.fromkeys(("stdin", "stdout"), asyncio.subprocess.PIPE)
        process = await asyncio.create_subprocess_exec(*command, **pipes, env={**os.environ, **ONE_THREAD})
        try:
            worker = Worker(process)
            assert await worker.hear() == VerdictReply(LOADED, Verdict(), 0.0)
            return await asyncio.wait_for(work(worker), 300)
        finally:
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), 60) == 0, "it ends with its input"

    return asyncio.run(run())


def test_hostile_grammars_are_refused_within_the_limits_and_harmless_ones_are_not(folder):
    """All at once; each names a reason, none takes longer than its limit, and none is mistaken for another."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    began = time.monotonic()
    told = with_worker(folder, lambda worker: worker.ask({**HOSTILE, **HARMLESS, "plain": schema(ANY)}))
    assert {name for name in HOSTILE if not told[name].verdict.error} == set()
    assert {name: told[name].verdict.error for name in [*HARMLESS, "plain"] if told[name].verdict.error} == {}
    assert all(one.seconds < WALL_S + 5 for one in told.values())
    reasons = {name: one.verdict.error for name, one in told.items()}
    for name in ("a huge multiple", "rules of repetitions"):
        assert reasons[name] in {TOO_LONG, TOO_MUCH}, "a quick processor gets to the bytes before the seconds"
    assert "unsatisfiable" in reasons["an empty class"]
    assert "not valid JSON" in reasons["no JSON"]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # until it runs its program, a child has its parent's
    assert peak <= max(before, own, (MEMORY_BYTES >> 10) + 400_000), "kilobytes"
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    ("work", "reason"),
    [("while True: pass", TOO_LONG), ("bytearray(300 << 20)", TOO_MUCH), ("os.abort()", TOO_MUCH)],
)
def test_what_is_over_a_limit_dies_and_the_limit_is_named(work, reason):
    program = f"import os\nfrom kvasir_runtime.guide import worker\nworker.limit()\n{work}"
    assert death(subprocess.run([sys.executable, "-c", program], check=False).returncode) == reason


def test_a_worker_that_cannot_load_says_why(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")

    async def run():
        command = (*WORKER_COMMAND, str(tmp_path), "330")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        told = await Worker(process).hear()
        return told, await process.wait()

    told, code = asyncio.run(run())
    assert (told.number, code) == (LOADED, 1)
    assert "cannot be used for guided decoding" in told.verdict.error
