"""Templates of the report are compiled once for all pages that tests write: they are the same every time."""

from functools import partial

import pytest
from jinja2 import BytecodeCache, Environment


class Kept(BytecodeCache):
    """Compiled templates in memory; jinja2 sees by their source whether they still are the same."""

    def __init__(self):
        self.found = {}

    def load_bytecode(self, bucket):
        if bucket.key in self.found:
            bucket.bytecode_from_string(self.found[bucket.key])

    def dump_bytecode(self, bucket):
        self.found[bucket.key] = bucket.bytecode_to_string()


@pytest.fixture(scope="session", autouse=True)
def kept_templates():
    from spectail.report import page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "Environment", partial(Environment, bytecode_cache=Kept()))
        yield
