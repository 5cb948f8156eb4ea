"""What is free, by the files in which Linux says so, and errors that say that nothing is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ffalm
from ffalm.data.census import Census
from ffalm.errors import UserError
from ffalm.models import MLP
from ffalm.system.memory import format_bytes, free, out_of_memory

CPU = torch.device("cpu")
GB = 2**30


def machine(root: Path, files: dict[str, str]) -> Path:
    """A file system that says these things."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(available: int) -> dict[str, str]:
    return {"proc/meminfo": f"MemTotal: {99 * 2**20} kB\nMemAvailable: {available // 1024} kB\n"}


def group(folder: str, most: int | str, used: int) -> dict[str, str]:
    """What a control group of the second version says of its limit and its use."""
    return {f"{folder}/memory.max": f"{most}\n", f"{folder}/memory.current": f"{used}\n"}


def test_what_linux_calls_available_is_free(tmp_path: Path) -> None:
    assert free(CPU, root=machine(tmp_path, meminfo(6 * GB))) == 6 * GB


def test_processes_that_share_a_machine_have_a_share_each(tmp_path: Path) -> None:
    assert free(CPU, 3, machine(tmp_path, meminfo(6 * GB))) == 2 * GB


def test_where_nobody_says_what_is_free_nothing_is_known(tmp_path: Path) -> None:
    assert free(CPU, root=tmp_path) is None


def test_a_control_group_bounds_what_is_free_and_cached_files_count_as_free(tmp_path: Path) -> None:
    inner = "sys/fs/cgroup/box/run"
    cached = {f"{inner}/memory.stat": f"anon 5\ninactive_file {GB}\n"}
    said = {"proc/self/cgroup": "0::/box/run\n", **group(inner, 4 * GB, 3 * GB), **cached}
    assert free(CPU, root=machine(tmp_path, {**meminfo(6 * GB), **said})) == 2 * GB


def test_a_control_group_is_bounded_by_those_it_is_in(tmp_path: Path) -> None:
    outer, inner = "sys/fs/cgroup/box", "sys/fs/cgroup/box/run"
    said = {"proc/self/cgroup": "0::/box/run\n", **group(inner, "max", GB), **group(outer, 2 * GB, GB)}
    assert free(CPU, root=machine(tmp_path, {**meminfo(6 * GB), **said})) == GB


def test_control_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    first = "sys/fs/cgroup/memory"
    said = {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/elsewhere\n0::/\n",
        f"{first}/memory.limit_in_bytes": f"{5 * GB}\n",
        f"{first}/memory.usage_in_bytes": f"{3 * GB}\n",
        f"{first}/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB}\n",
    }
    assert free(CPU, root=machine(tmp_path, {**meminfo(6 * GB), **said})) == 3 * GB


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    said = {"proc/self/cgroup": "0::/\n", **group("sys/fs/cgroup", 100, 200)}
    assert free(CPU, root=machine(tmp_path, {**meminfo(GB), **said})) == 0


def test_a_limit_of_the_process_is_its_own_and_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits = {resource.RLIMIT_AS: 3 * GB, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], limits[kind]))
    root = machine(tmp_path, {**meminfo(60 * GB), "proc/self/status": f"Name: x\nVmSize: {GB // 1024} kB\n"})
    assert free(CPU, 4, root) == 2 * GB


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=str,
)
def test_errors_for_want_of_memory_are_known(error: Exception) -> None:
    assert out_of_memory(error)


def test_other_errors_are_not_taken_for_them() -> None:
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x6 and 5x2)"))


def test_torch_says_what_is_expected_of_it_where_a_cpu_has_too_little() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory(raised.value)


def test_sizes_are_shown_for_people() -> None:
    assert [format_bytes(2_340_000), format_bytes(1_600_000_000), format_bytes(250_000_000)] == [
        "2.3 MB",
        "1.6 GB",
        "0.2 GB",
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_torch_keeps_for_reuse_on_a_gpu_counts_as_free() -> None:
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    before = free(device)
    block = torch.empty(2**28, dtype=torch.uint8, device=device)
    while_held = free(device)
    del block
    assert before is not None and while_held is not None
    assert before - while_held >= 2**28
    assert free(device) == before


def test_what_needs_more_than_is_free_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffalm.system.memory.free", lambda *_: 10**6)
    with pytest.raises(UserError, match=r"100,000,000 people would need about 90\.0 GB .* and 1\.0 MB are free"):
        Census(rows=10**8).load()
    part = (np.zeros((4, 3)), [0, 1, 0, 1], [0, 1, 1, 0])
    with pytest.raises(UserError, match=r"The model would need about .* are free: take a smaller one"):
        ffalm.simulate("fedavg", ffalm.Federation.from_arrays([part]), model=MLP((60_000, 60_000)), rounds=1)
