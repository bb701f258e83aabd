"""The README's Python runs as printed, in order, in one namespace."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_snippets_run_as_printed():
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(snippets) >= 2
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(README), "exec"), namespace)
    assert namespace["loss"].requires_grad


def test_options_table_names_every_option():
    import inspect

    from spectail import CAR

    table = set(re.findall(r"^\| `(\w+)` \|", README.read_text(), re.MULTILINE))
    options = set(inspect.signature(CAR).parameters) - {"class_counts"}
    assert table == options
