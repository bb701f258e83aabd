"""Commands that are called in this process know the tiny networks."""

import pytest
from kept_templates import kept_templates  # noqa: F401
from training.runs import TINY

from spectail.models.build import MODELS


@pytest.fixture(scope="session", autouse=True)
def tiny_networks():
    with pytest.MonkeyPatch.context() as patch:
        for name, entry in TINY.items():
            patch.setitem(MODELS, name, entry)
        yield
