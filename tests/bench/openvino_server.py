"""OpenVINO GenAI behind /v1/completions, as much of it as a measurement needs: `python openvino_server.py MODEL PORT`.

Runs in an environment of its own with openvino-genai, tokenizers and aiohttp; imports nothing of Kvasir. The engine is
a child process, since a step of its binding holds Python's lock. Each token is decoded alone: the measured models only
draw tokens that are whole texts.
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

CACHE_GB = 2
CHUNK_TOKENS = 512
SEQUENCES = 32
THREADS = int(os.environ.get("KVASIR_BENCH_THREADS", "0")) or os.cpu_count()
LOOKUP = tuple(int(one) for one in os.environ.get("KVASIR_BENCH_OPENVINO_LOOKUP", "").split(",") if one)
"""Ids that are looked for in the prompt, and how many are drafted; () for none."""


def engine(model: str, pipe: Connection) -> None:
    """The child: takes (number, ids, max_tokens, temperature, top_p), gives lists of (number, ids; None: the end)."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = CACHE_GB, SEQUENCES
    scheduler.max_num_batched_tokens, scheduler.dynamic_split_fuse = CHUNK_TOKENS, True
    scheduler.enable_prefix_caching = True
    properties = {"INFERENCE_NUM_THREADS": THREADS}
    if LOOKUP:
        properties["prompt_lookup"] = True
    batching = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    pipe.send("ready")
    live = {}
    while True:
        while not live or pipe.poll(0):
            number, ids, max_tokens, temperature, top_p = pipe.recv()
            config = genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, temperature > 0
            if LOOKUP:
                config.max_ngram_size, config.num_assistant_tokens = LOOKUP
            if temperature > 0:
                config.temperature, config.top_p, config.rng_seed = temperature, top_p, number
            tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
            live[number] = batching.add_request(number, tensor, config)
        batching.step()
        said = []
        for number, handle in list(live.items()):
            while handle.can_read():
                said += [(number, list(out.generated_ids)) for out in handle.read().values() if out.generated_ids]
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                said.append((number, None))
                del live[number]
        if said:
            pipe.send(said)


def main(model: str, port: int) -> None:
    """Serves until it is stopped."""
    from aiohttp import web
    from tokenizers import Tokenizer

    spawning = multiprocessing.get_context("spawn")
    pipe, theirs = spawning.Pipe()
    spawning.Process(target=engine, args=(model, theirs), daemon=True).start()
    theirs.close()
    pipe.recv()
    folder = Path(model) if Path(model).is_dir() else Path(model).parent  # of a GGUF file
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    queues: dict[int, asyncio.Queue] = {}
    numbers = itertools.count()

    def deliver(said: list) -> None:
        for number, ids in said:
            if number in queues:
                queues[number].put_nowait(ids)

    def listen(loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                loop.call_soon_threadsafe(deliver, pipe.recv())
            except EOFError:
                os._exit(1)

    async def start(_: web.Application) -> None:
        threading.Thread(target=listen, args=(asyncio.get_running_loop(),), daemon=True).start()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "openvino", "object": "model"}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"]
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids if isinstance(prompt, str) else prompt
        wanted, number, drawn = int(body["max_tokens"]), next(numbers), 0
        queue = queues[number] = asyncio.Queue()
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        pipe.send((number, ids, wanted, float(body.get("temperature", 0)), float(body.get("top_p", 1))))
        try:
            while (new := await queue.get()) is not None:
                new = new[: wanted - drawn]
                drawn += len(new)
                texts = [tokenizer.decode([one], skip_special_tokens=False) or " " for one in new]
                events = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts]
                await answer.write(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))
        finally:
            del queues[number]
        usage = {"prompt_tokens": len(ids), "completion_tokens": drawn, "total_tokens": len(ids) + drawn}
        await answer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        await answer.write_eof()
        return answer

    app = web.Application(client_max_size=1 << 26)
    app.on_startup.append(start)
    app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", completions)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
