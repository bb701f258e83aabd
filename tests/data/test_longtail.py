"""Which images a long-tailed set holds: the published counts, groups and ranks, typed in, and the rules behind them."""

import hashlib
import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pytest

from spectail import ClassCounts
from spectail.data.longtail import check_supply, exponential, hold_out, profile, select, step

SIZES = {"cifar10": (10, 5000), "cifar100": (100, 500), "tiny200": (200, 500)}  # classes, images of each
FACTORS = (10, 50, 100, 200)
BUILDS = list(itertools.product(SIZES, FACTORS))

# Total, largest, smallest, classes and images in head / medium / tail (more than 100, 20 to 100, fewer than 20).
TABLE = {
    ("cifar10", 10): (20_431, 5000, 500, (10, 0, 0), (20_431, 0, 0)),
    ("cifar10", 50): (13_996, 5000, 100, (9, 1, 0), (13_896, 100, 0)),
    ("cifar10", 100): (12_406, 5000, 50, (8, 2, 0), (12_273, 133, 0)),
    ("cifar10", 200): (11_203, 5000, 25, (7, 3, 0), (11_052, 151, 0)),
    ("cifar100", 10): (19_573, 500, 50, (69, 31, 0), (17_343, 2_230, 0)),
    ("cifar100", 50): (12_608, 500, 10, (41, 41, 18), (10_331, 2_028, 249)),
    ("cifar100", 100): (10_847, 500, 5, (35, 35, 30), (8_824, 1_718, 305)),
    ("cifar100", 200): (9_502, 500, 2, (30, 31, 39), (7_653, 1_545, 304)),
    ("tiny200", 10): (39_072, 500, 50, (139, 61, 0), (34_693, 4_379, 0)),
    ("tiny200", 50): (25_082, 500, 10, (82, 82, 36), (20_517, 4_063, 502)),
    ("tiny200", 100): (21_549, 500, 5, (70, 70, 60), (17_496, 3_439, 614)),
    ("tiny200", 200): (18_836, 500, 2, (61, 60, 79), (15_249, 2_960, 627)),
}
BOUNDARY = {  # classes with exactly 100 or exactly 20 images, where conventions part; no other build has any
    ("cifar10", 50): {9: 100},
    ("cifar100", 10): {69: 100},
    ("cifar100", 50): {81: 20},
    ("cifar100", 100): {69: 20},
    ("cifar100", 200): {30: 100, 60: 20},
    ("tiny200", 10): {139: 100},
    ("tiny200", 50): {162: 20, 163: 20},
    ("tiny200", 100): {137: 20, 138: 20, 139: 20},
    ("tiny200", 200): {120: 20},
}
OLTR = {10: (70, 30, 0), 50: (41, 40, 19), 100: (35, 34, 31), 200: (31, 29, 40)}  # CIFAR-100
HASHES = {
    "cifar10": ("5ad77b00b9e56fd4", "8b9763c3f728bc40", "331bb22d9499f409", "09da272a3cea8577"),
    "cifar100": ("cd976235e3873856", "400d360008332ed9", "7bbc48c0fce4d0fe", "c7992d8c6d201015"),
    "tiny200": ("3f77d84a9cbd1833", "2dc7ac490f446285", "ae56cb0046971120", "025ebcac8cdfecba"),
}
FIRST_RANKS = {  # seed 0, imbalance factor 100
    ("cifar100", 0): [90, 254, 283, 445, 461, 15, 316, 489],
    ("cifar100", 99): [348, 153, 363, 361, 299],
    ("cifar10", 0): [398, 3833, 4836, 4572, 636, 2545, 1161, 2230],
    ("cifar10", 9): [2204, 3816, 2206, 2507, 1926, 4765, 368, 3808],
}
IMAGENET = {  # 1,000 classes, exponential, without a cap: total, smallest, classes in head / medium / tail
    (1280, 50): (320_514, 25, (649, 351, 0)),
    (1280, 100): (275_057, 12, (551, 352, 97)),
    (1280, 200): (240_278, 6, (479, 306, 215)),
    (1300, 50): (325_497, 26, (653, 347, 0)),
    (1300, 100): (279_350, 13, (555, 351, 94)),
    (1300, 200): (244_032, 6, (482, 306, 212)),
    (732, 50): (183_058, 14, (506, 414, 80)),
    (732, 100): (157_069, 7, (430, 351, 219)),
    (732, 200): (137_199, 3, (374, 305, 321)),
}
COUNTS = {
    ("cifar10", 10): "5000 3871 2997 2320 1796 1391 1077 834 645 500",
    ("cifar10", 50): "5000 3237 2096 1357 878 568 368 238 154 100",
    ("cifar10", 100): "5000 2997 1796 1077 645 387 232 139 83 50",
    ("cifar10", 200): "5000 2775 1540 854 474 263 146 81 45 25",
    ("cifar100", 10): """
        500 488 477 466 455 445 434 424 415 405 396 387 378 369 361 352 344 336 328 321 314 306 299 292 286 279 273 266
        260 254 248 243 237 232 226 221 216 211 206 201 197 192 188 183 179 175 171 167 163 159 156 152 149 145 142 139
        135 132 129 126 123 121 118 115 112 110 107 105 102 100 98 95 93 91 89 87 85 83 81 79 77 75 74 72 70 69 67 66 64
        63 61 60 58 57 56 54 53 52 51 50
    """,
    ("cifar100", 50): """
        500 480 462 444 426 410 394 379 364 350 336 323 311 299 287 276 265 255 245 235 226 218 209 201 193 186 178 172
        165 158 152 146 141 135 130 125 120 115 111 107 102 98 95 91 87 84 81 78 75 72 69 66 64 61 59 56 54 52 50 48 46
        44 43 41 39 38 36 35 34 32 31 30 29 27 26 25 24 23 22 22 21 20 19 18 18 17 16 16 15 14 14 13 13 12 12 11 11 10
        10 10
    """,
    ("cifar100", 100): """
        500 477 455 434 415 396 378 361 344 328 314 299 286 273 260 248 237 226 216 206 197 188 179 171 163 156 149 142
        135 129 123 118 112 107 102 98 93 89 85 81 77 74 70 67 64 61 58 56 53 51 48 46 44 42 40 38 36 35 33 32 30 29 27
        26 25 24 23 22 21 20 19 18 17 16 15 15 14 13 13 12 12 11 11 10 10 9 9 8 8 7 7 7 6 6 6 6 5 5 5 5
    """,
    ("cifar100", 200): """
        500 473 449 425 403 382 362 343 325 308 292 277 263 249 236 224 212 201 190 180 171 162 154 146 138 131 124 117
        111 105 100 95 90 85 81 76 72 69 65 62 58 55 52 50 47 44 42 40 38 36 34 32 30 29 27 26 24 23 22 21 20 19 18 17
        16 15 14 13 13 12 11 11 10 10 9 9 8 8 7 7 6 6 6 5 5 5 5 4 4 4 4 3 3 3 3 3 2 2 2 2
    """,
    ("tiny200", 10): """
        500 494 488 482 477 471 466 461 455 450 445 440 435 430 425 420 415 410 405 401 396 392 387 383 378 374 370 365
        361 357 353 349 345 341 337 333 329 325 322 318 314 311 307 304 300 297 293 290 286 283 280 277 273 270 267 264
        261 258 255 252 249 246 244 241 238 235 232 230 227 225 222 219 217 214 212 209 207 205 202 200 198 195 193 191
        189 186 184 182 180 178 176 174 172 170 168 166 164 162 160 159 157 155 153 151 150 148 146 144 143 141 140 138
        136 135 133 132 130 129 127 126 124 123 121 120 119 117 116 115 113 112 111 109 108 107 106 104 103 102 101 100
        98 97 96 95 94 93 92 91 90 89 88 87 86 85 84 83 82 81 80 79 78 77 76 75 74 74 73 72 71 70 69 69 68 67 66 66 65
        64 63 63 62 61 60 60 59 58 58 57 56 56 55 54 54 53 52 52 51 51 50 50
    """,
    ("tiny200", 50): """
        500 490 480 471 462 453 444 435 427 418 410 402 394 387 379 372 365 357 350 344 337 330 324 318 311 305 299 294
        288 282 277 271 266 261 256 251 246 241 236 232 227 223 218 214 210 206 202 198 194 190 187 183 179 176 172 169
        166 163 159 156 153 150 147 144 142 139 136 133 131 128 126 123 121 119 116 114 112 110 107 105 103 101 99 97 95
        94 92 90 88 86 85 83 81 80 78 77 75 74 72 71 70 68 67 66 64 63 62 61 59 58 57 56 55 54 53 52 51 50 49 48 47 46
        45 44 43 42 41 41 40 39 38 38 37 36 35 35 34 33 33 32 31 31 30 30 29 28 28 27 27 26 26 25 25 24 24 23 23 22 22
        21 21 21 20 20 19 19 19 18 18 18 17 17 17 16 16 16 15 15 15 14 14 14 13 13 13 13 12 12 12 12 11 11 11 11 11 10
        10 10 10 10
    """,
    ("tiny200", 100): """
        500 488 477 466 455 445 435 425 415 405 396 387 378 370 361 353 345 337 329 322 314 307 300 293 286 280 273 267
        261 255 249 244 238 232 227 222 217 212 207 202 198 193 189 184 180 176 172 168 164 160 157 153 150 146 143 140
        136 133 130 127 124 121 119 116 113 111 108 106 103 101 98 96 94 92 90 88 86 84 82 80 78 76 74 73 71 69 68 66 65
        63 62 60 59 58 56 55 54 52 51 50 49 48 47 46 45 44 43 42 41 40 39 38 37 36 35 34 34 33 32 31 31 30 29 29 28 27
        27 26 25 25 24 24 23 23 22 21 21 20 20 20 19 19 18 18 17 17 17 16 16 15 15 15 14 14 14 13 13 13 12 12 12 12 11
        11 11 10 10 10 10 10 9 9 9 9 8 8 8 8 8 7 7 7 7 7 7 6 6 6 6 6 6 6 5 5 5 5 5 5 5 5
    """,
    ("tiny200", 200): """
        500 486 474 461 449 437 426 414 404 393 383 373 363 353 344 335 326 317 309 301 293 285 278 271 263 256 250 243
        237 231 224 219 213 207 202 196 191 186 181 177 172 167 163 159 154 150 146 143 139 135 132 128 125 121 118 115
        112 109 106 103 101 98 95 93 90 88 86 83 81 79 77 75 73 71 69 67 66 64 62 61 59 57 56 54 53 52 50 49 48 46 45 44
        43 42 40 39 38 37 36 35 34 33 33 32 31 30 29 28 28 27 26 26 25 24 24 23 22 22 21 21 20 19 19 18 18 17 17 17 16
        16 15 15 14 14 14 13 13 13 12 12 12 11 11 11 10 10 10 9 9 9 9 8 8 8 8 8 7 7 7 7 7 6 6 6 6 6 6 5 5 5 5 5 5 4 4 4
        4 4 4 4 4 4 3 3 3 3 3 3 3 3 3 3 3 2 2 2 2 2 2 2
    """,
}


def build(name, factor):
    classes, images = SIZES[name]
    return exponential(images, classes, factor)


def sizes(groups):
    return tuple(len(groups[group]) for group in ("head", "medium", "tail"))


def shuffled(name, seed=1):
    classes, images = SIZES[name]
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), images))


def ranks_of(labels, kept):
    """Place of each kept image among the images of its class, counted one by one, by class."""
    seen, rank = {}, []
    for label in labels.tolist():
        seen[label] = seen.get(label, -1) + 1
        rank.append(seen[label])
    found = {}
    for position in kept.tolist():
        found.setdefault(int(labels[position]), []).append(rank[position])
    return found


# --- counts ---


@pytest.mark.parametrize(("name", "factor"), BUILDS)
def test_counts_are_the_published_ones(name, factor):
    counts = build(name, factor)
    assert counts == [int(number) for number in COUNTS[name, factor].split()]
    total, largest, smallest, classes, images = TABLE[name, factor]
    groups = ClassCounts(counts).groups()
    assert (sum(counts), max(counts), min(counts)) == (total, largest, smallest)
    assert sizes(groups) == classes
    assert tuple(sum(counts[label] for label in groups[group]) for group in ("head", "medium", "tail")) == images
    assert {label: n for label, n in enumerate(counts) if n in (20, 100)} == BOUNDARY.get((name, factor), {})
    assert all(label in groups["medium"] for label in BOUNDARY.get((name, factor), {}))


@pytest.mark.parametrize("factor", FACTORS)
def test_groups_of_the_other_conventions(factor):
    cifar = ClassCounts(build("cifar100", factor))
    assert sizes(cifar.groups("oltr")) == OLTR[factor]
    assert sizes(cifar.groups("if100")) == (35, 35, 30)
    assert cifar.groups("if100") == ClassCounts(build("cifar100", 100)).groups()
    assert cifar.groups("ranges") == {
        "head": list(range(36)), "medium": list(range(36, 71)), "tail": list(range(71, 100))
    }  # fmt: skip
    small = ClassCounts(build("cifar10", factor)).groups("ranges")
    assert small == {"head": [0, 1, 2], "medium": [3, 4, 5, 6], "tail": [7, 8, 9]}
    for name in SIZES:  # a class on the boundary is where the two count rules differ, and nowhere else
        counts = ClassCounts(build(name, factor))
        ours, oltr = counts.groups(), counts.groups("oltr")
        moved = set(ours["medium"]) - set(oltr["medium"])
        assert moved == BOUNDARY.get((name, factor), {}).keys()
        assert sum(map(len, oltr.values())) == len(counts)


@pytest.mark.parametrize(("largest", "factor"), IMAGENET)
def test_exponential_imagenet(largest, factor):
    counts = exponential(largest, 1000, factor)
    total, smallest, classes = IMAGENET[largest, factor]
    assert (sum(counts), min(counts), counts[0], counts[-1]) == (total, smallest, largest, smallest)
    assert sizes(ClassCounts(counts).groups()) == classes


def test_a_wrong_build_would_be_recognised():
    rounded = [round(500 * 0.01 ** (i / 99)) for i in range(100)]
    stretched = [int(500 * 0.01 ** (i / 100)) for i in range(100)]
    assert (sum(rounded), sum(stretched)) == (10_899, 10_948)
    assert sum(exponential(500, 100, 100)) not in (10_899, 10_948)


def test_the_realised_ratio_can_exceed_the_factor():
    assert ClassCounts(exponential(500, 100, 200)).imbalance_factor == 250.0


def test_the_last_class_keeps_its_image_where_float32_or_logspace_loses_it():
    for (classes, images), factor in itertools.product(SIZES.values(), FACTORS):
        assert exponential(images, classes, factor)[-1] == images // factor


@pytest.mark.parametrize("rule", [exponential, step])
def test_the_last_class_is_the_exact_quotient(rule):
    """Also where 1 / IF times n_max falls just short of a whole number, as 49 * (1 / 49) does."""
    wrong = [
        (largest, factor, found[-1])
        for largest in (49, 98, 100, 103, 107, 196, 500, 732, 1280, 1300, 1700, 5000)
        for factor in range(1, largest + 1)
        for found in [rule(largest, 4, factor)]
        if found[-1] != largest // factor
    ]
    assert not wrong


@pytest.mark.parametrize(("largest", "classes", "factor"), [(500, 5, 100), (5000, 9, 256), (732, 8, 30), (81, 5, 81)])
def test_exponential_in_whole_numbers(largest, classes, factor):
    """n is the floor of largest * factor^(-i / (K - 1)): the powers of both sides are whole numbers, without floats."""
    root = classes - 1
    for i, n in enumerate(exponential(largest, classes, factor)):
        assert n**root * factor**i <= largest**root < (n + 1) ** root * factor**i, (i, n)


@pytest.mark.parametrize("classes", [2, 3, 10, 101])
@pytest.mark.parametrize("factor", [1, 1.5, 10, 100])
def test_step(classes, factor):
    counts = step(600, classes, factor)
    low = math.floor(600 / Fraction(factor))
    assert counts[: classes // 2] == [600] * (classes // 2)
    assert counts[classes // 2 :] == [low] * (classes - classes // 2)


@pytest.mark.parametrize("rule", [exponential, step])
def test_no_imbalance_is_all_classes_alike(rule):
    assert rule(70, 6, 1) == [70] * 6


@pytest.mark.parametrize("rule", [exponential, step])
@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.01, r"1 or more; got 0\.01\. Did you mean 100\?"),
        (0.02, "Did you mean 50"),
        (0.999, "1 or more"),
        (0, "1 or more; got 0"),
        (-100, "1 or more; got -100"),
        (-0.01, "got -0.01"),
        (float("nan"), "1 or more; got nan"),
        (float("inf"), "1 or more; got inf"),
        ("100", "1 or more; got '100'"),
    ],
)
def test_a_bad_imbalance_is_refused_in_words(rule, factor, words):
    with pytest.raises(ValueError, match=words) as caught:
        rule(500, 10, factor)
    assert ("Did you mean" in str(caught.value)) == (isinstance(factor, float) and 0 < factor < 1)


# --- profiles under what there is ---


@pytest.mark.parametrize("name", ["exponential", "step"])
@pytest.mark.parametrize("factor", [1, 1.7, 5, 10, 64])
def test_the_default_largest_is_the_largest_that_fits(name, factor):
    rule = {"exponential": exponential, "step": step}[name]
    generator = np.random.default_rng(3)
    for _ in range(40):
        available = generator.integers(0, 90, generator.integers(2, 9)).tolist()
        best = max(
            n
            for n in range(available[0] + 1)  # the first class takes n_max itself
            if all(want <= have for want, have in zip(rule(n, len(available), factor), available, strict=True))
        )
        assert profile(name, available, factor) == rule(best, len(available), factor), available


def test_profile_of_equal_classes_is_the_plain_rule():
    assert profile("exponential", [500] * 100, 100) == [int(n) for n in COUNTS["cifar100", 100].split()]
    assert profile("step", [500] * 4, 10) == [500, 500, 50, 50]


def test_profile_with_a_given_largest_does_not_look_at_the_supply():
    assert profile("exponential", [5] * 5, 100, largest=500) == [500, 158, 50, 15, 5]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("exp", {}, r"one of 'exponential', 'step'; got 'exp'"),
        ("step", {"largest": 0}, "largest class must be 1 or more; got 0"),
        ("step", {"largest": -3}, "largest class must be 1 or more; got -3"),
    ],
)
def test_a_bad_profile_is_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        profile(name, [9, 9], 3, **options)


def test_profile_is_fast_where_a_rare_class_is_the_tightest():
    start = time.perf_counter()
    profile("exponential", [1000] * 8141 + [2], 500)
    profile("exponential", [1000] * 8141 + [1], 1)
    assert time.perf_counter() - start < 3


def test_supply_messages_name_the_class_and_the_way_out():
    available = ClassCounts([50, 20, 5], names=["cat", "dog", "otter"])
    check_supply([50, 20, 5], available, imbalance=10)
    check_supply([1, 1, 1], available, imbalance=None)
    with pytest.raises(ValueError, match=r"factor of 100 leaves class 2 \('otter'\) with no image.* of 50 or less"):
        check_supply([50, 5, 0], available, imbalance=100)
    with pytest.raises(
        ValueError, match=r"factor of 10 needs 21 images of class 1 \('dog'\), which has 20.*--order size"
    ):
        check_supply([50, 21, 5], available, imbalance=10)
    with pytest.raises(ValueError, match=r"the given counts ask for 0 images of class 1 \('dog'\).*at least 1"):
        check_supply([50, 0, 5], available, imbalance=None)
    with pytest.raises(ValueError, match=r"given counts need 6 images of class 2 \('otter'\), which has 5"):
        check_supply([50, 20, 6], available, imbalance=None)


def test_the_factor_that_a_message_proposes_is_accepted():
    available = ClassCounts([49] * 5)
    with pytest.raises(ValueError, match="Choose a factor of 49 or less"):
        check_supply(exponential(49, 5, 60), available, imbalance=60)
    check_supply(exponential(49, 5, 49), available, imbalance=49)


# --- which images ---


@pytest.mark.parametrize("name", SIZES)
def test_rank_hashes_and_nested_subsets(name):
    labels = shuffled(name)
    before = None
    for factor, expected in zip(FACTORS, HASHES[name], strict=True):
        wanted = build(name, factor)
        kept, found = select(labels, wanted)
        assert found == expected
        assert np.bincount(labels[kept]).tolist() == wanted
        assert len(set(kept.tolist())) == len(kept)
        assert (np.diff(labels[kept]) >= 0).all()  # class after class
        assert before is None or set(kept.tolist()) < before  # a steeper build is part of a flatter one
        before = set(kept.tolist())


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_first_ranks(name):
    labels = shuffled(name)
    kept, found = select(labels, build(name, 100))
    ranks = ranks_of(labels, kept)
    for (of, label), expected in FIRST_RANKS.items():
        if of == name:
            assert ranks[label][:8] == expected
    text = "".join(",".join(map(str, ranks[label])) + ";" for label in sorted(ranks))
    assert found == hashlib.sha256(text.encode("ascii")).hexdigest()[:16]  # the hash is of the images returned


def test_ranks_do_not_depend_on_the_layout():
    layouts = [np.sort(shuffled("cifar100")), shuffled("cifar100", 2), np.tile(np.arange(100), 500)]
    subsets = [select(labels, build("cifar100", 50)) for labels in layouts]
    assert {found for _, found in subsets} == {HASHES["cifar100"][1]}
    ranks = [ranks_of(labels, kept) for labels, (kept, _) in zip(layouts, subsets, strict=True)]
    assert ranks[0] == ranks[1] == ranks[2]


def test_another_seed_is_another_subset():
    labels, wanted = shuffled("cifar100"), build("cifar100", 100)
    found = {select(labels, wanted, seed=seed)[1] for seed in (0, 1, 2, 2**32 - 1)}
    assert len(found) == 4
    assert select(labels, wanted, seed=1)[1] == select(labels, wanted, seed=1)[1]


def test_selecting_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    select(shuffled("cifar10"), build("cifar10", 100))
    assert (before == np.random.get_state()[1]).all()  # noqa: NPY002


def test_first_n_keeps_the_first_of_each_class():
    labels, wanted = shuffled("cifar100"), build("cifar100", 100)
    kept, found = select(labels, wanted, selection="first-n")
    assert ranks_of(labels, kept) == {label: list(range(n)) for label, n in enumerate(wanted)}
    text = "".join(",".join(map(str, range(n))) + ";" for n in wanted)
    assert found == hashlib.sha256(text.encode()).hexdigest()[:16] != HASHES["cifar100"][2]
    assert select(labels, wanted, selection="first-n", seed=7)[1] == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"selection": "random"}, "selection must be one of 'ldam', 'first-n'; got 'random'"),
        ({"seed": -1}, "seed must lie in"),
        ({"seed": 2**32}, "seed must lie in"),
    ],
)
def test_a_bad_selection_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        select(np.array([0, 1]), [1, 1], **options)


# --- hold out ---

UNEQUAL = np.random.default_rng(8).permutation(np.repeat(np.arange(7), [400, 41, 10, 3, 2, 1, 0]))


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_a_fraction_of_every_class_is_held_out(fraction):
    held = hold_out(UNEQUAL, "abcdefghijklmnop"[:7], fraction=fraction)
    assert (held.dtype, held.shape) == (np.dtype(bool), UNEQUAL.shape)
    for label, size in enumerate([400, 41, 10, 3, 2, 1, 0]):
        taken = int(held[label == UNEQUAL].sum())
        assert abs(taken - size * fraction) <= 1
        assert taken < size or size == 0
        assert (taken >= 1) == (size >= 2)


def test_held_out_images_are_drawn_from_the_seed():
    first, again, other = (hold_out(UNEQUAL, "abcdefghijklmnop"[:7], fraction=0.2, seed=seed) for seed in (4, 4, 5))
    assert (first == again).all()
    assert (first != other).any()
    assert first.sum() == other.sum()
    ranks = ranks_of(UNEQUAL, np.flatnonzero(first))[0]
    assert max(ranks) > 300  # from all over the class, not from its beginning
    assert min(ranks) < 100


def test_held_out_and_kept_share_no_image():
    held = hold_out(UNEQUAL, "abcdefghijklmnop"[:7], fraction=0.3)
    kept, taken = np.flatnonzero(~held), np.flatnonzero(held)
    assert not set(kept.tolist()) & set(taken.tolist())
    assert len(kept) + len(taken) == len(UNEQUAL)
    assert set(UNEQUAL[kept].tolist()) == set(UNEQUAL.tolist())


def test_the_same_number_of_each_class():
    labels = shuffled("cifar10")[:9000]
    held = hold_out(labels, "abcdefghijklmnop"[:10], per_class=50)
    assert np.bincount(labels[held]).tolist() == [50] * 10
    assert hold_out(np.array([0, 0, 1, 1]), "abcdefghijklmnop"[:2], per_class=1).sum() == 2


def test_nothing_is_held_out_unasked():
    assert hold_out(UNEQUAL, "abcdefghijklmnop"[:7]).sum() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fraction": 0.1, "per_class": 2}, "not both"),
        ({"fraction": 1.0}, r"\[0, 1\); got 1"),
        ({"fraction": -0.1}, r"got -0\.1"),
        ({"fraction": float("nan")}, "got nan"),
        ({"per_class": -1}, "not be negative; got -1"),
        ({"per_class": 3}, r"3 images of each class leaves class 3 .*none.*it has 3"),
    ],
)
def test_bad_hold_outs_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        hold_out(UNEQUAL, "abcdefghijklmnop"[:7], **options)


def test_large_sets_take_moments():
    """The size of iNaturalist 2018."""
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.repeat(np.arange(8142), 2), generator.integers(0, 8142, 437_513 - 2 * 8142)])
    labels = generator.permutation(labels)
    counts = np.bincount(labels)
    start = time.perf_counter()
    held = hold_out(labels, range(8142), fraction=0.1)
    kept, _ = select(labels, np.minimum(counts, 30).tolist())
    assert time.perf_counter() - start < 3
    assert np.bincount(labels[~held], minlength=8142).min() >= 1
    assert (np.bincount(labels[kept]) == np.minimum(counts, 30)).all()
