"""The named transforms: known images in, known tensors out."""

import pickle
import random
import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from spectail.data.batch_transforms import Draws
from spectail.data.transforms import PRESETS, Cutout, RandAugment, Views, as_rgb, preset

from torchvision.transforms.v2 import functional as TF  # isort: skip

STATISTICS = {
    "cifar": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    "tiny": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "inat": ([0.466, 0.471, 0.380], [0.195, 0.194, 0.192]),
    "vit": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "glyphs": ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
}
SIZES = {"cifar": 32, "tiny": 64, "imagenet": 224, "inat": 224, "vit": 224, "glyphs": 32}


def family(name):
    return name.split("-")[0]


def noise(width=32, height=32, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def seeded(seed, transform, image):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (timm draws from it)
    torch.manual_seed(seed)
    return transform(image)


def pixels(tensor, made):
    """Back from normalised values to 0 ... 255, (H, W, 3)."""
    values = tensor * torch.tensor(made.std).view(3, 1, 1) + torch.tensor(made.mean).view(3, 1, 1)
    return (values * 255).permute(1, 2, 0)


def tensor_of(image, made):
    return TF.normalize(TF.to_dtype(TF.pil_to_tensor(image), torch.float32, scale=True), made.mean, made.std)


@pytest.mark.parametrize("name", PRESETS)
def test_shapes_and_statistics(name):
    made = preset(name)
    assert (list(made.mean), list(made.std)) == STATISTICS[family(name)]
    assert made.size == SIZES[family(name)]
    for image in (noise(), noise(64, 64), noise(500, 375), noise(375, 500), noise().convert("L"), noise().convert("P")):
        for transform in (made.train, made.test):
            out = transform(image)
            assert type(out) is torch.Tensor
            assert (out.shape, out.dtype) == ((3, made.size, made.size), torch.float32)
            assert out.isfinite().all()
            values = pixels(out, made)
            assert values.min() > -0.01
            assert values.max() < 255.01


@pytest.mark.parametrize("name", PRESETS)
def test_a_constant_image_through_the_test_transform(name):
    made = preset(name)
    out = made.test(Image.new("RGB", (300, 200), (200, 100, 50)))
    mean, std = STATISTICS[family(name)]
    for channel, value in enumerate((200, 100, 50)):
        expected = (value / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(out[channel], torch.full_like(out[channel], expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_seeds_repeat_and_survive_pickling(name):
    made, image = preset(name), noise(48, 40)
    copy = pickle.loads(pickle.dumps(made))
    first = seeded(3, made.train, image)
    assert torch.equal(first, seeded(3, made.train, image))
    assert torch.equal(first, seeded(3, copy.train, image))
    assert any(not torch.equal(first, seeded(seed, made.train, image)) for seed in range(4, 8))
    assert torch.equal(made.test(image), copy.test(image))
    assert torch.equal(seeded(1, made.test, image), seeded(2, made.test, image))


@pytest.mark.parametrize(
    ("name", "size", "pad", "flips"), [("cifar", 32, 4, 1), ("tiny", 64, 8, 1), ("glyphs", 32, 2, 0)]
)
def test_pad_and_crop_at_the_stored_size(name, size, pad, flips):
    """Which shift came out is read off the picture: every pixel names its place."""
    made = preset(name)
    y, x = np.mgrid[:size, :size]
    image = Image.fromarray(np.stack([100 + y, 100 + x, np.full_like(x, 255)], -1).astype(np.uint8))
    assert torch.equal(made.test(image), tensor_of(image, made))
    torch.manual_seed(0)
    shifts, mirrored = np.zeros((2, 2 * pad + 1)), 0
    rounds = 1500
    for _ in range(rounds):
        out = made.train(image)
        centre = pixels(out, made).round().int()[size // 2, size // 2 - 1 : size // 2 + 1]
        flip = bool(centre[0, 1] > centre[1, 1])
        dy = int(centre[0, 0]) - 100 - size // 2 + pad
        dx = int(centre[1, 1] if flip else centre[0, 1]) - 100 - (size // 2 - 1) + pad
        crop = TF.crop(TF.pad(image, [pad] * 4), dy, dx, size, size)
        assert torch.equal(out, tensor_of(TF.horizontal_flip(crop) if flip else crop, made))
        shifts[0, dy] += 1
        shifts[1, dx] += 1
        mirrored += flip
    expected = rounds / (2 * pad + 1)
    limit = {2: 18.5, 4: 26.2, 8: 39.3}[pad]  # 99.9 % of chi-square with 2 pad degrees of freedom
    assert (((shifts - expected) ** 2 / expected).sum(1) < limit).all()
    assert abs(mirrored / rounds - 0.5 * flips) <= 0.05 * flips


def test_other_sizes_through_pad_and_crop():
    """The shorter side becomes the input size; testing takes the centre of the longer side."""
    made, image = preset("cifar"), noise(500, 375)
    smaller = image.resize((42, 32), Image.Resampling.BILINEAR)
    assert torch.equal(made.test(image), tensor_of(smaller.crop((5, 0, 37, 32)), made))
    stripes = Image.fromarray(np.repeat(np.arange(0, 240, dtype=np.uint8)[None, :, None], 32, 0).repeat(3, 2))
    torch.manual_seed(0)
    levels = torch.cat([pixels(made.train(stripes), made).flatten() for _ in range(100)])
    assert levels.max() > 200  # the right end of a 240 x 32 image is reached
    assert levels[levels > 0.5].min() < 20  # and so is the left


@pytest.mark.parametrize(
    ("name", "side"), [("imagenet", 256), ("imagenet-strong", 256), ("inat", 256), ("vit-224", 246)]
)
def test_resize_and_centre_crop(name, side):
    made, image = preset(name), noise(400, 300, seed=1)
    resized = image.resize((int(side * 400 / 300), side), Image.Resampling.BILINEAR)
    assert torch.equal(made.test(image), tensor_of(TF.center_crop(resized, [224, 224]), made))


def test_recipes_scale_with_the_size():
    text = {name: preset(name, size=96).describe() for name in PRESETS}
    assert "padding=[12, 12, 12, 12]" in text["cifar"]
    assert "padding=[12, 12, 12, 12]" in text["tiny"]
    assert "padding=[6, 6, 6, 6]" in text["glyphs"]
    assert "Cutout(hole=48)" in text["cifar-strong"]
    assert "Resize(size=[110]" in text["imagenet"]  # 96 * 256 / 224 = 109.7
    assert text["vit-224"].count("Resize(size=[105]") == 2  # 96 * 246 / 224 = 105.4
    for name in PRESETS:
        assert preset(name, size=96).train(noise()).shape == (3, 96, 96)
        assert preset(name, size=96).test(noise()).shape == (3, 96, 96)


def test_the_steps_of_each_recipe():
    def steps(name):
        lines = preset(name).describe().split("train:\n")[1].split("\ntest:")[0].splitlines()
        return [re.sub(r"with probability ([\d.]+): (\w+).*", r"\2 \1", line.strip()).split("(")[0] for line in lines]

    end = ["PILToTensor", "ToDtype", "Normalize"]
    crop, rrc, flip, jitter = (
        ["as_rgb", "Resize", "RandomCrop"],
        ["as_rgb", "RandomResizedCrop"],
        "RandomHorizontalFlip",
        "ColorJitter",
    )
    assert steps("cifar") == [*crop, flip, *end]
    assert steps("cifar-strong") == [*crop, flip, "AutoAugment", *end[:2], "Cutout", end[2]]
    sim = [*rrc, flip, "ColorJitter 0.8", "RandomGrayscale"]
    assert steps("cifar-sim") == [*sim, "GaussianBlur 0.5", *end]
    assert steps("tiny") == [*crop, flip, *end]
    assert steps("imagenet") == [*rrc, flip, jitter, *end]
    assert steps("imagenet-strong") == [*rrc, flip, jitter, "RandAugment", *end]
    assert steps("imagenet-sim") == [*sim, *end]
    assert steps("inat") == [*rrc, flip, *end]
    assert steps("vit-224") == ["as_rgb", "Resize", "RandomResizedCrop", flip, *end]
    assert steps("glyphs") == [*crop, *end]


def test_the_settings_of_each_recipe():
    weak = "ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), saturation=(0.6, 1.4))"
    some = "with probability 0.8: " + weak[:-1] + ", hue=(-0.1, 0.1))"
    expected = {
        "cifar": ["padding=[4, 4, 4, 4]"],
        "cifar-strong": ["padding=[4, 4, 4, 4]", "fill=128, policy=AutoAugmentPolicy.CIFAR10", "Cutout(hole=16)"],
        "cifar-auto": ["padding=[4, 4, 4, 4]", "fill=128, policy=AutoAugmentPolicy.CIFAR10"],
        "cifar-sim": ["scale=(0.2, 1.0)", some, "Grayscale(p=0.2)", "kernel_size=(13, 13), sigma=[0.1, 2.0]"],
        "tiny": ["padding=[8, 8, 8, 8]"],
        "imagenet": ["scale=(0.08, 1.0)", weak],
        "imagenet-strong": ["scale=(0.08, 1.0)", weak, "RandAugment('rand-m10-n2-mstd0.5')"],
        "imagenet-sim": ["scale=(0.08, 1.0)", some, "Grayscale(p=0.2)"],
        "inat": ["scale=(0.08, 1.0)"],
        "vit-224": ["Resize(size=[246]", "scale=(0.8, 1.0)"],
        "glyphs": ["padding=[2, 2, 2, 2]"],
        "imagenet-fast": ["scale=(0.08, 1.0)", "flip=True, jitter=0.4, colour=()", "scale=None, side=256"],
        "imagenet-strong-fast": ["scale=(0.08, 1.0)", weak, "RandAugment('rand-m10-n2-mstd0.5')", "side=256"],
        "imagenet-sim-fast": ["scale=(0.08, 1.0)", "jitter=0.0", "hue=(-0.1, 0.1)", "Grayscale(p=0.2)"],
        "inat-fast": ["scale=(0.08, 1.0)", "flip=True, jitter=0.0, colour=()"],
        "vit-224-fast": ["scale=(0.8, 1.0)", "scale=None, side=246"],
    }
    assert tuple(expected) == PRESETS
    for name, words in expected.items():
        text = preset(name).describe()
        assert [word for word in words if word not in text] == []


def test_randaugment_is_the_set_of_the_recipe():
    augment = RandAugment("rand-m10-n2-mstd0.5", 224, (0.485, 0.456, 0.406)).augment
    assert [op.name for op in augment.ops] == [
        *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color"),
        *("Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
    ]
    assert augment.num_layers == 2
    assert {(op.prob, op.magnitude, op.magnitude_std, op.magnitude_max) for op in augment.ops} == {(0.5, 10, 0.5, None)}
    assert {op.kwargs["fillcolor"] for op in augment.ops} == {(124, 116, 104)}
    levels = {op.name: abs(op.level_fn(10.0, op.hparams)[0]) for op in augment.ops if op.level_fn}
    expected = {"Rotate": 30, "ShearX": 0.3, "TranslateXRel": 0.45, "Color": 1.9, "Brightness": 1.9}
    assert {name: levels[name] for name in expected} == pytest.approx(expected)


def test_randaugment_applies_half_of_two_and_clips_magnitudes():
    """Brightness alone on a dark image shows the factor that was used: 0.1 + 0.18 m, m = min(10, N(10, 1/2))."""
    augment = RandAugment("rand-m10-n2-mstd0.5", 32, (0.5, 0.5, 0.5))
    augment.augment.ops = [op for op in augment.augment.ops if op.name == "Brightness"]
    image = Image.new("RGB", (1, 1), (60, 60, 60))
    full = ImageEnhance.Brightness(image).enhance(1.9).getpixel((0, 0))[0]
    levels = np.array([seeded(seed, augment, image).getpixel((0, 0))[0] for seed in range(600)])
    assert abs((levels == 60).mean() - 0.25) < 0.07  # neither of the two
    once = levels[(levels > 60) & (levels <= full)]
    assert abs(len(once) / 600 - 0.5) < 0.08
    assert once.max() == full
    assert 0.4 < (once == full).mean() < 0.7  # half of the magnitudes are cut down to 10


def test_autoaugment_fills_with_grey():
    made = preset("cifar-strong")
    auto = next(step for step in made.train.transforms if "AutoAugment" in repr(step))
    white = Image.new("RGB", (32, 32), (250, 250, 250))
    colours = set()
    for seed in range(60):
        out = np.asarray(seeded(seed, auto, white))
        colours |= {tuple(colour) for colour in out.reshape(-1, 3).tolist()}
    assert (128, 128, 128) in colours


def test_cutout_hole():
    torch.manual_seed(0)
    image, cut = torch.ones(3, 32, 32), Cutout(16)
    missing, areas = torch.zeros(32, 32), set()
    rounds = 3000
    for _ in range(rounds):
        out = cut(image)
        assert torch.equal(out[0], out[1])
        rows, columns = (out[0] == 0).any(1).nonzero(), (out[0] == 0).any(0).nonzero()
        area = len(rows) * len(columns)
        assert int((out[0] == 0).sum()) == area == int((rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1))
        areas.add(area)
        missing += out[0] == 0
    assert image.eq(1).all()
    assert (min(areas), max(areas)) == (64, 256)  # clipped to 8 x 8 in a corner, 16 x 16 inside
    # A pixel is hit when the centre is within [-7, 8] of it in both directions: 16/32 inside, 8/32 or 9/32 at an edge.
    assert abs(float(missing[16, 16]) / rounds - 1 / 4) < 0.03
    assert abs(float(missing[0, 0]) / rounds - (9 / 32) ** 2) < 0.02
    assert abs(float(missing[31, 31]) / rounds - (8 / 32) ** 2) < 0.02


def test_cutout_comes_before_normalisation():
    made = preset("cifar-strong")
    black = [-mean / std for mean, std in zip(made.mean, made.std, strict=True)]
    image = Image.new("RGB", (32, 32), (255, 255, 255))
    for seed in range(10):
        out = seeded(seed, made.train, image)
        hole = torch.stack([(out[channel] - black[channel]).abs() < 1e-6 for channel in range(3)]).all(0)
        assert hole.sum() >= 64


@pytest.mark.parametrize(
    ("model", "mean", "std", "way", "side"),
    [
        ("vit_small_patch16_224.augreg_in21k_ft_in1k", [0.5] * 3, [0.5] * 3, "bicubic", 248),
        ("deit_small_patch16_224", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], "bicubic", 248),
        ("tf_efficientnet_lite0", [0.5] * 3, [0.5] * 3, "bicubic", 256),
        ("vit_base_patch16_clip_224.openai", [0.4815, 0.4578, 0.4082], [0.2686, 0.2613, 0.2758], "bicubic", 248),
        ("resnet50.tv_in1k", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], "bilinear", 256),
    ],
)
def test_a_model_brings_its_statistics(model, mean, std, way, side):
    made = preset("inat", model=model)
    assert made.mean == pytest.approx(mean, abs=1e-4)
    assert made.std == pytest.approx(std, abs=1e-4)
    assert made.interpolation == way
    assert f"test:\n  as_rgb\n  Resize(size=[{side}]" in made.describe()
    assert made.test(Image.new("RGB", (50, 50), (255, 255, 255)))[0].mean() == pytest.approx(
        (1 - mean[0]) / std[0], rel=1e-3
    )


def test_explicit_wins_over_model_wins_over_recipe():
    model = "vit_small_patch16_224.augreg_in21k_ft_in1k"
    made = preset("cifar", model=model, std=[0.1, 0.2, 0.3], interpolation="lanczos")
    assert (made.mean, made.std, made.interpolation) == ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3), "lanczos")
    assert (made.batch_train.mean, made.batch_train.std) == (made.mean, made.std)
    assert "Resize(size=[32]" in made.describe()  # no resize in this recipe for crop_pct to change
    assert preset("vit-224", mean=(0, 0, 0)).mean == (0, 0, 0)
    image = noise(100, 80)
    assert not torch.equal(preset("vit-224").test(image), preset("vit-224", interpolation="bicubic").test(image))


def test_views_are_independent_draws():
    strong, sim = preset("cifar-strong"), preset("cifar-sim")
    views = pickle.loads(pickle.dumps(Views([strong.train, sim.train, sim.train])))
    image = noise()
    out = seeded(0, views, image)
    assert isinstance(out, tuple)
    assert [view.shape for view in out] == [(3, 32, 32)] * 3
    assert not torch.equal(out[1], out[2])
    assert torch.equal(out[0], seeded(0, strong.train, image))
    assert all(torch.equal(a, b) for a, b in zip(out, seeded(0, views, image), strict=True))
    with pytest.raises(TypeError, match="Views needs a list of transforms"):
        Views([])
    with pytest.raises(TypeError, match="Views needs a list of transforms"):
        Views(["cifar"])


def test_batch_path_is_the_same_recipe():
    batchable = {name for name in PRESETS if preset(name).batch_train}
    assert batchable == {"cifar", "tiny", "glyphs", "imagenet-fast", "inat-fast", "vit-224-fast"}
    assert {name for name in PRESETS if preset(name).batch_test} == batchable | {
        "cifar-strong",
        "cifar-auto",
        "cifar-sim",
        "imagenet-strong-fast",
        "imagenet-sim-fast",
    }
    for name in ("cifar", "tiny", "glyphs"):
        made = preset(name)
        size, pad = made.size, made.batch_train.pad
        images = np.random.default_rng(0).integers(0, 256, (5, size, size, 3), dtype=np.uint8)
        pictures = [Image.fromarray(image) for image in images]
        expected = torch.stack([made.test(picture) for picture in pictures])
        batch = made.batch_test(made.batch_test.prepare(images), range(5))
        torch.testing.assert_close(batch, expected, rtol=0, atol=1e-6)
        draws = made.batch_train.draws(500, np.random.default_rng(1))
        assert (draws.dy.min(), draws.dy.max(), draws.dx.min(), draws.dx.max()) == (0, 2 * pad, 0, 2 * pad)
        assert (draws.flip is None) == (name == "glyphs")
        # What training makes of an image one by one is among everything that the batch path can make of it.
        dy, dx, flip = (part.ravel() for part in np.mgrid[: 2 * pad + 1, : 2 * pad + 1, : 1 if name == "glyphs" else 2])
        everything = Draws(dy=dy, dx=dx, flip=flip.astype(bool))
        possible = made.batch_train(made.batch_train.prepare(images), [0] * len(dy), everything)
        for seed in range(3):
            single = seeded(seed, made.train, pictures[0])
            assert ((possible - single).abs().amax((1, 2, 3)) < 1e-5).sum() == 1


def test_describe_names_every_step():
    text = preset("cifar-strong").describe()
    assert text.startswith(
        "cifar-strong: 32 x 32, mean (0.4914, 0.4822, 0.4465), std (0.2023, 0.1994, 0.201), bilinear"
    )
    for word in ("padding=[4, 4, 4, 4]", "RandomHorizontalFlip(p=0.5)", "CIFAR10", "fill=128", "Cutout(hole=16)"):
        assert word in text


def test_bad_input():
    for arguments, message in [
        ({"name": "cifr"}, "there is no preset 'cifr'; did you mean 'cifar'"),
        ({"name": "zzz"}, "choose from cifar, cifar-strong"),
        ({"name": "cifar", "model": "vit_smal_patch16_224"}, "timm has no model .*did you mean 'vit_small_patch16_224"),
        ({"name": "cifar", "model": "vit_small_patch16_224.nope"}, "timm has no model 'vit_small_patch16_224.nope'"),
        ({"name": "cifar", "size": 4}, "size must be a whole number of pixels, 8 or more; got 4"),
        ({"name": "cifar", "size": 32.0}, "size must be a whole number of pixels"),
        ({"name": "cifar", "mean": (0.5,)}, "mean must be three numbers, one per colour"),
        ({"name": "cifar", "std": (0.5, 0.0, 0.5)}, "std must be positive"),
        ({"name": "cifar", "interpolation": "cubic"}, "there is no interpolation 'cubic'; did you mean 'bicubic'"),
    ]:
        with pytest.raises(ValueError, match=message):
            preset(**arguments)
    with pytest.raises(TypeError, match=r"take a PIL image, got ndarray; Image\.fromarray"):
        preset("cifar").train(np.zeros((32, 32, 3), np.uint8))
    assert as_rgb(Image.new("RGBA", (2, 2))).mode == "RGB"
