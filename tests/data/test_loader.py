"""Batches do not depend on workers, ranks or interruptions, and leave everybody else's random numbers alone."""

import gc
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from spectail.data.batch import Batch
from spectail.data.decoding import BrokenImage
from spectail.data.image_set import ImageSet
from spectail.data.images import ArrayImages, FileImages, Texts
from spectail.data.loader import Loader
from spectail.data.readers import WorkerLost
from spectail.data.samplers import LongTailSampler
from spectail.data.transforms import preset

SIZE = 37  # images; no multiple of any batch here
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE + 3, 32, 32, 3), dtype=np.uint8)
LABELS = np.random.default_rng(1).integers(0, 3, SIZE + 3)
NAMES = ("a", "b", "c")
WAYS = {  # of loading: where the images are, and the recipe
    "memory": ("array", "cifar"),
    "memory-plain": ("array", "glyphs"),
    "each": ("array", "cifar-strong"),
    "files": ("files", "cifar-sim"),
}
PRESETS = {name: preset(name) for name in ("cifar", "glyphs", "cifar-strong", "cifar-sim")}
BOTH = pytest.mark.parametrize("way", ["memory", "each"])
ALL = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for index, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(root / f"{index}.png", compress_level=0)
    return root


@pytest.fixture
def make(folder):
    """Loaders for training, or with ``train=False`` for evaluation."""

    def made(way="memory", *, size=SIZE, how="instance", length=None, train=True, sampler_seed=4, **options):
        place, name = WAYS[way]
        images = ArrayImages(PIXELS[:size])
        if place == "files":
            images = FileImages(folder, Texts.pack(f"{index}.png" for index in range(size)))
        data = ImageSet(images, LABELS[:size], NAMES)
        sampler = LongTailSampler(LABELS[:size], how, seed=sampler_seed, length=length) if train else None
        return Loader(data, PRESETS[name], sampler=sampler, **{"batch_size": 8, **options})

    return made


def ranks(make, way, world_size, **options):
    return [make(way, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def same(first, second):
    """Bit for bit."""
    return len(first) == len(second) and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and torch.equal(a.indices, b.indices)
        for a, b in zip(first, second, strict=True)
    )


def merge(parts):
    """One batch from the shares of the ranks: image i of rank r is image i * W + r."""
    size = sum(len(part.labels) for part in parts)
    columns = []
    for values in zip(*parts, strict=True):
        whole = values[0].new_empty(size, *values[0].shape[1:])
        for rank, value in enumerate(values):
            whole[rank :: len(parts)] = value
        columns.append(whole)
    return Batch(*columns)


def train(loader, epochs, batches=None):
    """The loop that the documentation gives: (epoch, batch), to the end or until so many batches were handed over."""
    done = []
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            done.append((epoch, batch))
            if len(done) == batches:
                return done
    return done


def same_run(first, second):
    return [epoch for epoch, _ in first] == [epoch for epoch, _ in second] and same(
        [batch for _, batch in first], [batch for _, batch in second]
    )


def normalised(pixels, name):
    mean, std = (np.array(values) for values in (PRESETS[name].mean, PRESETS[name].std))
    return torch.from_numpy((pixels / 255 - mean) / std).permute(0, 3, 1, 2).float()


# --- what a batch is ---


@ALL
def test_an_epoch_has_every_image_once_with_its_label(make, way):
    loader = make(way)
    batches = list(loader)
    indices = torch.cat([batch.indices for batch in batches])
    assert loader.in_memory == way.startswith("memory")
    assert len(batches) == len(loader) == 5
    assert [len(batch.labels) for batch in batches] == [8, 8, 8, 8, 5]
    assert sorted(indices.tolist()) == list(range(SIZE))
    assert indices.tolist() == LongTailSampler(LABELS[:SIZE], seed=4).order(0).tolist()
    for batch in batches:
        assert batch.labels.tolist() == LABELS[batch.indices.numpy()].tolist()
        assert batch.images.shape == (len(batch.labels), 3, 32, 32)
        assert (batch.images.dtype, batch.labels.dtype) == (torch.float32, torch.int64)
        assert bool(batch.images.isfinite().all())


def test_images_in_memory_are_crops_of_the_images_at_the_indices(make):
    """Moved by up to two pixels, without a mirror: the recipe for glyphs."""
    moves = set()
    for batch in make("memory-plain"):
        for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
            padded = np.pad(PIXELS[index : index + 1], ((0, 0), (2, 2), (2, 2), (0, 0)))
            fits = [
                (dy, dx)
                for dy, dx in itertools.product(range(5), range(5))
                if torch.allclose(normalised(padded[:, dy : dy + 32, dx : dx + 32], "glyphs")[0], image, atol=1e-5)
            ]
            assert len(fits) == 1
            moves.add(fits[0])
    assert len(moves) > 10


@ALL
def test_evaluation_is_in_stored_order_without_chance(make, way):
    batches = list(make(way, train=False))
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(SIZE))
    assert torch.cat([batch.labels for batch in batches]).tolist() == LABELS[:SIZE].tolist()
    expected = normalised(PIXELS[:SIZE], WAYS[way][1])
    torch.testing.assert_close(torch.cat([batch.images for batch in batches]), expected, atol=1e-5, rtol=1e-5)
    loader = make(way, train=False, seed=5)
    assert same(batches, list(loader))
    assert same(batches, list(loader))  # in every epoch


@ALL
def test_equal_images_are_augmented_differently_at_every_place_and_in_every_epoch(make, way):
    data = ImageSet(ArrayImages(np.repeat(PIXELS[:1], 24, axis=0)), [0, 1] * 12, NAMES)
    loader = Loader(data, PRESETS[WAYS[way][1]], batch_size=8, sampler=LongTailSampler(data))
    batches = [batch.images for batch in (*loader, *loader)]
    assert len({batch.numpy().tobytes() for batch in batches}) == len(batches) == 6
    assert len({image.numpy().tobytes() for image in torch.cat(batches)}) > 16  # the plainest recipe has 25 crops


@ALL
def test_the_seed_decides(make, way):
    one, again, other = (list(make(way, seed=seed)) for seed in (1, 1, 2))
    assert same(one, again)
    assert all(torch.equal(a.indices, b.indices) for a, b in zip(one, other, strict=True))  # the sampler has its own
    assert not any(torch.equal(a.images, b.images) for a, b in zip(one, other, strict=True))


@BOTH
def test_a_sampler_may_draw_with_replacement_and_any_length(make, way):
    loader = make(way, how="class-balanced", length=50)
    batches = list(loader)
    assert (len(batches), len(loader)) == (7, 7)
    order = LongTailSampler(LABELS[:SIZE], "class-balanced", seed=4, length=50).order(0)
    assert torch.cat([batch.indices for batch in batches]).tolist() == order.tolist()


def test_the_batch_transform_is_used_where_it_fits_only(make):
    small = ImageSet(ArrayImages(PIXELS[:9, :16, :16]), LABELS[:9], NAMES)
    sampler = LongTailSampler(LABELS[:9])
    assert not Loader(small, PRESETS["cifar"], sampler=sampler).in_memory
    assert next(iter(Loader(small, PRESETS["cifar"], sampler=sampler))).images.shape == (9, 3, 32, 32)
    slow = replace(PRESETS["cifar"], batch_train=None, batch_test=None)
    data = ImageSet(ArrayImages(PIXELS[:9]), LABELS[:9], NAMES)
    assert not Loader(data, slow, sampler=sampler).in_memory
    torch.testing.assert_close(
        next(iter(Loader(data, slow))).images, next(iter(Loader(data, PRESETS["cifar"]))).images, atol=1e-5, rtol=1e-5
    )


# --- workers ---


@ALL
def test_workers_do_not_matter(make, way):
    alone, *others = (make(way, workers=workers) for workers in (0, 1, 2))
    first, second = list(alone), list(alone)
    assert not same(first, second)
    for loader in others:
        assert same(list(loader), first)
        assert same(list(loader), second)


def test_the_death_of_a_worker_is_said_at_the_next_batch_and_not_in_mid_step(make):
    """Torch raises the death of its own workers wherever the program is; ours are not among them."""
    before = signal.getsignal(signal.SIGCHLD)
    try:
        list(DataLoader([0, 1], num_workers=1))  # sets torch's handler
        earlier = set(multiprocessing.active_children())
        batches = iter(make("each", workers=1))
        next(batches)
        [worker] = set(multiprocessing.active_children()) - earlier
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        with pytest.raises(WorkerLost, match=rf"process that reads images \(pid {worker.pid}\) was ended by SIGKILL"):
            list(batches)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_workers_last_for_many_epochs(make):
    earlier = set(multiprocessing.active_children())
    loader = make("each", workers=2)
    pids = []
    for _ in range(3):
        list(loader)
        pids.append({child.pid for child in set(multiprocessing.active_children()) - earlier})
    assert len(pids[0]) == 2
    assert pids[0] == pids[1] == pids[2]
    next(iter(loader))  # left in the middle: what was asked for is not taken for the next epoch
    loader.set_epoch(1)
    again = make("each")
    again.set_epoch(1)
    assert same(list(loader), list(again))
    loader.close()
    assert set(multiprocessing.active_children()) == earlier
    assert len(list(loader)) == 5  # they come again


def test_python_ends_with_a_loader_left_open(folder):
    """Workers do not hear the signal with which multiprocessing would end them."""
    code = f"""
from pathlib import Path
import numpy as np
from spectail.data.images import FileImages, Texts
from spectail.data.image_set import ImageSet
from spectail.data.loader import Loader
from spectail.data.readers import WorkerLost
from spectail.data.transforms import preset
images = FileImages(Path({str(folder)!r}), Texts.pack(f"{{index}}.png" for index in range(20)))
batches = iter(Loader(ImageSet(images, np.zeros(20, dtype=np.int64), ("a",)), preset("cifar"), batch_size=2, workers=2))
next(batches)
kept = [batches]
kept.append(kept)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def leave_a_loader_open(folder):
    images = FileImages(folder, Texts.pack(f"{index}.png" for index in range(20)))
    batches = iter(Loader(ImageSet(images, [0] * 20, ("a",)), PRESETS["cifar"], batch_size=2, workers=1))
    next(batches)
    KEPT.append(batches)


KEPT = []


def test_a_process_of_its_own_ends_with_a_loader_left_open(folder):
    """Such a process, unlike Python itself, calls nothing of atexit."""
    process = multiprocessing.get_context("fork").Process(target=leave_a_loader_open, args=(folder,))
    process.start()
    process.join(60)
    code = process.exitcode
    process.kill()
    assert code == 0


def test_workers_go_home_when_the_garbage_collector_finds_their_loader(folder):
    """It closes the queues of what it collects first, so nobody could tell workers that it has found to go home."""
    images = FileImages(folder, Texts.pack(f"{index}.png" for index in range(20)))
    data = ImageSet(images, np.zeros(20, dtype=np.int64), ("a",))
    before = set(multiprocessing.active_children())
    batches = iter(Loader(data, PRESETS["cifar"], batch_size=2, workers=2))
    next(batches)
    circle = [batches]
    circle.append(circle)
    assert len(set(multiprocessing.active_children()) - before) == 2
    del batches, circle
    start = time.monotonic()
    gc.collect()
    assert not set(multiprocessing.active_children()) - before
    assert time.monotonic() - start < 5  # after which torch sends a signal that they do not hear


class Gone(ArrayImages):
    """Images of which one raises what a lost worker would look like."""

    def read(self, index):
        if index == 3:
            raise FileNotFoundError("the share is away")
        return super().read(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_a_living_worker_meets_is_not_called_its_death(workers):
    images = Gone(np.zeros((5, 40, 40, 3), dtype=np.uint8))
    loader = Loader(ImageSet(images, [0] * 5, ["a"]), preset("cifar"), batch_size=2, workers=workers)
    with pytest.raises(FileNotFoundError, match="the share is away") as caught:
        list(loader)
    assert ("in a process that reads images" in str(caught.value)) == bool(workers)


def test_workers_do_not_matter_in_evaluation(make):
    assert same(list(make("files", train=False, workers=2)), list(make("files", train=False)))


def global_state():
    legacy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), legacy[1].tolist(), legacy[2:], torch.get_rng_state().tolist()


@ALL
@pytest.mark.parametrize("training", [True, False])
def test_global_random_numbers_do_not_notice(make, way, training):
    loader = make(way, train=training)
    before = global_state()
    states = [global_state() for _ in loader]
    assert all(state == before for state in states)  # between batches, where a model draws its own
    assert global_state() == before


@ALL
def test_batches_do_not_depend_on_global_random_numbers(make, way):
    expected = list(make(way))
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    assert same(list(make(way)), expected)


def test_a_failing_transform_gives_the_random_numbers_back(make):
    def fail(image):
        random.random()
        torch.rand(1)
        raise ZeroDivisionError

    loader = make(views=[fail])
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with pytest.raises(ZeroDivisionError):
        next(iter(loader))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_the_random_numbers_of_the_gpu_are_not_touched(make, monkeypatch):
    """torch.manual_seed seeds every device, and the loop's dropout may be drawing there."""
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    list(make("each"))
    assert seeds == []


def three_draws(image):
    legacy = np.random.random()  # noqa: NPY002
    return torch.tensor([random.random(), legacy, float(torch.rand(()))])


def test_all_generators_that_a_transform_may_use_are_seeded(make):
    one, again = (torch.cat([batch.images[0] for batch in make(views=[three_draws], workers=n)]) for n in (0, 2))
    assert torch.equal(one, again)
    assert all(len(set(draws)) == SIZE for draws in one.T.tolist())


@ALL
def test_an_image_drawn_twice_is_augmented_twice(make, way):
    """The place in the epoch counts, not the image."""
    drawn = {}
    for batch in make(way, how="class-balanced", length=3 * SIZE):
        for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
            drawn.setdefault(index, []).append(image.numpy().tobytes())
    often = [images for images in drawn.values() if len(images) >= 4]
    assert len(often) > 3
    assert all(len(set(images)) > 1 for images in often)


# --- ranks ---


@BOTH
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("size", [35, 36, 37, 38, 39, 40])
def test_ranks_together_see_what_one_process_sees(make, way, world_size, size):
    """12 images per global batch: 35 leaves 11, 36 leaves none, 37 leaves 1 and 38 leaves 2, too few for some ranks."""
    batch = 12 // world_size
    alone = make(way, size=size, batch_size=12)
    shared = ranks(make, way, world_size, size=size, batch_size=batch)
    steps = 3 + (size - 36 >= world_size) if size >= 36 else 3
    for _ in range(2):
        expected = list(alone)[:steps]
        shares = [list(loader) for loader in shared]
        assert [len(share) for share in shares] == [steps] * world_size == [len(loader) for loader in shared]
        assert all(len(step.labels) >= 1 for share in shares for step in share)
        assert same([merge(parts) for parts in zip(*shares, strict=True)], expected)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_files_and_evaluation_alike(make, world_size):
    for training in (True, False):
        expected = list(make("files", size=36, train=training, batch_size=6))
        shares = [
            list(r) for r in ranks(make, "files", world_size, size=36, train=training, batch_size=6 // world_size)
        ]
        assert same([merge(parts) for parts in zip(*shares, strict=True)], expected)


@BOTH
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_last_smaller_batch_can_be_left_out(make, way, world_size):
    batch = 12 // world_size
    whole = [list(loader) for loader in ranks(make, way, world_size, size=40, batch_size=batch)]
    for rank, loader in enumerate(ranks(make, way, world_size, size=40, batch_size=batch, drop_last=True)):
        batches = list(loader)
        assert [len(part.labels) for part in batches] == [batch] * 3
        assert len(loader) == 3
        assert same(batches, whole[rank][:3])
    even = make(way, size=36, batch_size=12, drop_last=True)
    assert (len(even), len(list(even))) == (3, 3)


# --- interruptions ---


def through_json(loader):
    return json.loads(json.dumps(loader.state_dict()))


@ALL
@pytest.mark.parametrize("handed_over", [1, 4, 5, 8])
def test_a_run_goes_on_where_it_stopped(make, way, handed_over):
    """Five batches an epoch: inside one, at its last batch, and after it."""
    whole = train(make(way), 3)
    stopped = make(way)
    before = train(stopped, 3, batches=handed_over)
    resumed = make(way)
    resumed.load_state_dict(through_json(stopped))
    assert same_run(before + train(resumed, 3), whole)


@pytest.mark.parametrize(
    ("drop_last", "handed_over", "position"),
    [(False, 0, 0), (False, 2, 16), (False, 5, 37), (False, 7, 16), (True, 3, 24), (True, 4, 32), (True, 5, 8)],
)
def test_a_run_with_workers_goes_on_though_they_fetch_ahead(make, drop_last, handed_over, position):
    options = {"drop_last": drop_last, "batch_size": 8}
    whole = train(make("each", **options), 2)
    stopped = make("each", workers=2, **options)
    before = train(stopped, 2, batches=handed_over) if handed_over else []
    state = through_json(stopped)
    assert state["position"] == position
    resumed = make("each", workers=1, **options)
    resumed.load_state_dict(state)
    assert same_run(before + train(resumed, 2), whole)


@BOTH
@pytest.mark.parametrize("handed_over", [1, 4])
def test_a_stopped_loader_can_go_on_itself(make, way, handed_over):
    whole, loader = list(make(way)), make(way)
    before = list(itertools.islice(loader, handed_over))
    assert same(before + list(loader), whole)


@BOTH
@pytest.mark.parametrize(("saved", "resumed"), [(1, 2), (2, 1), (2, 4), (4, 2), (4, 1), (1, 4)])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_another_number_of_ranks_goes_on_with_the_same_global_batch(make, way, saved, resumed, steps):
    expected = list(make(way, size=36, batch_size=8))  # 36 images: the last batch has 4, enough for every rank
    before = ranks(make, way, saved, size=36, batch_size=8 // saved)
    parts = [list(itertools.islice(loader, steps)) for loader in before]
    states = [through_json(loader) for loader in before]
    assert all(state == states[0] for state in states)
    after = ranks(make, way, resumed, size=36, batch_size=8 // resumed)
    for loader in after:
        loader.load_state_dict(states[0])
    rest = [list(loader) for loader in after]
    merged = [merge(shares) for shares in (*zip(*parts, strict=True), *zip(*rest, strict=True))]
    assert same(merged, expected)


def test_the_state_says_what_was_handed_over(make):
    loader = make()
    assert (through_json(loader)["epoch"], through_json(loader)["position"]) == (0, 0)
    positions = [(loader.state_dict()["epoch"], loader.state_dict()["position"]) for _ in loader]
    assert positions == [(0, 8), (0, 16), (0, 24), (0, 32), (0, 37)]
    fresh = make()
    fresh.load_state_dict(through_json(loader))
    assert (fresh.epoch, fresh.position) == (1, 0)  # the end of an epoch is the start of the next
    assert same(list(fresh), list(loader))
    two = make(rank=1, world_size=2, batch_size=4)
    next(iter(two))
    assert two.state_dict()["position"] == 8  # of all ranks


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"seed": 1}, r"another seed \(1, here 0\)"),
        ({"sampler_seed": 5}, "another order"),
        ({"how": "square-root"}, "another order"),
        ({"length": 36}, "another order"),
        ({"size": 36}, "another order"),
        ({"train": False}, "another order"),
    ],
)
def test_the_state_of_another_run_is_refused(make, there, words):
    loader = make()
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(ValueError, match=words):
        loader.load_state_dict(through_json(make(**there)))
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    "change", [{"position": None}, {"epoch": None}, {"position": -8}, {"epoch": -1}, {"position": "half"}]
)
def test_a_damaged_state_is_refused_and_changes_nothing(make, change):
    loader = make()
    next(iter(loader))
    before = loader.state_dict()
    state = {name: value for name, value in {**before, **change}.items() if value is not None}
    with pytest.raises((ValueError, KeyError)):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_no_state_at_all_is_refused(make):
    with pytest.raises(ValueError, match="another seed"):
        make().load_state_dict({})


# --- epochs ---


@BOTH
def test_epochs_follow_each_other_unasked(make, way):
    loader, sampler = make(way), LongTailSampler(LABELS[:SIZE], seed=4)
    for epoch in range(3):
        indices = torch.cat([batch.indices for batch in loader])
        assert loader.epoch == epoch
        assert indices.tolist() == sampler.order(epoch).tolist()


@BOTH
def test_any_epoch_can_be_asked_for(make, way):
    loader = make(way)
    epochs = [list(loader) for _ in range(3)]
    for epoch in (2, 0, 1, 1):  # an epoch that was finished begins anew
        loader.set_epoch(epoch)
        assert same(list(loader), epochs[epoch])


def test_set_epoch_stays_where_a_state_was_loaded(make):
    loader, stopped = make(), make()
    stopped.set_epoch(1)
    next(iter(stopped))
    loader.load_state_dict(through_json(stopped))
    loader.set_epoch(1)
    assert loader.position == 8
    loader.set_epoch(2)
    assert loader.position == 0
    loader.set_epoch(1)
    assert loader.position == 0


def test_set_epoch_goes_to_the_beginning_where_no_state_was_loaded(make):
    loader = make()
    expected = list(loader)
    loader.set_epoch(0)
    next(iter(loader))
    loader.set_epoch(0)
    assert same(list(loader), expected)


# --- views ---


def first_pixel(image):
    return torch.tensor(image.getpixel((0, 0)))


@pytest.mark.parametrize("workers", [0, 2])
def test_views_are_a_tuple_of_independent_tensors(make, workers):
    glyphs = PRESETS["glyphs"].train
    loader = make(views=[first_pixel, glyphs, glyphs], workers=workers)
    assert not loader.in_memory
    total = equal = 0
    for batch in loader:
        plain, left, right = batch.images
        assert isinstance(batch.images, tuple)
        assert plain.tolist() == PIXELS[batch.indices.numpy(), 0, 0].tolist()
        assert left.shape == right.shape == (len(batch.labels), 3, 32, 32)
        total += len(left)
        equal += sum(map(torch.equal, left, right))
    assert equal < total / 4  # one in 25 by chance


def test_views_are_shared_out_and_resumed_too(make):
    views = [PRESETS["glyphs"].train] * 2
    expected = [batch.images for batch in make(views=views, batch_size=8)]
    shares = [[batch.images for batch in loader] for loader in ranks(make, "memory", 2, views=views, batch_size=4)]
    for step, whole in enumerate(expected):
        for view in range(2):
            for rank in range(2):
                assert torch.equal(shares[rank][step][view], whole[view][rank::2])
    stopped = make(views=views)
    next(iter(stopped))
    resumed = make(views=views)
    resumed.load_state_dict(through_json(stopped))
    assert all(map(torch.equal, next(iter(resumed)).images, expected[1]))


# --- faults ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("training", [True, False])
def test_a_broken_file_is_named_without_the_traceback_of_a_worker(tmp_path, workers, training):
    names = [f"{index}.png" for index in range(12)]
    for name, pixels in zip(names, PIXELS, strict=False):
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "7.png").write_bytes((tmp_path / "7.png").read_bytes()[:900])
    data = ImageSet(FileImages(tmp_path, Texts.pack(names)), LABELS[:12], NAMES)
    sampler = LongTailSampler(LABELS[:12]) if training else None
    loader = Loader(data, PRESETS["cifar"], batch_size=3, sampler=sampler, workers=workers)
    good = []
    with pytest.raises(BrokenImage) as caught:
        good.extend(loader)
    message = str(caught.value)
    assert message.startswith("7.png cannot be read as an image")
    assert "--check full" in message
    assert "Traceback" not in message
    assert "worker" not in message
    assert "\n" not in message
    if not training:
        assert len(good) == loader.position // 3 == 2  # what was handed over before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be 1 or more; got 0"),
        ({"batch_size": -4}, "batch_size must be 1 or more; got -4"),
        ({"workers": -1}, "workers must be 0 or more; got -1"),
        ({"batch_size": 38, "drop_last": True}, "37 images make no batch of 38 on 1 ranks"),
        ({"batch_size": 10, "world_size": 4, "drop_last": True}, "37 images make no batch of 10 on 4 ranks"),
        ({"batch_size": 1, "world_size": 38}, "37 images make no batch of 1 on 38 ranks"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1, "world_size": 2}, "rank"),
        ({"world_size": 0}, "world_size"),
    ],
)
def test_bad_settings_are_refused_in_words(make, options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_a_sampler_that_shares_out_itself_is_refused():
    data = ImageSet(ArrayImages(PIXELS[:9]), LABELS[:9], NAMES)
    with pytest.raises(ValueError, match="make the sampler with world_size=1"):
        Loader(data, PRESETS["cifar"], sampler=LongTailSampler(LABELS[:9], world_size=2))


@pytest.mark.parametrize("size", [8, 10])
def test_a_sampler_of_other_images_is_refused(size):
    data = ImageSet(ArrayImages(PIXELS[:9]), LABELS[:9], NAMES)
    with pytest.raises(ValueError, match="sampler"):
        Loader(data, PRESETS["cifar"], sampler=LongTailSampler(LABELS[:size]))


def test_views_must_be_transforms(make):
    with pytest.raises(TypeError, match="list of transforms"):
        make(views=[])
