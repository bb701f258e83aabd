"""The checks of spectail.testing that start processes or look late: right methods pass, wrong ones are found out."""

import sys

import pytest
import torch.distributed as dist
from forked import PYTHON

from spectail import testing
from spectail.methods import Method
from spectail.testing import CHECKS, check_extreme_logits, check_resume_compiled, check_two_processes

HERE = __name__


class Late(Method):
    """Its loss overflows in the last epoch only."""

    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        if step.epoch + 1 < step.epochs:
            return found
        return found._replace(loss=found.loss + 0 * found.logits.exp().sum())


class Uneven(Method):
    """The second process has a loss of its own."""

    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        rank = dist.get_rank() if dist.is_initialized() else 0
        return found._replace(loss=found.loss * (1 + rank))


def test_a_loss_that_overflows_late_is_found_out(tmp_path):
    with pytest.raises(AssertionError, match="the loss of train, epoch 1 is nan"):
        check_extreme_logits(f"{HERE}:Late", tmp_path)


def test_two_processes_of_a_method_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", PYTHON)
    with pytest.raises(AssertionError, match="of two processes differs from that of one"):
        check_two_processes(f"{HERE}:Uneven", tmp_path)
    assert (tmp_path / "two" / "results.json").is_file()  # it did run


def test_two_processes_of_one_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", PYTHON)
    check_two_processes("gml", tmp_path)


def test_processes_that_do_not_end_are_ended(tmp_path, monkeypatch):
    launcher = tmp_path / "launcher"
    launcher.write_text("#!/bin/sh\nexec sleep 60\n")
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(launcher))
    with pytest.raises(AssertionError, match="two processes did not end within 0.5 seconds"):
        check_two_processes("ce", tmp_path, seconds=0.5)


def test_the_command_runs_it_too(monkeypatch, capsys):
    """Every check, once, and a failure is counted."""
    seen = []

    def noted(check):
        def run(method, folder):
            seen.append((check.__name__, method))
            assert check is not check_two_processes, "on purpose"

        run.__name__ = check.__name__
        return run

    monkeypatch.setattr(testing, "CHECKS", tuple(map(noted, CHECKS)))
    monkeypatch.setattr(testing, "check_resume_compiled", noted(check_resume_compiled))
    monkeypatch.setattr(testing, "check_two_processes", noted(check_two_processes))
    assert testing.main(["ce"]) == 1
    assert seen == [(check.__name__, "ce") for check in (*CHECKS, check_resume_compiled, check_two_processes)]
    assert "ce: check_two_processes FAILED: on purpose" in capsys.readouterr().out


def test_the_command_has_a_help_page(capsys):
    from spectail.testing import main

    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m spectail.testing [METHOD ...]")
