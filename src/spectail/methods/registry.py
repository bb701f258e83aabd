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
    Entry("ce", "cross entropy", "cross_entropy:CrossEntropy"),
    Entry("focal", "easy samples count less", "focal:Focal"),
    Entry("cb", "class weights by effective number", "class_balanced:ClassBalanced"),
    Entry("ldam-drw", "larger margins for rarer classes, class weights late", "ldam_drw:LDAMDRW"),
    Entry("balanced-softmax", "prior added to the training logits", "balanced_softmax:BalancedSoftmax"),
    Entry("balms", "Balanced Softmax with learned sampling rates, on a frozen backbone", "balms:BALMS"),
    Entry("bbn", "two branches, uniform and reversed sampling, emphasis moves over", "bbn:BBN"),
    Entry("wb", "strong weight decay, then a balanced loss, class vectors capped", "weight_balancing:WeightBalancing"),
    Entry("gml", "geometric mean of class recalls; old and new head averaged", "gml:GML"),
    Entry("los", "the trained head is trained further with almost flat labels", "los:LOS"),
    Entry("remix", "mixed images whose label leans to the rarer class", "remix:ReMix"),
    Entry("cmo", "patches of balanced images pasted into long-tailed ones", "cmo:CMO"),
    Entry("concutmix", "contrastive learning, pasted patches, rectified labels", "concutmix:ConCutMix"),
    Entry("logit-adjustment", "prior taken off the logits after training", "logit_adjustment:LogitAdjustment"),
    Entry("tau-norm", "class vectors divided by a power of their length after training", "tau_norm:TauNorm"),
    Entry("crt", "fresh head, class-balanced sampling, frozen backbone", "crt:CRT"),
    Entry("lws", "one learned factor per class, class-balanced sampling, frozen backbone", "lws:LWS"),
    Entry("safa-r", "rare features moved along directions read from frequent ones", "safa:SAFA"),
    Entry("metasaug", "features augmented by class covariances that balanced data correct", "metasaug:MetaSAug"),
    Entry("car", "cross entropy + CAR", "cross_entropy:CrossEntropyCAR", car=True),
    Entry(
        "car-balanced",
        "Balanced Softmax + CAR on prior-shifted logits",
        "car_balanced:CARBalanced",
        car=True,
        prior_shift=True,
    ),
    Entry(
        "car-worst",
        "Balanced Softmax + the soft maximum of the class errors",
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
    entry = Entry(name, "from elsewhere", name)
    try:
        kind = entry.load()
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        why = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"--method {name} cannot be imported ({why}); expected package.module:Class.") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"--method {name} is not a subclass of spectail.methods.Method.")
    return entry
