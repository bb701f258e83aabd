"""The gallery of augmentations: pixels and shares of what it shows, its words, and the file."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from training.runs import DATA

from spectail import MixedTarget
from spectail.data.transforms import preset
from spectail.report import gallery
from spectail.report.gallery import Mixed, Strip

PASTED = [row for row in gallery.SHOWN if row[1] != "remix" or row[2].get("mix") == "cutmix"]
BLENDED = [row for row in gallery.SHOWN if row not in PASTED]
LONG = ("Cypripedium parviflorum var. makasin", "Dendragapus fuliginosus", "Q", "great white shark, man-eater")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("gallery-cache")


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(shared_cache))


@pytest.mark.parametrize(("title", "method", "options"), PASTED)
def test_pasted_pixels_are_of_the_image_or_of_the_partner(title, method, options):
    found = gallery.captured(method, options, DATA, 1)
    kept, pasted = found.seen == found.main, found.seen == found.partner
    assert (kept | pasted).all()
    rows, columns = (~kept).any(1).any(0).nonzero(as_tuple=True)
    box = torch.zeros_like(kept)
    box[:, :, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
    assert pasted[box].all()
    assert kept[~box].all()
    share = 1 - box[0, 0].float().mean()
    if method == "remix" and options.get("tau") != 0:  # a label may have gone to the rarer class as a whole
        given = found.target.share
        assert (torch.isclose(given, share) | (given == 0) | (given == 1)).all()
    else:
        torch.testing.assert_close(found.target.share, share.expand(len(kept)))
    assert 0.3 < share < 0.9


@pytest.mark.parametrize(("title", "method", "options"), BLENDED)
def test_blended_pixels_have_the_share_of_the_label(title, method, options):
    found = gallery.captured(method, options, DATA, 1)
    apart = found.main - found.partner
    share = ((found.seen - found.partner) * apart).sum() / apart.square().sum()
    torch.testing.assert_close(found.seen, share * found.main + (1 - share) * found.partner, atol=1e-5, rtol=1e-4)
    given = found.target.share
    plain = torch.isclose(given, share, atol=1e-4)
    assert plain.any()
    assert plain.all() if options.get("tau") == 0 else (plain | (given == 0) | (given == 1)).all()


@pytest.mark.parametrize("name", gallery.TRANSFORMS)
def test_recipes_show_the_image_and_what_became_of_it(name):
    before, after = gallery.transform_strips(name, DATA, 1, 5)
    assert (before.title, after.title) == (f"{name}\nimage", f"{name}\naugmented")
    trainer, batches = gallery.batch_of("ce", {}, DATA, 1, transform=name)
    data, batch = trainer.pieces.splits["train"], batches["main"]
    side = preset(name).size
    for column in range(5):
        row = int(batch.indices[column])
        label = data.names[int(data.labels[row])]
        assert before.captions[column].splitlines()[0] == label
        assert after.captions[column].strip() == f"{label} 100%"
        if side == 32:
            np.testing.assert_allclose(before.pictures[column], data.pixels[row] / 255, atol=1e-5)
        assert before.pictures[column].shape == after.pictures[column].shape == (side, side, 3)
        assert np.abs(before.pictures[column] - after.pictures[column]).max() > 0.05


def long_names():
    """Strips of a batch of black images whose classes have long names."""
    pieces = SimpleNamespace(splits={"train": SimpleNamespace(names=LONG)}, preset=preset("cifar"))
    trainer = SimpleNamespace(counts=SimpleNamespace(counts=torch.tensor([1000, 100, 10, 1])), pieces=pieces)
    target = MixedTarget(torch.tensor([1, 0, 0, 3]), torch.tensor([1, 3, 1, 2]), torch.tensor([1.0, 0.25, 0.5, 0.0]))
    images = torch.zeros(4, 3, 32, 32)
    return gallery.mixed_strips("CMO", Mixed(trainer, images, images, images, target), 4)


def test_words_name_both_shares_and_the_most_unequal_pair_comes_first():
    image, partner, mixed = long_names()
    assert [strip.title for strip in (image, partner, mixed)] == ["CMO\nimage", "CMO\npartner", "CMO\nmixed"]
    assert image.captions[0] == "Cypripedium parvi…\nn = 1000"
    assert partner.captions[0] == "great white shark…\nn = 1"
    assert mixed.captions[0] == "Cypripedium parvi… 25%\ngreat white shark… 75%"
    assert mixed.captions[3] == "Dendragapus fulig… 100%\nDendragapus fulig… 0%"


def test_words_do_not_overlap():
    figure = gallery.draw(long_names(), 4)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [axis.xaxis.label.get_window_extent() for axis in figure.axes]
    boxes += [axis.images[0].get_window_extent() for axis in figure.axes]
    boxes += [axis.yaxis.label.get_window_extent() for axis in figure.axes if axis.get_ylabel()]
    assert len(boxes) == 12 + 12 + 3
    assert not [(one, two) for i, one in enumerate(boxes) for two in boxes[:i] if one.overlaps(two)]
    width, height = figure.bbox.size
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)


def test_the_file_has_every_augmentation(tmp_path, monkeypatch):
    drawn, real = [], gallery.draw
    monkeypatch.setattr(gallery, "draw", lambda strips, columns: (drawn.extend(strips), real(strips, columns))[1])
    path = tmp_path / "seen" / "all.png"
    path.parent.mkdir()
    gallery.save(path, DATA, columns=2)
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert image.height > image.width > 300
        assert len(image.convert("RGB").getcolors(2**24)) > 100  # the characters are grey
    titles = [strip.title.split("\n")[0] for strip in drawn]
    assert list(dict.fromkeys(titles)) == [row[0] for row in gallery.SHOWN] + list(gallery.TRANSFORMS)
    assert all(isinstance(strip, Strip) and len(strip.pictures) == len(strip.captions) == 2 for strip in drawn)
    assert [entry.name for entry in path.parent.iterdir()] == ["all.png"]
