"""Start the kernels of notebooks as forks of one process that has already imported their common modules: ``launch``.

These imports take two seconds. Modules of the course and Triton are not among them: each kernel imports its own.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
import time

IMPORTED = ["anywidget", "ipykernel.ipkernel", "ipykernel.kernelapp", "matplotlib.backends.backend_agg", "torch"]


class Kernel:
    """A kernel's process, with the part of ``subprocess.Popen`` that jupyter_client uses."""

    server = stdin = stdout = stderr = returncode = None

    def __init__(self, command, env, cwd):
        if Kernel.server is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            Kernel.server = subprocess.Popen([sys.executable, __file__], env=env, text=True, **pipes)
        arguments = command[command.index("ipykernel_launcher") :]
        self.pid = self._ask(arguments=arguments, env=env, folder=str(cwd or os.getcwd()))

    def _ask(self, **question):
        print(json.dumps(question), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def poll(self):
        if self.returncode is None:
            self.returncode = self._ask(pid=self.pid)
        return self.returncode

    def wait(self):
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def launch(command, env, cwd=None, **_):
    """Start a kernel, in place of jupyter_client's ``launch_kernel``."""
    return Kernel(command, env, cwd)


def serve():
    """Fork kernels and answer with their exit status, until stdin ends. In a kernel, return the arguments of ``be``."""
    for line in sys.stdin:
        question = json.loads(line)
        if "pid" in question:
            pid, status = os.waitpid(question["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif answer := os.fork():
            os.setpgid(answer, answer)  # before anybody signals its group
        else:
            return question
        print(json.dumps(answer), flush=True)
    sys.exit()


def be(arguments, env, folder):
    """Become the kernel that ``python -m ipykernel_launcher`` would start in this folder."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.environ.clear()
    os.environ.update(env, JPY_PARENT_PID=str(os.getppid()))  # ipykernel ends when its parent does
    os.chdir(folder)
    sys.argv = arguments
    sys.modules["ipykernel.kernelapp"].launch_new_instance()


if __name__ == "__main__":
    del sys.path[0]  # this file's folder
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    be(**serve())
