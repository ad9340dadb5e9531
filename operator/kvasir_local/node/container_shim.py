"""The shim of one container: namespaces, mounts, the program, its output, its end. Run as a script by `container`.

Runs as `python -I -S container_shim.py` with the standard library alone, since every container has one.
stdin: one JSON order (see `rules/container_config.py`); stdout: one JSON line {"pid": n} or {"error": text}. Exits with
the program's code. SIGTERM is passed to the program; SIGUSR1 kills everything in the container. Two processes: the
*shim* writes the log and returns the exit code; the *init* is process 1 of the container: it mounts, forks the program
and reaps. When the shim dies the kernel kills the init, and with it the whole process namespace; when the node dies the
kernel kills the shim.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any, Never

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x4000000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_UNBINDABLE, MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 17, 1 << 18
)  # fmt: skip
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
SYS_MOUNT_SETATTR = 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
LOG_LIMIT_BYTES = 10 * 2**20
LINE_LIMIT_BYTES = 16 * 2**10
START_ERROR = 128
TRY = "--try"

_libc = ctypes.CDLL(None, use_errno=True)


class ShimError(Exception):
    """The program could not be started; the message is for the pod's author."""


def main() -> Never:
    """Carry out the order on stdin: start a container, or run a command in one (`enter`). With TRY: only try."""
    if sys.argv[1:] == [TRY]:
        try:
            try_namespaces(user_namespace=os.geteuid() != 0)
        except OSError as error:
            sys.exit(str(error))
        sys.exit(0)
    parent = os.getppid()
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    order = json.load(sys.stdin)
    if parent != order["node_pid"]:
        os._exit(1)  # the node died before the prctl call
    try:
        code = enter(order) if "enter" in order else run_shim(order)
    except (ShimError, OSError) as error:
        _report({"error": str(error)})
        code = START_ERROR
    os._exit(code)


def run_shim(order: dict[str, Any]) -> int:
    """Start the container, copy its output to the log until it ends. Returns the exit code (128 + n for signal n)."""
    if order["user_namespace"]:
        _enter_user_namespace()
    _call("unshare", CLONE_NEWPID)
    out, err, ready, alive = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    init = os.fork()
    if init == 0:
        for fd in (out[0], err[0], ready[0], alive[1]):
            os.close(fd)
        _init(order, out[1], err[1], ready[1], alive[0])
    for fd in (out[1], err[1], ready[1], alive[0]):
        os.close(fd)
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(init, signal.SIGKILL))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGTERM))
    refused = _read_all(ready[0])
    if refused:
        os.waitpid(init, 0)
        raise ShimError(refused.decode(errors="replace"))
    _report({"pid": init})
    _pump({out[0]: b"stdout", err[0]: b"stderr"}, order["log"])
    return _code(os.waitpid(init, 0)[1])


def enter(order: dict[str, Any]) -> int:
    """Run a command in the namespaces of a running container; output goes to our own stderr, which the node reads."""
    kinds = ["user"] if order["user_namespace"] else []
    fds = [os.open(f"/proc/{order['enter']}/ns/{kind}", os.O_RDONLY) for kind in (*kinds, "pid", "mnt", "uts")]
    for fd in fds:
        _call("setns", fd, 0)
        os.close(fd)
    child = os.fork()
    if child == 0:
        try:
            os.dup2(2, 1)
            _become(order)
        except (OSError, ShimError) as error:
            os.write(2, str(error).encode())
            os._exit(START_ERROR)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    return _code(os.waitpid(child, 0)[1])


def _init(order: dict[str, Any], out: int, err: int, ready: int, alive: int) -> Never:
    """Process 1 of the container: prepares the root, forks the program, reaps whatever dies, ends with the program."""
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        if select.select([alive], [], [], 0)[0]:
            os._exit(1)
        os.setsid()
        _call("unshare", CLONE_NEWNS | CLONE_NEWUTS)
        if order["hostname"]:
            name = order["hostname"].encode()
            _call("sethostname", name, len(name))
        build_root(order["root"], order["steps"])
        program = os.fork()
        if program == 0:
            os.dup2(out, 1)
            os.dup2(err, 2)
            _become(order)
    except (OSError, ShimError) as error:
        os.write(ready, str(error).encode())
        os._exit(START_ERROR)
    # Before `ready` is closed: from then on SIGTERM may come, which process 1 ignores without a handler.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(program, signal.SIGTERM))
    for fd in (out, err, ready):
        os.close(fd)
    while True:
        pid, status = os.wait()
        if pid == program:
            os._exit(_code(status))


def build_root(root: str, steps: list[list[str]]) -> None:
    """Build the container's root directory as `rules/rootfs.py` laid it out, and make it ours.

    LaunchError names the step.
    """
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    _mount(None, root, None, MS_UNBINDABLE)  # host directories that contain it must not show it again
    for step in steps:
        try:
            _carry_out(root, step)
        except OSError as error:
            raise ShimError(f"cannot prepare {step[1] or '/'} of the container ({' '.join(step)}): {error}") from error
    os.chdir(root)
    _call("syscall", SYS_PIVOT_ROOT[os.uname().machine], b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _carry_out(root: str, step: list[str]) -> None:
    verb, target, *rest = step[0], root + step[1], *step[2:]
    match verb:
        case "dir":
            os.makedirs(target, exist_ok=True)
        case "file":
            if not os.path.lexists(target):
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        case "link":
            os.symlink(rest[0], target)
        case "tmpfs":
            _mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        case "proc":
            _mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        case "bind":
            _mount(rest[0], target, None, MS_BIND | MS_REC)
            if rest[1] == "ro":
                attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
                size = ctypes.c_size_t(32)
                _call(
                    "syscall",
                    SYS_MOUNT_SETATTR,
                    AT_FDCWD,
                    target.encode(),
                    AT_RECURSIVE,
                    ctypes.byref(attributes),
                    size,
                )
        case "seal":
            _mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _become(order: dict[str, Any]) -> Never:
    """Turn this process into the program: own session, fewer rights, nothing open but the standard streams."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.makedirs(order["cwd"], exist_ok=True)
    os.chdir(order["cwd"])
    _keep_capabilities(set(order["capabilities"]))
    if order["no_new_privileges"]:
        _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        raise ShimError(f"cannot start {order['argv'][0]!r}: {error.strerror}") from error


def _keep_capabilities(kept: set[int]) -> None:
    """Lower every capability set to `kept`; without rights (an ordinary user) there is nothing to lower."""
    with open("/proc/self/status") as lines:
        mine = {line.split()[0]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}
    if not mine["CapEff:"]:
        return
    for number in range(mine["CapBnd:"].bit_length()):
        if number not in kept and mine["CapBnd:"] >> number & 1:
            _call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
    mask = sum(1 << number for number in kept) & mine["CapPrm:"]
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)))


def try_namespaces(*, user_namespace: bool) -> None:
    """What every container needs, tried on this process, which is of no use afterwards. OSError when it is not allowed.

    Some systems allow a user namespace and then refuse to mount in it, so a mount is tried as well.
    """
    if user_namespace:
        _enter_user_namespace()
    _call("unshare", CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", 0)


def _enter_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWUSER)
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)  # new credentials cleared it
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _pump(streams: dict[int, bytes], path: str) -> None:
    """Copy output to the log until every writer has closed it, each line with its time and stream."""
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o640)
    written, rest = 0, dict.fromkeys(streams, b"")
    while rest:
        for fd in select.select(list(rest), [], [])[0]:
            chunk = os.read(fd, 65536)
            stamp = _stamp()
            *lines, tail = (rest[fd] + chunk).split(b"\n")
            entries = [stamp + streams[fd] + b" F " + line + b"\n" for line in lines]
            if tail and (not chunk or len(tail) > LINE_LIMIT_BYTES):
                entries.append(stamp + streams[fd] + (b" P " if chunk else b" F ") + tail + b"\n")
                tail = b""
            rest[fd] = tail
            written += os.write(log, b"".join(entries)) if entries else 0
            if not chunk:
                del rest[fd]
        if written > LOG_LIMIT_BYTES:
            os.close(log)
            os.replace(path, path + ".1")
            log, written = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o640), 0


def _stamp() -> bytes:
    now = time.time_ns()
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
    return f"{clock}.{now % 10**9:09d}Z ".encode()


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 4096):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def _report(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    def encoded(text: str | None) -> bytes | None:
        return text.encode() if text is not None else None

    _call("mount", encoded(source), target.encode(), encoded(kind), ctypes.c_ulong(flags), encoded(options))


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
