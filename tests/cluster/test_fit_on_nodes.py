"""`spectail fit --engine ray`: the heads of one machine, trained on a node, and trained again when it dies."""

import json
import threading

import numpy as np
import pytest
import ray
from nodes import Cluster
from test_cluster import wait_for, workers

from spectail.cli.main import main


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Cluster(tmp_path)
    yield found
    ray.shutdown()
    found.end()


def test_heads_on_two_nodes_of_which_one_dies_are_those_of_one_machine(cluster, tmp_path):
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), (150, 50, 20, 6))
    np.savez("x.npz", X=(random.standard_normal((4, 6))[labels] + random.standard_normal((226, 6))), y=labels)
    flags = ["x.npz", "--method", "balanced-softmax", "--folds", "3", "--device", "cpu", "--no-report"]
    assert main(["fit", *flags, "--output", "here", "--jobs", "1", "--threads", "1"]) == 0
    cluster.start()
    second = cluster.start()

    def kill():
        wait_for(lambda: len(workers(cluster)) == 2, "a head on each node", 60)
        cluster.kill(second)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert main(["fit", *flags, "--output", "there", "--engine", "ray", "--address", cluster.address]) == 0
    killer.join(1)
    assert second.poll() is not None, "the node was not killed in time"
    here, there = (json.loads((tmp_path / where / "fit.json").read_text()) for where in ("here", "there"))
    assert there["chosen"] == here["chosen"]
    by_title = [{one["title"]: one for one in found["trainings"]} for found in (here, there)]
    assert by_title[0] == by_title[1]
    models = [(tmp_path / where / "model.safetensors").read_bytes() for where in ("here", "there")]
    assert models[0] == models[1]
    assert list(tmp_path.glob(".driver-*")) == []
