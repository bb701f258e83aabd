"""torchvision beside a torch that its operators do not fit. Operators last as long as a process: each case has its own.

``FITS_NOT`` stands for a CUDA build of torchvision beside a CPU-only torch, whatever is installed here.
"""

import json
import subprocess
import sys

import pytest

NMS = "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
FITS_NOT = """
import torch

def refuse(path):
    raise OSError(f"{path}: undefined symbol")

torch.ops.load_library = refuse
"""
NOT_INSTALLED = """
import importlib.util, sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] == "torchvision" else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
assert importlib.util.find_spec("torchvision") is None and importlib.util.find_spec("json") is not None
"""


SERVER = """
import json, os, sys, traceback, warnings
import torch

warnings.simplefilter("error")
for line in sys.stdin:
    child = os.fork()
    if not child:
        status = 0
        try:
            exec(json.loads(line), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def torch_alone():
    """A process that has imported torch and nothing else, and forks one for each case."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def run(torch_alone, capfd):
    def in_a_process_of_its_own(code):
        torch_alone.stdin.write(json.dumps(code) + "\n")
        torch_alone.stdin.flush()
        assert torch_alone.stdout.readline() == "0\n", capfd.readouterr().err

    return in_a_process_of_its_own


def test_the_server_notices_failures(torch_alone):
    torch_alone.stdin.write(json.dumps("import sys; assert 'torchvision' in sys.modules") + "\n")
    torch_alone.stdin.flush()
    assert torch_alone.stdout.readline() == "1\n"


def test_torchvision_and_timm_import_after_it(run):
    run("""
import spectail._utils.torchvision_ops as ops
import torchvision, torchvision.transforms.v2, timm
import torch

assert ops.missing() == []
assert torch.ops.torchvision.nms and torch.ops.torchvision.qnms
image = torchvision.transforms.v2.functional.horizontal_flip(torch.arange(6).view(1, 2, 3))
assert image.tolist() == [[[2, 1, 0], [5, 4, 3]]]
assert timm.create_model("resnet18", num_classes=2).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 2)
""")


def test_without_it_torchvision_does_not_import_where_its_operators_do_not_load(run):
    """The reason the module exists: it may go when this fails for torchvision beside any torch."""
    run("""
import importlib.util, pathlib, torch

folder = pathlib.Path(importlib.util.find_spec("torchvision").origin).parent
for library in folder.glob("*.so"):
    try:
        torch.ops.load_library(str(library))
    except OSError:
        pass
loads = hasattr(torch.ops.torchvision, "nms")
try:
    import torchvision
    assert loads
except RuntimeError as error:
    assert not loads and "torchvision::nms does not exist" in str(error), error
""")


def test_importing_it_twice_leaves_the_operators_in_place(run):
    """As a notebook reloads modules: the library that holds the declarations must outlive the first import."""
    run(f"""{FITS_NOT}
import gc, importlib
import spectail._utils.torchvision_ops as ops

importlib.import_module("spectail._utils.torchvision_ops")
assert ops._declared is not None and ops.missing() == []
importlib.reload(ops)
gc.collect()
assert ops.missing() == []
torch.library.Library("torchvision", "IMPL").impl("nms", lambda *boxes: boxes[0], "CPU")  # as torchvision goes on to do
""")


@pytest.mark.parametrize("defined", [["nms"], ["qnms"], ["nms", "qnms"], []])
def test_it_declares_only_what_is_missing(run, defined):
    schemas = [NMS if name == "nms" else "q" + NMS for name in defined]
    run(f"""{FITS_NOT}
mine = torch.library.Library("torchvision", "FRAGMENT")
for schema in {schemas!r}:
    mine.define(schema)  # a second definition of a name is an error in torch
declared = []
define = torch.library.Library.define
torch.library.Library.define = lambda self, schema, *rest, **more: (
    declared.append(schema.split("(")[0]), define(self, schema, *rest, **more)
)[1]
import spectail._utils.torchvision_ops as ops

torch.library.Library.define = define
assert sorted(declared) == sorted({{"nms", "qnms"}} - set({defined!r})), declared
assert (ops._declared is None) == (len({defined!r}) == 2)
assert ops.missing() == []
assert torch.ops.torchvision.nms.default and torch.ops.torchvision.qnms.default
""")


def test_with_operators_that_load_it_declares_nothing(run):
    run(f"""
import torch

kept = []

def load(path):
    if not kept:
        kept.append(torch.library.Library("torchvision", "FRAGMENT"))
        kept[0].define({NMS!r})
        kept[0].define("q" + {NMS!r})

torch.ops.load_library = load
import spectail._utils.torchvision_ops as ops

assert kept and ops._declared is None
""")


def test_without_torchvision_it_does_nothing(run):
    run(f"""{NOT_INSTALLED}
import torch

torch.ops.load_library = lambda path: 1 / 0
import spectail._utils.torchvision_ops as ops

assert ops.missing() == [] and ops._declared is None
assert not hasattr(torch.ops.torchvision, "nms")
""")


def test_the_operators_stay_unavailable(run):
    """A schema is declared, not an implementation: a call says so, and returns no wrong boxes."""
    run(f"""{FITS_NOT}
import spectail._utils.torchvision_ops

try:
    torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
except NotImplementedError as error:
    assert "torchvision::nms" in str(error)
else:
    raise AssertionError("nms ran")
""")
