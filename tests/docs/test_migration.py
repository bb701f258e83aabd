"""What docs/migration.md calls equal is equal, what it calls different is, and no flag of the sources is left out.

The loops below are written from the formulas of the other repositories; none of their code is in them.
"""

import math
import re

import pytest
import torch

pytest.importorskip("tyro")

import yaml
from page_blocks import DOCS, blocks

from spectail import functional as SF
from spectail.augment.remix import remix_share
from spectail.cli.train import parse
from spectail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedLoss,
    CrossEntropyLoss,
    FocalLoss,
    GeometricMeanLoss,
    LDAMLoss,
    effective_number_weights,
)
from spectail.models.cifar_resnet import CifarResNet
from spectail.targets import MixedTarget
from spectail.training.config import OptimConfig
from spectail.training.config_io import from_dict
from spectail.training.optim import rate

PAGE = DOCS / "migration.md"
COUNTS = [400, 90, 31, 7, 2]

# Every flag and key that the sources define, as read there.
CAR_SCRIPT = """
--train-dir --val-dir --model --img-size --batch-size --workers --epochs --lr --opt --weight-decay --momentum
--label-smoothing --alpha --fair-mode --tau --ema-mu --gm-update-every --balanced-sampler --seed --save
--no-pretrained --init --hmt --head-th --tail-th --sched --warmup-epochs --min-lr --use-wj --spec-lambda --spec-beta
--spec-temp --wj-norm --wj-min --no-w --detach-gate-delta --detach-softmax-baseline --r0 --lambda0
--ablate-no-sigmoid --ablate-no-softmax --ablate-no-both --gamma --use-rw --use-cb --cb-beta --cb-loss --cb-gamma
--use-bsm --use-ldam --ldam-margin --ldam-scale --mixup --cutmix --mix-prob --mix-switch-prob --gml --gml-epochs
--ensemble --t-old --t-new --use-wb --wb-wd-mult --wb-max-norm --wb-renorm-alpha --wb-renorm-target --wb-renorm-freq
--use-acl --acl-lambda --acl-temp --acl-dim --head-threshold --tail-threshold --cutmix-beta --cutmix-prob
--no-cutmix
"""
LDAM_SCRIPT = """
--dataset -a --arch --loss_type --imb_type --imb_factor --train_rule --rand_number --exp_str -j --workers --epochs
--start-epoch -b --batch-size --lr --learning-rate --momentum --wd --weight-decay -p --print-freq --resume -e
--evaluate --pretrained --seed --gpu --root_log --root_model --dr
"""
BAG_OF_TRICKS = """
--cfg --ar --local_rank --gpus NAME OUTPUT_DIR VALID_STEP SAVE_STEP SHOW_STEP PIN_MEMORY INPUT_SIZE COLOR_SPACE
RESUME_MODEL RESUME_MODE EVAL_MODE DATASET.GENERATE_CAM_BASED_DATASET DATASET.USE_CAM_BASED_DATASET
DATASET.CAM_DATA_JSON_SAVE_PATH DATASET.CAM_DATA_SAVE_PATH DATASET.CAM_NUMBER_THRES DATASET.DATASET DATASET.ROOT
DATASET.TRAIN_JSON DATASET.VALID_JSON DATASET.IMBALANCECIFAR.RATIO DATASET.IMBALANCECIFAR.RANDOM_SEED
NETWORK.PRETRAINED NETWORK.PRETRAINED_MODEL BACKBONE.TYPE BACKBONE.FREEZE BACKBONE.PRETRAINED_MODEL MODULE.TYPE
CLASSIFIER.TYPE CLASSIFIER.BIAS LOSS.CostSensitiveCE.GAMMA LOSS.ClassBalanceCE.BETA LOSS.ClassBalanceFocal.BETA
LOSS.ClassBalanceFocal.GAMMA LOSS.CrossEntropyLabelSmooth.EPSILON LOSS.CrossEntropyLabelAwareSmooth.SMOOTH_HEAD
LOSS.CrossEntropyLabelAwareSmooth.SMOOTH_TAIL LOSS.CrossEntropyLabelAwareSmooth.SHAPE LOSS.FocalLoss.GAMMA
LOSS.LDAMLoss.SCALE LOSS.LDAMLoss.MAX_MARGIN LOSS.CDT.GAMMA LOSS.SEQL.GAMMA LOSS.SEQL.LAMBDA
LOSS.InfluenceBalancedLoss.ALPHA LOSS.DiVEKLD.POWER_NORM LOSS.DiVEKLD.POWER LOSS.DiVEKLD.TEMPERATURE
LOSS.DiVEKLD.ALPHA LOSS.DiVEKLD.BASELOSS TRAIN.BATCH_SIZE TRAIN.MAX_EPOCH TRAIN.SHUFFLE TRAIN.NUM_WORKERS
TRAIN.TENSORBOARD.ENABLE TRAIN.COMBINER.TYPE TRAIN.COMBINER.ALPHA TRAIN.COMBINER.MANIFOLD_MIX_UP.LOCATION
TRAIN.COMBINER.REMIX.KAPPA TRAIN.COMBINER.REMIX.TAU TRAIN.COMBINER.DIVE.TEACHER_MODEL TRAIN.TWO_STAGE.DRW
TRAIN.TWO_STAGE.DRS TRAIN.TWO_STAGE.START_EPOCH TRAIN.SAMPLER.TYPE TRAIN.SAMPLER.WEIGHTED_SAMPLER.TYPE
TRAIN.SAMPLER.BBN_SAMPLER.TYPE TRAIN.OPTIMIZER.TYPE TRAIN.OPTIMIZER.BASE_LR TRAIN.OPTIMIZER.MOMENTUM
TRAIN.OPTIMIZER.WEIGHT_DECAY TRAIN.LR_SCHEDULER.TYPE TRAIN.LR_SCHEDULER.LR_STEP TRAIN.LR_SCHEDULER.LR_FACTOR
TRAIN.LR_SCHEDULER.WARM_EPOCH TRAIN.LR_SCHEDULER.COSINE_DECAY_END TRAIN.DISTRIBUTED TRAIN.APEX TRAIN.SYNCBN
TEST.BATCH_SIZE TEST.NUM_WORKERS TEST.MODEL_FILE TEST.TAU_NORM.USE_TAU_NORM TEST.TAU_NORM.TAU
TRANSFORMS.TRAIN_TRANSFORMS TRANSFORMS.TEST_TRANSFORMS TRANSFORMS.PROCESS_DETAIL.RANDOM_CROP.PADDING
TRANSFORMS.PROCESS_DETAIL.RANDOM_RESIZED_CROP.SCALE TRANSFORMS.PROCESS_DETAIL.RANDOM_RESIZED_CROP.RATIO CrossEntropy
BalancedSoftmaxCE ClassBalanceCE ClassBalanceFocal CDT CostSensitiveCE CrossEntropyLabelSmooth
CrossEntropyLabelAwareSmooth SEQL FocalLoss InfluenceBalancedLoss LDAMLoss DiVEKLD
"""


@pytest.mark.parametrize(
    ("title", "names"),
    [("The authors' CAR scripts", CAR_SCRIPT), ("LDAM-DRW", LDAM_SCRIPT), ("BagofTricks-LT", BAG_OF_TRICKS)],
)
def test_every_flag_of_the_source_has_a_row(title, names):
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    first = [line.strip("|").split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    named = {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}
    assert [name for name in names.split() if name not in named] == []


# Losses: samples one at a time


def batch(seed=0, size=24):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, len(COUNTS), generator=draw, dtype=torch.float64)
    return logits, torch.randint(len(COUNTS), (size,), generator=draw)


def ce(row, y):
    return math.log(sum(math.exp(value - row[y]) for value in row))


def softmax_focal(gamma):
    return lambda row, y: (1 - math.exp(-ce(row, y))) ** gamma * ce(row, y)


def sigmoid_focal(gamma):
    def cost(row, y):
        total = 0.0
        for k, value in enumerate(row):
            p = 1 / (1 + math.exp(-value))
            right = p if k == y else 1 - p
            total += (1 - right) ** gamma * -math.log(right)
        return total

    return cost


def balanced(row, y):
    return ce([value + math.log(n) for value, n in zip(row, COUNTS, strict=True)], y)


def margin(row, y):
    raw = [1 / math.sqrt(math.sqrt(n)) for n in COUNTS]
    moved = [value - (k == y) * raw[k] * 0.5 / max(raw) for k, value in enumerate(row)]
    return ce([30 * value for value in moved], y)


def scaled(raw):
    return [value * len(raw) / sum(raw) for value in raw]


def effective(beta):
    return scaled([(1 - beta) / (1 - beta**n) for n in COUNTS])


def rarity(power=1.0):
    return [(min(COUNTS) / n) ** power for n in COUNTS]


ONES = [1.0] * len(COUNTS)
INVERSE = scaled([sum(COUNTS) / n for n in COUNTS])
LATE = CrossEntropyLoss()  # as --defer reweight has it
LATE.set_weight(effective_number_weights(COUNTS, 1.0))
LATE_CB = CrossEntropyLoss()
LATE_CB.set_weight(effective_number_weights(COUNTS, 0.999))
EQUAL = {  # row of the page: ours, cost of a sample there, weights there, what the sum is divided by there
    "--use-rw": (ClassBalancedLoss(COUNTS, 1.0), ce, INVERSE, "samples"),
    "--use-cb": (ClassBalancedLoss(COUNTS, 0.999), ce, effective(0.999), "samples"),
    "--cb-loss focal": (
        FocalLoss(2.0, weight=effective_number_weights(COUNTS, 0.999), average="samples"),
        softmax_focal(2.0),
        effective(0.999),
        "samples",
    ),
    "--use-bsm": (BalancedSoftmaxLoss(COUNTS), balanced, ONES, "samples"),
    "LDAMLoss": (LDAMLoss(COUNTS), margin, ONES, "weights"),
    "LDAMLoss, weights": (
        LDAMLoss(COUNTS, weight=effective_number_weights(COUNTS)),
        margin,
        effective(0.9999),
        "weights",
    ),
    "FocalLoss, LDAM-DRW": (FocalLoss(1.0), softmax_focal(1.0), ONES, "samples"),
    "CostSensitiveCE": (ClassBalancedLoss(COUNTS, 1.0, average="weights"), ce, rarity(), "weights"),
    "CostSensitiveCE, 0.5": (CrossEntropyLoss(torch.tensor(rarity(0.5))), ce, rarity(0.5), "weights"),
    "CostSensitiveCE, DRW": (LATE, ce, rarity(), "weights"),
    "ClassBalanceCE": (ClassBalancedLoss(COUNTS, 0.999, average="weights"), ce, effective(0.999), "weights"),
    "ClassBalanceCE, DRW": (LATE_CB, ce, effective(0.999), "weights"),
    "ClassBalanceFocal": (
        ClassBalancedLoss(COUNTS, 0.999, "focal", 0.5),
        sigmoid_focal(0.5),
        effective(0.999),
        "samples",
    ),
    "FocalLoss": (FocalLoss(2.0, form="sigmoid"), sigmoid_focal(2.0), ONES, "samples"),
    "FocalLoss, DRW": (
        FocalLoss(2.0, form="sigmoid", weight=torch.tensor(rarity()), average="samples"),
        sigmoid_focal(2.0),
        rarity(),
        "samples",
    ),
    "BalancedSoftmaxCE": (BalancedSoftmaxLoss(COUNTS), balanced, ONES, "samples"),
}


@pytest.mark.parametrize("name", EQUAL)
def test_losses_that_the_page_calls_equal(name):
    loss, cost, weight, divisor = EQUAL[name]
    logits, target = batch()
    logits = logits.tanh() if "LDAM" in name else logits  # cosines
    total = bottom = 0.0
    for row, y in zip(logits.tolist(), target.tolist(), strict=True):
        total += weight[y] * cost(row, y)
        bottom += weight[y] if divisor == "weights" else 1.0
    assert float(loss(logits, target)) == pytest.approx(total / bottom, rel=2e-7)  # weights are single precision


def test_the_focal_factor_of_the_baseline_has_no_gradient_there():
    logits, target = batch()
    logits.requires_grad_()
    found = FocalLoss(2.0)(logits, target)
    ours = torch.autograd.grad(found, logits)[0]
    cost = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    value = ((1 - (-cost).exp()).detach() ** 2 * cost).mean()
    assert float(found.detach()) == pytest.approx(float(value.detach()))
    theirs = torch.autograd.grad(value, logits)[0]
    assert float((ours - theirs).norm()) > 0.1 * float(theirs.norm())


def test_the_geometric_mean_of_the_baseline():
    logits, target = batch()
    logs = []
    for label in sorted(set(target.tolist())):
        rows = [row for row, y in zip(logits.tolist(), target.tolist(), strict=True) if y == label]
        logs.append(math.log(sum(math.exp(-balanced(row, label)) for row in rows) / len(rows)))
    assert float(GeometricMeanLoss(COUNTS)(logits, target)) == pytest.approx(-sum(logs) / len(logs))


# CAR


@pytest.mark.parametrize("lambda0", [10.0, 0.5])
def test_lambda0_of_the_mixing_scripts_is_an_r0(lambda0):
    raw = [1 / math.sqrt(n + lambda0) for n in COUNTS]
    wanted = [value * len(raw) / sum(raw) for value in raw]
    found = SF.class_weights(COUNTS, r0=lambda0 / sum(COUNTS), normalize=True)
    assert found.tolist() == pytest.approx(wanted, rel=1e-6)


def test_the_r0_that_the_page_prints_for_lambda0_10():
    printed = re.search(r"`--car\.r0 (\S+) --car\.normalize-weights True`", PAGE.read_text(encoding="utf-8"))
    assert float(printed[1]) == pytest.approx(10 / 10_847, rel=5e-3)


def test_mean_softmax_of_soft_labels_is_the_form_without_a_gate():
    logits, target = batch()
    share = torch.linspace(0, 1, len(target), dtype=torch.float64)
    other = target.roll(1)
    wanted = torch.zeros(len(COUNTS), len(COUNTS), dtype=torch.float64)
    mass = [0.0] * len(COUNTS)
    for q, row in enumerate(logits):
        for j, part in ((int(target[q]), float(share[q])), (int(other[q]), 1 - float(share[q]))):
            wanted[:, j] += part * row.softmax(0)
            mass[j] += part
    wanted = wanted / torch.tensor(mass).clamp_min(1.0)
    found = SF.soft_confusion(logits, MixedTarget(target, other, share), surrogate="no-gate", mixed="soft")
    torch.testing.assert_close(found, wanted.fill_diagonal_(0.0))


@pytest.mark.parametrize(("form", "gamma"), [("full", 0.0), ("no-gate", 0.0), ("no-softmax", 0.0), ("no-both", 0.5)])
def test_a_detached_baseline_matters_without_softmax_only(form, gamma):
    """The script's surrogate, a sample at a time, with its two detached parts."""
    logits, target = batch(1)
    draw = torch.Generator().manual_seed(2)
    pull = torch.rand(len(COUNTS), len(COUNTS), generator=draw, dtype=torch.float64)
    logits.requires_grad_()
    columns = {}
    for row, y in zip(logits, target.tolist(), strict=True):
        other = torch.arange(len(row)) != y
        lead = row - row[y].detach()
        if form in ("full", "no-gate"):
            select = lead.softmax(0) * other
        else:
            select = lead.relu() * other / (lead.relu() * other).sum().clamp_min(1e-12)
        delta = (row - row[y]).detach()
        gate = {"no-gate": torch.ones_like(row), "no-both": (delta + gamma).relu()}.get(form, delta.sigmoid())
        columns.setdefault(y, []).append(gate * select)
    theirs = sum((pull[:, y] * torch.stack(rows).mean(0)).sum() for y, rows in columns.items())
    found = SF.soft_confusion(logits, target, gamma=gamma, gate_grad=False, surrogate=form)
    ours = (pull * found).sum()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()))
    difference = torch.autograd.grad(ours, logits)[0] - torch.autograd.grad(theirs, logits)[0]
    own = torch.nn.functional.one_hot(target, len(COUNTS)).bool()
    torch.testing.assert_close(difference[~own], torch.zeros_like(difference[~own]))
    assert (float(difference[own].abs().max()) > 1e-3) == (form in ("no-softmax", "no-both"))


# Mixing, schedules, names


def test_remix_by_batch_means_is_not_remix_by_samples():
    logits, target = batch(3)
    other, lam = target.roll(5), 0.3
    counts = torch.tensor(COUNTS)
    share = remix_share(counts, target, other, lam)
    first = [ce(row, y) for row, y in zip(logits.tolist(), target.tolist(), strict=True)]
    second = [ce(row, y) for row, y in zip(logits.tolist(), other.tolist(), strict=True)]
    wanted = []
    for a, b, one, two in zip(first, second, target.tolist(), other.tolist(), strict=True):
        own = 0.0 if COUNTS[one] >= 3 * COUNTS[two] else lam  # lam < tau, so only this rule can act
        wanted.append(own * a + (1 - own) * b)
    ours = float(CrossEntropyLoss()(logits, MixedTarget(target, other, share)))
    assert ours == pytest.approx(sum(wanted) / len(wanted))
    mean = float(share.mean())
    theirs = mean * sum(first) / len(first) + (1 - mean) * sum(second) / len(second)
    assert abs(ours - theirs) > 0.01


def test_milestones_of_bag_of_tricks_come_one_epoch_earlier():
    printed = re.search(r"`--milestones ([\d.]+) ([\d.]+)` \| it steps", PAGE.read_text(encoding="utf-8"))
    optim = OptimConfig(schedule="step", milestones=(float(printed[1]), float(printed[2])), decay_factor=0.01)
    for per_epoch in (84, 85):
        for epoch in range(1, 201):  # the scheduler has made as many steps when an epoch runs
            wanted = 0.01 ** sum(epoch >= place for place in (160, 180))
            for step in ((epoch - 1) * per_epoch, epoch * per_epoch - 1):
                assert rate(optim, step, 200 * per_epoch, per_epoch) == pytest.approx(wanted), epoch


def test_a_renamed_checkpoint_has_our_names():
    namespace = {}
    source = next(content for info, content in blocks(PAGE) if info == "python" and "def ours(" in content)
    exec(source, namespace)
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    theirs = ["conv1.weight", *(f"bn1.{part}" for part in parts)]
    for stage in (1, 2, 3):
        for place in range(5):
            for layer in (1, 2):
                theirs.append(f"layer{stage}.{place}.conv{layer}.weight")
                theirs += [f"layer{stage}.{place}.bn{layer}.{part}" for part in parts]
    for prefix in ("", "module.", "module.backbone."):
        assert {namespace["ours"](prefix + name) for name in theirs} == set(CifarResNet(32).state_dict())


def test_the_short_configuration_is_what_the_flags_say():
    content = next(content for info, content in blocks(PAGE) if info == "yaml")
    flags = (
        "--dataset cifar100-lt --imbalance 100 --model resnet32 --defer reweight --defer-beta 0.999 --optimizer sgd "
        "--nesterov --lr 0.1 --weight-decay 2e-4 --epochs 200 --schedule step --warmup-epochs 5 --output runs/run"
    )
    assert from_dict(yaml.safe_load(content)) == parse(flags.split())[0]
