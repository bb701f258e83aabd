"""A step of the spectral norm: the history moves by a batch, and the top singular triplet is found."""

from __future__ import annotations

import torch
from torch import Tensor

from ..spectral import Triplet, chain, exact, filtered
from .history import History
from .rates import Step
from .tracking import CHECK_EVERY, track
from .workspace import Scratch

SVD_UP_TO = 40  # classes; below this the full SVD is the fastest solver on a CPU
FILTER_UP_TO = 640  # classes; up to here filtering A A^T is faster than tracking a subspace
PROBE_EVERY = 4  # steps of class averaging, in which little changes at once, between looks for new directions


def spectral_step(history: History, step: Step, weights: Tensor, solver: str) -> tuple[Triplet, Tensor]:
    """The triplet of the new matrix, and by entry how much of the batch carries gradient."""
    if step.fixed or solver == "svd" or history.num_classes <= FILTER_UP_TO:
        return _dense_step(history, step, weights, solver)
    return _tracked_step(history, step, weights)


def _dense_step(history: History, step: Step, weights: Tensor, solver: str) -> tuple[Triplet, Tensor]:
    """Every class has a row and the whole matrix decays: few calls, and shapes that depend on no value."""
    batch, mass, filled = step.batch, step.batch.mass, step.filled
    if step.commit:
        history.convert(mass.dtype)
        history.settle()
    rows = history.rows if step.commit else history.dense().to(mass.dtype)
    rate, enters, learned = step.rates(weights, history.seen, history.steps)
    kept = step.kept(rate, filled)
    rows.mul_(kept[:, None] if step.by_class and isinstance(kept, Tensor) else kept)
    present = batch.items.label
    if step.group is None:
        batch.add_to(rows, present, enters)
    else:
        present, columns = step.ranks.columns(batch, step.group, step.fixed)
        rows.index_add_(0, present, columns.mul_(enters.index_select(0, present)[:, None]))
    leading = history.basis[0]
    warm = leading.to(mass.dtype)
    few = solver == "auto" and history.num_classes <= SVD_UP_TO and rows.device.type == "cpu"
    if solver == "svd" or few:
        triplet = exact(rows)
    elif step.fixed:  # every column counts: any of them may lead now
        triplet = chain(rows, torch.mv(rows.T, mass.clamp_min(1)), warm)
    else:
        triplet = filtered(rows, present, warm)
    if step.commit:
        leading.copy_(triplet.left if filled is None else triplet.left.where(filled, warm))
        if step.seeds:
            history.note(mass, True if filled is None else filled)
    if filled is None:
        return triplet, learned
    return triplet._replace(spectral_norm=triplet.spectral_norm * filled), learned


def _tracked_step(history: History, step: Step, weights: Tensor) -> tuple[Triplet, Tensor]:
    """Many classes on a CPU: a lazy factor, live classes only, and as many iterations as this step needs."""
    batch, mass, decays = step.batch, step.batch.mass, not step.by_class
    history = history if step.commit else history.clone()
    history.convert(mass.dtype)
    rate, enters, learned = step.rates(weights, history.seen, history.steps)
    turn = int(history.steps)
    if decays:
        history.decay(step.beta)
    factor = float(history.factor)
    enters = enters / factor
    classes, columns = (None, None) if step.group is None else step.ranks.columns(batch, step.group, step.fixed)
    present = mass.numpy().nonzero()[0] if classes is None else classes.numpy()
    check = history.take_up() or turn % CHECK_EVERY == 0
    kept = step.kept(rate, None)
    scratch = batch.scratch or Scratch()
    change = history.touch(present, kept[present] if isinstance(kept, Tensor) else None, scratch)
    new = torch.from_numpy(change.new)
    if columns is None:
        slot = present[:-1].searchsorted(batch.items.label.numpy())  # of a label without mass: any
        batch.add_to(new, torch.from_numpy(slot), enters)
    else:
        new.addcmul_(columns, enters[present, None])
    change = history.put(change)
    rows = history.matrix.numpy()
    squares = history.sums.numpy()[: len(rows)] if decays else None
    probe = decays or (turn + 1) % PROBE_EVERY == 0
    found = track(rows, change, history.space, squares, scratch, probe=probe, check=check)
    right = found.right
    if history.live:
        right = right.new_zeros(history.num_classes).index_copy_(0, history.classes, right)
    return found._replace(spectral_norm=found.spectral_norm * factor, right=right), learned
