"""Script for torchrun: every method in this process group, one run after the other, into the folder that is named.

``RUNS`` are the same runs for one process.
"""

import os
import sys
from pathlib import Path

PLAIN = {"optim__optimizer": "sgd", "optim__lr": 0.05, "optim__momentum": 0.9, "eval_train": False}
UNEVEN = {"optim__batch_size": 20, "data__imbalance": 10}  # an odd last batch: the ranks hold different numbers
SECOND = {"stage2_epochs": 2, "stage2_batch_size": 16}
EACH = {"transform": "cifar-strong"}  # images transformed one by one


def two_stages(method, **options):
    return {"method": method, "options": SECOND | options}


RUNS = {
    "ce": {},
    "ce-reweighted": {"options": {"defer": "reweight"}} | UNEVEN,
    "ce-resampled": {"options": {"defer": "resample"}},
    "focal": {"method": "focal"},
    "cb-samples": {"method": "cb"} | UNEVEN,
    "cb-weights": {"method": "cb", "options": {"average": "weights"}} | UNEVEN,
    "ldam-drw": {"method": "ldam-drw"} | UNEVEN,  # one epoch of each phase
    "balanced-softmax": {"method": "balanced-softmax"},
    "gml": two_stages("gml"),
    "gml-uneven": two_stages("gml", stage2_batch_size=20) | UNEVEN,
    "balms": two_stages("balms", meta_lr=0.05),
    "balms-item": two_stages("balms", meta_draw="item", meta_power=0.3),
    "balms-each": two_stages("balms") | EACH,
    "balms-car": two_stages("balms") | {"car__enabled": True},
    "bbn": {"method": "bbn", "optim__epochs": 3, "car__enabled": True},
    "wb": two_stages("wb"),
    "los": two_stages("los", stage2_lr=0.05),
    "crt": two_stages("crt"),
    "lws": two_stages("lws"),
}


def main():
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from training.runs import register, settings

    from spectail.training.loop import train

    torch.set_num_threads(1)
    register()
    for name, changes in RUNS.items():
        train(settings(Path(sys.argv[1]) / name, **(PLAIN | changes)))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gloo now and then aborts a process that is done while the interpreter shuts down
