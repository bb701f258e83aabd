"""Images come out as RGB whatever they were stored as, broken ones say so, and large collections stay small."""

import io
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from spectail import ClassCounts
from spectail.data.decoding import BrokenImage, decode
from spectail.data.image_set import ImageSet
from spectail.data.images import ArrayImages, FileImages, PackedImages, Texts

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (9, 6, 5, 3), dtype=np.uint8)
GREY = RANDOM.integers(0, 256, (6, 5), dtype=np.uint8)


def encode(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(image, kind="PNG", **options):
    """Stored and read again, as whole numbers (H, W, 3)."""
    found = decode(encode(image, kind, **options))
    assert found.mode == "RGB"
    return np.asarray(found).astype(int)


def on_white(colours, alpha):
    """In exact arithmetic, from colours (..., 3) and alpha (...), 0 to 255."""
    alpha = np.asarray(alpha)[..., None] / 255
    return np.asarray(colours) * alpha + 255 * (1 - alpha)


def palette_image():
    image = Image.fromarray((np.arange(30).reshape(6, 5) % 4).astype(np.uint8))
    image = image.convert("P")
    image.putpalette([10, 20, 30, 200, 100, 50, 0, 255, 0, 7, 7, 250])
    return image, np.array([[10, 20, 30], [200, 100, 50], [0, 255, 0], [7, 7, 250]])


# --- decode ---


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_colour_images_are_read_exactly(kind):
    assert (decoded(Image.fromarray(PIXELS[0]), kind) == PIXELS[0]).all()


def test_lossy_images_are_read_closely():
    smooth = np.linspace(0, 255, 32 * 32 * 3).reshape(32, 32, 3).astype(np.uint8)
    for kind in ("JPEG", "WEBP"):
        assert abs(decoded(Image.fromarray(smooth), kind, quality=95) - smooth).max() < 16


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_grey_is_repeated_in_all_colours(kind):
    assert (decoded(Image.fromarray(GREY), kind) == GREY[..., None]).all()


def test_one_bit_is_black_and_white():
    bits = GREY > 127
    assert (decoded(Image.fromarray(bits)) == np.where(bits, 255, 0)[..., None]).all()


def test_a_palette_is_looked_up():
    image, colours = palette_image()
    assert image.mode == "P"
    assert (decoded(image) == colours[np.asarray(image)]).all()


def test_a_transparent_colour_of_a_palette_is_white():
    image, colours = palette_image()
    colours = colours.copy()
    colours[2] = 255
    assert (decoded(image, transparency=2) == colours[np.asarray(image)]).all()


def test_a_palette_with_degrees_of_transparency_is_laid_on_white():
    image, colours = palette_image()
    alpha = np.array([255, 0, 128, 51])
    expected = on_white(colours, alpha)[np.asarray(image)]
    assert abs(decoded(image, transparency=bytes(alpha.tolist())) - expected).max() <= 1


def test_transparency_is_laid_on_white():
    alpha = np.resize([0, 1, 64, 128, 200, 254, 255], (6, 5)).astype(np.uint8)
    found = decoded(Image.fromarray(np.dstack([PIXELS[0], alpha])))
    assert abs(found - on_white(PIXELS[0], alpha)).max() <= 1
    assert (found[alpha == 0] == 255).all()
    assert (found[alpha == 255] == PIXELS[0][alpha == 255]).all()
    half = decoded(Image.new("RGBA", (1, 1), (0, 100, 255, 51)))[0, 0]  # 51 / 255 = 1 / 5
    assert half.tolist() == [204, 224, 255]


def test_grey_with_transparency_is_laid_on_white():
    alpha = np.resize([0, 128, 255], (6, 5)).astype(np.uint8)
    image = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)])
    expected = on_white(np.repeat(GREY[..., None], 3, 2), alpha)
    assert abs(decoded(image) - expected).max() <= 1


def test_a_transparent_grey_is_white():
    assert (decoded(Image.fromarray(GREY), transparency=int(GREY[2, 3]))[2, 3] == 255).all()


def test_a_transparent_colour_is_white():
    found = decoded(Image.fromarray(PIXELS[0]), transparency=tuple(PIXELS[0, 2, 3].tolist()))
    assert (found[2, 3] == 255).all()


def test_sixteen_bits_become_eight():
    found = decoded(Image.fromarray(GREY.astype(np.uint16) * 257))  # 257 * 255 = 65535
    assert (found == GREY[..., None]).all()
    full = decoded(Image.fromarray(np.array([[0, 256, 32768, 65535]], dtype=np.uint16)))
    assert full[0, :, 0].tolist() == [0, 1, 128, 255]


def test_print_colours_become_rgb():
    cyan, black = np.array([200, 30, 0]), 40
    image = Image.new("CMYK", (16, 16), (*cyan.tolist(), black))
    expected = (255 - cyan) * (255 - black) / 255
    assert abs(decoded(image, "JPEG", quality=100) - expected).max() <= 3


@pytest.mark.parametrize("container", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind(container):
    assert (np.asarray(decode(container(encode(Image.fromarray(PIXELS[0]))))) == PIXELS[0]).all()


def test_a_wrong_extension_does_not_matter(tmp_path):
    (tmp_path / "a.jpg").write_bytes(encode(Image.fromarray(PIXELS[0]), "PNG"))
    assert (np.asarray(FileImages(tmp_path, Texts.pack(["a.jpg"])).read(0)) == PIXELS[0]).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_cut_off_image_is_broken(kind, part):
    whole = encode(Image.fromarray(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)), kind)
    with pytest.raises(BrokenImage, match=r"^(cannot be read as an image \(.+\)|is no image that can be read)$"):
        decode(whole[: int(len(whole) * part)])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "^is empty$"),
        (b"<html>404 not found</html>", "^is no image that can be read$"),
        (b"version https://git-lfs.github.com/spec/v1", "is no image"),
        (b"\xff\xd8\xff", "is no image|cannot be read"),
        (b"\x89PNG\r\n\x1a\n", "is no image|cannot be read"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "is no image"),
        (b"\0" * 1000, "is no image"),
    ],
)
def test_what_is_no_image_is_broken(data, words):
    with pytest.raises(BrokenImage, match=words):
        decode(data)


def test_damaged_bytes_are_broken_or_read_but_never_another_error():
    whole = [encode(Image.fromarray(PIXELS[0]), kind) for kind in ("PNG", "JPEG", "GIF", "WEBP")]
    outcomes = set()
    for number in range(400):
        data = bytearray(whole[number % len(whole)])
        for _ in range(3):
            data[RANDOM.integers(len(data))] = RANDOM.integers(256)
        try:
            outcomes.add(decode(data).mode)
        except BrokenImage as error:
            outcomes.add(type(error))
    assert outcomes == {"RGB", BrokenImage}


# --- collections ---


def as_array(folder):
    return ArrayImages(PIXELS)


def as_files(folder):
    names = [f"class {index % 3}/bild-ü-{index}.png" for index in range(len(PIXELS))]
    for name, pixels in zip(names, PIXELS, strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
    return FileImages(folder, Texts.pack(names))


def as_packed(folder, gap=b""):
    encoded = [encode(Image.fromarray(pixels)) for pixels in PIXELS]
    (folder / "images.bin").write_bytes(gap + gap.join(encoded))
    sizes = np.array([len(data) for data in encoded])
    starts = np.cumsum(sizes + len(gap)) - sizes
    return PackedImages(np.memmap(folder / "images.bin", dtype=np.uint8, mode="r"), starts, sizes)


def contents(images):
    return [np.asarray(images.read(index)) for index in range(len(images))]


def same(images, expected):
    return len(images) == len(expected) and all(map(np.array_equal, contents(images), expected))


KINDS = pytest.mark.parametrize("make", [as_array, as_files, as_packed])


@KINDS
def test_images_by_position(make, tmp_path):
    images = make(tmp_path)
    assert same(images, PIXELS)
    assert images.read(3).mode == "RGB"
    assert sorted(images.scan_order().tolist()) == list(range(9))
    some = images.take(np.array([7, 0, 7, 2]))
    assert same(some, PIXELS[[7, 0, 7, 2]])
    assert same(some.take(np.array([3, 1])), PIXELS[[2, 0]])
    assert same(images.take(np.array([], dtype=np.int64)), [])
    assert same(images, PIXELS)  # taking leaves the whole as it was


@KINDS
def test_images_survive_pickling(make, tmp_path):
    images = make(tmp_path).take(np.array([5, 1]))
    assert same(pickle.loads(pickle.dumps(images)), PIXELS[[5, 1]])


@KINDS
def test_fingerprints_tell_other_images_apart(make, tmp_path):
    images = make(tmp_path)
    assert images.fingerprint() == images.fingerprint()
    parts = [images, images.take(np.array([0, 1])), images.take(np.array([1, 0])), images.take(np.array([2, 3]))]
    assert len({part.fingerprint() for part in parts}) == 4


def test_names(tmp_path):
    files = as_files(tmp_path)
    assert files.name(4) == "class 1/bild-ü-4.png"
    assert files.take(np.array([8, 4])).name(1) == "class 1/bild-ü-4.png"
    assert as_packed(tmp_path).name(4) == "image 4"
    assert ArrayImages(PIXELS).name(4) == "image 4"
    named = ArrayImages(PIXELS, Texts.pack(f"n{index}" for index in range(9)))
    assert named.take(np.array([8, 4])).name(1) == "n4"


def test_files_changed_on_disk_change_the_fingerprint(tmp_path):
    files = as_files(tmp_path)
    before, paths = files.fingerprint(), files.index_digest()
    os.utime(tmp_path / files.name(2), ns=(1, 1))
    assert files.fingerprint() != before
    assert files.index_digest() == paths
    assert files.take(np.arange(9)[::-1]).index_digest() != paths


def test_packed_images_with_gaps(tmp_path):
    assert same(as_packed(tmp_path, gap=b"----"), PIXELS)


def test_a_packed_file_is_mapped_again_and_not_copied(tmp_path):
    path = tmp_path / "images.bin"
    first = encode(Image.fromarray(PIXELS[0]))
    path.write_bytes(first + bytes(5_000_000))
    images = PackedImages(np.memmap(path, dtype=np.uint8, mode="r"), np.array([0]), np.array([len(first)]))
    pickled = pickle.dumps(images)
    assert len(pickled) < 10_000
    again = pickle.loads(pickled)
    assert isinstance(again.data, np.memmap)
    assert again.data.shape == images.data.shape
    assert same(again, PIXELS[:1])
    with path.open("r+b") as file:  # the same file, not a copy of it: a change shows
        file.write(encode(Image.fromarray(PIXELS[0]))[:-4] + b"1234")
    assert bytes(again.data[len(first) - 4 : len(first)]) == b"1234"


@pytest.mark.parametrize("part", ["offset", "slice"])
def test_part_of_a_mapped_file_survives_pickling(part, tmp_path):
    path = tmp_path / "images.bin"
    first = encode(Image.fromarray(PIXELS[0]))
    path.write_bytes(b"header--" + first)
    if part == "offset":
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8)
    else:
        data = np.memmap(path, dtype=np.uint8, mode="r")[8:]
    images = PackedImages(data, np.array([0]), np.array([len(first)]))
    assert same(images, PIXELS[:1])
    assert same(pickle.loads(pickle.dumps(images)), PIXELS[:1])


def test_packed_images_in_memory_survive_pickling():
    data = encode(Image.fromarray(PIXELS[0]))
    images = PackedImages(np.frombuffer(data, dtype=np.uint8), np.array([0]), np.array([len(data)]))
    assert same(pickle.loads(pickle.dumps(images)), PIXELS[:1])


def test_broken_images_are_named(tmp_path):
    files = as_files(tmp_path)
    (tmp_path / files.name(1)).write_bytes(b"")
    (tmp_path / files.name(2)).write_text("no image")
    (tmp_path / files.name(3)).unlink()
    with pytest.raises(BrokenImage, match=r"^class 1/bild-ü-1.png is empty\. .*--check full"):
        files.read(1)
    with pytest.raises(BrokenImage, match=r"^class 2/bild-ü-2.png is no image that can be read\."):
        files.read(2)
    with pytest.raises(BrokenImage, match=r"^class 0/bild-ü-3.png does not exist below the root"):
        files.read(3)
    packed = as_packed(tmp_path)
    packed = PackedImages(packed.data, packed.starts, np.where(np.arange(9) == 4, 30, packed.sizes))
    with pytest.raises(BrokenImage, match=r"^image 4 (cannot be|is no)"):
        packed.read(4)
    assert same(packed.take(np.array([5])), PIXELS[5:6])


@pytest.mark.parametrize(
    "pixels",
    [PIXELS.astype(np.float32), PIXELS[0], PIXELS[..., :1], np.zeros((2, 3, 8, 8), dtype=np.uint8)],
)
def test_pixels_must_be_what_they_are_said_to_be(pixels):
    with pytest.raises(ValueError, match=r"uint8 \(N, H, W, 3\); got"):
        ArrayImages(pixels)


# --- texts ---

WORDS = ["plain", "", "ünïcödé/日本/🦦.png", "", "a b\tc\n", "end", ""]


def test_texts_round_trip():
    texts = Texts.pack(WORDS)
    assert (len(texts), list(texts)) == (7, WORDS)
    assert [texts[index] for index in range(7)] == WORDS
    assert texts[-2] == "end"
    assert list(pickle.loads(pickle.dumps(texts))) == WORDS
    assert list(Texts.pack(word for word in WORDS)) == WORDS
    assert list(Texts.pack([])) == []


def test_texts_taken_twice():
    some = Texts.pack(WORDS).take(np.array([6, 2, 2, 0, 5]))
    assert list(some) == ["", WORDS[2], WORDS[2], "plain", "end"]
    assert list(some.take(np.array([4, 1]))) == ["end", WORDS[2]]
    assert list(some.take(np.array([], dtype=np.int64))) == []
    mask = np.array([True, False, False, True, True])
    assert list(some.take(mask)) == ["", "plain", "end"]


def test_a_position_beyond_the_texts_is_an_error():
    with pytest.raises(IndexError):
        Texts.pack(WORDS)[7]


def test_file_names_that_are_not_unicode_can_be_kept():
    name = os.fsdecode(b"caf\xe9.png")  # Latin-1, as old archives have it
    assert Texts.pack([name, "b"])[0] == name


# --- image sets ---

LABELS = [0, 2, 2, 0, 1, 2, 2, 0, 2]
NAMES = ["cat", "dog", "eel", "fox"]


def image_set(**options):
    return ImageSet(ArrayImages(PIXELS), LABELS, NAMES, **options)


def test_an_image_set_gives_images_with_labels():
    data = image_set()
    assert len(data) == 9
    image, label = data[4]
    assert (np.asarray(image) == PIXELS[4]).all()
    assert (label, type(label)) == (1, int)
    assert data.pixels is data.images.pixels
    assert data.counts == ClassCounts([3, 1, 5, 0], NAMES)
    assert data.names == tuple(NAMES)


def test_targets_are_what_others_count():
    data = image_set()
    assert data.targets.tolist() == LABELS
    assert data.targets.dtype == np.int64
    assert ClassCounts.from_targets(data, num_classes=4).tolist() == [3, 1, 5, 0]


def test_subsets_by_mask_and_by_position():
    data = image_set(transform=np.asarray)
    mask = np.array(LABELS) == 2
    for some, chosen in [
        (data.subset(mask), [1, 2, 5, 6, 8]),
        (data.subset(np.array([8, 0, 4])), [8, 0, 4]),
        (data.subset(np.array([0, 1])), [0, 1]),  # positions, though they look like a mask
        (data.subset(mask).subset(np.array([4, 0])), [8, 1]),
        (data.subset(np.zeros(9, dtype=bool)), []),
    ]:
        assert some.labels.tolist() == [LABELS[index] for index in chosen]
        assert [image.tolist() for image, _ in map(some.__getitem__, range(len(some)))] == PIXELS[chosen].tolist()
        assert some.names == data.names
    assert len(data) == 9


def test_a_mask_must_have_one_entry_per_image():
    for length in (8, 10):
        with pytest.raises((ValueError, IndexError)):
            image_set().subset(np.zeros(length, dtype=bool) | (np.arange(length) == 1))


def test_another_transform():
    data = image_set()
    changed = data.with_transform(lambda image: image.size)
    assert changed[0] == ((5, 6), 0)
    assert data.transform is None
    assert changed.images is data.images
    assert changed.with_transform(None)[0][0].size == (5, 6)
    assert changed.subset(np.array([4]))[0] == ((5, 6), 1)


@pytest.mark.parametrize("labels", [LABELS[:-1], [*LABELS, 0], []])
def test_labels_must_match_the_images(labels):
    with pytest.raises(ValueError, match=rf"one label per image: got 9 images, {len(labels)} labels"):
        ImageSet(ArrayImages(PIXELS), labels, NAMES)


def test_images_on_disk_have_no_pixels_in_memory(tmp_path):
    data = ImageSet(as_files(tmp_path), LABELS, NAMES)
    assert data.pixels is None
    assert (np.asarray(data[3][0]) == PIXELS[3]).all()
