# ruff: noqa: RUF001 - look-alike characters are the point of this data set.
"""The glyph data set: frozen bytes, nested sets, real characters, clear messages."""

import hashlib
import itertools
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageChops, ImageDraw, ImageFont

from spectail.data.sets import glyphs
from spectail.data.sets.glyphs_lt import GlyphImages

# Pixels of 100 classes x 2 training images, then 100 x 2 test images, seed 0. If this changes, every published
# number on glyphs-lt changes with it.
SMALL_SET = "71ca565e154350993e800eb8eada62bd6f841d7cd03c2cb84263290d9ea1b388"

HASH_SCRIPT = """
import hashlib
import numpy as np
from spectail.data.sets.glyphs import draw
digest = hashlib.sha256()
for split in ("train", "test"):
    for label in range(100):
        for index in range(2):
            digest.update(np.repeat(draw(split, 0, label, index)[..., None], 3, axis=-1).tobytes())
print(digest.hexdigest())
"""


def render(class_counts, split, seed=0):
    """Pixels and labels of so many images of each class, class by class."""
    keys = np.array([(label, index) for label, count in enumerate(class_counts) for index in range(count)])
    images = GlyphImages(split, seed, keys)
    return np.stack([np.asarray(images.read(index)) for index in range(len(images))]), keys[:, 0]


@pytest.fixture(scope="module")
def small() -> dict[str, np.ndarray]:
    return {split: render([2] * 100, split, seed=0)[0] for split in ("train", "test")}


def test_pixels_are_the_committed_ones(small):
    assert hashlib.sha256(small["train"].tobytes() + small["test"].tobytes()).hexdigest() == SMALL_SET


def test_rendering_again_gives_the_same_bytes(small):
    assert render([2] * 100, "train", seed=0)[0].tobytes() == small["train"].tobytes()


def test_a_fresh_process_with_another_environment_gives_the_same_bytes():
    environment = {**os.environ, "PYTHONHASHSEED": "4321", "OMP_NUM_THREADS": "2", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", HASH_SCRIPT], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == SMALL_SET


def test_shapes_labels_and_channels():
    pixels, labels = render([3, 0, 2], "test", seed=5)
    assert pixels.shape == (5, 32, 32, 3)
    assert pixels.dtype == np.uint8
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 0, 0, 2, 2]
    assert np.array_equal(pixels[..., 0], pixels[..., 1])
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_sets_are_nested_whatever_the_counts_and_the_number_of_classes():
    few, _ = render([5, 3], "train", seed=1)
    more, _ = render([8, 6], "train", seed=1)
    wide, labels = render([5, 3, *[1] * 200], "train", seed=1)
    assert np.array_equal(few[:5], more[:5])
    assert np.array_equal(few[5:], more[8:11])
    assert np.array_equal(few, wide[labels < 2])


def test_seeds_splits_classes_and_indices_all_differ(small):
    other_seed, _ = render([2] * 100, "train", seed=1)
    images = [image.tobytes() for part in (small["train"], small["test"], other_seed) for image in part]
    assert len(images) == 600
    assert len(set(images)) == 600


def test_images_show_the_character_of_their_label(small):
    # A matcher that has never seen the set: the undistorted characters, averaged over faces, with no regard to sign.
    templates = np.zeros((100, 32, 32))
    for face in glyphs.FACES:
        font = ImageFont.truetype(str(glyphs.font_path(face)), 18, layout_engine=ImageFont.Layout.BASIC)
        for label, character in enumerate(glyphs.CHARACTERS[:100]):
            sheet = Image.new("L", (32, 32))
            ImageDraw.Draw(sheet).text((16, 22), character, 255, font, anchor="ms")
            templates[label] += np.asarray(sheet)
    images = np.concatenate([small["train"], small["test"]])[..., 0].astype(float)

    def standardise(pixels: np.ndarray) -> np.ndarray:
        flat = pixels.reshape(len(pixels), -1)
        flat = flat - flat.mean(axis=1, keepdims=True)
        return flat / np.linalg.norm(flat, axis=1, keepdims=True)

    match = np.abs(standardise(images) @ standardise(templates).T)
    labels = np.tile(np.repeat(np.arange(100), 2), 2)
    rank = (match > match[np.arange(400), labels][:, None]).sum(axis=1)
    assert (rank == 0).mean() > 0.2  # chance: 0.01
    assert (rank < 10).mean() > 0.6  # chance: 0.1


def test_both_polarities_occur(small):
    flat = small["train"][..., 0].reshape(200, -1)
    paper = np.median(flat, axis=1)  # paper covers more than half of an image
    middle = (flat.max(axis=1).astype(int) + flat.min(axis=1)) // 2
    assert 5 < (paper > middle).sum() < 100


def test_every_character_is_really_in_every_face_used_for_it():
    for face in glyphs.FACES:
        font = ImageFont.truetype(str(glyphs.font_path(face)), 40, layout_engine=ImageFont.Layout.BASIC)
        known = FT2Font(str(glyphs.font_path(face))).get_charmap()
        missing = bytes(font.getmask("\U0010ffff"))  # no font has this one: the .notdef box
        for character in glyphs.CHARACTERS:
            if face in glyphs.faces_of(character):
                assert known[ord(character)] != 0, (character, face)
                drawn = bytes(font.getmask(character))
                assert any(drawn), (character, face)
                assert drawn != missing, (character, face)


def test_every_character_has_at_least_twelve_faces():
    assert min(len(glyphs.faces_of(character)) for character in glyphs.CHARACTERS) >= 12
    assert all(len(glyphs.faces_of(character)) == 16 for character in glyphs.CHARACTERS[:100])


def test_a_character_that_no_face_has_is_given_no_face():
    assert glyphs.faces_of("\u6c34") == ()


def test_no_two_characters_look_the_same():
    # Drawn here independently of the module: the share of common faces in which two characters have equal pixels.
    drawn: dict[tuple[str, bytes], list[str]] = {}
    for face in glyphs.FACES:
        font = ImageFont.truetype(str(glyphs.font_path(face)), 48, layout_engine=ImageFont.Layout.BASIC)
        for character in glyphs.CHARACTERS:
            if face in glyphs.faces_of(character):
                sheet = Image.new("L", (96, 96))
                left, _, right, _ = font.getbbox(character, anchor="ls")
                ImageDraw.Draw(sheet).text((48 - (left + right) // 2, 60), character, 255, font, anchor="ls")
                drawn.setdefault((face, sheet.tobytes()), []).append(character)
    equal: dict[tuple[str, str], int] = {}
    for group in drawn.values():
        for i, first in enumerate(group):
            for second in group[i + 1 :]:
                equal[first, second] = equal.get((first, second), 0) + 1
    for (first, second), faces in equal.items():
        common = set(glyphs.faces_of(first)) & set(glyphs.faces_of(second))
        assert faces <= len(common) / 2, f"{first!r} and {second!r} are the same in {faces} of {len(common)} faces"


def test_no_distortion_cuts_a_character_off():
    # All faces on top of each other under the strongest distortions at once: ink in the outermost ring would be cut.
    for character in glyphs.CHARACTERS:
        union = Image.new("L", (128, 128))
        for face in glyphs.faces_of(character):
            union = ImageChops.lighter(union, glyphs.glyph(character, face))
        for turn, shear, x, y in itertools.product((-0.052, 0.052), (-0.102, 0.102), (-6, 6), (-5, 5)):
            left, top, right, bottom = glyphs._affine(union, turn, shear, 1.075, 1.075, x, y).getbbox()
            assert min(left, top, 128 - right, 128 - bottom) > 0, character


def test_characters_are_distinct_and_plenty():
    assert len(glyphs.CHARACTERS) >= 300
    assert len(set(glyphs.CHARACTERS)) == len(glyphs.CHARACTERS)
    assert all(len(character) == 1 for character in glyphs.CHARACTERS)


@pytest.mark.parametrize(("frequent", "rare"), ["O0", "lI", "l|", "l1", "S5", "Ss", "B8", "vν", "pρ", "nη", "Z2", "xχ"])
def test_rare_characters_have_a_frequent_look_alike(frequent, rare):
    # Under a hundred classes with imbalance factor 100 the head ends at class 14 and the tail begins at class 50.
    assert glyphs.CHARACTERS.index(frequent) < 15
    assert 50 <= glyphs.CHARACTERS.index(rare) < 100


def test_class_names_are_unique_and_fit_a_table():
    names = glyphs.class_names(len(glyphs.CHARACTERS))
    assert len(set(names)) == len(names)
    for name, character in zip(names, glyphs.CHARACTERS, strict=True):
        assert name.startswith(character)
        assert name.isprintable()
        assert len(name) <= 30
        assert all(
            unicodedata.east_asian_width(letter) not in "WF" and not unicodedata.combining(letter) for letter in name
        )
    assert glyphs.class_names(2) == ("O", "l")
    chosen = dict(zip(glyphs.CHARACTERS, names, strict=True))
    assert [chosen[c] for c in "a0νΣéÉя|"] == [
        "a", "0 zero", "ν nu", "Σ Sigma", "é e acute", "É E acute", "я ya", "| vertical line",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: glyphs.class_names(1000), r"from 2 to 3\d\d classes, got 1000; ask for"),
        (lambda: glyphs.class_names(1), r"from 2 to 3\d\d classes, got 1; ask for"),
        (lambda: glyphs.class_names(0), r"from 2 to 3\d\d classes, got 0; ask for"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
