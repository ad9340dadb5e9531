"""llama.cpp's own server, by the binding xllamacpp: `python llama_cpp_server.py MODEL PORT [N M]`.

N, M: ids that are looked for in the text, and how many are drafted behind them (llama.cpp's ngram-simple). Runs in an
environment of its own with xllamacpp; imports nothing of Kvasir.
"""

import os
import signal
import sys

SEQUENCES = 4
KV_TOKENS = 16_384
THREADS = int(os.environ.get("KVASIR_BENCH_THREADS", "0")) or os.cpu_count() or 1


def main(model: str, port: int, lookup: list[int]) -> None:
    """Serves until it is stopped."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = model, ["127.0.0.1"], port
    params.n_parallel, params.n_ctx, params.kv_unified, params.n_gpu_layers = SEQUENCES, KV_TOKENS, True, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    if lookup:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = lookup
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(one) for one in sys.argv[3:]])
