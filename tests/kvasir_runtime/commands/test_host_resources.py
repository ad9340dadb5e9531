"""What a machine without the engine is asked: its memory, and the type that a model would have on it."""

import pytest

from kvasir_runtime.commands import host_resources


@pytest.mark.parametrize(
    ("cpu", "wanted", "checkpoint", "device", "want"),
    [
        ("flags : fpu avx2", "auto", "bfloat16", "cpu", "bfloat16"),
        ("flags : fpu avx", "auto", "bfloat16", "cpu", "float32"),
        ("Features : fp bf16", "auto", "float16", "cpu", "bfloat16"),
        ("Features : fp asimd asimddp", "auto", "float16", "cpu", "bfloat16"),
        ("Features : fp asimd", "auto", "float16", "cpu", "float32"),
        ("flags : fpu avx2", "auto", "float16", "cuda", "float16"),
        ("flags : fpu avx2", "bfloat16", "float32", "cpu", "bfloat16"),
        ("flags : fpu avx2", "auto", "float32", "cpu", "float32"),
        ("flags : fpu avx2", "auto", "float32", "cuda", "bfloat16"),
        ("flags : fpu avx2", "float32", "float32", "cuda", "float32"),
    ],
)
def test_the_type_is_what_the_engine_would_take(tmp_path, cpu, wanted, checkpoint, device, want):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(cpu)
    assert host_resources.dtype(wanted, checkpoint, device, tmp_path) == want


@pytest.mark.parametrize(("limit", "want"), [("1048576", 1048576), ("max", 4096 * 1024), (None, 4096 * 1024)])
def test_a_containers_limit_counts(tmp_path, limit, want):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:     4096 kB\n")
    if limit is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(limit + "\n")
    assert host_resources.memory_bytes(tmp_path) == want
