"""Ask Triton's compiler for its objection to a kernel that is right in an interpreter. No GPU is needed.

The interpreters accept code that a GPU does not: a scalar that becomes a block inside a loop, a global that is no
``tl.constexpr``, ``break``, layouts that do not match. ``launches`` records launches of kernels in Triton as text, with
both values of every flag, and ``in_rung`` a function in Gluon that takes the place of one of a rung. ``refusal``
compiles that text, Triton for compute capability 8.0 and 9.0, Gluon for 9.0, in a process with a compiler. That process
runs this file by its path: without the package's torch it starts in a third of the time.
"""

import inspect
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product

CAPABILITIES = (80, 90)
PATIENCE = 20.0  # seconds for the compiler; after them there is no objection
REFUSED = "refused:"  # begins the line with the reason
TYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "int32": "i32", "int64": "i64", "int8": "i8", "uint8": "u8", "bool": "i1",
}  # fmt: skip


@contextmanager
def launches() -> Iterator[Callable[[], str]]:
    """Record the launches of kernels inside the context. Yield a function that returns them as JSON, or ""."""
    from flashlab.kernels import interpreter

    found = {}

    def note(*launch):
        described = _launch(*launch)
        found[json.dumps(described)] = described

    def as_json():
        with_flags = {json.dumps(it): it for one in found.values() for it in _with_all_flags(one)}
        return json.dumps(list(with_flags.values())) if with_flags else ""

    with interpreter.launches_noted(note):
        yield as_json


def in_rung(rung: str, name: str, source: str) -> str:
    """Return as JSON: in this module, the last function of ``source`` takes the place of the function ``name``."""
    return json.dumps([{"replaced": name, "text": f"import {rung} as rung\n\n{source}"}])


@cache
def refusal(noted: str) -> str | None:
    """Return the compiler's objection to ``launches`` or ``in_rung``, a sentence; None: it has none, or is not here."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [sys.executable, "-P", __file__],
                input=noted,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": folder},
            )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = [line.removeprefix(REFUSED) for line in run.stdout.splitlines() if line.startswith(REFUSED)]
    return found[-1].strip() if found else None  # the compiler prints too


def _launch(function, names, args, kwargs):
    """Return a launch as plain data: the text of its kernel, and each argument's type, or its value if constant."""
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    sources, signature, constants = {}, {}, {}
    _add_source(function, sources)
    for name in names:
        value = values.get(name, inspect.signature(function).parameters[name].default)
        annotation = str(function.__annotations__.get(name, ""))
        if hasattr(value, "dtype") and hasattr(value, "data_ptr"):
            signature[name] = "*" + TYPES[str(value.dtype).removeprefix("torch.")]
        elif "constexpr" in annotation or hasattr(value, "fn") or value is None:
            signature[name] = "constexpr"
            if hasattr(value, "fn"):
                _add_source(value.fn, sources)
                constants[name] = {"kernel": value.fn.__name__}
            else:
                constants[name] = {"value": getattr(value, "value", value)}
        else:
            signature[name] = "i1" if isinstance(value, bool) else "i32" if isinstance(value, int) else "fp32"
    text = "import triton\nimport triton.language as tl\n\n" + "\n\n".join(sources.values()) + "\n"
    return {"name": function.__name__, "text": text, "signature": signature, "constants": constants}


def _with_all_flags(launch):
    """Return a launch with each combination of values of its constants that are true or false."""
    constants = launch["constants"]
    flags = [name for name, it in constants.items() if isinstance(it.get("value"), bool)]
    values = product((False, True), repeat=len(flags))
    combinations = ({name: {"value": value} for name, value in zip(flags, some, strict=True)} for some in values)
    return [{**launch, "constants": constants | some} for some in combinations]


def _add_source(function, sources):
    """Add the text of a kernel and of all that it uses from its module: kernels, constants, names of modules."""
    if function.__name__ in sources:
        return
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] != "triton":
                raise LookupError(f"a kernel that uses the module {value.__name__} cannot be sent to the compiler")
            sources.setdefault(name, f"import {value.__name__} as {name}")
        elif hasattr(value, "fn") and isinstance(value.fn, types.FunctionType) and value.fn is not function:
            if not value.fn.__module__.startswith("triton."):
                _add_source(value.fn, sources)
        elif type(value).__name__ == "constexpr":
            sources.setdefault(name, f"{name} = tl.constexpr({value.value!r})")
        elif isinstance(value, bool | int | float):
            sources.setdefault(name, f"{name} = float('{value}')" if isinstance(value, float) else f"{name} = {value}")
    text = textwrap.dedent(inspect.getsource(function))
    sources[function.__name__] = "@triton.jit\n" + text[text.index("def ") :]  # the interpreter's copy has no decorator


class Elsewhere:
    """Stand in for the driver of a GPU with this compute capability, with what the compiler asks for."""

    def __init__(self, capability):
        self.number = 10 * capability[0] + capability[1]

    def get_current_device(self):
        return self.number

    def get_current_stream(self, device):
        return None

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.number, 32)


def _refused(noted):
    """Return the compiler's objection to a launch, or to a rung, a sentence; None if it has none."""
    text, filename, names = noted["text"], "<attempt>", {"__name__": "attempt"}
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), names)
    try:
        if "replaced" in noted:
            setattr(names["rung"], noted["replaced"], list(names.values())[-1])
            _compile_rung(names["rung"])
        else:
            _compile_launch(noted, names)
    except (OSError, ImportError):  # the compiler's installation is broken
        return None
    except Exception as error:
        return _sentence(error)
    return None


def _compile_launch(launch, names):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    kernel = names[launch["name"]]
    constants = {
        (kernel.arg_names.index(name),): names[it["kernel"]] if "kernel" in it else it["value"]
        for name, it in launch["constants"].items()
    }
    for capability in CAPABILITIES:
        compile(ASTSource(kernel, launch["signature"], constants), target=GPUTarget("cuda", capability, 32))


def _compile_rung(rung):
    """Compile a rung, with and without a causal mask."""
    import torch
    from triton.runtime import driver

    def compile_only(kernel, grid, tensors, numbers, warps):
        kernel.run(*tensors, *numbers, grid=grid, warmup=True, num_warps=warps)

    driver.set_active(Elsewhere((9, 0)))
    x = torch.empty(1, 1, 256, 64, dtype=torch.float16)  # [B, H, N, d]
    for causal in (False, True):
        rung.attend(x, x, x, causal, launch=compile_only)


def _sentence(error):
    """Return the innermost reason that a compiler gives, with the line that it is about."""
    line, reason = "", ""
    while error is not None:
        words = [part.strip() for part in str(error).splitlines() if part.strip(" ^")]
        reason = words[-1] if words else reason
        node, source = getattr(error, "node", None), getattr(error, "src", None)
        if node is not None and source:
            line = source.split("\n")[node.lineno - 1].strip()
        error = error.__cause__
    reason = re.sub(r"""^\w+\(["'](.*)["']\)$""", r"\1", reason) or "it gives no reason"
    return textwrap.shorten(reason, 300, placeholder=" …") + (f" In: {line}" if line else "")


def main() -> None:
    """Read what to compile from standard input and print the first refusal, in one line."""
    for noted in json.load(sys.stdin):
        if reason := _refused(noted):
            print(REFUSED, " ".join(reason.split()))
            return


if __name__ == "__main__":
    main()
