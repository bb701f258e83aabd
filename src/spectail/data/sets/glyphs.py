# ruff: noqa: RUF001 - look-alike characters are the point of this data set.
"""`glyphs-lt`: characters drawn from the fonts that matplotlib ships. Nothing is downloaded.

A class is a character. An image of it is one of sixteen faces, turned, scaled, sheared, shifted, thinned or
thickened, cluttered with strokes, dots and pieces of neighbouring characters, blurred, printed dark on light or light
on dark, and covered with noise. The order of `CHARACTERS` puts look-alikes far apart (`O` is frequent, `0` is rare),
so that a classifier that neglects rare classes makes mistakes that a person can see.

The pixels are meant to be the same everywhere. Random numbers come from `numpy.random.RandomState`, whose streams are
frozen; drawing uses only Pillow's integer and fixed-point paths (nearest-neighbour affine maps on a canvas four times
too large, box reduction, box blur); everything else is integer arithmetic.
"""

import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

CHARACTERS: tuple[str, ...] = tuple(
    # With a hundred classes and an imbalance factor of 100, one line each of head, medium and tail.
    "OlSvCBZpxnocVzE"
    "aTKhPuYWAdMfJLRDbkteiygG637αβπΣΩωXH"
    "0I8sν5q|mκ1χ2UηQ$ρ4wN&γFθ(ε9rλj?Δμ#σ[Θδ@!ΛφΠ+ζ%Ψ*Γ"
    # More classes: Greek, Cyrillic, signs, and Latin letters with marks.
    "ΞΦψτυιςξБДЗИЛУФЦЧЪЬЭЮЯбвгдзийклмнптфцчшщъыьэюяЂђЄєЉљЊњЋћЎўҐґ"
    "=/<>)]{}~\\^_;¡¿¢£¥§©®¶±×÷¬€†‡∞∂∇∈∋∏∑√∫≈≠≡≤≥∀∃∧∨∩∪⊂⊃⊕⊗⊢⊥∠∝←↑→↓♪♫♭♯■□▲△▼◆◇●○"
    "ßÆæŒœØøÞþÐðŁłÑñÇçÅåÄäÖöÜüÀàÁáÂâÃãÈèÉéÊêËëÌìÍíÎîÏïÒòÓóÔôÕõÙùÚúÛûÝýÿđĦħŊŋŦŧƏƒıĄąĘęĆćČčĎďĚěŃńŇňŘřŚśŠšŞş"
    "ŤťŹźŻżŽžĀāĂăĒēĞğĪīŌōŐőŪūŮůŰűŴŵŶŷƠơƯư"
)

FACES: tuple[str, ...] = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)

DRAWING = 1  # goes up when the pixels change, so that no cache keeps the old ones
SPLITS = ("train", "test")
SIDE = 32  # pixels of an image
_ZOOM = 4  # drawing happens on a canvas this many times larger
_CANVAS = SIDE * _ZOOM
_EM = 72  # font size on the canvas: accents, descenders and wide letters stay inside after every distortion
_BASELINE = 88
_NEIGHBOURS = CHARACTERS[:100]  # whose pieces appear at the border; fixed, so that an image ignores the class count


def class_names(num_classes: int) -> tuple[str, ...]:
    """Names of the first `num_classes` classes: an ASCII letter is its own name, any other character is followed by a
    short form of its Unicode name, so that look-alikes are told apart in a table.

    >>> class_names(100)[0], class_names(100)[50], class_names(100)[54]
    ('O', '0 zero', 'ν nu')
    """
    if not 2 <= num_classes <= len(CHARACTERS):
        raise ValueError(
            f"glyphs-lt has from 2 to {len(CHARACTERS)} classes, got {num_classes}; ask for a number in that range."
        )
    return tuple(_name(character) for character in CHARACTERS[:num_classes])


def _name(character: str) -> str:
    if character.isascii() and character.isalpha():
        return character
    words = unicodedata.name(character).split()
    capital = "CAPITAL" in words
    drop = {"LATIN", "GREEK", "CYRILLIC", "CAPITAL", "SMALL", "LETTER", "LIGATURE", "DIGIT", "WITH"}
    kept = [word.lower() for word in words if word not in drop]
    return " ".join([character, kept[0].capitalize() if capital else kept[0], *kept[1:]])


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    # The basic layout engine: an installed libraqm must not move a glyph.
    return ImageFont.truetype(str(font_path(face)), _EM, layout_engine=ImageFont.Layout.BASIC)


def font_path(face: str) -> Path:
    return Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf")


@cache
def _charmap(face: str) -> dict[int, int]:
    return dict(FT2Font(str(font_path(face))).get_charmap())


@cache
def faces_of(character: str) -> tuple[str, ...]:
    """The faces whose character map has this character; no other face is ever asked to draw it."""
    return tuple(face for face in FACES if ord(character) in _charmap(face))


@lru_cache(maxsize=4096)
def glyph(character: str, face: str) -> Image.Image:
    """The undistorted character on the canvas, ink 255: centred from left to right, on a fixed baseline."""
    mask = Image.new("L", (_CANVAS, _CANVAS))
    left, _, right, _ = _font(face).getbbox(character, anchor="ls")
    place = (_CANVAS // 2 - int(left + right) // 2, _BASELINE)
    ImageDraw.Draw(mask).text(place, character, fill=255, font=_font(face), anchor="ls")
    return mask


def draw(split: str, seed: int, label: int, index: int) -> NDArray[np.uint8]:
    """Image `index` of class `label`, `(32, 32)` grey. It depends on these four alone: smaller sets are prefixes."""
    odd = SPLITS.index(split)
    rng = np.random.RandomState([odd, seed, label, index])

    def pick(low: int, high: int) -> int:  # both ends included
        return int(rng.randint(low, high + 1, dtype=np.int64))

    faces = faces_of(CHARACTERS[label])
    ink = _weigh(glyph(CHARACTERS[label], faces[pick(0, len(faces) - 1)]), pick(-1, 3))
    # Turns are odd in one split and even in the other: no distortion of a test image occurs in training.
    turn, shear = (2 * pick(-26, 25) + odd) / 1024, pick(-104, 104) / 1024
    ink = _affine(ink, turn, shear, pick(930, 1100) / 1024, pick(930, 1100) / 1024, pick(-6, 6), pick(-5, 5))
    ink = ImageChops.lighter(ink, _clutter(pick))
    small = ink.reduce(_ZOOM).filter(ImageFilter.BoxBlur(pick(0, 5) / 8))

    # One image in twelve is a bad print: faint and grainy, so that frequent classes have errors too.
    contrast, grain = (pick(120, 230), pick(4, 16)) if pick(0, 11) else (pick(30, 60), pick(36, 60))
    paper = pick(0, 255 - contrast)
    shade = np.asarray(small, dtype=np.int64) * contrast // 255
    grey = paper + (shade if pick(0, 7) else contrast - shade)
    # Four bytes added up are close enough to a normal variable, and are integers.
    noise = rng.randint(0, 256, size=(4, SIDE, SIDE), dtype=np.uint8).sum(axis=0, dtype=np.int64) - 510
    pixels: NDArray[np.int64] = grey + noise * grain // 256
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _weigh(ink: Image.Image, steps: int) -> Image.Image:
    """Thicken strokes by `steps` canvas pixels, or thin them where `steps` is negative."""
    combine = ImageChops.lighter if steps > 0 else ImageChops.darker
    for step in range(abs(steps)):
        ink = combine(ink, ImageChops.offset(ink, *((0, 1) if step % 2 else (1, 0))))
    return ink


def _affine(ink: Image.Image, turn: float, shear: float, wide: float, high: float, x: int, y: int) -> Image.Image:
    """Scale, shear, turn and shift about the centre of the canvas."""
    # The half-angle form needs only + - * /, which round alike on every machine, unlike sin and cos.
    cos, sin = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
    a, b, d, e = (cos + shear * sin) / wide, (sin - shear * cos) / wide, -sin / high, cos / high
    half = _CANVAS / 2
    c, f = half - a * (half + x) - b * (half + y), half - d * (half + x) - e * (half + y)
    return ink.transform(ink.size, Image.Transform.AFFINE, (a, b, c, d, e, f), resample=Image.Resampling.NEAREST)


def _clutter(pick: Callable[[int, int], int]) -> Image.Image:
    """Stray strokes, dots, and pieces of other characters that reach in from the border."""
    layer = Image.new("L", (_CANVAS, _CANVAS))
    pen = ImageDraw.Draw(layer)
    for _ in range(pick(0, 1)):
        other = _NEIGHBOURS[pick(0, len(_NEIGHBOURS) - 1)]
        faces = faces_of(other)
        away, along = (1 - 2 * pick(0, 1)) * pick(84, 104), pick(-30, 30)
        shift = (away, along) if pick(0, 3) else (along, away)
        layer.paste(pick(90, 230), shift, glyph(other, faces[pick(0, len(faces) - 1)]))
    for _ in range(pick(0, 2)):
        start, reach = (pick(0, _CANVAS), pick(0, _CANVAS)), (pick(-48, 48), pick(-48, 48))
        end = (start[0] + reach[0], start[1] + reach[1])
        pen.line((start, end), fill=pick(90, 230), width=pick(2, 6))
    for _ in range(pick(0, 2)):
        x, y, radius = pick(0, _CANVAS), pick(0, _CANVAS), pick(2, 6)
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=pick(90, 230))
    return layer
