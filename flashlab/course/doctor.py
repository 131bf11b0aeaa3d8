"""Report how each lesson runs on this machine, what is missing, and which installed versions conflict.

``python -m flashlab.course.doctor`` prints the report. With a shape it recommends a version of attention, with reasons:

    python -m flashlab.course.doctor --shape 1 16 16384 128 --mask causal --direction both

With ``--limits`` it prints the limits of each version.
"""

import argparse
import re

from flashlab.course.lessons import LESSONS, runs
from flashlab.course.measurements import capability_of, check_card
from flashlab.course.versions import DIRECTIONS, DTYPES, MASKS, VERSIONS, Call, check, check_mask
from flashlab.course.which_version_when import advice
from flashlab.machine.arguments import check_arguments
from flashlab.machine.host import Machine, this_machine

SUPPORTED = (3, 11)  # the oldest Python that the course supports


@check_arguments()
def doctor(machine: Machine | None = None) -> None:
    """Print how the lessons run on this machine, what is missing or in their way, and what the machine is."""
    machine = this_machine() if machine is None else machine
    here = [it for it in LESSONS if it.needs == "numpy" or kernels(machine)[0] != "not here"]
    print(f"{'All' if here == list(LESSONS) else f'{len(here)} of'} {len(LESSONS)} lessons run here.")
    print(f"{runs('numpy').capitalize()}: on the CPU. They need no GPU.")
    print(f"{runs('triton').capitalize()}: {'. '.join(kernels(machine))}")
    print(f"{runs('hopper').capitalize()}: {'. '.join(hopper(machine))}")
    for lack in lacks(machine):
        print(f"Missing: {lack}")
    for finding in findings(machine):
        print(f"! {finding}")
    ram = "unknown memory" if machine.ram_bytes is None else f"{machine.ram_bytes / 1e9:.0f} GB of memory"
    print(f"\n{machine.cpu}, {machine.cores} cores, {ram}; {machine.system}, Python {machine.python}")
    print(f"GPU: {machine.gpu or 'none'}")
    print(", ".join(f"{package} {version}" for package, version in machine.versions.items()))


def kernels(machine: Machine) -> tuple[str, str]:
    """Return how the Triton lessons run here ("compiled", "interpreted" or "not here"), and why."""
    if "triton" not in machine.versions:
        if machine.system.startswith("Linux"):
            return "not here", "Triton is missing: run `make lab`, which installs it."
        return "not here", "Triton has no build for this system; read these lessons here, run them on Linux."
    if machine.gpu:
        return "compiled", f"The kernels run on the {machine.gpu}."
    return "interpreted", "Triton's interpreter runs the kernels on the CPU: the same up to rounding, and slow."


def hopper(machine: Machine) -> tuple[str, str]:
    """Return how the lessons on Hopper's kernels run here ("compiled", "interpreted" or "not here"), and why."""
    mode, why = kernels(machine)
    if mode == "not here" or machine.capability == (9, 0):
        return mode, why
    return "interpreted", "The course's interpreter of Gluon runs their kernels. Speeds were measured on an H200."


def lacks(machine: Machine) -> list[str]:
    """Return what a machine with Triton lacks to compile more of the lessons' kernels: one phrase each."""
    if kernels(machine)[0] == "interpreted":
        return ["an NVIDIA GPU. One of compute capability 8.0 or later compiles the kernels, and times them."]
    if hopper(machine)[0] == "interpreted":
        return [f"a Hopper GPU (H100, H200), which compiles the kernels of {runs('hopper')}, and times them."]
    return []


def findings(machine: Machine) -> list[str]:
    """Return known problems of the installed versions: one sentence each, with a remedy."""
    installed = {package: _release(version) for package, version in machine.versions.items()}
    triton, numpy = installed.get("triton"), installed.get("numpy")
    found = []
    if _release(machine.python) < SUPPORTED:
        found.append(f"Python {machine.python} is too old: the course needs {'.'.join(map(str, SUPPORTED))} or newer.")
    if triton and numpy and triton < (3, 7) and numpy >= (2, 4):
        found.append("Triton 3.6 cannot interpret loops with numpy 2.4 or newer: install Triton 3.7.1 or numpy 2.3.")
    if triton and triton >= (3, 9):
        found.append("Triton 3.9 has no block pointers (tl.make_block_ptr): this course does not use them, but older "
                     "kernels from elsewhere will not run.")  # fmt: skip
    if triton and machine.capability and machine.capability < (8, 0):
        found.append("The kernels are checked for compute capability 8.0 and later; this GPU has "
                     f"{machine.capability[0]}.{machine.capability[1]} and no bfloat16.")  # fmt: skip
    if "torch" not in installed:
        found.append(
            "PyTorch is missing: the kernels and some other lessons need it; run `make lab`, which installs it."
        )
    return found


def _release(version):
    """Return the first two numbers of a version: (3, 7) of "3.7.1"."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def limits() -> None:
    """Print what each version of attention cannot do, with the sources."""
    for version in VERSIONS:
        print(f"{version.name} ({version.release}), {version.called}")
        for limit in version.limits:
            print(f"  {limit.message} ({limit.source})")


def call_of(shape: list[int], options: dict, machine: Machine) -> Call:
    """Return the call of this shape, on the card of the options or on this machine's.

    options: the options that the command line contains.

    Raises: the errors of ``versions.check`` and of ``measurements.check_card``.
    """
    if len(shape) != 4:
        raise ValueError(f"expected a shape of four numbers, B H N d, got {shape}")
    B, H, N, d = shape
    for mask in options.get("mask", ()):
        check_mask("mask", mask)
    masks = sorted(set(options.get("mask", ["full"])), key=MASKS.index)
    gpu = machine.gpu and (machine.gpu.removeprefix("NVIDIA ") if capability_of(machine.gpu) else machine.gpu)
    fields = {"Nk": N, "Hk": H, "card": gpu} | options
    fields["mask"] = " and ".join(masks)
    capability = capability_of(options["card"]) if "card" in options else machine.capability
    call = Call(B, H, N, d, **fields, capability=capability)
    check(call)
    check_card(call)
    return call


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m flashlab.course.doctor", description=doctor.__doc__,
                                     argument_default=argparse.SUPPRESS)  # fmt: skip
    parser.add_argument("--shape", nargs=4, type=int, metavar=("B", "H", "N", "D"),
                        help="say which version to call: texts, heads, queries, width of a head")  # fmt: skip
    parser.add_argument("--keys", dest="Nk", type=int, metavar="KEYS", help="keys, if not as many as queries")
    parser.add_argument("--kv-heads", dest="Hk", type=int, metavar="HEADS", help="heads of keys and values, if fewer")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--values", dest="dv", type=int, metavar="D", help="width of values, if not that of keys")
    parser.add_argument("--mask", nargs="+", choices=MASKS, help="the mask, and what is done to scores and weights")
    parser.add_argument("--window", type=int, metavar="KEYS", help="keys before its own that a query sees")
    parser.add_argument("--direction", choices=DIRECTIONS)
    parser.add_argument("--card", help="another card than this machine's, such as 'A100 80 GB'")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--limits", action="store_true", help="print what each version cannot do, and nothing else")
    options = vars(parser.parse_args(argv))
    if options == {"limits": True}:
        limits()
        return
    if "limits" in options:
        parser.error("--limits takes no other option")
    shape = options.pop("shape", None)
    if shape is None and options:
        parser.error("all other options describe a call: give its --shape, too")
    machine = this_machine()
    if shape is None:
        doctor(machine)
        return
    try:
        call = call_of(shape, options, machine)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(advice(call)))


if __name__ == "__main__":
    main()
