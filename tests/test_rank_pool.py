"""The processes that the tests of ranks share."""

import os
import time

import pytest
import torch.distributed as dist
from rank_pool import Ranks


def test_they_stay_and_work_together(ranks):
    assert ranks(os.getenv, "RANK") == ["0", "1"]
    assert ranks(dist.get_world_size) == [2, 2]
    processes = ranks(os.getpid)
    assert len({*processes, os.getpid()}) == 3
    assert ranks(os.getenv, "TOLD", TOLD="once") == ["once", "once"]
    assert ranks(os.getenv, "TOLD") == [None, None]
    ranks(dist.destroy_process_group)
    assert ranks(dist.get_world_size) == [2, 2]
    assert ranks(os.getpid) == processes


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [(int, "no number", "invalid literal"), (os._exit, 3, "a rank has ended"), (time.sleep, 60, "not done after 1 s")],
)
def test_after_a_failure_there_are_new_ones(tmp_path, function, argument, message):
    own = Ranks(tmp_path)
    processes = own(os.getpid)
    with pytest.raises(pytest.fail.Exception, match=message):
        own(function, argument, timeout=1 if function is time.sleep else 60)
    assert not set(own(os.getpid)) & set(processes)
    own.stop()
