"""A Python that starts in a hundredth of a second instead of three: it forks from one that has imported everything.

``python fork_server.py FOLDER`` writes the program ``FOLDER/python``, which takes ``-m MODULE``, ``-c CODE`` or a
script like any Python (see `forked.py`), and serves it until its own standard input ends. It imports when it is first
asked for a process, has one thread then, and forks. The program hands on what it was given: arguments, environment,
folder, standard streams and signals; it ends as the process does, and if it is killed, the process is too.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress

LIBRARIES = (
    *("torch.distributed.run", "torch._dynamo", "accelerate", "timm", "torchvision", "tyro", "typeguard", "webbrowser"),
    *("safetensors.torch", "matplotlib.backends.backend_agg", "PIL.JpegImagePlugin", "pytest", "sklearn.metrics"),
    *("torch._functorch.aot_autograd", "torch._inductor.pattern_matcher"),  # what a first compilation imports
    "peft",
)
LEFT_OUT = ("spectail.__main__", "spectail.integrations", "spectail.testing")  # what does something, or needs more
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
socket.send_fds(connection, [b"."], [0, 1, 2])
connection.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode() + b"\\n")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: connection.send(bytes([number])))
code = int(connection.makefile().readline())
if code < 0:
    if code not in (-signal.SIGKILL, -signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Server:
    def __init__(self, folder):
        self.folder, self.children = folder, {}  # connection: process

    def serve(self):
        address = f"{self.folder}/socket"
        awake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            program = f"{self.folder}/python"
            with open(program, "w") as file:
                file.write(CLIENT.format(python=sys.executable, address=address))
            os.chmod(program, 0o700)
            print("ready", flush=True)
            while True:
                ready = select.select([sys.stdin, awake, listener, *self.children], [], [])[0]
                if sys.stdin in ready:
                    break
                if awake in ready:
                    os.read(awake, 4096)
                    self.reap()
                for connection in ready:
                    if connection is listener:
                        self.start(listener.accept()[0], (awake, wake, listener))
                    elif connection in self.children:
                        self.forward(connection)
        for child in self.children.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def reap(self):
        for connection, child in list(self.children.items()):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                with connection, suppress(BrokenPipeError):  # whoever started it may have gone
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                del self.children[connection]

    def forward(self, connection):
        """Send the process the signals that the program was sent, the last one if the program is no more."""
        for number in connection.recv(16) or [signal.SIGKILL]:
            os.kill(self.children[connection], number)
        if number == signal.SIGKILL:
            os.waitpid(self.children.pop(connection), 0)
            connection.close()

    def start(self, connection, own):
        prepare()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        with connection.makefile() as stream:
            words, environment, folder = json.loads(stream.readline())
        child = os.fork()
        if child:
            self.children[connection] = child
            for stream in streams:
                os.close(stream)
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = 1
        try:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for one in (*own, connection, *self.children, *streams):
                os.close(one if isinstance(one, int) else one.detach())
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.executable = f"{self.folder}/python"
            code = run(words)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)


def prepare():
    """Import; from then on a process copies pages only where it changes something."""
    if not gc.get_freeze_count():
        import spectail._utils.torchvision_ops  # before torchvision

        ours = (module.name for module in pkgutil.walk_packages(spectail.__path__, "spectail."))
        for name in (*LIBRARIES, *ours):
            if not name.startswith(LEFT_OUT):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()


def run(words):
    """As ``python WORDS`` would."""
    sys.path[0:1] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]  # instead of the folder of this file
    if words[0] == "-u":
        sys.stdout.reconfigure(write_through=True)
        words = words[1:]
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv = words
            sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


if __name__ == "__main__":
    Server(sys.argv[1]).serve()
