"""The table of recipes: for each data set and method where its settings come from, which variant of the method it is,
the figure that was published for it, and every setting. Nothing else in the package holds these facts.

Sources: "code" was read in the authors' released code, "issues" in their repository's discussions, "paper" is recalled
from the paper, "ours" is a proposal where nothing is published. A published figure is accuracy in percent on the test
set, with the network that reached it; most are of the best epoch on the test set, so expect up to a point less.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]
NONE = "none known"


@dataclass(frozen=True)
class Recipe:
    source: str
    variant: str
    """Which of the published variants of the method, where there are several."""
    published: str
    """The figure that it aims at."""
    optim: Settings
    options: Settings = field(default_factory=dict)
    """Every option of the method, so that a default may change without changing a recipe."""
    rest: Settings = field(default_factory=dict)
    """Other settings, such as the transform."""

    def settings(self) -> Settings:
        """As a configuration may be made from, the method's options apart from the rest."""
        return {"optim": dict(self.optim), "options": dict(self.options), **self.rest}


# -- how the weights move --

SGD = {"optimizer": "sgd", "momentum": 0.9, "nesterov": False, "milestones": [0.8, 0.9], "decay_factor": 0.01,
       "warmup_epochs": 0.0, "warmup_start": 0.0, "min_lr": 0.0, "clip": 0.0, "accumulation": 1,
       "ema": 0.0, "decay_all": False, "swa": 0.0, "layer_decay": 1.0, "label_smoothing": 0.0, "mixup": 0.0,
       "cutmix": 0.0}  # fmt: skip
R200 = SGD | {"epochs": 200, "batch_size": 128, "lr": 0.1, "weight_decay": 2e-4, "schedule": "step",
              "warmup_epochs": 5.0}  # fmt: skip
I90 = SGD | {"epochs": 90, "batch_size": 512, "lr": 0.2, "weight_decay": 5e-4, "schedule": "cosine"}
INAT = I90 | {"weight_decay": 1e-4}
BALMS_CIFAR = SGD | {"epochs": 614, "batch_size": 512, "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine",
                     "warmup_epochs": 38.0, "warmup_start": 0.5}  # fmt: skip
# BBN's drops come with epochs 120 and 160 counted from 1
BBN_CIFAR = R200 | {"nesterov": True, "milestones": [119 / 200, 159 / 200], "warmup_start": 1 / 3}
BBN_INAT = R200 | {"epochs": 180, "lr": 0.05, "weight_decay": 1e-4, "milestones": [119 / 180, 159 / 180],
                   "decay_factor": 0.1, "warmup_epochs": 0.0, "nesterov": True}  # fmt: skip
WB = SGD | {"epochs": 200, "batch_size": 64, "lr": 0.01, "weight_decay": 5e-3, "schedule": "cosine"}
REMIX = R200 | {"epochs": 300, "milestones": [0.5, 5 / 6], "decay_factor": 0.1, "warmup_epochs": 0.0}
REMIX_INAT = REMIX | {"epochs": 200, "batch_size": 256, "milestones": [75 / 200, 150 / 200]}
I100 = SGD | {"epochs": 100, "batch_size": 128, "lr": 0.1, "weight_decay": 2e-4, "schedule": "step",
              "milestones": [0.6, 0.8], "decay_factor": 0.1, "warmup_epochs": 5.0}  # fmt: skip
CMO_INAT = I100 | {"batch_size": 256, "milestones": [0.75]}
CONTRAST = SGD | {"epochs": 200, "batch_size": 256, "lr": 0.15, "weight_decay": 5e-4, "schedule": "step",
                  "decay_factor": 0.1, "warmup_epochs": 5.0}  # fmt: skip
CONTRAST_LARGE = I90 | {"epochs": 100, "batch_size": 256, "lr": 0.1}
CONTRAST_INAT = CONTRAST_LARGE | {"lr": 0.2, "weight_decay": 1e-4, "accumulation": 2}
# MetaSAug's drops come one epoch before its switch
METASAUG = SGD | {"epochs": 200, "batch_size": 100, "lr": 0.1, "weight_decay": 5e-4, "schedule": "step",
                  "milestones": [159 / 200, 179 / 200], "nesterov": True}  # fmt: skip

# -- options that a method has on every data set, unless a row below says otherwise --

LATE = {"defer": "none", "defer_at": 0.8, "defer_beta": 0.9999}
LOSS = LATE | {"weight_average": "weights"}
SECOND = {"stage2_epochs": None, "stage2_weight_decay": 5e-4, "stage2_batch_size": None, "stage2_schedule": "cosine",
          "stage2_norm": "drift"}  # fmt: skip
EVERYWHERE: dict[str, Settings] = {
    "ce": LOSS,
    "focal": LOSS | {"gamma": 1.0, "form": "softmax", "focal_alpha": None},
    "cb": LATE | {"beta": 0.9999, "base": "focal", "gamma": 1.0, "average": "samples"},
    "ldam-drw": LOSS | {"defer": "reweight", "max_margin": 0.5, "scale": 30.0},
    "balanced-softmax": LOSS | {"tau": 1.0},
    "balms": SECOND | {"stage2_lr": 0.1, "stage2_batch_size": 512, "sampling": "meta", "meta_data": "train",
                       "meta_batch_size": None, "meta_lr": 0.01, "meta_power": 0.0, "meta_draw": "class"},
    "bbn": {"horizon": None, "count_from": "code", "branch_at": None},
    "wb": SECOND | {"stage2_epochs": 10, "stage2_lr": 0.01, "stage2_weight_decay": 0.1, "beta": 0.9999,
                    "loss": "softmax-bce", "threshold": 0.1, "project": "step"},
    "los": SECOND | {"stage2_epochs": 20, "stage2_lr": 5e-4, "stage2_weight_decay": 0.0, "delta": 0.98},
    "gml": SECOND | {"stage2_lr": 0.1, "stage2_batch_size": 512, "stage2_norm": "frozen", "divide": "present",
                     "sampling": "instance", "reuse_head": False, "ensemble": 0.5, "old_prior": "keep"},
    "remix": LOSS | {"defer": "reweight", "weight_average": "samples", "base_loss": "ce", "mix": "mixup",
                     "mix_alpha": 1.0, "kappa": 3.0, "tau": 0.5},
    "cmo": LOSS | {"weight_average": "terms", "base_loss": "ce", "probability": 0.5, "mix_alpha": 1.0,
                   "foreground_exponent": 1.0, "plain_first": 4, "plain_last": 3},
    "concutmix": {"mode": "full", "tau": 0.9, "probability": 0.5, "mix_alpha": 1.0, "class_weight": 2.0,
                  "contrast_weight": 0.6, "temperature": 0.1, "width": 128, "rectify_from": 0.5, "omega": None,
                  "top": None, "projection_norm": "batch"},
    "metasaug": SECOND | {"start": 0.8, "strength": 0.75, "meta_lr": 0.1, "covariance": "auto", "virtual": "head",
                          "virtual_lr": None, "beta": 0.9999, "weight_average": "weights", "max_margin": 0.5,
                          "meta_data": "train", "meta_per_class": None, "meta_batch_size": None, "frozen": False,
                          "psd": False, "stage2_lr": 3e-4, "stage2_schedule": "constant", "stage2_norm": "frozen"},
    "safa-r": LOSS | {"defer": "reweight", "base_loss": "ce", "max_margin": 0.5, "head_share": 0.2, "start": 0.8,
                      "copies": 1, "code_size": None, "augmented_weight": 1.0, "recycle_weight": 0.1,
                      "contrastive_weight": 0.1, "mode_weight": 0.01, "temperature": 0.1, "mode_clamp": 10.0,
                      "car_rows": "real"},
    "logit-adjustment": LOSS | {"tau": 1.0, "mode": "post-hoc"},
    "tau-norm": LOSS | {"tau": 1.0},
    "crt": SECOND | {"stage2_lr": 0.2},
    "lws": SECOND | {"stage2_lr": 0.2},
}  # fmt: skip

STRONG = {"transform": "cifar-strong"}
FLIP = {"flip_test": True}
LINEAR = {"transform": "cifar", "model": {"head": "linear"}}
DRW = {"defer": "reweight", "defer_at": 0.8}
WITH_BS = {"base_loss": "balanced-softmax"}
LARGE = {"class_weight": 1.0, "contrast_weight": 0.35, "temperature": 0.07, "width": 1024, "tau": 0.99}
SLOW_HEAD = {"frozen": True, "strength": 0.25, "covariance": "diagonal", "max_margin": 0.0, "stage2_epochs": 20,
             "stage2_batch_size": 256}  # fmt: skip
LDAM_CODE = "LDAM code: 200 epochs, x0.01 at 160 and 180"
KANG_CODE = "classifier-balancing code: 90 epochs, cosine"
OURS_TINY = "ours: the CIFAR recipe of LDAM on Tiny-ImageNet"
OURS_WB = "ours: stage one not published, search its decay; stage two as on CIFAR"
PLAIN = "the method as it is"
R32 = ", ResNet-32"

Row = tuple[Any, ...]
"""Source, variant, published figure, how the weights move, and, where there are any, options and other settings."""
ROWS: dict[str, dict[str, Row]] = {
    "cifar100-lt": {
        "ce": (LDAM_CODE, PLAIN, "38.3" + R32 + " (LDAM paper)", R200),
        "focal": (LDAM_CODE + ", gamma 1", "softmax form", "38.4" + R32 + " (LDAM paper)", R200),
        "cb": ("ours: sigmoid focal 1 of the CB code for CIFAR-10, beta chosen on validation data, on " + LDAM_CODE,
               "focal, weights from the first epoch", "39.6" + R32 + " (CB and LDAM papers, beta tuned)", R200,
               {"beta": 0.999}),
        "ldam-drw": (LDAM_CODE + ", weights from epoch 160", "LDAM with deferred re-weighting",
                     "42.0" + R32 + " (LDAM paper)", R200),
        "balanced-softmax": ("BALMS code (for IF 200): 13,000 steps of 512", "end to end, AutoAugment and Cutout",
                             "46.7 at IF 200" + R32 + " (README)", BALMS_CIFAR, {}, STRONG),
        "balms": ("BALMS code (for IF 200): 13,000 + 2,000 steps of 512", "with the meta sampler",
                  "48.0 at IF 200" + R32 + " (README); 50.8 at IF 100 (a benchmark list)", BALMS_CIFAR, {}, STRONG),
        "bbn": ("BBN code: warm-up from 1/3, x0.01 at 120 and 160, Nesterov", PLAIN,
                "42.56" + R32 + " (a benchmark list)", BBN_CIFAR),
        "wb": ("WB code with the paper's 200 epochs", "decay, then MaxNorm and decay, mirrored test images",
               "53.35 (paper; 53.1 in the authors' notebook), ResNet-34 of full width", WB, {}, FLIP),
        "los": ("LOS code", "after stage one of WB, mirrored test images", NONE, WB, {}, FLIP),
        "gml": ("ours: stage one by LDAM's code, stage two not published", "old and new head averaged", NONE, R200),
        "remix": ("paper: 300 epochs, x0.1 at 150 and 250, weights from 250", "Remix-DRW",
                  "46.77" + R32 + " (paper); without DRW 41.94", REMIX, {"defer_at": 5 / 6}),
        "cmo": ("CMO code: the first command of its README", "CE-DRW",
                "47.0" + R32 + " (paper, recalled); 47.2 by --base-loss ldam, 43.9 by --defer none", R200, DRW),
        "concutmix": ("ConCutMix code and logs", "linear head", "53.16" + R32 + " (README)", CONTRAST, {}, LINEAR),
        "metasaug": ("MetaSAug code: the released script; strength of the other imbalances' scripts",
                     "with LDAM's margins", "48.01" + R32 + " (README); 46.87 by --max-margin 0, never released",
                     METASAUG),
        "safa-r": ("ours: LDAM's code, RSG's switch at epoch 160", "our reconstruction, with deferred re-weighting",
                   NONE, R200),
        **dict.fromkeys(["logit-adjustment", "tau-norm"], ("ours: LDAM's code, tau 1", "after training", NONE, R200)),
        **dict.fromkeys(["crt", "lws"], ("ours: stage one by LDAM's code, stage two scaled from ImageNet-LT", PLAIN,
                                         NONE, R200)),
    },
    "cifar10-lt": {  # what differs from CIFAR-100
        "cb": ("CB code (for IF 50): beta 0.9999, sigmoid focal 1, on " + LDAM_CODE,
               "focal, weights from the first epoch", NONE, R200),
        "concutmix": ("ConCutMix code", "linear head", NONE, CONTRAST, {"tau": 0.85}, LINEAR),
    },
    "imagenet-lt": {
        "ce": (KANG_CODE, PLAIN, "34.8, ResNet-10 (BALMS README)", I90),
        "focal": ("ours: " + KANG_CODE + ", gamma 1", "softmax form", NONE, I90),
        "cb": ("ours: beta 0.999 and sigmoid focal 0.5 of the CB code for ILSVRC, on " + KANG_CODE,
               "focal, weights from the first epoch", NONE, I90, {"beta": 0.999, "gamma": 0.5}),
        "ldam-drw": ("ours: margin 0.5, weights for the last fifth", "LDAM with deferred re-weighting", NONE, I90),
        "balanced-softmax": ("BALMS code: 90 epochs end to end", "end to end", NONE, I90),
        "balms": ("BALMS code (ResNet-10); meta batches from the validation split", "with the meta sampler",
                  "41.6, ResNet-10 (README)", I90,
                  {"stage2_epochs": 20, "stage2_lr": 0.5, "meta_batch_size": 1024, "meta_power": 0.1,
                   "meta_lr": 0.001, "meta_data": "val"}),
        "bbn": ("issues: an outside attempt with ResNet-50, with the code's Nesterov", PLAIN,
                "46.3 on validation data, ResNet-50 (issues)", I90 | {"batch_size": 256, "lr": 0.1, "nesterov": True}),
        "wb": (OURS_WB, "decay, then MaxNorm and decay",
               "53.9, ResNeXt-50 (paper, recalled)", I90, {"stage2_batch_size": 64}),
        "los": ("ours: delta so that the ideal gap is that of 100 classes; stage two as on CIFAR", PLAIN, NONE, I90,
                {"delta": 0.998, "stage2_batch_size": 64}),
        "gml": ("ours: stage two not published", "old and new head averaged", NONE, I90,
                {"stage2_lr": 0.2, "stage2_batch_size": 2048}),
        "remix": ("ours: the iNaturalist settings of the paper", "Remix-DRW", NONE, I90,
                  {"mix_alpha": 0.4, "defer_at": 2 / 3}),
        "cmo": ("CMO code", "with Balanced Softmax, as every large-scale command of the README",
                "52.3, ResNet-50 (paper, recalled); about 49 by --base-loss ce", I100, WITH_BS),
        "concutmix": ("ConCutMix code", "cosine head", "58.49, ResNet-50 (README)", CONTRAST_LARGE,
                      LARGE | {"rectify_from": 0.7}),
        "metasaug": ("MetaSAug code: 20 epochs on the head of a network trained for 90", "frozen backbone, no margins",
                     "47.67, ResNet-50 (README)", I90, SLOW_HEAD | {"meta_data": "val"}),
        "safa-r": ("ours: " + KANG_CODE, "our reconstruction, with deferred re-weighting", NONE, I90),
        "logit-adjustment": ("ours: " + KANG_CODE + ", tau 1", "after training", NONE, I90),
        "tau-norm": (KANG_CODE + ", tau 1 instead of a search", "after training", NONE, I90),
        "crt": (KANG_CODE, PLAIN, NONE, I90, {"stage2_epochs": 10}),
        "lws": (KANG_CODE, PLAIN, NONE, I90, {"stage2_epochs": 5}),
    },
    "inat2018": {
        "ce": ("paper (Kang et al.): 90 epochs, cosine, decay 1e-4", PLAIN, NONE, INAT),
        "focal": ("ours: as cross entropy, gamma 0.5", "softmax form", NONE, INAT, {"gamma": 0.5}),
        "cb": ("ours: as cross entropy, beta 0.999", "cross entropy, weights from the first epoch", NONE, INAT,
               {"beta": 0.999, "base": "softmax"}),
        "ldam-drw": ("issues: margin 0.3 for iNaturalist", "LDAM with deferred re-weighting", NONE, INAT,
                     {"max_margin": 0.3}),
        "balanced-softmax": ("ours: as cross entropy", "end to end", NONE, INAT),
        "balms": ("ours: as ImageNet-LT, meta batches from train", "with the meta sampler", NONE, INAT,
                  {"stage2_lr": 0.5, "meta_power": 0.1, "meta_lr": 0.001}),
        "bbn": ("BBN code: 180 epochs, x0.1 at 120 and 160, Nesterov", PLAIN, NONE, BBN_INAT),
        "wb": (OURS_WB, "decay, then MaxNorm and decay",
               NONE, INAT, {"stage2_batch_size": 64}),
        "los": ("ours: delta so that the ideal gap is that of 100 classes; stage two as on CIFAR", PLAIN, NONE, INAT,
                {"delta": 0.9997, "stage2_batch_size": 64}),
        "gml": ("ours: stage two not published", "old and new head averaged", NONE, INAT,
                {"stage2_lr": 0.2, "stage2_batch_size": 4096}),
        "remix": ("paper: 200 epochs, x0.1 at 75 and 150, weights from 150", "Remix-DRW",
                  "70.49, ResNet-50 (paper)", REMIX_INAT, {"mix_alpha": 0.4, "defer_at": 0.75}),
        "cmo": ("CMO code: 100 epochs, x0.1 after 75",
                "with Balanced Softmax, as every large-scale command of the README",
                NONE + " for 100 epochs, ResNet-50; 74.0 with 400, 70.9 by CE-DRW (paper, recalled)", CMO_INAT,
                WITH_BS),
        "concutmix": ("ConCutMix code", "cosine head", "72.06, ResNet-50 (a comment in the README)", CONTRAST_INAT,
                      LARGE | {"rectify_from": 0.8}),
        "metasaug": ("MetaSAug code: 20 epochs on the head of a network trained for 200; meta images drawn from train",
                     "frozen backbone, no margins", "69.50, ResNet-50 (README)", INAT | {"epochs": 200}, SLOW_HEAD),
        "safa-r": ("ours: as cross entropy", "our reconstruction, with deferred re-weighting", NONE, INAT),
        **dict.fromkeys(["logit-adjustment", "tau-norm"], ("ours: as cross entropy, tau 1", "after training", NONE,
                                                           INAT)),
        "crt": ("classifier-balancing code", PLAIN, NONE, INAT, {"stage2_weight_decay": 1e-4, "stage2_epochs": 30}),
        "lws": ("classifier-balancing code", PLAIN, NONE, INAT, {"stage2_weight_decay": 1e-4, "stage2_epochs": 5}),
    },
    "tiny-imagenet-lt": {
        "ce": (OURS_TINY, PLAIN, NONE, R200),
        "focal": (OURS_TINY, "softmax form", NONE, R200),
        "cb": (OURS_TINY, "focal, weights from the first epoch", NONE, R200, {"beta": 0.999}),
        "ldam-drw": (OURS_TINY, "LDAM with deferred re-weighting", NONE, R200),
        "balanced-softmax": (OURS_TINY, "end to end", NONE, R200),
        "balms": (OURS_TINY, "with the meta sampler", NONE, R200),
        "bbn": ("ours: BBN's settings for CIFAR", PLAIN, NONE, BBN_CIFAR),
        "wb": ("ours: WB's settings for CIFAR", "decay, then MaxNorm and decay, mirrored test images", NONE, WB, {},
               FLIP),
        "los": ("ours: delta so that the ideal gap is that of 100 classes",
                "after stage one of WB, mirrored test images", NONE, WB, {"delta": 0.99}, FLIP),
        "gml": (OURS_TINY, "old and new head averaged", NONE, R200, {"stage2_batch_size": 1024}),
        "remix": ("ours: ReMix's settings for CIFAR", "Remix-DRW", NONE, REMIX, {"defer_at": 5 / 6}),
        "cmo": ("ours: CMO's settings for CIFAR", "CE-DRW", NONE, R200, DRW),
        "concutmix": ("ours: ConCutMix's settings for CIFAR", "linear head", NONE, CONTRAST, {},
                      {"model": {"head": "linear"}}),
        "metasaug": ("ours: MetaSAug's settings for CIFAR", "with LDAM's margins", NONE, METASAUG),
        "safa-r": (OURS_TINY, "our reconstruction, with deferred re-weighting", NONE, R200),
        **dict.fromkeys(["logit-adjustment", "tau-norm"], (OURS_TINY, "after training", NONE, R200)),
        **dict.fromkeys(["crt", "lws"], (OURS_TINY, PLAIN, NONE, R200)),
    },
}  # fmt: skip


def _recipe(method: str, row: Row) -> Recipe:
    source, variant, published, optim, *more = row
    options, rest = [*more, {}, {}][:2]
    return Recipe(source, variant, published, optim, EVERYWHERE[method] | options, rest)


# -- recipes that have a name of their own, for any method --

LIFT = SGD | {"epochs": 10, "batch_size": 128, "lr": 0.01, "weight_decay": 5e-4, "schedule": "cosine"}
NAMED = {
    "lift": Recipe(
        source="code (ICML 2024), which lowers the rate once an epoch and resizes bilinearly",
        variant="AdaptFormer on CLIP ViT-B/16, text head, five test crops; its loss is balanced-softmax",
        published="81.7 on CIFAR100-LT, 78.3 ImageNet-LT; 80.4 iNaturalist (paper, recalled)",
        optim=LIFT,
        rest={
            "model": {"model": "vit_base_patch16_clip_224.openai", "pretrained": True, "head": "cosine"},
            "tuning": {"tune": "adaptformer", "tune_rank": "classes", "tune_scale": "learned", "tune_norm": True,
                       "head_init": "text", "head_scale": 25.0, "text_weights": "ViT-B-16-quickgelu:openai"},
            "transform": "inat", "test_crops": 5,
        },
    ),
}  # fmt: skip
LONGER = {("lift", "inat2018"): 20}
"""Epochs of a named recipe on a data set, where they are not those of the others."""


RECIPES: dict[str, dict[str, Recipe]] = {
    dataset: {method: _recipe(method, row) for method, row in rows.items()} for dataset, rows in ROWS.items()
}
