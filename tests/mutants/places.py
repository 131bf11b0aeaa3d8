"""The functions of which mutants are generated, with the checks that must reject them."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

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
from tests.mutants import acceptance


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
    def owner(self) -> object:
        """Return the module or the class that has the function."""
        owner = self.function.rpartition(".")[0]
        return getattr(self.module, owner) if owner else self.module

    @property
    def right(self) -> Callable:
        """Return the function, which is right."""
        return getattr(self.owner, self.function.rpartition(".")[2])


def _of(module, functions, *checks):
    return [Place(module, function, checks) for function in functions.split()]


PLACES = [
    *_of(online_softmax, "update identity finish", acceptance.tiled_forward),
    *_of(plain, "update tiled", acceptance.torch_forward),
    *_of(
        tiling,
        "tiles fa1_forward fa2_forward fa1_traffic fa2_traffic _covered dropped",
        acceptance.tiled_forward,
        acceptance.tiled_traffic,
        acceptance.tiled_dropout,
    ),
    *_of(rules, "Rules.scores Rules.start", acceptance.tiled_forward, acceptance.scored),
    *_of(
        mask_kinds,
        "Window.visible Mask.apply Window.whole Window.bounds",
        acceptance.tiled_forward,
        acceptance.masked_forward,
    ),
    *_of(mask_kinds, "Documents.bounds Documents.whole Documents._own Documents.visible", acceptance.masked_forward),
    *_of(
        mask_kinds,
        "Keys.visible Keys.whole And.whole And.visible Or.visible Blocks.tiles tile _touched",
        acceptance.masked_forward,
    ),
    *_of(masks, "prefix", acceptance.masked_forward),
    *_of(scores, "Softcap.apply Softcap.slope Alibi.apply slopes", acceptance.scored),
    *_of(
        recomputation,
        "gradients delta rebuild backward traffic",
        acceptance.tiled_backward,
        acceptance.tiled_traffic,
        acceptance.tiled_dropout,
        acceptance.scored,
    ),
    *_of(dropout, "Dropout.tile Dropout.random", acceptance.tiled_dropout),
    *_of(linear_attention, "step distances merge", acceptance.linear_chunks),
    *_of(next_machine, "lazy_update", acceptance.late_maximum),
    *_of(next_machine, "exp2 _remez bfloat16", acceptance.powers_of_two),
    *_of(
        next_machine,
        "forward_cycles backward_cycles Rates.lane_cycles Rates.exponential_cycles",
        acceptance.cycles_of_the_next_machine,
    ),
    *_of(next_machine, "visits turns pairs finished", acceptance.order_of_additions),
    *_of(
        eight_bits,
        "attention update to_e4m3 quantise _largest hadamard rotate without_mean TensorCore.__call__ cut",
        acceptance.in_eight_bits,
    ),
    *_of(ring, "forward backward merge", acceptance.ring_of_three),
    *_of(ranks, "zigzag _part _block", acceptance.blocks_of_placements),
    *_of(pipeline, "produce consume Pipeline.weighted", acceptance.simulated_pipeline),
    *_of(operations, "Barrier.completed Barrier._advance", acceptance.simulated_pipeline),
    *_of(
        sm,
        "SM._check SM._arrive Unit.add SM._product",
        acceptance.simulated_pipeline,
        acceptance.roles_of_the_next_machine,
    ),
    *_of(roles, "softmax correct multiply weights", acceptance.roles_of_the_next_machine),
    *_of(sm, "SM._commit SM._hold", acceptance.roles_of_the_next_machine),
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
    "another condition hides what the negative number leads to": (
        "mask_kinds.Documents.visible: np.maximum(own, 0) → own",
        "linear_attention.distances: np.maximum(away, 0) → away",
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
    "the exchange arrives at the same polynomial": (
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
    "without a query there is no key, and the other way round": (
        "ranks._part: q0 >= q1 or k0 >= k1 or empty → q0 >= q1",
        "ranks._part: q0 >= q1 or k0 >= k1 or empty → k0 >= k1",
        "ranks._part: q0 >= q1 → q0 > q1",
        "ranks._part: k0 >= k1 → k0 > k1",
    ),
    "a phase is over, or a turn that nobody waits for": (
        "pipeline.consume: this and this.first → this",
        "pipeline.consume: g & 1 → g",
        "pipeline.consume: design.ping_pong → True",
    ),
    "a design that is early fails before": ("pipeline.consume: not design.early → True",),
    "the tiles of queries are two": ("roles.correct: rows + len(O_i) → len(O_i)",),
    "weights take longer than the correction": (
        "roles.multiply: yield Wait(pipe.corrected[w], j & 1) → pass",
        "roles.multiply: j & 1 → j",
    ),
    "a result is claimed by one product at a time": ("sm.SM._hold: buffer.coming == tile → True",),
}
