"""Methods by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from .._utils.errors import first_line
from .._utils.names import nearest, shown
from .base import About, Method


@dataclass(frozen=True)
class Entry:
    """A method of the registry."""

    name: str
    summary: str
    target: str
    """``module:Class`` under ``methods``; that of a method from elsewhere is absolute, and its name."""
    car: bool = False
    """CAR is part of the method."""
    prior_shift: bool = False
    """CAR sees the logits shifted by the method's tau."""

    def load(self) -> type[Method]:
        module, name = self.target.split(":")
        module = module if self.name == self.target else f".{module}"
        kind: type[Method] = getattr(import_module(module, __package__), name)
        return kind

    def about(self) -> About:
        return self.load().about


ENTRIES = [
    Entry("ce", "plain cross entropy", "cross_entropy:CrossEntropy"),
    Entry("focal", "a loss in which samples that are already easy count less", "focal:Focal"),
    Entry("cb", "classes weighted by the inverse of their effective number of images", "class_balanced:ClassBalanced"),
    Entry("ldam-drw", "larger margins for rarer classes, and class weights late in training", "ldam_drw:LDAMDRW"),
    Entry(
        "balanced-softmax",
        "cross entropy with the log prior added to the training logits",
        "balanced_softmax:BalancedSoftmax",
    ),
    Entry("balms", "a head on frozen features: Balanced Softmax with learned sampling rates", "balms:BALMS"),
    Entry("bbn", "two branches, for uniform and reversed sampling, mixed with a moving weight", "bbn:BBN"),
    Entry(
        "wb",
        "strong weight decay, then a class-balanced head with capped class vectors",
        "weight_balancing:WeightBalancing",
    ),
    Entry("gml", "a loss on the geometric mean of class recalls; old and new head averaged", "gml:GML"),
    Entry("los", "the head is trained further with almost uniform soft labels", "los:LOS"),
    Entry("remix", "mixup or CutMix whose labels favour the rarer of the two classes", "remix:ReMix"),
    Entry("cmo", "patches of class-balanced images pasted into long-tailed ones", "cmo:CMO"),
    Entry("concutmix", "contrastive learning with pasted patches and corrected labels", "concutmix:ConCutMix"),
    Entry(
        "logit-adjustment",
        "subtracts the log class prior from the logits after training",
        "logit_adjustment:LogitAdjustment",
    ),
    Entry("tau-norm", "divides class vectors by a power of their length after training", "tau_norm:TauNorm"),
    Entry("crt", "a new head on frozen features, trained with class-balanced sampling", "crt:CRT"),
    Entry("lws", "one learned scale per class on a frozen network, class-balanced sampling", "lws:LWS"),
    Entry("safa-r", "rare features moved along directions learned from frequent classes", "safa:SAFA"),
    Entry("metasaug", "features augmented by class covariances that balanced batches correct", "metasaug:MetaSAug"),
    Entry(
        "car",
        "cross entropy plus CAR, a penalty on the strongest confusions",
        "cross_entropy:CrossEntropyCAR",
        car=True,
    ),
    Entry(
        "car-balanced",
        "Balanced Softmax plus CAR, both on logits with the prior added",
        "car_balanced:CARBalanced",
        car=True,
        prior_shift=True,
    ),
    Entry(
        "car-worst",
        "Balanced Softmax plus a penalty on the largest class errors",
        "car_worst:CARWorst",
        car=True,
        prior_shift=True,
    ),
]
METHODS = {entry.name: entry for entry in ENTRIES}
ALIASES: dict[str, str] = {"safa": "safa-r"}


_TRUSTED: set[str] = set()


def trust(*names: str) -> None:
    """Let files name these methods from elsewhere: their code may run."""
    _TRUSTED.update(names)


def find_method(name: str, *, from_file: bool = False) -> Entry:
    """A method of the registry, or one of someone else's by ``package.module:Class``.

    The latter means to import code. So a name that was read ``from_file``, which may be a stranger's, is refused unless
    the user has named it as well, see :func:`trust`.
    """
    if isinstance(name, str) and ":" in name:
        if from_file and name not in _TRUSTED:
            raise ValueError(
                f"it asks for the method {shown(name)}, which is code from elsewhere. If you trust that code, pass "
                f"--trust {name[:200]}."
            )
        trust(name)
        return _elsewhere(name)
    name = ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"unknown method {shown(name)}; {nearest(name, METHODS)} `spectail list methods` shows all.")
    return METHODS[name]


def _elsewhere(name: str) -> Entry:
    entry = Entry(name, "a method from elsewhere", name)
    try:
        kind = entry.load()
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        why = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"--method {name} cannot be imported ({why}); expected package.module:Class.") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"--method {name} is not a subclass of spectail.methods.Method.")
    return entry
