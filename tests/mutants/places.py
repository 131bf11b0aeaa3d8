"""The functions of which mutants are generated, with the checks that must reject them."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType

from flashlab.kernels import linear_attention as kernel_linear
from flashlab.machine import operations, ranks, sm
from flashlab.models import plain
from flashlab.reference import (
    dropout,
    eight_bits,
    linear_attention,
    mask_kinds,
    masks,
    next_machine,
    online_softmax,
    pipeline,
    recomputation,
    ring,
    roles,
    rules,
    scores,
    tiling,
)
from tests.mutants.acceptance import in_numpy, in_triton, of_machines


@dataclass(frozen=True)
class Place:
    """A function of a module, or a method "Class.name", and the checks one of which must reject each mutant."""

    module: ModuleType
    function: str
    checks: tuple[Callable, ...]

    @property
    def name(self) -> str:
        """Return "module.function"."""
        return f"{self.module.__name__.rpartition('.')[2]}.{self.function}"

    @property
    def right(self) -> Callable:
        """Return the function, which is right."""
        return attrgetter(self.function)(self.module)


def _of(checks, module, functions):
    return [Place(module, function, tuple(checks)) for function in functions.split()]


TILED = [
    in_numpy.tiled_traffic,
    in_numpy.tiled_forward,
    in_numpy.tiled_dropout,
    in_numpy.tiled_backward,
    in_numpy.scored,
]
MASKED = [in_numpy.tiled_forward, in_numpy.masked_forward]
CHIPS = [of_machines.roles_of_the_next_machine, of_machines.simulated_pipeline, of_machines.operations_of_an_sm]
CYCLES, ADDITIONS = [of_machines.cycles_of_the_next_machine], [of_machines.order_of_additions]

PLACES = [
    *_of(TILED, online_softmax, "update identity finish"),
    *_of(TILED, tiling, "tiles fa1_forward fa2_forward fa1_traffic fa2_traffic _covered dropped"),
    *_of([in_numpy.tiled_forward, in_numpy.scored], rules, "Rules.scores Rules.start"),
    *_of([in_numpy.scored], scores, "Softcap.apply Softcap.slope Alibi.apply slopes"),
    *_of(TILED, recomputation, "gradients delta rebuild backward traffic"),
    *_of(TILED, dropout, "Dropout.tile Dropout.random"),
    *_of(MASKED, mask_kinds, "Window.visible Window.whole Window.bounds Mask.apply Keys.visible Keys.whole tile"),
    *_of(MASKED, mask_kinds, "Documents.bounds Documents.whole Documents._own Documents.visible Blocks.tiles _touched"),
    *_of(MASKED, mask_kinds, "And.whole And.visible Or.visible"),
    *_of(MASKED, masks, "prefix"),
    *_of([in_numpy.torch_forward], plain, "update tiled"),
    *_of([in_numpy.linear_chunks], linear_attention, "step distances merge"),
    *_of([in_numpy.late_maximum], next_machine, "lazy_update"),
    *_of([in_numpy.powers_of_two], next_machine, "exp2 _remez bfloat16"),
    *_of([in_numpy.in_eight_bits], eight_bits, "attention update to_e4m3 quantise _largest hadamard rotate"),
    *_of([in_numpy.in_eight_bits], eight_bits, "without_mean TensorCore.__call__ cut"),
    *_of(CYCLES, next_machine, "forward_cycles backward_cycles Rates.lane_cycles Rates.exponential_cycles"),
    *_of(ADDITIONS, next_machine, "visits turns pairs finished"),
    *_of([of_machines.ring_of_three], ring, "forward backward merge"),
    *_of([of_machines.blocks_of_placements], ranks, "zigzag _part _block"),
    *_of([of_machines.simulated_pipeline], pipeline, "produce consume Pipeline.weighted"),
    *_of([of_machines.roles_of_the_next_machine], roles, "softmax correct multiply weights"),
    *_of(CHIPS, operations, "Barrier.completed Barrier._advance"),
    *_of(CHIPS, sm, "SM._check SM._arrive SM._product SM._commit SM._hold Unit.add"),
    *_of([in_triton.kernel_linear], kernel_linear, "linear_attention_chunks"),
]

EQUIVALENT = {  # by reason: "function: edit" of mutants that compute the same
    "a row that sees no key has m = -inf": (
        "online_softmax.finish: np.where(state.l == 0, -np.inf, state.m + np.log(l_safe)) → state.m + np.log(l_safe)",
        "plain.tiled: torch.where(l_i == 0, -torch.inf, m_i + torch.log(l_safe)) → m_i + torch.log(l_safe)",
    ),
    "alpha, or the weight of an empty side, is 0: the first value does not count": (
        "online_softmax.identity: np.zeros(Br, dtype) → np.ones(Br, dtype)",
        "ring.forward: np.zeros((len(i), V.shape[1]), Q.dtype) → np.ones((len(i), V.shape[1]), Q.dtype)",
    ),
    "more tiles are visited, of which the mask hides all": (
        "plain.tiled: causal → False",
        "plain.tiled: min(i + Br + Nk - Nq, Nk) → Nk",
        "plain.tiled: i + Br + Nk - Nq → i + Br + Nk",
        "plain.tiled: i + Br + Nk - Nq → i + Br + Nk + Nq",
    ),
    "a mask that hides nothing is applied": ("mask_kinds.Mask.apply: self.whole(rows, cols, shape) → False",),
    "what the negative number leads to is hidden, or multiplied by 0": (
        "mask_kinds.Documents.visible: np.maximum(own, 0) → own",
        "linear_attention.distances: np.maximum(away, 0) → away",
        "linear_attention.linear_attention_chunks: tl.maximum(away, 0) → away",
        "linear_attention.linear_attention_chunks: tl.maximum(c - 1 - r, 0) → c - 1 - r",
    ),
    "the list is cut to H": ("scores.slopes: range(1, 2 * below, 2) → range(1, 2 * below - 2, 2)",),
    "m stays unless it rises by more than the threshold": (
        "next_machine.lazy_update: np.maximum(m_i, S_ij.max(-1, initial=-np.inf)) → S_ij.max(-1, initial=-np.inf)",
        "roles.softmax: np.maximum(m_i, S_j.max(-1)) → S_j.max(-1)",
    ),
    "m may stay or rise where it rises by the threshold itself": (
        "next_machine.lazy_update: m_new > m_i + threshold * LN_2 → m_new >= m_i + threshold * LN_2",
        "roles.softmax: m_new > m_i + design.threshold * LN_2 → m_new >= m_i + design.threshold * LN_2",
    ),
    "the Remez exchange ends at the same polynomial": (
        "next_machine._remez: 1 - np.cos(np.pi * np.arange(1, places + 1) / places)"
        " → 1 + np.cos(np.pi * np.arange(1, places + 1) / places)",
        "next_machine._remez: np.pi * np.arange(1, places + 1) → np.arange(1, places + 1)",
        "next_machine._remez: range(8) → range(8 - 1)",
        "next_machine._remez: np.flatnonzero(np.diff(np.sign(error))) + 1 → np.flatnonzero(np.diff(np.sign(error)))",
    ),
    "hi is applied twice": (
        "ranks._part: hi is not None → False",
        "ranks._part: max(q0, k0 - hi) → q0",
        "ranks._part: min(k1, q1 + hi) → k1",
    ),
    "a block without queries has no keys, and vice versa": (
        "ranks._part: q0 >= q1 → q0 > q1",
        "ranks._part: k0 >= k1 → k0 > k1",
    ),
    "the phase is over, or no program waits for the turn": (
        "pipeline.consume: this and this.first → this",
        "pipeline.consume: g & 1 → g",
        "pipeline.consume: design.ping_pong → True",
    ),
    "a design with ``early`` fails before this line": ("pipeline.consume: not design.early → True",),
    "there are two tiles of queries": ("roles.correct: rows + len(O_i) → len(O_i)",),
    "weights take longer than the correction": (
        "roles.multiply: yield Wait(pipe.corrected[w], j & 1) → pass",
        "roles.multiply: j & 1 → j",
    ),
    "a result is claimed by one product at a time": ("sm.SM._hold: buffer.coming == tile → True",),
}
