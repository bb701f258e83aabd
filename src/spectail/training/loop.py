"""The training loop: stages, epochs, steps. It knows no method by name."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from numpy.typing import NDArray
from torch import Tensor, nn

from .._utils.files import whole_file
from ..data.batch import Batch
from ..data.datasets import Data
from ..data.loader import Loader
from ..data.manifest import Manifest
from ..diagnosis.text_table import TITLES, Table, number, to_html
from ..methods.base import Stage
from ..methods.registry import find_method
from ..models.adjustment import Adjustment
from ..models.prior_line import figures_along
from ..models.tuning import merged, trained_part
from ..models.weights import read_weights
from . import checkpoint
from .build import load_data, make_pieces
from .car_term import make_car_term
from .config import TrainConfig, check_config, check_every_class, check_stages
from .diagnostics import car_gradient, cm_gap
from .evaluate import evaluate
from .hardware import with_precision
from .head_settings import AUTO, with_head_settings
from .length import late_gain, with_length
from .progress import Progress
from .reporter import Reporter
from .run_folder import RunFolder, make_results
from .settle import settled
from .signals import Interruptible
from .stage1 import load_stage1
from .stage_run import StageRun
from .trained import tested
from .watch import Watch


class RunResults(dict[str, Any]):
    """What results.json says. A run that has just ended also has what a report of it needs, still in memory."""

    predictions: dict[str, NDArray[Any]] | None = None
    """The arrays of predictions.npz."""
    data: Data | None = None
    """The images, as they were loaded for training."""

    def to_pandas(self) -> Any:
        """The figures as a series; lists and mappings are left out."""
        import pandas as pd  # noqa: PLC0415 - not needed otherwise

        return pd.Series({name: value for name, value in self.items() if not isinstance(value, list | dict)})

    def _repr_html_(self) -> str:
        """What a notebook shows: the main figures."""
        keys = ("overall", "head", "medium", "tail", "worst_test", "bottom_10pct", "macro_f1", "ece")
        rows = [(TITLES.get(key, key), number(self[key])) for key in keys if self.get(key) is not None]
        return to_html(Table(f"{self.get('method')} on {self.get('dataset')}, percent", ("", ""), rows))


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    force: bool = False,
    reporter: Reporter | None = None,
    data: Data | None = None,
    adjustment: Adjustment | None = None,
) -> RunResults:
    """Run a configuration and return its results, which are also in the folder ``config.output``.

    ``resume`` continues the run in that folder, ``force`` moves what is there aside. Without them a folder with
    anything in it is refused. While the run trains, no other process can write there.

    ``data`` are the images of ``config.data``, if they are already loaded. ``adjustment`` is applied to the logits of
    the trained model, in the evaluation at the end and wherever the run is used later; a resumed run finds it in its
    folder.
    """
    config = with_precision(settled(config))
    check_config(config)
    find_method(config.method)  # named by the caller, so that its own folder may name it too
    folder, is_main = RunFolder(config.output), os.environ.get("RANK", "0") == "0"
    choices: dict[str, Any] = {}
    if force and resume:
        raise ValueError("--force begins a new run and --resume continues one; give one of them.")
    if force and is_main:
        folder.move_aside()
    if resume and folder.check_resumable(config):
        done = folder.results()
        adjustment = folder.check_adjustment(adjustment)
        if done is not None:
            return RunResults(done)
        config = folder.with_what_it_found(config)
        choices = folder.choices()
    elif is_main:
        folder.check_free()
    reporter = reporter or Reporter()
    if data is None and (config.features == AUTO or not config.optim.epochs):
        data = load_data(config, reporter)
    config, head = with_head_settings(config, data, reporter)
    config, length = with_length(config, data, reporter)
    choices |= {name: found for name, found in (("head", head), ("length", length)) if found}
    with Interruptible() as interrupt:
        trainer = Trainer(config, folder, reporter, interrupt, data, adjustment, choices)
        with folder.owned() if is_main else contextlib.nullcontext():
            return trainer.run(resume)


class Trainer:
    """One run, top to bottom: stages, epochs, optimiser steps, evaluation."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        reporter: Reporter,
        interrupt: Interruptible,
        data: Data | None = None,
        adjustment: Adjustment | None = None,
        choices: dict[str, Any] | None = None,
    ) -> None:
        self.choices = choices or {}
        self.config, self.folder, self.reporter, self.interrupt = config, folder, reporter, interrupt
        self.pieces = make_pieces(config, reporter, data)
        self.adjustment = adjustment
        if adjustment is not None:
            adjustment.require_classes(self.pieces.data.manifest.classes, "the data set")
        self.accelerator = self.pieces.accelerator
        self.method = self.pieces.method
        for text in self.method.disclosures().values():
            reporter.start(f"note: {text}")
        self.counts = self.pieces.splits["train"].counts
        self.car_term = make_car_term(config, self.counts, self.pieces.entry)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.progress = Progress()
        self.watch = Watch()
        self.stages = self._stages()
        check_stages(config, self.stages, self.accelerator.num_processes)
        if config.select_on == "val" and "val" not in self.pieces.splits:
            raise ValueError("--select-on val needs validation data: pass --val-fraction or --val-per-class.")
        streams = [stream for stage in self.stages for stream in self.method.streams(stage).values()]
        if any(stream.split not in self.pieces.splits for stream in streams):
            raise ValueError(
                f"{config.method} was told to use validation data, and there are none: pass --val-fraction or "
                "--val-per-class, or leave it to draw from the training set."
            )
        if any(stream.split == "val" for stream in streams):
            check_every_class(config.method, self.pieces.splits["val"].counts)

    def run(self, resume: bool) -> RunResults:
        torch.manual_seed(self.config.seed + self.accelerator.process_index)
        newest = self._newest(resume)
        if self.config.stage1 is not None and newest is None:
            self.reporter.start(load_stage1(self.config, self.pieces, self.stages[0]))
        state = self._open(newest)
        self.accelerator.init_trackers("spectail")  # not before: a refused run must leave another one's folder alone
        while True:
            with checkpoint.fitting(newest if state is not None else None):
                stage = self.stages[self.progress.stage]
                self.stage = StageRun(stage, self.config, self.pieces, self.car_term, self.generator, state)
            if stage.epochs is not None and self.stage.step.epochs > stage.epochs:
                longer = f"{self.stage.step.epochs} epochs instead of {stage.epochs}"
                why = f"a new head needs about {stage.least_steps:,} steps (--{stage.name}-epochs)"
                self.reporter.start(f"{stage.name} has {longer}: {why}")
            if state is not None:
                checkpoint.restore_random_state(state["random"])  # building things has drawn some
            state = None
            for epoch in range(self.progress.epoch, self.stage.step.epochs):
                self._epoch(epoch)
            for loader in self.stage.loaders.values():
                loader.close()
            if self.progress.stage + 1 == len(self.stages):
                return self._finish()
            following = self.progress.stage + 1  # with a best model of its own
            self.progress = replace(self.progress, stage=following, epoch=0, best=None, best_epoch=None)

    def _epoch(self, epoch: int) -> None:
        run, step = self.stage, self.stage.step
        run.main.set_epoch(epoch)
        if run.main.position == 0:  # in the middle of an epoch the other streams go on where they were
            for loader in run.loaders.values():
                loader.rewind(epoch)
        step.epoch = epoch
        if run.main.position == 0:
            run.sums, run.counted = {}, {}
        self.method.begin_epoch(step)
        self.method.to(self.accelerator.device)  # class weights that it has set come from the host
        run.phase = self.method.phase(step)
        run.learner.train()
        done = step.index - epoch * run.per_epoch
        self.reporter.begin_epoch(step.stage.name, epoch, step.epochs, run.per_epoch, done)
        start, first = time.perf_counter(), done
        for group, images in run.groups():
            self.optimise(group, images)
            done += 1
            self.reporter.step(done, run.figures)
            if done < run.per_epoch and self._must_save():
                self.progress.seconds, start = self.progress.seconds + time.perf_counter() - start, time.perf_counter()
                self._save()
                if self.interrupt.agreed:
                    self.interrupt.leave(self.config.output)
        elapsed = time.perf_counter() - start
        self.progress.seconds += elapsed
        self._end_epoch(epoch, (done - first) * run.optim.batch_size / max(elapsed, 1e-9))

    def optimise(self, group: list[dict[str, Batch]], images: int) -> None:
        """One optimiser step, on one or more micro-batches with so many images on all ranks."""
        run, step = self.stage, self.stage.step
        for i, batches in enumerate(group):
            last = i == len(group) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(run.learner):
                run.recent = size = len(batches["main"].labels)
                outcome = run.learner(batches, step)
                run.add("loss", outcome.loss, size)
                # DDP averages over ranks and the group adds up: every image weighs the same, also in a ragged end
                share = size * run.main.world_size / images if not self.method.loss_spans_ranks else 1 / len(group)
                total = outcome.loss if share == 1 else outcome.loss * share
                if run.car is not None:
                    term = run.car(outcome, step)
                    if term is not None:
                        total = total + term / len(group)
                        run.add("car", term, size)
                    if run.car.car.last is not None:
                        run.add(run.car.car.figure, run.car.car.last.value, size)
                self._watch(total, batches)
                run.backward(total)
        if run.optim.clip:
            self.accelerator.clip_grad_norm_(run.learner.parameters(), run.optim.clip)
        run.optimizer.step()
        run.optimizer.zero_grad()
        if not self.accelerator.optimizer_step_was_skipped:
            run.schedule.step()
        step.index += 1
        self.progress.steps += 1
        self.progress.phases[run.phase] = self.progress.phases.get(run.phase, 0) + 1
        self.method.after_step(run.model, step)
        if run.average is not None and step.index > run.averages_from:
            run.average.update(run.model)

    def _end_epoch(self, epoch: int, speed: float) -> None:
        run = self.stage
        run.share_buffers()
        self.progress.epoch = epoch + 1
        entry: dict[str, Any] = {"stage": run.step.stage.name, "epoch": epoch, "step": self.progress.steps}
        entry |= run.figures(everywhere=True) | {"images_per_second": round(speed, 1), "data_seconds": run.waited()}
        if (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == run.step.epochs:
            self._select(entry, epoch)
        if run.car is not None and self.config.log_gradient:
            entry["car_gradient_norm"] = car_gradient(run.model, run.car.car, self._train_batches(spread=True))
        if run.car is not None and self.config.log_cm_gap:
            groups = self.counts.groups(self.config.data.groups)
            entry |= cm_gap(run.model, run.car.car, self._train_batches(), groups)
        if self.accelerator.is_main_process:
            self.folder.log(entry)
        numbers = {key: value for key, value in entry.items() if isinstance(value, float)}
        self.accelerator.log(numbers, step=self.progress.steps)
        self.progress.lines += 1
        leaving = self.interrupt.requested(self.accelerator, now=True)
        if leaving or (epoch + 1) % self.config.checkpoint_epochs == 0 or epoch + 1 == run.step.epochs:
            self._save()
        self.reporter.end_epoch(entry)
        if leaving:
            self.interrupt.leave(self.config.output)

    def _select(self, entry: dict[str, Any], epoch: int) -> None:
        """Evaluate on validation data, if there are any; keep the model if it is the best and the run selects so."""
        if self.config.watch_test:
            entry["watched_test_overall"] = self._evaluate(self.method.inference(self.stage.current()), "watched")[0][
                "overall"
            ]
        split = "test" if self.config.select_on == "test" else "val"
        if split not in self.pieces.splits:
            return
        figures, _ = self._evaluate(self.method.inference(self.stage.current()), split)
        entry |= {f"{split}_{key}": figures[key] for key in ("overall", "balanced", "head", "medium", "tail")}
        if self.config.select_on != "last" and (self.progress.best is None or figures["balanced"] > self.progress.best):
            self.progress.best, self.progress.best_epoch = figures["balanced"], epoch
            if self.accelerator.is_main_process:
                model = self.stage.current()
                self.folder.save_model(trained_part(model, model.state_dict()), "best.safetensors")

    def _finish(self) -> RunResults:
        """Evaluate the selected model and write everything that a run leaves."""
        model = self.stage.current()
        if self.config.select_on != "last":
            self.accelerator.wait_for_everyone()
            best = read_weights(self.config.output / "best.safetensors")
            model.load_state_dict(model.state_dict() | best if model.base else best)
        small = trained_part(model, model.state_dict())
        model = merged(model)
        inference = self.method.inference(model)
        if self.adjustment is not None:
            inference = self.adjustment.on(inference)
        test, logits = self._measure(inference, "test")
        others = {"val": self._measure(inference, "val")[0]} if "val" in self.pieces.splits else {}
        if self.config.eval_train:
            others["train"], _ = self._evaluate(inference, "train")
        manifest = self.pieces.data.manifest
        disclosures = self.method.disclosures()
        if not self.choices.get("length", {}).get("converged", True):
            disclosures |= {"length": "not trained to the end: pass a larger --epochs"}
        if self.config.watch_test:
            disclosures |= {"watch_test": f"{self.config.watch_test:.0%} of the test set was watched in training"}
        late = late_gain(list(map(json.loads, self.folder.lines())))
        results = RunResults(
            make_results(self.config, manifest, self.progress, disclosures, test, others, self.adjustment)
            | {"late_gain": late.points if late is not None else None, "choices": self.choices or None}
        )
        results.data = self.pieces.data
        results.predictions = {
            "logits": logits,
            "labels": self.pieces.splits["test"].labels,
            "class_names": np.array(manifest.classes),
            "class_counts": np.array(manifest.splits["train"].counts),
        }
        names = self.pieces.data.test.sample_names()
        if names is not None:
            results.predictions["paths"] = np.array(names)
        if self.accelerator.is_main_process:
            self.folder.save_model(self.pieces.whole_model(model).state_dict())
            if model.base is not None:
                self.folder.save_model(small, "tuned.safetensors", {"base": model.base})
            self.folder.save_predictions(results.predictions)
            self.folder.end(results)
        self.accelerator.wait_for_everyone()
        for tracker in self.accelerator.trackers:  # end_training() would also end the process group
            tracker.finish()
        self.reporter.finish(results)
        return results

    # -- smaller matters --

    def _stages(self) -> list[Stage]:
        stages = self.method.stages()
        if self.config.stage1 is None:
            return stages
        if len(stages) < 2:
            raise ValueError(f"--stage1 means nothing for {self.config.method}: it has one stage.")
        return stages[1:]

    def _newest(self, resume: bool) -> Path | None:
        """The checkpoint that a run goes on from; of a run that is begun, or has none yet, None."""
        begun = [resume and (self.config.output / "config.yaml").exists()]
        broadcast_object_list(begun)  # a slow rank would see the file that the first one is about to write
        self.resumes = begun[0]
        if not self.resumes:
            return None
        self.folder.check_whole("config.yaml", "manifest.json")
        there = Manifest.load(self.folder.path / "manifest.json")
        there.require_same(self.pieces.data.manifest, f"the run in {self.folder.path}")
        return checkpoint.newest(self.folder.checkpoints, self.folder.identity())

    def _open(self, newest: Path | None) -> dict[str, Any] | None:
        """Begin a run, or go back to where one stopped."""
        if not self.resumes:
            if self.accelerator.is_main_process:
                self.folder.begin(self.config, self.pieces.data.manifest, self.adjustment, self.choices)
            self.accelerator.wait_for_everyone()
            return None
        state = checkpoint.load(newest, self.accelerator.process_index) if newest is not None else None
        if state is not None:
            with checkpoint.fitting(newest):
                self.progress = Progress(**state["progress"])
        lines = self.folder.lines()[: self.progress.lines]  # older checkpoints have only their number
        if self.accelerator.is_main_process:
            self.folder.reopen(lines if state is None else state.pop("metrics", lines))
        going_on = "no checkpoint yet: beginning anew" if newest is None else f"going on from {newest.name}"
        self.reporter.start(going_on)
        return state

    def _must_save(self) -> bool:
        every = self.config.checkpoint_every
        return self.interrupt.requested(self.accelerator) or bool(every and self.progress.steps % every == 0)

    def _save(self) -> None:
        metrics = self.folder.lines()[: self.progress.lines]
        state = self.stage.state() | {"progress": asdict(self.progress), "metrics": metrics}
        keep = self.config.keep_checkpoints
        own = {"sums": {name: value.cpu() for name, value in self.stage.sums.items()}, "counted": self.stage.counted}
        run = self.folder.identity() if self.accelerator.is_main_process else ""
        checkpoint.save(self.folder.checkpoints, self.progress.steps, state, own, self.accelerator, keep, run)

    def _watch(self, total: Tensor, batches: dict[str, Batch]) -> None:
        """Stop on a loss that is not a number."""
        broken = self.watch.look(total, self.progress.steps, self.stage.step.epoch, batches)
        if broken is None:
            return
        path = self.config.output / "diverged.pt"
        indices = {name: values.tolist() for name, values in broken.indices.items()}
        with whole_file(path) as temporary:
            checkpoint.write_tensors({"indices": indices} | self.stage.state(), temporary)
        raise ValueError(
            f"the loss is {broken.loss.item()} at step {broken.step}, epoch {broken.epoch}; training stops. "
            f"{path} has the state and the images of the batch. Try a lower --lr, --clip 1, or --precision no."
        )

    def _train_batches(self, *, spread: bool = False) -> Loader:
        """The training set, which is sorted by class, in order; ``spread`` gives one batch from all over it."""
        data = self.pieces.splits["train"]
        if spread:
            data = data.subset(np.arange(0, len(data), math.ceil(len(data) / 256)))
        return Loader(data, self.pieces.inputs(), batch_size=256, device=self.accelerator.device)

    def _measure(self, model: nn.Module, split: str) -> tuple[dict[str, Any], NDArray[np.float32]]:
        """Figures with those along the line that shifting the logits draws, and the logits."""
        figures, logits = self._evaluate(model, split, keep_logits=True)
        labels, convention = self.pieces.splits[split].labels, self.config.data.groups
        return figures | {"line": figures_along(logits, labels, self.counts, convention)}, logits

    def _evaluate(self, model: nn.Module, split: str, *, keep_logits: bool = False) -> Any:
        return evaluate(
            tested(model, self.config, self.pieces.preset).to(self.accelerator.device),
            self.pieces.splits[split],
            self.pieces.test_inputs(),
            self.counts,
            self.accelerator,
            convention=self.config.data.groups,
            workers=self.config.workers,
            keep_logits=keep_logits,
        )
