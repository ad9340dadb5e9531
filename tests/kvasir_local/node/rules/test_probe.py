"""Probes: read from a container, counted against their thresholds."""

import pytest

from kvasir_local.node.rules import probe
from kvasir_local.node.rules.kinds import ConfigError
from kvasir_local.node.rules.probe import Exec, HttpGet, ProbeType, Sleep, TcpSocket

CONTAINER = {"name": "c", "ports": [{"name": "http", "containerPort": 8000}]}


def read(role: ProbeType, **source: object) -> probe.Probe:
    return probe.probes({**CONTAINER, f"{role}Probe": source})[role]


def results_of(wanted: probe.Probe, results: str) -> tuple[str, bool]:
    """Results `+` and `-` → whether it passes after each, and whether the container must be killed at the end."""
    tally, seen = probe.initial(wanted.role), ""
    for result in results:
        tally = probe.count(wanted, tally, result == "+")
        seen += "+" if tally.passing else "-"
    return seen, probe.failed(wanted, tally)


@pytest.mark.parametrize(
    ("role", "thresholds", "results", "seen", "killed"),
    [
        (ProbeType.READINESS, (1, 3), "-+--+---+", "-++++++-+", False),
        (ProbeType.READINESS, (2, 1), "+++-+", "-++--", False),
        (ProbeType.LIVENESS, (1, 3), "--+--", "+++++", False),
        (ProbeType.LIVENESS, (1, 3), "+---", "+++-", True),
        (ProbeType.STARTUP, (1, 3), "--+", "--+", False),
        (ProbeType.STARTUP, (1, 3), "---", "---", True),
    ],
)
def test_thresholds_turn_the_result(role, thresholds, results, seen, killed):
    wanted = read(role, tcpSocket={"port": 1}, successThreshold=thresholds[0], failureThreshold=thresholds[1])
    assert results_of(wanted, results) == (seen, killed)


def test_a_probe_is_read_with_its_defaults():
    found = read(
        ProbeType.LIVENESS, httpGet={"path": "ok", "port": "http", "httpHeaders": [{"name": "A", "value": "b"}]}
    )
    check = HttpGet(host="", port=8000, path="/ok", scheme="http", headers=(("A", "b"),))
    assert found == probe.Probe(
        role=ProbeType.LIVENESS,
        check=check,
        initial_delay_s=0,
        period_s=10,
        timeout_s=1,
        success_threshold=1,
        failure_threshold=3,
        grace_s=None,
    )


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ({"exec": {"command": ["a", "b"]}}, Exec(command=("a", "b"))),
        ({"tcpSocket": {"port": 7, "host": "127.0.0.9"}}, TcpSocket(host="127.0.0.9", port=7)),
        ({"tcpSocket": {"port": "7"}}, TcpSocket(host="", port=7)),
    ],
)
def test_every_kind_of_check_is_read(source: dict, want: object):
    assert read(ProbeType.READINESS, **source).check == want


def test_an_unknown_port_name_is_an_error():
    with pytest.raises(ConfigError, match="no port named 'grpc'"):
        read(ProbeType.READINESS, tcpSocket={"port": "grpc"})


@pytest.mark.parametrize(
    ("hook", "want"),
    [({"sleep": {"seconds": 3}}, Sleep(seconds=3)), ({"exec": {"command": ["x"]}}, Exec(command=("x",)))],
)
def test_hooks_are_read(hook: dict, want: object):
    assert probe.hook({**CONTAINER, "lifecycle": {"preStop": hook}}) == want
    assert probe.hook(CONTAINER) is None
