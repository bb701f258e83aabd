"""Ranks agree on the call at which they stop, and seldom talk about it."""

import threading
import time

import pytest
import torch

from spectail.training import signals
from spectail.training.signals import Interruptible


class Ranks:
    """Stands for Accelerate on several ranks, one thread each: reduce waits for all and adds up."""

    def __init__(self, count):
        self.num_processes, self.device = count, torch.device("cpu")
        self.barrier, self.given, self.reduced = threading.Barrier(count, timeout=20), {}, 0

    def reduce(self, tensor, reduction):
        assert reduction == "sum"
        self.given[threading.get_ident()] = tensor
        if self.barrier.wait() == 0:
            self.total, self.given = sum(self.given.values()), {}
            self.reduced += 1
        self.barrier.wait()
        return self.total.clone()


def run(ranks, asked_at, calls, pause=0.0, now=()):
    """The call at which each rank stopped; rank 0 alone is asked to, before the call ``asked_at``."""
    stopped = {}

    def rank(place):
        with Interruptible() as interrupt:  # not in the main thread: it leaves signals alone
            for call in range(calls):
                time.sleep(pause * (1 + place))  # ranks of different speed
                if place == 0 and call == asked_at:
                    interrupt._asked = 15
                if interrupt.requested(ranks, now=call in now):
                    stopped[place] = call
                    assert interrupt.agreed
                    return

    threads = [threading.Thread(target=rank, args=(place,)) for place in range(ranks.num_processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return stopped


@pytest.mark.parametrize("asked_at", [0, 1, 5, 90])
def test_all_ranks_stop_at_the_same_call(asked_at, monkeypatch):
    monkeypatch.setattr(signals, "PAUSE", 0.05)
    stopped = run(Ranks(3), asked_at, 2000, pause=2e-4)
    assert len(stopped) == 3
    assert len(set(stopped.values())) == 1
    assert asked_at <= stopped[0] <= 2 * asked_at + 2 or stopped[0] - asked_at < 200


def test_quick_steps_seldom_talk(monkeypatch):
    ranks = Ranks(2)
    assert run(ranks, -1, 1000, pause=5e-4) == {}
    assert ranks.reduced < 25  # one more at each doubling, then about one a second


def test_slow_steps_talk_at_every_one(monkeypatch):
    monkeypatch.setattr(signals, "PAUSE", 0.001)
    ranks = Ranks(2)
    assert run(ranks, -1, 10, pause=0.01) == {}
    assert ranks.reduced == 10


def test_the_end_of_an_epoch_always_talks():
    stopped = run(Ranks(2), 500, 1000, now=(505,))
    assert stopped[0] == stopped[1]
    assert 500 <= stopped[0] <= 505


def test_one_process_needs_nobody():
    class Alone:
        num_processes = 1

    with Interruptible() as interrupt:
        assert not interrupt.requested(Alone())
        interrupt._asked = 15
        assert interrupt.requested(Alone())
