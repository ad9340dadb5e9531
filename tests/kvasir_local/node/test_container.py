"""Real containers without a cluster: namespaces, mounts, signals, logs, and that nothing survives its supervisor."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kvasir_local.node import container as containers
from kvasir_local.node import container_logs
from kvasir_local.node.container import Container, StartFailedError, check_machine
from kvasir_local.node.container_logs import LogOptions
from kvasir_local.node.host_files import HostFiles
from kvasir_local.node.rules import rootfs
from kvasir_local.node.rules.container_config import ContainerConfig
from kvasir_local.node.rules.rootfs import Mount

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(bool(check_machine()), reason="this machine allows no mount namespaces"),
]


class Bench:
    """Starts containers below one directory and kills what is left of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "0.log"
        self._started: list[Container] = []

    async def start(self, *argv: str, mounts: tuple[Mount, ...] = (), read_only_root: bool = False) -> Container:
        keep = {sys.prefix, sys.base_prefix, str(self.directory)}
        kept = [Mount(source=path, path=path, read_only=True) for path in keep if path.startswith(rootfs.SCRATCH)]
        steps = rootfs.layout(HostFiles(), mounts, keep=kept, devices=(), read_only_root=read_only_root)
        launch = ContainerConfig(
            argv=argv,
            env={"PATH": "/usr/bin:/bin", "NAME": "value"},
            cwd="/",
            hostname="pod-1",
            capabilities=(),
            no_new_privileges=True,
        )
        found = await containers.start(launch, root=self.directory / "root", steps=steps, log=self.log)
        self._started.append(found)
        return found

    async def output(self, *argv: str, **options: object) -> tuple[int, str]:
        """Exit code and log of a container that ends by itself."""
        found = await self.start(*argv, **options)  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            code = await found.wait()
        return code, container_logs.read(self.log, LogOptions()).decode()

    async def end(self) -> None:
        for item in self._started:
            item.kill()
            await item.wait()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    found = Bench(tmp_path)
    yield found
    await found.end()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


async def test_a_program_runs_with_its_own_name_processes_and_environment(bench: Bench):
    code, text = await bench.output("sh", "-c", "hostname; echo $NAME $$; ls -d /proc/[0-9]* | wc -l; exit 3")
    assert code == 3
    host, *rest = text.split()
    assert (host, rest[:2]) == ("pod-1", ["value", "2"])
    assert int(rest[2]) <= 5


async def test_volumes_are_mounted_where_the_host_has_nothing(bench: Bench, tmp_path: Path):
    (tmp_path / "vol").mkdir()
    (tmp_path / "vol" / "x").write_text("hello ")
    paths = ("/models", "/etc/kvasir-test/deep", "/var/run/secrets/here", "/tmp")
    mounts = tuple(Mount(source=str(tmp_path / "vol"), path=path, read_only=path == "/models") for path in paths)
    script = f"cat {' '.join(f'{path}/x' for path in paths)}; touch /models/y || echo refused; touch /tmp/z"
    code, text = await bench.output("sh", "-c", script, mounts=mounts, read_only_root=True)
    assert (code, text.count("hello"), "refused" in text) == (0, 4, True)
    assert (tmp_path / "vol" / "z").exists()
    assert not Path("/models/x").exists()
    assert not Path("/etc/kvasir-test").exists()


async def test_the_host_is_read_only_and_scratch_is_private(bench: Bench):
    code, text = await bench.output("sh", "-c", "touch /usr/x /etc/x; touch /tmp/kvasir-private && echo made")
    assert "Read-only file system" in text
    assert "made" in text
    assert not Path("/tmp/kvasir-private").exists()
    assert code == 0


async def test_a_read_only_root_has_no_writable_tmp(bench: Bench):
    code, _ = await bench.output("touch", "/tmp/x", read_only_root=True)
    assert code != 0


async def test_capabilities_and_new_privileges_are_gone(bench: Bench):
    _, text = await bench.output("grep", "-E", "CapEff|CapBnd|NoNewPrivs", "/proc/self/status")
    assert [line.split()[1].lstrip("0") for line in text.splitlines()] == (["", "", "1"])


async def test_sigterm_reaches_the_program_and_its_exit_code_comes_back(bench: Bench):
    found = await bench.start("sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    await until(lambda: bench.log.exists() and b"up" in bench.log.read_bytes())
    found.terminate()
    async with asyncio.timeout(60):
        assert await found.wait() == 7
    assert "bye" in container_logs.read(bench.log, LogOptions()).decode()


async def test_a_program_without_a_handler_dies_of_sigterm(bench: Bench):
    found = await bench.start("sleep", "1000")
    found.terminate()
    async with asyncio.timeout(60):
        assert await found.wait() == 143


async def test_kill_ends_every_process_of_the_container(bench: Bench):
    found = await bench.start("sh", "-c", "(setsid sleep 1234 &) ; echo up; trap '' TERM; while :; do sleep 0.05; done")
    await until(lambda: bench.log.exists() and b"up" in bench.log.read_bytes())
    found.terminate()
    found.kill()
    async with asyncio.timeout(60):
        assert await found.wait() == 137
    assert not alive(found.pid)


async def test_nothing_survives_the_death_of_the_shim(bench: Bench):
    found = await bench.start("sh", "-c", "(setsid sleep 1235 &) ; echo up; sleep 1000")
    await until(lambda: bench.log.exists() and b"up" in bench.log.read_bytes())
    os.kill(found._shim.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await found.wait() == 137
    await until(lambda: not alive(found.pid))


async def test_commands_run_inside_and_are_stopped_when_late(bench: Bench, tmp_path: Path):
    (tmp_path / "vol").mkdir()
    mounts = (Mount(source=str(tmp_path / "vol"), path="/inside", read_only=False),)
    found = await bench.start("sleep", "1000", mounts=mounts)
    assert await found.run(["sh", "-c", "touch /inside/x; hostname; echo $NAME; exit 5"], timeout_s=60) == (
        5,
        "pod-1\nvalue",
    )
    assert (tmp_path / "vol" / "x").exists()
    with pytest.raises(TimeoutError):
        await found.run(["sleep", "1000"], timeout_s=0.1)
    code, output = await found.run(["no-such-program"], timeout_s=60)
    assert (code, "no-such-program" in output) == (128, True)


async def test_a_missing_program_is_said_and_not_started(bench: Bench):
    with pytest.raises(StartFailedError, match="cannot start 'no-such-program': No such file"):
        await bench.start("no-such-program")


async def test_a_missing_volume_names_the_mount(bench: Bench):
    with pytest.raises(StartFailedError, match="cannot prepare /models of the container"):
        await bench.start("true", mounts=(Mount(source="/no/such/place", path="/models", read_only=True),))


async def test_logs_keep_stream_time_and_order(bench: Bench):
    await bench.output("sh", "-c", "echo one; echo two >&2; printf three")
    lines = bench.log.read_text().splitlines()
    assert sorted(line.split(" ", 1)[1] for line in lines) == ["stderr F two", "stdout F one", "stdout F three"]
    assert all(line.split(" ")[0].endswith("Z") for line in lines)
    assert container_logs.read(bench.log, LogOptions(tail=1, timestamps=True)).decode().split(" ", 1)[1] in {
        "three\n",
        "two\n",
        "one\n",
    }
    assert container_logs.read(bench.log, LogOptions(limit_bytes=3)) in {b"one", b"two", b"thr"}
    assert container_logs.read(bench.log, LogOptions(since="2999-01-01T00:00:00Z")) == b""
