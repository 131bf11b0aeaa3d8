"""The schedule of a FlashAttention-3 forward pass, run with real numbers on a simulated multiprocessor.

One program, the producer, issues copies of tiles. One or two others, the consumers, issue products to the tensor core
and compute softmaxes on the vector units. Barriers synchronise the programs. Step g of a consumer
is S = Q K_g^T and O += P_(g-1) V_(g-1); it needs K_g and V_(g-1), which are in one stage of shared memory. Stages are
used in turn, so step g uses stage g % stages in round g // stages.

It is a model. It leaves out the time that barriers and instructions take, power, and caches that miss; a real kernel
pays for them. Source: FlashAttention-3 (arXiv 2407.08608), sections 3.1 and 3.2, Algorithms 1 and 2.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from flashlab.machine import hardware
from flashlab.machine.arguments import check_arguments, check_fields
from flashlab.machine.operations import Arrive, Barrier, Buffer, Copy, Finish, Product, Store, Tile, Wait, Work
from flashlab.machine.sm import SM, Event
from flashlab.reference import online_softmax, tiling
from flashlab.reference.mask_kinds import Mask
from flashlab.reference.masks import as_mask
from flashlab.reference.online_softmax import State
from flashlab.reference.rules import Rules

H100 = hardware.CARDS["H100 SXM"]
TILE, COLS = 128, 128  # queries and keys of the block whose cycles are counted


@dataclass(frozen=True)
class Budget:
    """The cycles that a consumer's share of one block, ``rows`` queries by 128 keys, takes on one SM of Hopper.

    Vector work is what a thread of our kernel executes for its 64 scores (notebooks/data/hopper_instructions.json), at
    the rates of NVIDIA's CUDA C++ Programming Guide: 66 exponentials (one per score, 2 alphas) at 16 per cycle, 68
    maxima and 32 conversions at 64 (for conversions an assumption), 134 sums and products at 128. That makes 862, here
    rounded to a multiple of 8. alpha * O takes one multiplication per element of O.
    """

    d: int = 128
    rows: int = 64
    flops: int = 4096  # of the tensor core per cycle: half of a B200's, FlashAttention-4 (arXiv 2603.05451), 2.2
    depth: int = 16  # of d, or of keys, that one instruction takes (wgmma m64nNk16)
    softmax_of_64: int = 864  # cycles for 64 rows
    lanes: int = 128  # multiplications per cycle
    bytes: float = H100.l2_rate / H100.sms / H100.clock  # from L2 to one SM, per cycle
    latency: int = 263  # cycles of L2, on an H800: Luo et al. 2024, arXiv 2402.13499
    issue: int = 8  # cycles between two instructions of a warpgroup: assumed, without effect if consumers take turns

    def __post_init__(self) -> None:
        check_fields(self, latency=0, issue=0)
        if self.d % self.depth:
            raise ValueError(f"d must be a multiple of {self.depth}, which one instruction takes, got {self.d}")

    @property
    def scores(self) -> tuple[int, int]:
        """Return the instructions of Q K^T, and the cycles of each."""
        return self.d // self.depth, 2 * self.rows * COLS * self.depth // self.flops

    @property
    def weighted(self) -> tuple[int, int]:
        """Return the instructions of P V, and the cycles of each."""
        return COLS // self.depth, 2 * self.rows * self.d * self.depth // self.flops

    @property
    def softmax(self) -> int:
        """Return the cycles of one block's softmax."""
        return self.softmax_of_64 * self.rows // 64

    @property
    def rescale(self) -> int:
        """Return the cycles of alpha * O."""
        return self.rows * self.d // self.lanes

    def copy(self, rows: int) -> int:
        """Return the cycles in which rows of Q, K, V or O are copied, 2 bytes per element."""
        return round(2 * rows * self.d / self.bytes)


@dataclass(frozen=True)
class Design:
    """The choices of a pipeline, and what its programs agree on. The last four have one right value each."""

    stages: int = 2
    ping_pong: bool = True  # two consumers take turns at the tensor core
    overlap: bool = True  # within a consumer: softmax beside the product P V of the block before
    consumers: int = 2  # of 64 rows each; 1 of 128: both warpgroups locked together
    whole_q: bool = True  # consumers wait for all rows of Q, as in FlashAttention-3; if False, each for its own rows
    budget: Budget = Budget()
    full_phase: Callable[[int], int] = lambda n: n & 1  # the phase that consumers wait for, in round n of a stage
    empty_phase: Callable[[int], int] = lambda n: (n & 1) ^ 1  # the producer: in round 0 it need not wait
    empty_count: int | None = None  # arrivals that free a stage; None for one of each consumer
    early: bool = False  # consumers free a stage when its products are issued, not when they are done

    def __post_init__(self) -> None:
        check_fields(self, consumers=(1, 2), empty_count=0)

    @property
    def cost(self) -> Budget:
        """Return the budget for one consumer's rows."""
        return replace(self.budget, rows=TILE // self.consumers)


class Step(NamedTuple):
    """One block of keys for one tile of queries."""

    t: int  # number of the tile of queries
    j: int  # number of the block of keys
    rows: slice
    cols: slice
    first: bool  # of its tile
    last: bool


class Problem:
    """Inputs, results, and the steps in their order: blocks of keys from right to left."""

    def __init__(self, Q: np.ndarray, K: np.ndarray, V: np.ndarray, Br: int, Bc: int, rules: Rules) -> None:
        memory, self.rules = tiling.placed(Q, K, V, Br, Bc, None, rules), rules
        self.O, self.lse = memory.tensors["O"], memory.tensors["lse"]  # [Nq, dv], [Nq]   NaN until they are stored
        self.Q, self.K, self.V = (tensor.astype(self.lse.dtype) for tensor in (Q, K, V))
        self.Br, self.Bc, self.steps = Br, Bc, []
        self.shape = len(Q), len(K)
        keys = tiling.tiles(len(K), Bc) or [slice(0, 0)]
        for t, rows in enumerate(tiling.tiles(len(Q), Br)):
            visited = rules.mask.tiles(rows, Bc, self.shape) or [0]
            self.steps += [Step(t, j, rows, keys[j], j == visited[-1], j == visited[0]) for j in reversed(visited)]

    def pairs(self) -> Iterator[tuple[Step | None, Step | None]]:
        """Yield for each step g the blocks of K_g and of V_(g-1), None where there is none."""
        return zip([*self.steps, None], [None, *self.steps], strict=True)


class Pipeline:
    """Everything that programs share: a problem, a design, buffers for tiles, and the barriers that guard them."""

    def __init__(self, problem: Problem, design: Design) -> None:
        self.problem, self.design, self.cost = problem, design, design.cost
        d, dv, dtype = problem.K.shape[1], problem.V.shape[1], problem.K.dtype
        stages, consumers = range(design.stages), range(design.consumers)
        self.rows = -(-problem.Br // design.consumers)
        self.Q = [Buffer(f"Q[{w}]", (self.rows, d), dtype) for w in consumers]
        self.K = [Buffer(f"K[{stage}]", (problem.Bc, d), dtype) for stage in stages]
        self.V = [Buffer(f"V[{stage}]", (problem.Bc, dv), dtype) for stage in stages]
        self.q_full = [Barrier(f"q_full[{w}]", 1) for w in consumers]
        self.q_empty = [Barrier(f"q_empty[{w}]", 1) for w in consumers]
        self.turn = [Barrier(f"turn[{w}]", 1) for w in consumers]
        self.full = [Barrier(f"full[{stage}]", 1) for stage in stages]
        arrivals = design.consumers if design.empty_count is None else design.empty_count
        self.empty = [Barrier(f"empty[{stage}]", arrivals) for stage in stages]

    def share(self, rows: slice, w: int) -> slice:
        """Return consumer w's rows of a tile of queries."""
        start, stop = (min(rows.start + self.rows * n, rows.stop) for n in (w, w + 1))
        return slice(start, stop)

    def scores(self, w: int, step: Step, g: int) -> Product:
        """Return the product S_ij = Q_i K_j^T [Br, Bc], with scale and mask."""
        p, rows = self.problem, self.share(step.rows, w)
        reads = {self.Q[w]: Tile("Q", step.t), self.K[g % self.design.stages]: Tile("K", step.j, g)}

        def product(Q_i: np.ndarray, K_j: np.ndarray) -> np.ndarray:
            Q_i, K_j = Q_i[: _rows(rows)], K_j[: _rows(step.cols)]  # [Br, d], [Bc, d]
            return p.rules.scores(Q_i, K_j, rows, step.cols, p.shape)

        return Product("S", step.j, reads, product, *self.cost.scores)

    def weighted(self, step: Step, g: int, state: Any, S_ij: np.ndarray) -> Product:
        """Return the product P_ij V_j, added to the state. The arithmetic of S_ij's softmax is done here, too."""
        V = self.V[g % self.design.stages]
        if step.first:
            state = online_softmax.identity(len(S_ij), V.array.shape[1], S_ij.dtype)

        def product(V_j: np.ndarray) -> State:
            return online_softmax.update(state, S_ij, V_j[: _rows(step.cols)])

        return Product("PV", step.j, {V: Tile("V", step.j, g)}, product, *self.cost.weighted)

    def finish(self, w: int, step: Step, state: State) -> Store:
        """Divide by l and store."""
        rows = self.share(step.rows, w)
        self.problem.O[rows], self.problem.lse[rows] = online_softmax.finish(state)
        return Store("O", step.t, self.cost.copy(self.cost.rows))


def _rows(side: slice) -> int:
    return side.stop - side.start


def produce(pipe: Pipeline) -> Generator[object, Any, None]:
    """Run the producer: ask for every tile in the order in which it is used, as soon as there is room for it."""
    design, cost, problem = pipe.design, pipe.cost, pipe.problem
    for g, (this, before) in enumerate(problem.pairs()):
        stage, n = g % design.stages, g // design.stages
        K, V, full = pipe.K[stage], pipe.V[stage], pipe.full[stage]
        yield Wait(pipe.empty[stage], design.empty_phase(n))
        yield Arrive(full, (K.nbytes if this else 0) + (V.nbytes if before else 0))
        if this:
            yield Copy(Tile("K", this.j, g), problem.K[this.cols], K, full, cost.copy(COLS))
        if before:
            yield Copy(Tile("V", before.j, g), problem.V[before.cols], V, full, cost.copy(COLS))
        if this and this.first:
            for w, Q_i in enumerate(pipe.Q):
                yield Wait(pipe.q_empty[w], (this.t & 1) ^ 1)
                yield Arrive(pipe.q_full[w], Q_i.nbytes)
                rows = pipe.share(this.rows, w)
                yield Copy(Tile("Q", this.t), problem.Q[rows], Q_i, pipe.q_full[w], cost.copy(cost.rows))


def consume(pipe: Pipeline, w: int) -> Generator[object, Any, None]:
    """Run consumer w: compute its rows of every tile of queries."""
    design, cost = pipe.design, pipe.cost
    S_ij: Any = None
    S_next: Any = None
    state = None
    for g, (this, before) in enumerate(pipe.problem.pairs()):
        stage, n = g % design.stages, g // design.stages
        yield Wait(pipe.full[stage], design.full_phase(n))
        if this and this.first:
            for half in pipe.q_full if design.whole_q else pipe.q_full[w : w + 1]:
                yield Wait(half, this.t & 1)
        if design.ping_pong:
            yield Wait(pipe.turn[w], (g & 1) ^ 1 if w == 0 else g & 1)
        if this:
            S_next = yield pipe.scores(w, this, g)
        if before:
            O_next = yield pipe.weighted(before, g, state, S_ij.result)
        if design.ping_pong:
            yield Arrive(pipe.turn[(w + 1) % design.consumers])
        if design.early:
            yield Arrive(pipe.empty[stage])
        yield Finish(1 if design.overlap and this and before else 0)
        if this:
            yield Work("softmax", this.j, cost.softmax)
        yield Finish(0)
        if not design.early:
            yield Arrive(pipe.empty[stage])
        if this and this.last:
            yield Arrive(pipe.q_empty[w])
        if before:
            yield Work("rescale", before.j, cost.rescale)
            state = O_next.result
            if before.last:
                yield pipe.finish(w, before, state)
        S_ij = S_next


@dataclass(frozen=True, eq=False)
class Run:
    """The results of a pipeline, and the times of its steps."""

    O: np.ndarray  # [Nq, dv]
    lse: np.ndarray  # [Nq]
    events: list[Event]  # in the order in which they ended
    races: list[str]  # sentences, where the run was not strict
    cycles: int  # from the first copy to the last store
    busy: int  # cycles in which the tensor core worked
    blocks: int  # of 128 x 128 scores

    @property
    def steady(self) -> float:
        """Return the cycles per block in the second half of the blocks, when the pipeline is filled."""
        ends = [event.end for event in self.events if event.kind == "S" and event.by == "consumer 0"]
        half = ends[(len(ends) - 1) // 2 :]
        return (half[-1] - half[0]) / (len(half) - 1) if len(half) > 1 else float(self.cycles)


@check_arguments(scale=-np.inf)
def forward(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    design: Design | None = None,
    *,
    Br: int = 128,
    Bc: int = 128,
    mask: Mask | None = None,
    scale: float | None = None,
    strict: bool = True,
    consumer: Callable | None = None,
) -> Run:
    """Compute attention by the programs of a pipeline on one simulated SM, all tiles of queries one after the other.

    Args:
        Q: queries [Nq, d]; K: keys [Nk, d]; V: values [Nk, dv], of one floating dtype.
        design: a ``Design``. The clock counts its head dimension and blocks of 128 x 128, whatever d, Br and Bc are.
        Br, Bc: as ``tiling.fa2_forward``; mask, scale: as ``Rules``.
        strict: raise ``Race`` where a tile is read or overwritten at the wrong time; else use the buffer's content.
        consumer: another program for the consumers, a generator function of (pipe, w) as ``consume``.

    Raises:
        TypeError, ValueError: as ``tiling.fa2_forward``; Deadlock, Race: the programs do not agree.
    """
    design = Design() if design is None else design
    problem = Problem(Q, K, V, Br, Bc, Rules(as_mask(mask), scale=scale))
    pipe, sm = Pipeline(problem, design), SM(design.budget.latency, design.budget.issue, strict)
    program = consume if consumer is None else consumer
    sm.run({"producer": produce(pipe)} | {f"consumer {w}": program(pipe, w) for w in range(design.consumers)})
    return Run(problem.O, problem.lse, sm.events, sm.races, sm.now, sm.tensor_core.busy, len(problem.steps))


@check_arguments()
def teraflops(cycles: float, d: int = 128, clock: float = H100.clock, sms: int = H100.sms) -> float:
    """Return the TFLOP/s of a GPU whose SMs take ``cycles`` cycles per 128 x 128 scores, 4 * 128 * 128 * d FLOPs."""
    return 4 * TILE * COLS * d * sms * clock / cycles / 1e12
