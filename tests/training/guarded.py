"""Runs whose steps are guarded: on a CPU they take the path of an accelerator, and nothing may wait for it."""

from contextlib import contextmanager, nullcontext

import torch
from no_waits import NoWaits
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from spectail._core import waits
from spectail.data.loader import Maker
from spectail.data.samplers import LongTailSampler
from spectail.methods.meta_sampler import MetaSampler
from spectail.methods.metasaug import method as metasaug
from spectail.training.loop import Trainer
from spectail.training.stage_run import StageRun

MAY_WAIT = (
    (MetaSampler, "draw"),  # of balms: which images come next depends on what the device has just computed
    (metasaug, "smallest_eigenvalue"),  # decompositions report failure to the host; every 20th step
    (metasaug, "cut_off"),  # the same, with --psd
)
"""All that waits in a step of one process, and why it must."""
ON_THE_HOST = ((LongTailSampler, "order"), (Maker, "__call__"))
"""Work without the device, the second mostly in other processes."""


class Guarded:
    """Parts of the engine under the guard; ``steps`` counts the guarded ones of each phase."""

    def __init__(self, free):
        self.guard, self.free, self.steps = NoWaits(), free, {}

    def groups(self, original):
        def groups(run):
            """What the loader does for a step is a part of it."""
            plain = [value for value in vars(run.method).values() if isinstance(value, torch.Tensor)]  # not buffers
            self.guard.on_host([plain, run.method.counts.counts])
            for loader in run.loaders.values():
                self.guard.on_host([loader.labels, getattr(loader.data, "features", None)])
            groups = original(run)
            while True:
                with self.guarding(run):
                    group = next(groups, None)
                if group is None:
                    return
                self.guard.on_host([batch.indices for batches in group[0] for batch in batches.values()])
                yield group

        return groups

    def optimise(self, original):
        def optimise(trainer, group, images):
            run = trainer.stage
            guarding = self.guarding(run)
            with guarding:
                original(trainer, group, images)
            self.steps[run.phase] = self.steps.get(run.phase, 0) + (guarding is self.guard)

        return optimise

    def guarding(self, run):
        return self.guard if run.step.index >= self.free else nullcontext()

    def waiting(self, original):
        def wait(*arguments):
            with self.guard.paused():
                return original(*arguments)

        return wait

    def on_host(self, original):
        def work(*arguments):
            with self.guard.paused():
                found = original(*arguments)
            self.guard.on_host(found)
            return found

        return work


@contextmanager
def guarded(patch, free=0, may_wait=MAY_WAIT):
    """Every run in here is guarded after the first ``free`` steps of a stage. ``patch`` is pytest's monkeypatch.

    Torch's optimisers count their steps on the host; they are taken as they are.
    """
    made, pauses = Guarded(free), []
    patch.setattr(waits, "reads_are_free", lambda device: False)
    patch.setattr(StageRun, "groups", made.groups(StageRun.groups))
    patch.setattr(Trainer, "optimise", made.optimise(Trainer.optimise))
    for owner, name in may_wait:
        patch.setattr(owner, name, made.waiting(getattr(owner, name)))
    for owner, name in ON_THE_HOST:
        patch.setattr(owner, name, made.on_host(getattr(owner, name)))

    def pause(*arguments):
        pauses.append(made.guard.paused())
        pauses[-1].__enter__()

    def go_on(*arguments):
        pauses.pop().__exit__(None, None, None)

    hooks = register_optimizer_step_pre_hook(pause), register_optimizer_step_post_hook(go_on)
    try:
        yield made
    finally:
        for hook in hooks:
            hook.remove()
