"""Simulations run on Windows and macOS too, federations on macOS: whatever needs Linux has a guard before it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import ffalm

PACKAGE = Path(ffalm.__file__).parent
MODULES = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "federate"]

MISSING_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
# What `dir(module)` of CPython 3.13 has on Linux and not on Windows, less constants that nobody would use.
MISSING_NAMES = {
    "mmap": re.compile(r"MADV_\w+|MAP_\w+|PROT_\w+"),
    "multiprocessing": re.compile("fork"),
    "os": re.compile(
        r"O_(CLOEXEC|DIRECT|DIRECTORY|DSYNC|NOATIME|NOCTTY|NOFOLLOW|NONBLOCK|PATH|SYNC|TMPFILE)|WNOHANG|f?chown|lchown"
        r"|chroot|copy_file_range|environb|fdatasync|fork(pty)?|f?statvfs|fwalk|get(e|res)?[gu]id|getgroups|getloadavg"
        r"|getp?gid|getpgrp|[gs]etpriority|getsid|killpg|lockf|memfd_create|mkfifo|mknod|nice|openpty|pidfd_open|pipe2"
        r"|posix_\w+|p(read|write)v?|readv|register_at_fork|sched_\w+|sendfile|set(e|re|res|s|pg)?[gu]?id|setsid|splice"
        r"|sync|sysconf|ttyname|uname|unshare|wait[34]?|waitid|writev|\w+xattr"
    ),
    "select": re.compile(r"e?poll|kqueue"),
    "signal": re.compile(
        r"SIG(ALRM|BUS|CHLD|CONT|HUP|KILL|PIPE|PROF|QUIT|STOP|TSTP|TTIN|TTOU|USR[12]|WINCH|XCPU)|SIG_(UN)?BLOCK"
        r"|SIG_SETMASK|alarm|pause|pthread_\w+|[gs]etitimer|sig(pending|wait)"
    ),
    "socket": re.compile(r"AF_UNIX|send_fds|recv_fds"),
    "time": re.compile(r"clock_\w+|CLOCK_\w+|tzset"),
}
# The same for macOS, by what the documentation of CPython says of each name.
MISSING_ON_MACOS = {
    "multiprocessing": re.compile("fork"),
    "os": re.compile(
        r"O_(DIRECT|LARGEFILE|NOATIME|PATH|RSYNC|TMPFILE)|CLONE_\w+|EFD_\w+|GRND_\w+|MFD_\w+|P_PIDFD|RWF_\w+|SCHED_\w+"
        r"|copy_file_range|eventfd\w*|fdatasync|[gs]etres[gu]id|getrandom|get_blocking_fd|memfd_create|pidfd_open|pipe2"
        r"|posix_(fadvise|fallocate)|p(read|write)v|sched_(?!yield|get_priority)\w+|setns|splice|timerfd_\w+|unshare"
        r"|\w+xattr"
    ),
    "resource": re.compile(r"prlimit|RLIMIT_(MSGQUEUE|NICE|RTPRIO|RTTIME|SIGPENDING|SWAP|SBSIZE|NPTS|KQUEUES)"),
    "select": re.compile("epoll|EPOLL\\w+"),
    "signal": re.compile("SIG(CLD|POLL|PWR|RTM(IN|AX)|STKFLT)|sigtimedwait|sigwaitinfo"),
    "socket": re.compile(
        r"AF_(ALG|CAN|NETLINK|PACKET|QIPCRTR|TIPC|VSOCK)|SOCK_(CLOEXEC|NONBLOCK)|SO_(BINDTODEVICE|DOMAIN|INCOMING_CPU|MARK"
        r"|PASSCRED|PEERCRED|PRIORITY|PROTOCOL)|MSG_(CMSG_CLOEXEC|MORE|NOSIGNAL)|TCP_(CORK|DEFER_ACCEPT|QUICKACK|USER_TIMEOUT)"
    ),
    "time": re.compile("CLOCK_(BOOTTIME|TAI)|pthread_getcpuclockid"),
}
ONLY_ON_LINUX = re.compile(r"/(proc|sys|run|dev/shm)(/|$)")
LINUX_PLACES = re.compile(r"/(proc|dev|sys|tmp|etc|run|var)(/|$)")
GUARD = re.compile(r"\b(platform|os\.name|hasattr|ImportError|AttributeError)\b")


def guards(node: ast.AST) -> str:
    """What decides whether the parts of a statement run: the condition of an `if`, what a `try` or `with` catches."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            return ast.unparse(test)
        case ast.Try(handlers=handlers):
            return " ".join(ast.unparse(one.type) for one in handlers if one.type)
        case ast.With(items=items):
            return " ".join(ast.unparse(one) for one in items)
    return ""


System = Literal["Windows", "macOS"]


def needs(node: ast.AST, system: System) -> Iterator[str]:
    """What one node asks of the operating system that this one lacks."""
    windows = system == "Windows"
    modules, missing_names = (MISSING_MODULES, MISSING_NAMES) if windows else (set[str](), MISSING_ON_MACOS)
    match node:
        case ast.Import(names=names):
            yield from modules.intersection(one.name for one in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from modules & {module}
            if (missing := missing_names.get(module)) is not None:
                yield from (one.name for one in names if missing.fullmatch(one.name))
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in missing_names:
            if missing_names[module].fullmatch(name):
                yield f"{module}.{name}"
        case ast.Call(
            func=ast.Attribute(attr="get_context" | "set_start_method"), args=[ast.Constant(value=str(kind))]
        ):
            if kind != "spawn":
                yield f"multiprocessing's {kind}"
        case ast.Constant(value=str(text)) if (LINUX_PLACES if windows else ONLY_ON_LINUX).match(text):
            yield text


def unguarded(node: ast.AST, system: System = "Windows") -> Iterator[str]:
    """The same for all that no guard stands before."""
    if GUARD.search(guards(node)):
        return
    yield from needs(node, system)
    for part in ast.iter_child_nodes(node):
        yield from unguarded(part, system)


def without_encoding(node: ast.AST) -> bool:
    """Whether a call opens text without saying how it is encoded: on Windows that would be cp1252."""
    if not isinstance(node, ast.Call) or any(one.arg == "encoding" for one in node.keywords):
        return False
    match node.func:
        case ast.Attribute(attr="write_text"):
            return True
        case ast.Attribute(attr="read_text"):
            return not node.args
        case ast.Name(id="open") if len(node.args) > 1:
            return "'" in ast.unparse(node.args[1]) and "b" not in ast.unparse(node.args[1])
        case ast.Name(id="open"):
            return not any(one.arg == "mode" for one in node.keywords)
    return False


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "from os import getuid",
        "os.sched_getaffinity(0)",
        "signal.signal(signal.SIGHUP, end)",
        "if busy:\n    os.kill(1, signal.SIGKILL)",
        "multiprocessing.get_context('fork')",
        "Path('/dev/shm')",
    ],
)
def test_what_windows_lacks_is_found(line: str) -> None:
    assert list(unguarded(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "import os, signal",
        "os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else 1",
        "if sys.platform == 'linux':\n    import fcntl",
        "try:\n    import resource\nexcept ImportError:\n    pass",
        "with suppress(AttributeError):\n    mapped.madvise(mmap.MADV_DONTNEED)",
        "multiprocessing.get_context('spawn')",
    ],
)
def test_what_windows_has_or_a_guard_keeps_from_it_is_not(line: str) -> None:
    assert list(unguarded(ast.parse(line))) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("open(path)", True),
        ("open(path, 'w')", True),
        ("open(path, 'rb')", False),
        ("open(path, encoding='utf-8')", False),
        ("path.write_text(text)", True),
        ("path.read_text()", True),
        ("path.read_text(encoding='utf-8')", False),
    ],
)
def test_text_without_an_encoding_is_found(line: str, found: bool) -> None:
    assert any(map(without_encoding, ast.walk(ast.parse(line)))) == found


def test_simulations_need_nothing_that_windows_lacks() -> None:
    found = {path.relative_to(PACKAGE): list(unguarded(ast.parse(path.read_text("utf-8")))) for path in MODULES}
    assert len(found) > 200
    assert {path: needed for path, needed in found.items() if needed} == {}


@pytest.mark.parametrize(
    "line", ["os.sched_getaffinity(0)", "os.pipe2(0)", "from select import epoll", "Path('/proc/meminfo')"]
)
def test_what_macos_lacks_is_found(line: str) -> None:
    assert list(unguarded(ast.parse(line), "macOS"))


def test_nothing_needs_what_macos_lacks() -> None:
    modules = {path.relative_to(PACKAGE): ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    found = {path: list(unguarded(module, "macOS")) for path, module in modules.items()}
    assert len(found) > 300
    assert {path: needed for path, needed in found.items() if needed} == {}


AS_ON_MACOS = """
import mmap, os, signal, sys
from pathlib import Path
import numpy, pandas, pyarrow, rich, safetensors.torch, scipy.special, scipy.stats, torch, typer

def hide(event, arguments):
    if event != "open" or not str(arguments[0]).startswith(("/proc/", "/sys/", "/dev/shm")):
        return
    frame = sys._getframe()
    while frame is not None:
        if "/ffalm/" in frame.f_code.co_filename:
            raise FileNotFoundError(2, "No such file or directory", arguments[0])
        frame = frame.f_back

sys.platform = "darwin"
for module, names in {os: ["sched_getaffinity", "pipe2", "memfd_create", "posix_fadvise", "fdatasync", "getrandom",
                           "copy_file_range", "pidfd_open", "splice", "eventfd"],
                      mmap: ["MADV_DONTNEED"], signal: ["SIGPWR", "SIGRTMIN", "sigwaitinfo"]}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.addaudithook(hide)
from ffalm.cli import run
"""


@pytest.mark.skipif(sys.platform != "linux", reason="takes away what Linux has and macOS has not")
def test_a_study_runs_without_what_macos_lacks(tmp_path: Path) -> None:
    """Computed, resumed, reported and applied to new rows; not on macOS itself, where CI does the same."""
    study = ["--rounds", "1", "--seeds", "1", "--workers", "1", "--algorithms", "fedavg,ffalm", "--out", "study"]
    lines = [
        f"assert run(['compare', *{study!r}, '--set', 'data.rows=600']) == 0",
        "assert run(['compare', '--out', 'study', '--resume']) == 0",
        "assert run(['report', 'study']) == 0",
        "assert run('audit new.csv --label y --prediction p --group g --favourable 1'.split()) == 0",
        "from ffalm.system.hardware import cores, device",
        "from ffalm.system.memory import free, give_back",
        "assert cores() >= 1 and free(device()) is None",
        "give_back(device())",
    ]
    rows = "".join(f"{n % 2},{n % 3 % 2},{'ab'[n // 2 % 2]}\n" for n in range(80))
    (tmp_path / "new.csv").write_text(f"y,p,g\n{rows}", encoding="utf-8")
    code = AS_ON_MACOS + "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_text_file_is_opened_with_an_encoding() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and without_encoding(node)
    ]
    assert found == []
