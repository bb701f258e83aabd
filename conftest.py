"""No test or doctest touches the user's cache: all of them share one that goes with the session."""

import os

import pytest

# Tests that need Chromium or heavy frameworks run only when asked for: make test-browser, make test-integrations
collect_ignore = [] if os.environ.get("SPECTAIL_BROWSER") else ["tests/browser"]
if not os.environ.get("SPECTAIL_INTEGRATIONS"):
    collect_ignore += ["tests/integrations", "src/spectail/integrations"]


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECTAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
