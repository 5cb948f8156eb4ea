"""Simulations run on Windows and macOS too: nothing that they import needs Linux, unless a guard stands before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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


def needs(node: ast.AST) -> Iterator[str]:
    """What one node asks of the operating system that Windows lacks."""
    match node:
        case ast.Import(names=names):
            yield from MISSING_MODULES.intersection(one.name for one in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from MISSING_MODULES & {module}
            if (missing := MISSING_NAMES.get(module)) is not None:
                yield from (one.name for one in names if missing.fullmatch(one.name))
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MISSING_NAMES:
            if MISSING_NAMES[module].fullmatch(name):
                yield f"{module}.{name}"
        case ast.Call(
            func=ast.Attribute(attr="get_context" | "set_start_method"), args=[ast.Constant(value=str(kind))]
        ):
            if kind != "spawn":
                yield f"multiprocessing's {kind}"
        case ast.Constant(value=str(text)) if LINUX_PLACES.match(text):
            yield text


def unguarded(node: ast.AST) -> Iterator[str]:
    """The same for all that no guard stands before."""
    if GUARD.search(guards(node)):
        return
    yield from needs(node)
    for part in ast.iter_child_nodes(node):
        yield from unguarded(part)


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


def test_every_text_file_is_opened_with_an_encoding() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and without_encoding(node)
    ]
    assert found == []
