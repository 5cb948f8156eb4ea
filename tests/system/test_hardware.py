"""Devices and threads are chosen by rule and given back."""

from __future__ import annotations

import pytest
import torch

from ffalm.errors import UserError
from ffalm.models import CNN, MLP
from ffalm.system import hardware


def test_a_process_a_core_unless_a_number_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: 3)
    assert hardware.spread_over("cpu", None) == ["cpu"] * 3
    assert hardware.spread_over("cpu", 2) == ["cpu"] * 2


def test_a_process_a_gpu_and_more_of_them_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert hardware.spread_over("auto", None) == ["cuda:0", "cuda:1"]
    assert hardware.spread_over("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert hardware.spread_over("cuda:1", None) == ["cuda:1"]


@pytest.mark.parametrize("name", ["tpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=name):
        hardware.device(name)


def test_only_convolutions_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: 8)
    assert hardware.threads_for(MLP().build((4,), 2)) == 1
    assert hardware.threads_for(CNN().build((3, 8, 8), 2), processes=3) == 2


def test_settings_of_torch_are_given_back() -> None:
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic
    with hardware.deterministic(before[0] + 1):
        assert torch.get_num_threads() == before[0] + 1
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cuda.matmul.allow_tf32
    assert (torch.get_num_threads(), torch.backends.cudnn.deterministic) == before


def test_a_gpu_is_made_the_current_one_and_a_cpu_needs_nothing() -> None:
    chosen = hardware.on_device(torch.device("cuda:1"))
    assert isinstance(chosen, torch.cuda.device) and chosen.idx == 1
    with hardware.on_device(torch.device("cpu")):
        pass
