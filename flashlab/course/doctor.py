"""This machine: what it is, what each lesson can do on it, which versions do not go together.

``python -m flashlab.course.doctor`` prints it.
"""

from flashlab.machine.host import this_machine

LESSONS = (
    "start_here", "memory_hierarchy", "standard_attention", "safe_softmax", "online_softmax", "roads_not_taken",
    "tiling", "block_size", "recomputation", "io_complexity", "first_triton_kernel", "triton_forward",
    "triton_backward", "attention_in_a_model", "hopper",
)  # fmt: skip
FIRST_KERNEL = 10  # the first lesson that needs Triton
HOPPER = 14  # the lesson whose kernels need compute capability 9.0


def doctor(machine=None) -> None:
    """Print what this machine is, what the lessons can do on it, and what stands in their way."""
    machine = machine or this_machine()
    ram = "unknown memory" if machine.ram_bytes is None else f"{machine.ram_bytes / 1e9:.0f} GB of memory"
    print(f"{machine.cpu}, {machine.cores} cores, {ram}; {machine.system}, Python {machine.python}")
    print(f"GPU: {machine.gpu or 'none'}")
    print(", ".join(f"{package} {version}" for package, version in machine.versions.items()))
    mode, why = kernels(machine)
    print(f"\nLessons 00 to {FIRST_KERNEL - 1:02}: run here, on the CPU; they need no GPU.")
    print(f"Lessons {FIRST_KERNEL} to {HOPPER - 1}: {mode}. {why}")
    print(f"Lesson {HOPPER}: {'. '.join(hopper(machine))}")
    for finding in findings(machine):
        print(f"! {finding}")


def kernels(machine) -> tuple[str, str]:
    """How the Triton lessons run here ("compiled", "interpreted" or "not here"), and why."""
    if "triton" not in machine.versions:
        if machine.system.startswith("Linux"):
            return "not here", "Triton is missing: run `make lab`, which installs it."
        return "not here", "Triton has no build for this system; read these lessons here, run them on Linux."
    if machine.gpu:
        return "compiled", f"The kernels run on the {machine.gpu}."
    return "interpreted", "Without a GPU, Triton's interpreter runs the kernels: exact, and slow."


def hopper(machine) -> tuple[str, str]:
    """How the Hopper lesson runs here ("compiled", "as measured" or "not here"), and why."""
    mode, why = kernels(machine)
    if mode == "not here" or machine.capability == (9, 0):
        return mode, why
    return "as measured", "Its kernels need a Hopper GPU (H100, H200); elsewhere it shows what was measured on one."


def findings(machine) -> list[str]:
    """What is known to go wrong with what is installed, one sentence each, with what to do."""
    have = {package: _version(text) for package, text in machine.versions.items()}
    triton, numpy = have.get("triton"), have.get("numpy", (0,))
    found = []
    if _version(machine.python) < (3, 10):
        found.append(f"Python {machine.python} is too old: the course needs 3.10 or newer.")
    if triton and triton[:2] <= (3, 6) and numpy >= (2, 4):
        found.append("Triton 3.6 cannot interpret loops with numpy 2.4 or newer: install Triton 3.7.1 or numpy 2.3.")
    if triton and triton >= (3, 9):
        found.append(
            "Triton 3.9 has no block pointers (tl.make_block_ptr): this course does not use them, older "
            "kernels from elsewhere will not run."
        )
    if triton and machine.capability and machine.capability < (8, 0):
        found.append(
            "The kernels are checked for compute capability 8.0 and later; this GPU has "
            f"{machine.capability[0]}.{machine.capability[1]} and no bfloat16."
        )
    if "torch" not in have:
        found.append("PyTorch is missing: the last lessons need it; run `make lab`, which installs it.")
    return found


def _version(text):
    numbers = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


if __name__ == "__main__":
    doctor()
