"""Networks: any timm model, a CIFAR ResNet, a small ViT and a small CNN, each with a head that can be replaced."""

from .build import MODELS, ModelConfig, build_model
from .classifier import Classifier
from .heads import CosineHead, make_head

__all__ = ["MODELS", "Classifier", "CosineHead", "ModelConfig", "build_model", "make_head"]
