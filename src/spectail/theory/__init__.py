"""Theory made measurable: the generalisation bound term by term, the stability of the average, the confusion gap."""

from .gap import Gap, cm_gap
from .network import Network, read_network
from .pac_bayes import bound
from .stability import LinearProblem, Point, Stability, ema_stability, linear_problem
from .terms import Bound

__all__ = [
    "Bound", "Gap", "LinearProblem", "Network", "Point", "Stability",
    "bound", "cm_gap", "ema_stability", "linear_problem", "read_network",
]  # fmt: skip
