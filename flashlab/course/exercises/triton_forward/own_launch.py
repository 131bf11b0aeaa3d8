"""The wrapper around the learner's own kernel: ``launch`` makes the outputs and the grid, and starts the kernel."""

import numpy as np
import torch

from flashlab.course.exercises.triton_forward.one_head import Output, attention_one_head
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake
from flashlab.grading.kernel_laws import moved
from flashlab.kernels import DEVICE, tl, triton
from flashlab.reference import masks
from flashlab.reference.attention import attention


def attention_of_one_head(kernel, Q, K, V, causal):
    """Return O [Nq, d] and lse [Nq] in float32 of Q [Nq, d], K and V [Nk, d], tensors of float16 on one device."""
    (Nq, d), Nk = Q.shape, len(K)
    Q, K, V = Q.contiguous(), K.contiguous(), V.contiguous()  # the kernel takes rows that lie d elements apart
    O = torch.empty(Nq, d, dtype=torch.float32, device=Q.device)  # [Nq, d]
    lse = torch.empty(Nq, dtype=torch.float32, device=Q.device)  # [Nq]
    Br, Bc = 64, 64
    grid = (triton.cdiv(Nq, Br),)
    kernel[grid](Q, K, V, O, lse, Nq, Nk, d**-0.5, d, Br, Bc, causal, num_warps=4, num_stages=2)
    return O, lse


NO_DEVICE = torch.device("meta")  # of a tensor that is made without a device: it holds no numbers
with NO_DEVICE:
    torch.empty(0, dtype=torch.float32)  # torch notes its functions that make tensors now, before a check replaces them


def _launch(attempt, Q, K, V, causal, gap):
    """Call a learner's wrapper with tensors whose rows lie d + ``gap`` elements apart, and the course's kernel."""
    arrays, d = (Q, K, V), Q.shape[1]
    Q, K, V = (torch.from_numpy(np.pad(X, ((0, 0), (0, gap)))).to(DEVICE)[:, :d] for X in arrays)
    try:
        with NO_DEVICE:
            O, lse = attempt(attention_one_head, Q, K, V, causal)
    except NotImplementedError as error:
        if "meta tensor" in str(error):
            raise ValueError("a new tensor is not on the device of Q: make it with device=Q.device.") from None
        raise
    for array, tensor in zip(arrays, (Q, K, V), strict=True):
        array[:] = tensor.cpu().numpy()  # the check compares it with what it was
    for name, tensor, shape in (("O", O, Q.shape), ("lse", lse, Q.shape[:1])):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float32 or tensor.shape != shape:
            found = (
                f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            )
            raise TypeError(f"expected {name} in torch.float32 {tuple(shape)}, got {found}")
    return Output(O.cpu().numpy(), lse.cpu().numpy())


def _dense(Q, K, V, causal, gap):
    return Output(*attention(Q, K, V, mask=masks.causal() if causal else None, return_lse=True))


def _inputs(rng, Nq, Nk, d, causal, gap=0):
    return *(rng.normal(size=(N, d)).astype(np.float16) for N in (Nq, Nk, Nk)), causal, gap


def _draw(rng, size):
    """Draw lengths, among them whole tiles of queries, however many rows up to 128 an attempt gives a tile."""
    Nq, Nk = rng.integers(1, 14 * size, 2).tolist()
    Nq = 128 if size > 5 and rng.random() < 0.5 else Nq
    return _inputs(rng, Nq, Nk, int(rng.choice([16, 32, 64])), bool(rng.integers(2)), int(rng.choice([0, 0, 8])))


def _edge(property, *sizes):
    return Case(property, _inputs(np.random.default_rng(11), *sizes))


def _no_idle_program(programs, Q, *others):
    """Return a sentence if programs stored nothing; None if not."""
    idle = sum(not moved("store", [program]) for program in programs)
    if idle:
        return (
            f"the numbers are right, but {len(programs)} programs were launched for {len(Q)} rows, and {idle} of them "
            "had none: ⌈Nq / Br⌉ will do."
        )
    return None


def _passes_16_bits(programs, Q, K, V, *others):
    """Return a sentence if programs loaded more than Q once, and K and V once per program; None if not."""
    loaded, enough = moved("load", programs), Q.nbytes + len(programs) * (K.nbytes + V.nbytes)
    if loaded > enough:
        return (
            f"the numbers are right, but {loaded:,} bytes were loaded where {enough:,} will do: launch the kernel "
            "once, with Q, K and V in float16, as they are."
        )
    return None


@triton.jit
def sevens(Q, K, V, O, lse, Nq, Nk, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr, causal: tl.constexpr):
    rows = tl.program_id(0) * Br + tl.arange(0, Br)  # [Br]
    tl.store(lse + rows, tl.full([Br], 7, tl.float32), mask=rows < Nq)
    tl.store(O + rows[:, None] * d + tl.arange(0, d), tl.full([Br, d], 7, tl.float32), mask=rows[:, None] < Nq)


def _launched(attempt):
    """Law: O and lse are what the kernel stores."""
    Q, K, V = (torch.ones(16, 16, dtype=torch.float16, device=DEVICE) for _ in range(3))
    if not all((x == 7).all() for x in attempt(sevens, Q, K, V, False)):
        return Broken(
            "a kernel that stores 7 everywhere",
            "the numbers are right, but not those that `kernel` stores: launch it, and return its O and lse.",
            if_right=True,
        )


launch = Exercise(
    reference=attention_of_one_head,
    launch=_launch,
    exact=_dense,
    edges=(
        _edge("one query, one key", 1, 1, 16, False),
        _edge("fewer queries than keys, causal", 20, 90, 32, True),
        _edge("more queries than a tile has rows", 150, 20, 16, False),
        _edge("more queries than keys, causal", 90, 20, 32, True),
        _edge("inputs that are not contiguous", 20, 30, 16, False, 8),
    ),
    draw=_draw,
    draws=10,
    moves=(_no_idle_program, _passes_16_bits),
    once=(_launched,),
    sways=True,
    mistakes=(
        Mistake("rounded the grid down, so that the last queries have no program.", "Use triton.cdiv(Nq, Br).",
                "triton.cdiv(Nq, Br)", "max(1, Nq // Br)"),
        Mistake("made the grid for the keys.", "A program computes Br rows of O: ⌈Nq / Br⌉ programs.",
                "triton.cdiv(Nq, Br)", "triton.cdiv(Nk, Br)"),
        Mistake("passed tensors as they came, but the kernel takes rows that lie d elements apart.",
                "Call .contiguous() first.",
                "Q.contiguous(), K.contiguous(), V.contiguous()", "Q, K, V"),
        Mistake("exchanged Nq and Nk.", "The kernel takes Nq first.", "Nq, Nk, d**-0.5", "Nk, Nq, d**-0.5"),
        Mistake("passed no scale.", "It is 1/√d.", "d**-0.5", "1.0"),
        Mistake("made O in the dtype of Q.", "The kernel's sums are float32, and so is O.",
                "O = torch.empty(Nq, d, dtype=torch.float32", "O = torch.empty(Nq, d, dtype=Q.dtype"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Which tensors does the kernel need beside its inputs? And how many programs compute O, Br rows each?",
        "Make O and lse with torch.empty, in float32 on Q.device. The grid is a tuple: (triton.cdiv(Nq, Br),).",
        "kernel[grid](Q, K, V, O, lse, Nq, Nk, d**-0.5, d, Br, Bc, causal, num_warps=4, num_stages=2), after "
        "Q = Q.contiguous(), and the same for K and V.",
    ),
)  # fmt: skip
