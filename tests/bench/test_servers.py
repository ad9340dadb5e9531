"""A benchmark that gets SIGTERM leaves no server behind."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

MEASUREMENT = """
import sys, time
from pathlib import Path
from bench.servers import serving

folder, port = sys.argv[1:]
server = [sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", folder]
with serving(server, f"http://127.0.0.1:{port}/", Path(folder, "log"), {}) as running:
    print(running.process.pid, flush=True)
    time.sleep(60)
"""


def test_a_server_ends_with_a_measurement_that_is_told_to_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-c", MEASUREMENT, str(tmp_path), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True) as process:
        assert process.stdout is not None
        server = Path("/proc") / process.stdout.readline().strip()
        assert server.exists()
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not server.exists()
