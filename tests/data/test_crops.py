"""Crops that are decoded and resized in one step, beside the slow way: decode all, crop, resize."""

import io
import itertools
import os

import numpy as np
import pytest
import torch
from PIL import Image

from spectail._core import waits
from spectail.data.crops import BatchCrop, CropTransform, weights
from spectail.data.decoding import BrokenImage, Crop, cut, decode, decode_crops
from spectail.data.image_set import ImageSet
from spectail.data.images import ArrayImages, FileImages, PackedImages, Texts
from spectail.data.loader import Loader, Maker, free_cores
from spectail.data.samplers import LongTailSampler
from spectail.data.transforms import contrastive_views, preset

from torchvision.transforms import v2  # isort: skip
from torchvision.transforms.v2 import functional as TF  # isort: skip

LEVELS = 2  # of 255: torch and PIL round differently, and so do processors
MODES = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def photo(width=200, height=150, seed=0):
    """Noise with the spectrum of a photograph."""
    rng = np.random.default_rng(seed)
    distance = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    waves = np.fft.rfft2(rng.standard_normal((3, height, width))) / np.maximum(distance, 1 / max(width, height)) ** 1.2
    values = np.fft.irfft2(waves, (height, width))
    values = 120 + 50 * values / values.std()
    return Image.fromarray(values.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def encoded(image, kind="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def slowly(image, crop):
    """The definition: PIL's crop and PIL's resize."""
    box, size = crop[:4], (crop.size, crop.size)
    return np.asarray(image.crop(box).resize(size, MODES[crop.interpolation])).transpose(2, 0, 1).astype(int)


CROPS = [
    Crop(0, 0, 200, 150, 64),
    Crop(13, 7, 120, 99, 64),
    Crop(150, 20, 170, 140, 32, "bicubic"),
    Crop(5, 5, 6, 6, 16),
]


# --- one crop ---


@pytest.mark.parametrize("crop", CROPS)
def test_a_crop_is_that_of_pil(crop):
    image = photo()
    [made] = cut(image, [crop])
    assert (made.shape, made.dtype) == ((3, crop.size, crop.size), np.uint8)
    assert np.abs(made - slowly(image, crop)).max() <= LEVELS


@pytest.mark.parametrize("way", ["nearest", "box", "hamming", "lanczos"])
def test_other_filters_are_left_to_pil(way):
    image, crop = photo(), Crop(13, 7, 120, 99, 64, way)
    [made] = cut(image, [crop])
    assert np.array_equal(made.transpose(1, 2, 0), image.crop(crop[:4]).resize((64, 64), Image.Resampling[way.upper()]))


JPEGS = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "with restarts": {"restart_marker_rows": 1},
    "with a comment": {"comment": b"\xff\xc0 is no frame here"},
    "optimised": {"optimize": True},
}


@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize("bottom", [20, 63, 64, 147, 150])
def test_rows_below_the_crop_are_not_missed(kind, bottom):
    """A plain JPEG is decoded as far down as needed: bit for bit what the whole one has there."""
    data, crop = encoded(photo(), **JPEGS[kind]), Crop(10, 3, 140, bottom, 96)
    assert np.array_equal(decode_crops(data, lambda *size: [crop])[0], cut(decode(data), [crop])[0])


def test_a_choice_gets_the_size_of_the_image():
    for data in (encoded(photo(90, 70)), encoded(photo(90, 70), progressive=True), encoded(photo(90, 70), "PNG")):
        seen = []
        decode_crops(data, lambda *size, seen=seen: seen.append(size) or [Crop(0, 0, 8, 8, 8)])
        assert seen == [(90, 70)]


@pytest.mark.parametrize(("times", "levels"), [(2.2, 2.0), (4.4, 2.0), (8.8, 2.0)])
def test_a_large_jpeg_is_decoded_smaller(times, levels):
    """By its own scaled transform, which is not PIL's filter: mean difference in levels."""
    image = photo(int(500 * times), int(400 * times))
    crop = Crop(*(int(edge * times) for edge in (31, 22, 131, 122)), 100)
    image = decode(encoded(image, quality=95))
    data = encoded(image, quality=95)
    [made] = decode_crops(data, lambda *size: [crop])
    difference = np.abs(made - slowly(decode(data), crop))
    assert 0 < difference.mean() < levels


# --- unusual images: the same pixels as from the whole image ---

ODD = {
    "one pixel": encoded(Image.new("RGB", (1, 1), "red")),
    "one row": encoded(photo(300, 1), "PNG"),
    "grey jpeg": encoded(photo().convert("L")),
    "cmyk jpeg": encoded(photo().convert("CMYK")),
    "palette": encoded(photo().convert("P"), "PNG"),
    "transparent": encoded(photo().convert("RGBA"), "PNG"),
    "sixteen bits": encoded(Image.fromarray((np.arange(3000).reshape(60, 50) * 20).astype(np.uint16)), "PNG"),
    "turned by exif": encoded(photo(), exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00"
                              b"\x01\x00\x06\x00\x00\x00\x00\x00\x00"),
    "long": encoded(photo(4000, 20)),
    "webp": encoded(photo(), "WEBP"),
    "gif": encoded(photo().convert("P"), "GIF"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_images(name):
    """Turned images stay as they are stored, as everywhere in this package."""
    transforms = [preset("imagenet-fast", size=32).train, preset("vit-224-fast", size=32).test]
    rng, crops = np.random.default_rng(0), []

    def choose(width, height):
        crops[:] = [transform.draw(width, height, rng)[0] for transform in transforms for _ in range(4)]
        return crops

    made = decode_crops(ODD[name], choose)
    for pixels, crop in zip(made, crops, strict=True):
        assert np.abs(pixels - slowly(decode(ODD[name]), crop)).max() <= LEVELS


@pytest.mark.parametrize("keep", [0, 2, 20, 300, 2000])
def test_a_broken_jpeg_is_said(keep):
    data = encoded(photo())
    assert len(data) > 2000
    with pytest.raises(BrokenImage):
        decode_crops(data[:keep], lambda width, height: [Crop(0, 0, width, height, 32)])


@pytest.mark.parametrize("at", range(2, 200, 7))
def test_a_damaged_header_is_no_accident(at):
    """Whatever stands in a header, there is an image or a BrokenImage."""
    data = bytearray(encoded(photo()))
    data[at] ^= 0xFF
    try:
        [made] = decode_crops(bytes(data), lambda width, height: [Crop(0, 0, width, height, 8)])
    except BrokenImage:
        return
    assert made.shape == (3, 8, 8)


# --- chance ---


@pytest.mark.parametrize(
    ("width", "height", "scale"), [(500, 375, (0.08, 1.0)), (300, 400, (0.8, 1.0)), (900, 90, (0.08, 1.0))]
)
def test_boxes_are_those_of_torchvision(width, height, scale):
    """Means over 4,000 boxes within five standard errors."""
    transform = CropTransform(size=8, mean=(0, 0, 0), std=(1, 1, 1), scale=scale)
    theirs = v2.RandomResizedCrop(8, scale=scale)
    image, rng = Image.new("RGB", (width, height)), np.random.default_rng(0)
    torch.manual_seed(0)
    found, expected = [], []
    for _ in range(4000):
        left, top, right, bottom, *_ = transform.draw(width, height, rng)[0]
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        found.append((left, top, right - left, bottom - top, (right - left) / (bottom - top)))
        box = theirs.make_params([image])
        expected.append((box["left"], box["top"], box["width"], box["height"], box["width"] / box["height"]))
    error = (np.var(found, 0) / 2000) ** 0.5
    assert (np.abs(np.mean(found, 0) - np.mean(expected, 0)) <= 5 * error + 1e-9).all()
    np.testing.assert_allclose(np.std(found, 0), np.std(expected, 0), rtol=0.1, atol=1e-9)


def test_the_centre_is_that_of_torchvision():
    """To half a pixel: one resize rounds once, two round twice."""
    made, usual = preset("vit-224-fast"), preset("vit-224")
    image = photo(160, 120).resize((640, 480), Image.Resampling.BICUBIC)
    difference = (made.test(image) - usual.test(image)).abs() * torch.tensor(made.std).view(3, 1, 1) * 255
    assert difference.mean() < 3


def test_jitter_is_torchvisions_in_every_order():
    made = preset("imagenet-fast", size=32)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8))
    orders = list(itertools.permutations(range(3)))
    factors = torch.empty(6, 3).uniform_(0.6, 1.4, generator=torch.Generator().manual_seed(0))
    draws = torch.cat([torch.zeros(6, 1), factors, torch.tensor(orders).float()], 1)
    steps = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation)
    for image, order, factor, found in zip(
        pixels, orders, factors.tolist(), made.train.finish(pixels, draws), strict=True
    ):
        expected = image / 255
        for step, strength in zip(order, factor, strict=True):
            expected = steps[step](expected, strength)
        expected = TF.normalize(expected, made.mean, made.std)
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)  # torchvision's grey has other decimals


@pytest.mark.parametrize("name", ["imagenet-fast", "inat-fast"])
def test_an_accelerator_finishes_alike(name, monkeypatch):
    transform, rng = preset(name, size=40).train, np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (5, 3, 40, 40), dtype=np.uint8))
    draws = torch.tensor([transform.draw(60, 50, rng)[1] for _ in range(5)])
    assert 0 < draws[:, 0].sum() < 5
    here = transform.finish(pixels, draws)
    monkeypatch.setattr(waits, "reads_are_free", lambda device: False)
    torch.testing.assert_close(transform.finish(pixels, draws), here, atol=1e-5, rtol=1e-5)


def test_a_wrong_input_is_one_sentence():
    with pytest.raises(TypeError, match="takes a PIL image, got ndarray"):
        preset("inat-fast").train(np.zeros((8, 8, 3), dtype=np.uint8))


# --- small images in memory ---


@pytest.mark.parametrize("way", MODES)
@pytest.mark.parametrize("shape", [(32, 32), (20, 33)])
def test_whole_batches_are_pils_resize_of_a_box(way, shape):
    """PIL rounds to whole levels, once for rows and once for columns."""
    made = preset("vit-224-fast", size=48, interpolation=way)
    pixels = np.random.default_rng(0).integers(90, 160, (6, *shape, 3), dtype=np.uint8)  # PIL cuts off in between
    batch = made.train.for_images(*shape)
    draws = batch.draws(6, np.random.default_rng(1))
    found = batch(batch.prepare(pixels), torch.arange(6), draws)
    assert 0 < draws[:, 4].sum() < 6
    for image, row, result in zip(pixels, draws, found, strict=True):
        expected = Image.fromarray(image).resize((48, 48), MODES[way], box=tuple(row[:4].tolist()))
        expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if row[4] else expected
        levels = (result * torch.tensor(made.std).view(3, 1, 1) + torch.tensor(made.mean).view(3, 1, 1)) * 255
        assert np.abs(levels.permute(1, 2, 0).numpy() - np.asarray(expected, dtype=float)).max() <= LEVELS


def test_the_test_transform_of_whole_batches():
    made, pixels = (
        preset("imagenet-fast", size=56),
        np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8),
    )
    batch = made.test.for_images(32, 32)
    found = batch(batch.prepare(pixels), torch.tensor([2, 0]))
    expected = preset("imagenet", size=56).test(Image.fromarray(pixels[2]))
    assert (found[0] - expected).abs().mean() < 0.15  # noise, by one resize and by a resize and a crop


def test_an_accelerator_makes_whole_batches_alike(monkeypatch):
    batch = preset("imagenet-fast", size=40).train.for_images(32, 32)
    stored = batch.prepare(np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8))
    draws = batch.draws(4, np.random.default_rng(1))
    here = batch(stored, torch.arange(4), draws)
    monkeypatch.setattr(waits, "reads_are_free", lambda device: False)
    torch.testing.assert_close(batch(stored, torch.arange(4), draws), here, atol=1e-4, rtol=1e-4)


def test_mixed_precision_of_the_loop_does_not_blur_images():
    batch = preset("vit-224-fast", size=40).train.for_images(32, 32)
    stored = batch.prepare(np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8))
    draws = batch.draws(4, np.random.default_rng(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = batch(stored, torch.arange(4), draws)
    assert torch.equal(found, batch(stored, torch.arange(4), draws))


def test_weights_add_up_and_mirror():
    edges = torch.tensor([3.0]), torch.tensor([29.5])
    plain, turned = weights(*edges, 32, 224, "bicubic"), weights(*edges[::-1], 32, 224, "bicubic")
    torch.testing.assert_close(plain.sum(-1), torch.ones(1, 224))
    torch.testing.assert_close(turned, plain.flip(1), atol=1e-5, rtol=0)


def test_images_that_would_be_made_smaller_are_read_one_by_one():
    made = preset("inat-fast", size=32)
    assert isinstance(made.train.for_images(32, 32), BatchCrop)
    assert made.train.for_images(33, 20) is None
    assert preset("imagenet-strong-fast", size=32).train.for_images(20, 20) is None
    assert preset("inat-fast", size=32, interpolation="lanczos").train.for_images(20, 20) is None


# --- loaders ---

COUNT = 23
PHOTOS = [encoded(photo(70 + 3 * index, 60 + index, seed=index)) for index in range(COUNT)]
LABELS = np.arange(COUNT) % 3


@pytest.fixture
def make(tmp_path):
    def made(kind="files", name="imagenet-fast", *, train=True, views=None, **options):
        if kind == "files":
            for index, data in enumerate(PHOTOS):
                (tmp_path / f"{index}.jpg").write_bytes(data)
            images = FileImages(tmp_path, Texts.pack(f"{index}.jpg" for index in range(COUNT)))
        elif kind == "packed":
            sizes = np.array([len(data) for data in PHOTOS])
            images = PackedImages(np.frombuffer(b"".join(PHOTOS), np.uint8), np.cumsum(sizes) - sizes, sizes)
        else:
            images = ArrayImages(np.random.default_rng(0).integers(0, 256, (COUNT, 24, 24, 3), dtype=np.uint8))
        sampler = LongTailSampler(LABELS, seed=4) if train else None
        wanted = preset(name, size=48)
        views = None if views is None else contrastive_views(wanted)
        return Loader(
            ImageSet(images, LABELS, "abc"), wanted, sampler=sampler, views=views, **{"batch_size": 6, **options}
        )

    return made


def views_of(batch):
    return batch.images if isinstance(batch.images, tuple) else (batch.images,)


def same(first, second):
    return len(first) == len(second) and all(
        all(map(torch.equal, views_of(a), views_of(b))) and torch.equal(a.indices, b.indices)
        for a, b in zip(first, second, strict=True)
    )


KINDS = pytest.mark.parametrize("kind", ["files", "packed", "array"])


@KINDS
@pytest.mark.parametrize("options", [{}, {"train": False}, {"views": True}, {"name": "vit-224-fast"}])
def test_workers_do_not_matter(make, kind, options):
    alone = make(kind, **options)
    assert alone.in_memory == (kind == "array" and "views" not in options)
    first, second = list(alone), list(alone)
    assert same(first, second) == (options == {"train": False})
    for batch in first:
        assert all(
            view.shape == (len(batch.labels), 3, 48, 48) and view.dtype == torch.float32 for view in views_of(batch)
        )
        assert batch.labels.tolist() == LABELS[batch.indices].tolist()
    several = make(kind, workers=2, **options)
    assert same(list(several), first)
    assert same(list(several), second)


@KINDS
def test_ranks_and_resuming_do_not_matter(make, kind):
    whole = list(make(kind, batch_size=6))
    parts = [list(make(kind, batch_size=3, rank=rank, world_size=2)) for rank in range(2)]
    for batch, *shares in zip(whole, *parts, strict=False):
        for rank, share in enumerate(shares):
            assert torch.equal(share.images, batch.images[rank::2])
    stopped = make(kind)
    list(itertools.islice(stopped, 2))
    resumed = make(kind, workers=1)
    resumed.load_state_dict(stopped.state_dict())
    assert same(list(resumed), whole[2:])


def test_an_image_is_read_once_for_all_its_views(make, monkeypatch):
    loader, read = make(views=True), []
    inner = FileImages.encoded
    monkeypatch.setattr(FileImages, "encoded", lambda self, index: read.append(index) or inner(self, index))
    batches = list(loader)
    assert len(batches[0].images) == 3
    assert sorted(read) == list(range(COUNT))


def test_views_are_those_of_separate_decoding():
    """No view here is so small a part of its image that it could be decoded smaller alone."""
    transforms = [preset("vit-224-fast", size=64).train, preset("inat-fast", size=48).train]
    data = ImageSet(
        PackedImages(np.frombuffer(PHOTOS[5], np.uint8), np.array([0]), np.array([len(PHOTOS[5])])), [0], "a"
    )
    views = Maker(data, transforms, 3, single=False)((0, np.array([[0, 7]])))
    rng = np.random.default_rng(np.random.SeedSequence([*b"augment", 3, 0, 7]))
    for transform, (pixels, finish) in zip(transforms, views, strict=True):
        crop, expected = transform.draw(*decode(PHOTOS[5]).size, rng)
        assert np.array_equal(pixels[0].numpy(), cut(decode(PHOTOS[5]), [crop])[0])
        torch.testing.assert_close(finish[0], torch.tensor(expected))


MAIN = os.getpid()


class Elsewhere(FileImages):
    """Images that the main process must not read."""

    def encoded(self, index):
        assert os.getpid() != MAIN
        return super().encoded(index)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_read_what_is_fetched(make, workers):
    rows = torch.tensor([20, 3, 3, 0, 7])
    alone, several = make(), make(workers=workers)
    several.data.images.__class__ = Elsewhere
    wanted, found = alone.fetch(rows), several.fetch(rows)
    assert torch.equal(wanted.images, found.images)
    assert torch.equal(wanted.labels, found.labels)
    stream, other = iter(alone), iter(several)
    for _ in range(3):  # beside the stream, which does not notice
        assert same([next(stream)], [next(other)])
        assert torch.equal(alone.fetch(rows).images, several.fetch(rows).images)
    assert torch.equal(alone.fetch(rows[:1]).images, several.fetch(rows[:1]).images)
    assert several.waited > 0


def test_auto_takes_the_free_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    assert free_cores() == 8
    for ranks, expected in ((2, 5), (4, 2), (12, 0), (100, 0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert free_cores() == expected
