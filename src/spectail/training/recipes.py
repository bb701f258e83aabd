"""Recipes: the settings that a method was published or released with on a data set, and where they come from.

Every switch is a share of the run, so a recipe keeps its shape when ``--epochs`` shortens it. Sources: "code" was read
in the authors' released code, "issues" in their repository's discussions, "paper" is recalled from the paper, "ours" is
a proposal where nothing is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    source: str
    optim: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    """Other settings, such as the transform."""

    def settings(self) -> dict[str, Any]:
        """As a configuration may be made from, the method's options apart from the rest."""
        return {"optim": dict(self.optim), "options": dict(self.options), **self.rest}


SGD = {"optimizer": "sgd", "momentum": 0.9}
R200 = SGD | {"epochs": 200, "batch_size": 128, "lr": 0.1, "weight_decay": 2e-4, "schedule": "step",
              "milestones": [0.8, 0.9], "decay_factor": 0.01, "warmup_epochs": 5.0}  # fmt: skip
I90 = SGD | {"epochs": 90, "batch_size": 512, "lr": 0.2, "weight_decay": 5e-4, "schedule": "cosine"}
INAT = I90 | {"weight_decay": 1e-4}
BALMS_CIFAR = SGD | {"epochs": 614, "batch_size": 512, "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine",
                     "warmup_epochs": 38.0, "warmup_start": 0.5}  # fmt: skip
STRONG = {"transform": "cifar-strong"}
WB = SGD | {"epochs": 200, "batch_size": 64, "lr": 0.01, "weight_decay": 5e-3, "schedule": "cosine"}
FLIP = {"flip_test": True}

REMIX = R200 | {"epochs": 300, "milestones": [0.5, 5 / 6], "decay_factor": 0.1, "warmup_epochs": 0.0}
I100 = SGD | {"epochs": 100, "batch_size": 256, "lr": 0.1, "weight_decay": 2e-4, "schedule": "step",
              "milestones": [0.6, 0.8], "decay_factor": 0.1, "warmup_epochs": 5.0}  # fmt: skip
CONTRAST = SGD | {"epochs": 200, "batch_size": 256, "lr": 0.15, "weight_decay": 5e-4, "schedule": "step",
                  "milestones": [0.8, 0.9], "decay_factor": 0.1, "warmup_epochs": 5.0}  # fmt: skip
LARGE = {"class_weight": 1.0, "contrast_weight": 0.35, "temperature": 0.07, "width": 1024, "tau": 0.99}

CB_FOCAL = {"beta": 0.9999, "base": "focal", "gamma": 1.0}
LDAM_CODE = "LDAM code: 200 epochs, x0.01 at 160 and 180"
KANG_CODE = "classifier-balancing code: 90 epochs, cosine"
OURS_TINY = "ours: the CIFAR recipe of LDAM on Tiny-ImageNet"
RECIPES: dict[str, dict[str, Recipe]] = {
    "cifar100-lt": {
        "ce": Recipe(LDAM_CODE, R200),
        "focal": Recipe(LDAM_CODE + ", gamma 1", R200, {"gamma": 1.0}),
        "cb": Recipe("CB code: beta 0.9999, sigmoid focal 1, on " + LDAM_CODE, R200, CB_FOCAL),
        "ldam-drw": Recipe(LDAM_CODE + ", weights from epoch 160", R200, {"max_margin": 0.5, "defer_at": 0.8}),
        "balanced-softmax": Recipe("BALMS code (for IF 200): 13,000 steps of 512", BALMS_CIFAR, {}, STRONG),
        "balms": Recipe("BALMS code (for IF 200): 13,000 + 2,000 steps of 512", BALMS_CIFAR,
                        {"stage2_lr": 0.1, "stage2_weight_decay": 5e-4, "meta_power": 0.0, "meta_lr": 0.01}, STRONG),
        "bbn": Recipe("BBN code: warm-up from 1/3, x0.01 at 120 and 160",
                      R200 | {"milestones": [0.6, 0.8], "warmup_start": 1 / 3}),
        "wb": Recipe("WB code with the paper's 200 epochs", WB, {}, FLIP),
        "los": Recipe("LOS code", WB, {"delta": 0.98, "stage2_lr": 5e-4}, FLIP),
        "gml": Recipe("ours: stage one by LDAM's code, stage two not published", R200),
        "remix": Recipe("paper: 300 epochs, x0.1 at 150 and 250", REMIX, {"mix_alpha": 1.0, "defer_at": 5 / 6}),
        "cmo": Recipe("CMO code", R200, {"defer_at": 0.8}),
        "concutmix": Recipe("ConCutMix code", CONTRAST, {"rectify_from": 0.5}, {"transform": "cifar"}),
        "metasaug": Recipe("MetaSAug code; strength of the other imbalances' scripts",
                           R200 | {"batch_size": 100, "weight_decay": 5e-4, "warmup_epochs": 0.0, "nesterov": True},
                           {"start": 0.8, "strength": 0.75, "meta_lr": 0.1}),
        "safa-r": Recipe("ours: LDAM's code, RSG's switch at epoch 160", R200, {"start": 0.8}),
        **dict.fromkeys(["logit-adjustment", "tau-norm"], Recipe("ours: LDAM's code, tau 1", R200)),
        **dict.fromkeys(["crt", "lws"],
                        Recipe("ours: stage one by LDAM's code, stage two scaled from ImageNet-LT", R200)),
    },
    "imagenet-lt": {
        "ce": Recipe(KANG_CODE, I90),
        "focal": Recipe("ours: " + KANG_CODE + ", gamma 1", I90, {"gamma": 1.0}),
        "cb": Recipe("CB code for ILSVRC (beta 0.999, sigmoid focal 0.5) on " + KANG_CODE, I90,
                     {"beta": 0.999, "base": "focal", "gamma": 0.5}),
        "ldam-drw": Recipe("ours: margin 0.5, weights for the last fifth", I90, {"max_margin": 0.5, "defer_at": 0.8}),
        "balanced-softmax": Recipe("BALMS code: 90 epochs end to end", I90),
        "balms": Recipe("BALMS code (ResNet-10); meta batches from the validation split", I90,
                        {"stage2_epochs": 20, "stage2_lr": 0.5, "meta_batch_size": 1024, "meta_power": 0.1,
                         "meta_lr": 0.001, "meta_data": "val"}),
        "bbn": Recipe("issues: an outside attempt with ResNet-50", I90 | {"batch_size": 256, "lr": 0.1}),
        "wb": Recipe("ours: nothing published; search the decay of both stages", I90),
        "los": Recipe("ours: delta so that the ideal gap is that of 100 classes", I90, {"delta": 0.998}),
        "gml": Recipe("ours: stage two not published", I90, {"stage2_lr": 0.2, "stage2_batch_size": 2048}),
        "remix": Recipe("ours: the iNaturalist settings of the paper", I90, {"mix_alpha": 0.4}),
        "cmo": Recipe("CMO code, ResNet-50; its batch size is ours", I100, {"defer_at": 0.8}),
        "concutmix": Recipe("ConCutMix code", I90 | {"epochs": 100, "batch_size": 256, "lr": 0.1},
                            LARGE | {"rectify_from": 0.7}),
        "metasaug": Recipe("MetaSAug code: 20 epochs on the head of a network trained for 90", I90,
                           {"frozen": True, "strength": 0.25, "covariance": "diagonal", "stage2_lr": 3e-4,
                            "stage2_epochs": 20, "stage2_batch_size": 256, "meta_data": "val"}),
        "safa-r": Recipe("ours: " + KANG_CODE, I90, {"start": 0.8}),
        "logit-adjustment": Recipe("ours: " + KANG_CODE + ", tau 1", I90),
        "tau-norm": Recipe(KANG_CODE + ", tau 1 instead of a search", I90),
        **dict.fromkeys(["crt", "lws"], Recipe(KANG_CODE, I90, {"stage2_lr": 0.2})),
    },
    "inat2018": {
        "ce": Recipe("paper (Kang et al.): 90 epochs, cosine, decay 1e-4", INAT),
        "focal": Recipe("ours: as cross entropy, gamma 0.5", INAT, {"gamma": 0.5}),
        "cb": Recipe("ours: as cross entropy, beta 0.999", INAT, {"beta": 0.999}),
        "ldam-drw": Recipe("issues: margin 0.3 for iNaturalist", INAT, {"max_margin": 0.3}),
        "balanced-softmax": Recipe("ours: as cross entropy", INAT),
        "balms": Recipe("ours: as ImageNet-LT, meta batches from train", INAT,
                        {"stage2_lr": 0.5, "meta_power": 0.1, "meta_lr": 0.001}),
        "bbn": Recipe("BBN code: 180 epochs, x0.1 at 120 and 160",
                      R200 | {"epochs": 180, "lr": 0.05, "weight_decay": 1e-4, "milestones": [2 / 3, 8 / 9],
                              "decay_factor": 0.1, "warmup_epochs": 0.0}),
        "wb": Recipe("ours: nothing published; search the decay of both stages", INAT),
        "los": Recipe("ours: delta so that the ideal gap is that of 100 classes", INAT, {"delta": 0.9997}),
        "gml": Recipe("ours: stage two not published", INAT, {"stage2_lr": 0.2, "stage2_batch_size": 4096}),
        "remix": Recipe("paper: 90 epochs, x0.1 at 30 and 60", I100 | {"epochs": 90, "milestones": [1 / 3, 2 / 3],
                        "warmup_epochs": 0.0}, {"mix_alpha": 0.4, "defer_at": 2 / 3}),
        "cmo": Recipe("CMO code, ResNet-50", I100, {"defer_at": 0.8}),
        "concutmix": Recipe("ConCutMix code", I90 | {"epochs": 100, "batch_size": 256, "lr": 0.2, "weight_decay": 1e-4,
                            "accumulation": 2}, LARGE | {"rectify_from": 0.8}),
        "metasaug": Recipe("MetaSAug code: as ImageNet-LT; meta images drawn from train", INAT,
                           {"frozen": True, "strength": 0.25, "covariance": "diagonal", "stage2_lr": 3e-4,
                            "stage2_epochs": 20, "stage2_batch_size": 256}),
        "safa-r": Recipe("ours: as cross entropy", INAT, {"start": 0.8}),
        **dict.fromkeys(["logit-adjustment", "tau-norm"], Recipe("ours: as cross entropy, tau 1", INAT)),
        "crt": Recipe("classifier-balancing code", INAT,
                      {"stage2_lr": 0.2, "stage2_weight_decay": 1e-4, "stage2_epochs": 30}),
        "lws": Recipe("classifier-balancing code", INAT,
                      {"stage2_lr": 0.2, "stage2_weight_decay": 1e-4, "stage2_epochs": 5}),
    },
    "tiny-imagenet-lt": {
        "ce": Recipe(OURS_TINY, R200),
        "focal": Recipe(OURS_TINY, R200, {"gamma": 1.0}),
        "cb": Recipe(OURS_TINY, R200, CB_FOCAL),
        "ldam-drw": Recipe(OURS_TINY, R200, {"max_margin": 0.5, "defer_at": 0.8}),
        **dict.fromkeys(["balanced-softmax", "balms"], Recipe(OURS_TINY, R200)),
        "bbn": Recipe(OURS_TINY, R200 | {"milestones": [0.6, 0.8]}),
        "wb": Recipe("ours: WB's settings for CIFAR", WB, {}, FLIP),
        "los": Recipe("ours: delta so that the ideal gap is that of 100 classes", WB, {"delta": 0.99}, FLIP),
        "gml": Recipe(OURS_TINY, R200, {"stage2_batch_size": 1024}),
        "remix": Recipe("ours: ReMix's settings for CIFAR", REMIX),
        "cmo": Recipe("ours: CMO's settings for CIFAR", R200),
        "concutmix": Recipe("ours: ConCutMix's settings for CIFAR", CONTRAST),
        "metasaug": Recipe("ours: MetaSAug's settings for CIFAR", R200, {"start": 0.8, "strength": 0.75}),
        "safa-r": Recipe(OURS_TINY, R200, {"start": 0.8}),
        **dict.fromkeys(["logit-adjustment", "tau-norm", "crt", "lws"], Recipe(OURS_TINY, R200)),
    },
}  # fmt: skip
SAME_AS = {"car": "ce", "car-balanced": "balanced-softmax", "cifar10-lt": "cifar100-lt"}


def find_recipe(method: str, dataset: str) -> Recipe:
    """The recipe of a method on a data set; CAR has that of its base loss."""
    of_set = RECIPES.get(SAME_AS.get(dataset, dataset))
    if of_set is None:
        raise ValueError(f"there are no recipes for {dataset}; there are for {', '.join(RECIPES)}.")
    found = of_set.get(SAME_AS.get(method, method))
    if found is None:
        raise ValueError(f"there is no recipe of {method} for {dataset}; there are {', '.join(of_set)}.")
    return found
