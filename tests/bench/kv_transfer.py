"""Blocks from another replica's second tier to this one's, beside a plain copy of as many bytes.

`python -m bench.kv_transfer` (with `PYTHONPATH=tests`). The replica that gives blocks out is a process of its own, and
both have a file of `--kv-host-bytes`. In turns, a round after another: memcpy of the bytes; the bytes through a
connection of this host alone (sendfile and recv_into); and fetches as a replica makes them, which compare each block's
checksum and write it to the file, one and four at once.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench import marked_page
from bench.cpu import processor
from fakes.kv_peers import FACTS, KEY, NAME
from kvasir_api.hashes import block_root, prompt_block_hashes, split_block_hashes
from kvasir_runtime.core.plan import BlockFetch, PeerBlock
from kvasir_runtime.nodes.listening import bind
from kvasir_runtime.runner.kv_offload.file_store import FileStore, open_store
from kvasir_runtime.runner.kv_transfer import tcp_peer
from kvasir_runtime.runner.kv_transfer.block_fetcher import BlockFetcher
from kvasir_runtime.runner.kv_transfer.block_server import BlockServer
from kvasir_runtime.wire import packed_ids

BLOCK_SIZE: Final = 16
"""Tokens of a block."""
WITHIN_S: Final = 120.0
PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "host-tier.md"
MARKS: Final = ("<!-- measured: written by python -m bench.kv_transfer -->", "<!-- end of the transfers -->")


def main() -> None:
    """Prints a table, and keeps it in docs/benchmarks/host-tier.md where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-bytes", type=int, default=BLOCK_SIZE * 12_288, help="by default those of `small`")
    parser.add_argument("--blocks", type=int, default=2_048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the files of blocks are; by default a temporary directory")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/host-tier.md")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.block_bytes, asked.blocks)
        return
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        found = _measured(asked, Path(folder))
    num_bytes = asked.block_bytes * asked.blocks
    said = (
        f"{asked.blocks:,} blocks of {asked.block_bytes:,} bytes, {processor()},"
        f" {time.strftime('%Y-%m-%d', time.gmtime())}\n\n{table(found, num_bytes)}"
    )
    print(said)
    if asked.write:
        PAGE.write_text(marked_page.replaced(PAGE.read_text(), MARKS, said))


def table(found: dict[str, list[float]], num_bytes: int) -> str:
    """Of Markdown. found: seconds of each round for num_bytes, the plain copy first."""
    copied = next(iter(found.values()))
    lines = ["| way | median MB/s | least | most | of memcpy in the same round |", "|---|---|---|---|---|"]
    for name, seconds in found.items():
        rates = [num_bytes / 1e6 / one for one in seconds]
        share = statistics.median(plain / one for plain, one in zip(copied, seconds, strict=True))
        three = (statistics.median(rates), min(rates), max(rates))
        lines.append(f"| {name} | {' | '.join(f'{rate:,.0f}' for rate in three)} | {share:.2f} |")
    return "\n".join(lines)


def serve(folder: Path, block_bytes: int, count: int) -> None:
    """Fill a tier and give its blocks out, until standard input ends."""
    store = _store(folder, block_bytes, count)
    content = np.random.default_rng(1).integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for key, block in zip(_keys(store, count), content, strict=True):
        store.put([(key, block.data)])
    server = BlockServer(bind("127.0.0.1", 0, "--kv-transfer-port"), store, FACTS)
    server.keys = (KEY,)
    print(server.port, flush=True)
    sys.stdin.read()
    server.close()


def _measured(asked: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Seconds of each round, by the way that bytes go."""
    block_bytes, count = asked.block_bytes, asked.blocks
    command = [sys.executable, "-m", "bench.kv_transfer", "--serve", str(folder / "peer")]
    command += ["--block-bytes", str(block_bytes), "--blocks", str(count)]
    found: dict[str, list[float]] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        address = f"127.0.0.1:{int(peer.stdout.readline())}"
        source = np.ones(block_bytes * count, dtype=np.uint8)
        target = np.zeros_like(source)
        plain = folder / "plain"
        source.tofile(plain)
        ways: dict[str, Callable[[], None]] = {
            "memcpy": lambda: np.copyto(target, source),
            "loopback alone": lambda: _sent(plain, target.data, block_bytes),
            "one fetch": lambda: _fetched(folder, address, block_bytes, count, 1),
            "four fetches at once": lambda: _fetched(folder, address, block_bytes, count, 4),
        }
        for _ in range(asked.rounds):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                found.setdefault(name, []).append(time.perf_counter() - began)
        peer.stdin.close()
    return found


def _sent(file: Path, target: memoryview, block_bytes: int) -> None:
    """A file through a connection, a block after another."""
    sending, receiving = socket.socketpair()

    def send() -> None:
        with file.open("rb") as opened:
            sending.sendfile(opened)

    with sending, receiving:
        thread = threading.Thread(target=send)
        thread.start()
        for start in range(0, len(target), block_bytes):
            receiving.recv_into(target[start : start + block_bytes], block_bytes, socket.MSG_WAITALL)
        thread.join()


def _fetched(folder: Path, address: str, block_bytes: int, count: int, fetches: int) -> None:
    """All blocks, from the peer to an empty file."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        store, changed = _store(Path(own), block_bytes, count), threading.Condition()
        fetcher = BlockFetcher(
            store,
            lambda peer, deadline: tcp_peer.connect(peer, deadline, key=KEY, facts=FACTS),
            block_size=BLOCK_SIZE,
            changed=changed,
        )
        blocks = [PeerBlock(column, key) for column, key in enumerate(_keys(store, count))]
        with changed:
            fetcher.submit([_fetch(number, address, blocks[number::fetches], count) for number in range(fetches)])
            assert changed.wait_for(lambda: not fetcher.is_busy, WITHIN_S)
            came = sum(len(result.keys) for result in fetcher.take())
        assert came == count, f"{came} of {count} blocks came"
        fetcher.forget_connections()


def _fetch(number: int, address: str, blocks: Sequence[PeerBlock], count: int) -> BlockFetch:
    return BlockFetch(
        number=number, peer=address, within_s=WITHIN_S, salt=b"", tokens=_tokens(count), blocks=tuple(blocks)
    )


def _store(folder: Path, block_bytes: int, count: int) -> FileStore:
    """With room for all blocks."""
    folder.mkdir(exist_ok=True)
    return open_store(folder, NAME, block_bytes, count * (block_bytes + 4096) + (1 << 20))


def _tokens(count: int) -> bytes:
    """Of so many blocks."""
    return packed_ids(range(count * BLOCK_SIZE))


def _keys(store: FileStore, count: int) -> list[bytes]:
    """Of these tokens' blocks, as the replica with this file has them."""
    root = block_root(salt=b"", secret=store.salt)
    hashes = split_block_hashes(prompt_block_hashes(_tokens(count), root=root, block_size=BLOCK_SIZE))
    return [one + b"\0" for one in hashes]


if __name__ == "__main__":
    main()
