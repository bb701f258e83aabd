"""What a run's data decide about its settings, said in full: saved configurations leave nothing to the defaults."""

from __future__ import annotations

from dataclasses import fields, replace

from ..data.catalog import find
from ..data.paths import full_name
from ..models.build import MODELS, NO_MODEL, PIXELS, ModelConfig
from .config import TrainConfig


def settled(config: TrainConfig) -> TrainConfig:
    """The configuration as the run will use it; settings that mean nothing for its data are refused."""
    config = replace(config, data=replace(config.data, dataset=full_name(config.data.dataset)))
    entry = find(config.data.dataset)
    if entry.has_features:
        return _on_features(config)
    if config.model.model == NO_MODEL:
        raise ValueError(
            f"--model {NO_MODEL} is for features:FILE; {config.data.dataset} has images. Choose a network."
        )
    if config.features is not None and not config.probe:
        raise ValueError("--features belongs to --probe and to features:FILE data. Pass --probe, or leave it out.")
    if config.probe and config.transform is None and config.model.img_size is None and _is_pretrained(config.model):
        config = replace(config, model=replace(config.model, img_size=PIXELS))  # not that of the data
    if config.transform is None and entry.transform.endswith("-fast"):  # the run says so itself: it was another before
        return replace(config, transform=entry.transform)
    return config


def _is_pretrained(model: ModelConfig) -> bool:
    """Whether it is a network of timm with weights that were learned elsewhere, not by a run on these data."""
    return model.model not in MODELS and model.has_weights and not (model.init is not None and model.init.is_dir())


def _on_features(config: TrainConfig) -> TrainConfig:
    """A head on features that are given: no network, no image, and the features standardised unless asked otherwise."""
    usual = ModelConfig()
    for field in fields(ModelConfig):
        given = getattr(config.model, field.name)
        if field.name != "head" and given not in (getattr(usual, field.name), NO_MODEL):
            raise _meaningless(config, field.name, given)
    for name in ("transform", "normalization"):
        if getattr(config, name) != getattr(TrainConfig, name):
            raise _meaningless(config, name, getattr(config, name))
    return replace(
        config,
        model=replace(config.model, model=NO_MODEL),
        probe=True,
        features=config.features or "standard",
    )


def _meaningless(config: TrainConfig, name: str, given: object) -> ValueError:
    flag = f"--{name.replace('_', '-')}" + ("" if given is True else f" {given}")
    return ValueError(
        f"{flag} means nothing for {config.data.dataset}: a head is trained on the features in it. Leave it out."
    )
