import copy
import pickle

import pytest
import torch

from spectail import MixedTarget

A, B = torch.tensor([0, 2, 1]), torch.tensor([1, 1, 1])


@pytest.mark.parametrize("lam", [0.25, torch.tensor(0.25), torch.tensor([0.25, 0.25, 0.25])])
def test_lam_is_one_number_or_one_per_sample(lam):
    target = MixedTarget(A, B, lam)
    assert len(target) == 3
    assert torch.equal(target.lam, torch.full((3,), 0.25))
    wanted = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.75, 0.25], [0.0, 1.0, 0.0]])
    assert torch.equal(target.dense(3), wanted)


@pytest.mark.parametrize(("lam", "wanted"), [(1, A), (0, B), (True, A)])
def test_all_the_mass_on_one_side(lam, wanted):
    assert torch.equal(MixedTarget(A, B, lam).dense(3), torch.nn.functional.one_hot(wanted, 3).float())


def test_precision_of_lam_is_kept():
    lam = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    dense = MixedTarget(A, B, lam).dense(3)
    assert dense.dtype == torch.float64
    assert torch.equal(dense[0], torch.tensor([0.1, 0.9, 0.0], dtype=torch.float64))


def test_a_target_can_be_moved_and_copied():
    target = MixedTarget(A, B, torch.tensor([0.1, 0.2, 0.3]))
    for twin in (target.to("cpu"), copy.deepcopy(target), pickle.loads(pickle.dumps(target))):
        assert torch.equal(twin.dense(3), target.dense(3))


@pytest.mark.parametrize(
    ("a", "b", "lam", "words"),
    [
        (A, B[:2], 0.5, "one shape"),
        (A[:, None], B[:, None], 0.5, "one shape"),
        (A, B, torch.rand(2), "lam as one number or shape"),
        (A, B, torch.rand(3, 1), "lam as one number or shape"),
    ],
)
def test_shapes_must_fit(a, b, lam, words):
    with pytest.raises(ValueError, match=words):
        MixedTarget(a, b, lam)


def test_labels_must_be_tensors():
    with pytest.raises(TypeError, match=r"MixedTarget.*tensor"):
        MixedTarget([0, 1], [1, 0], 0.5)
