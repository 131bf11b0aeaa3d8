"""The roles of a FlashAttention-4 forward pass, run with real numbers on a simulated multiprocessor of Blackwell.

Two tiles of queries are under way, w = 0 and 1, of 128 rows each. One warp issues all copies, one all products.
S and O are in tensor memory, to which all roles have access: so one warpgroup per tile computes its softmax, a row per
thread, and another one, the correction, rescales O. P overwrites S, as tensor memory is full. No program calls another:
barriers synchronise them. The tensor core works in the order of issue, so once S_j is there, P_(j-1) V_(j-1) is
done as well.

It is a model, of a card that we did not have. It leaves out the time of barriers, of instructions and of moves between
tensor memory and registers, power, and caches that miss. Source: FlashAttention-4 (arXiv 2603.05451), section 3.1; the
order of products and barriers is ours.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flashlab.machine import hardware
from flashlab.machine.arguments import check_arguments, check_fields
from flashlab.machine.operations import (
    Arrive,
    Barrier,
    Buffer,
    Commit,
    Copy,
    Product,
    Put,
    Store,
    Take,
    Tile,
    Wait,
    Work,
)
from flashlab.machine.sm import SM, Event
from flashlab.reference.attention import scale_of
from flashlab.reference.next_machine import B200, LN_2, LOG2_E, ROWS, THRESHOLD, Rates, exp2, minimax
from flashlab.reference.tiling import check

TILES = (0, 1)  # of queries, under way together
COLUMNS = B200.per_sm.tensor_memory_bytes // (4 * ROWS)  # of tensor memory: 4 bytes in each of 128 rows
COLS = 128  # keys of the block whose cycles are counted
DEPTH = 16  # of d, or of keys, that one instruction takes


@dataclass(frozen=True)
class Design:
    """The choices of the roles. ``d``, ``dv``: head dimensions that the clock counts, of Q and K and of V."""

    share: float = 0.0  # of the exponentials, by polynomial
    threshold: float = THRESHOLD  # by how much m may rise before O is rescaled, in units of log2
    d: int = 128
    dv: int | None = None  # None for d
    stages: int = 4  # tiles of K or V in shared memory
    degree: int = 3  # of the polynomial
    rates: Rates = Rates()

    def __post_init__(self) -> None:
        check_fields(self, share=(0, 1), threshold=0, stages=2)
        if self.d % DEPTH or self.width % DEPTH:
            found = f"{self.d} and {self.width}"
            raise ValueError(f"d and dv must be multiples of {DEPTH}, which one instruction takes, got {found}")
        if self.columns > COLUMNS:
            raise ValueError(f"tensor memory has {COLUMNS} columns: S and O of two tiles take {self.columns}")

    @property
    def width(self) -> int:
        """Return the columns of V and O."""
        return self.d if self.dv is None else self.dv

    @property
    def columns(self) -> int:
        """Return the columns of tensor memory that S and O of both tiles take, in float32."""
        return len(TILES) * (COLS + self.width)

    @property
    def scores(self) -> tuple[int, int]:
        """Return the instructions of Q K^T, and the cycles of each."""
        return self.d // DEPTH, 2 * ROWS * COLS * DEPTH // self.rates.flops

    @property
    def weighted(self) -> tuple[int, int]:
        """Return the instructions of P V, and the cycles of each."""
        return COLS // DEPTH, 2 * ROWS * self.width * DEPTH // self.rates.flops

    @property
    def maximum(self) -> int:
        """Return the cycles of a tile's maxima, of three numbers each."""
        return ROWS * COLS // 2 // self.rates.others

    @property
    def weights(self) -> tuple[int, int]:
        """Return the cycles of a tile's weights and their sums: of the ordinary units, of the exponential unit."""
        lanes = self.rates.lane_cycles(ROWS * COLS, self.share, self.degree) - self.maximum
        return round(lanes), round(self.rates.exponential_cycles(ROWS * COLS, self.share))

    @property
    def rescale(self) -> int:
        """Return the cycles of alpha * O."""
        return ROWS * self.width // self.rates.lanes

    def copy(self, width: int) -> int:
        """Return the cycles in which 128 rows of ``width`` 2-byte numbers arrive.

        The rate is that of an H100: we have no source for a B200's.
        """
        card = hardware.CARDS["H100 SXM"]
        return round(2 * ROWS * width / (card.l2_rate / card.sms / card.clock))


class Pipe:
    """Everything that the roles share: a problem, a design, the buffers, and the barriers that guard them."""

    def __init__(
        self, Q: np.ndarray, K: np.ndarray, V: np.ndarray, design: Design, Bc: int, scale: float | np.floating
    ) -> None:
        self.design, self.scale, self.K, self.V = design, scale, K, V
        self.queries = np.array_split(Q, len(TILES))  # [Br, d] each
        self.keys = [slice(start, start + Bc) for start in range(0, len(K), Bc)]
        self.O, self.lse = np.full((len(Q), V.shape[1]), np.nan, Q.dtype), np.full(len(Q), np.nan, Q.dtype)
        self.m = [np.full(len(Q_i), -np.inf, Q.dtype) for Q_i in self.queries]  # [Br], kept by the softmax
        self.l = [np.zeros(len(Q_i), Q.dtype) for Q_i in self.queries]
        self.alpha: list = [None for _ in TILES]  # [Br], from the softmax to the correction
        self.rescales = 0
        stages = range(design.stages)
        self.Q = [Buffer(f"Q[{w}]", Q_i.shape, Q.dtype) for w, Q_i in enumerate(self.queries)]
        self.stage = [Buffer(f"stage {s}", (Bc, max(K.shape[1], V.shape[1])), K.dtype) for s in stages]
        self.S = [Buffer(f"S[{w}]", (len(Q_i), Bc), Q.dtype) for w, Q_i in enumerate(self.queries)]
        self.sums = [Buffer(f"O[{w}]", (len(Q_i), V.shape[1]), Q.dtype) for w, Q_i in enumerate(self.queries)]
        self.q_full, self.s_full, self.p_full, self.raised, self.corrected, self.o_full = (
            [Barrier(f"{name}[{w}]", 1) for w in TILES]
            for name in ("q_full", "s_full", "p_full", "raised", "corrected", "o_full")
        )
        self.full, self.empty = ([Barrier(f"{name}[{s}]", 1) for s in stages] for name in ("full", "empty"))

    def place(self, name: str, j: int) -> tuple[int, int]:
        """Return the stage of K_j or V_j, and how often it was used before: K_0, V_0, K_1, V_1 ... take turns."""
        use = 2 * j + (name == "V")
        return use % self.design.stages, use // self.design.stages

    def scores(self, w: int, j: int) -> Product:
        """Return the product S_j = Q K_j^T [Br, Bc], scaled, into tensor memory."""
        stage, _ = self.place("K", j)
        reads = {self.Q[w]: Tile("Q", w), self.stage[stage]: Tile("K", j)}
        rows, d = len(self.K[self.keys[j]]), self.K.shape[1]

        def product(Q_i: np.ndarray, K_j: np.ndarray) -> np.ndarray:
            return self.scale * (Q_i @ K_j[:rows, :d].T)

        return Product("S", j, reads, product, *self.design.scores, into=(self.S[w], Tile("S", j)))

    def weighted(self, w: int, j: int) -> Product:
        """Return the product P_j V_j, added to O [Br, dv] in tensor memory."""
        stage, _ = self.place("V", j)
        reads = {self.S[w]: Tile("P", j), self.stage[stage]: Tile("V", j)}
        reads |= {self.sums[w]: Tile("O", j - 1)} if j else {}
        rows, dv = len(self.V[self.keys[j]]), self.V.shape[1]

        def product(P_j: np.ndarray, V_j: np.ndarray, O_i: np.ndarray | int = 0) -> np.ndarray:
            return O_i + P_j @ V_j[:rows, :dv]

        return Product("PV", j, reads, product, *self.design.weighted, into=(self.sums[w], Tile("O", j)))


def load(pipe: Pipe) -> Generator[object, Any, None]:
    """Run the warp that has tiles copied: Q of both tiles, then K and V in turns, as soon as there is room."""
    design = pipe.design
    for w in TILES:
        yield Arrive(pipe.q_full[w], pipe.Q[w].nbytes)
        yield Copy(Tile("Q", w), pipe.queries[w], pipe.Q[w], pipe.q_full[w], design.copy(design.d))
        if w == 0:
            yield from _bring(pipe, "K", pipe.K, 0, design.d)
    for j in range(len(pipe.keys)):
        if j > 0:
            yield from _bring(pipe, "K", pipe.K, j, design.d)
        yield from _bring(pipe, "V", pipe.V, j, design.width)


def _bring(pipe: Pipe, name: str, tensor: np.ndarray, j: int, width: int) -> Generator[object, Any, None]:
    stage, n = pipe.place(name, j)
    rows = tensor[pipe.keys[j]]  # [Bc, d] or [Bc, dv]
    tile = np.zeros((len(rows), pipe.stage[stage].array.shape[1]), tensor.dtype)  # [Bc, max(d, dv)]
    tile[:, : rows.shape[1]] = rows
    yield Wait(pipe.empty[stage], (n & 1) ^ 1)
    yield Arrive(pipe.full[stage], pipe.stage[stage].nbytes)
    yield Copy(Tile(name, j), tile, pipe.stage[stage], pipe.full[stage], pipe.design.copy(width))


def multiply(pipe: Pipe) -> Generator[object, Any, None]:
    """Run the warp that issues products: S of both tiles; then by turns O of one, and its next S in place of P."""
    blocks = len(pipe.keys)
    for w in TILES:
        yield Wait(pipe.q_full[w], 0)
        yield from _ask_scores(pipe, w, 0)
    for j in range(blocks):
        stage, n = pipe.place("V", j)
        for w in TILES:
            yield Wait(pipe.p_full[w], j & 1)
            yield Wait(pipe.corrected[w], j & 1)
            yield Wait(pipe.full[stage], n & 1)
            yield pipe.weighted(w, j)
            if w == TILES[-1]:
                yield Commit(pipe.empty[stage])
            if j + 1 < blocks:
                yield from _ask_scores(pipe, w, j + 1)
            else:
                yield Commit(pipe.o_full[w])


def _ask_scores(pipe: Pipe, w: int, j: int) -> Generator[object, Any, None]:
    stage, n = pipe.place("K", j)
    yield Wait(pipe.full[stage], n & 1)
    yield pipe.scores(w, j)
    yield Commit(pipe.s_full[w])
    if w == TILES[-1]:
        yield Commit(pipe.empty[stage])


def softmax(pipe: Pipe, w: int) -> Generator[object, Any, None]:
    """Run the softmax of tile w: the maximum, then alpha for the correction, then P, which takes the place of S."""
    design, coefficients = pipe.design, minimax(pipe.design.degree)
    for j in range(len(pipe.keys)):
        yield Wait(pipe.s_full[w], j & 1)
        S_j = yield Take(Tile("S", j), pipe.S[w])  # [Br, Bc]
        yield Work("maximum", j, design.maximum)
        m_i = pipe.m[w]
        m_new = np.maximum(m_i, S_j.max(-1))  # [Br]
        m_new = np.where(m_new > m_i + design.threshold * LN_2, m_new, m_i).astype(m_i.dtype)  # [Br]
        pipe.alpha[w] = np.exp(m_i - m_new)  # [Br]
        yield Arrive(pipe.raised[w])
        yield Work("weights", j, *design.weights)
        P_j = weights(S_j - m_new[:, None], design.share, coefficients)  # [Br, Bc]
        pipe.m[w], pipe.l[w] = m_new, pipe.alpha[w] * pipe.l[w] + P_j.sum(-1)
        yield Put(Tile("P", j), P_j, pipe.S[w])
        yield Arrive(pipe.p_full[w])


def weights(x: np.ndarray, share: float, coefficients: np.ndarray) -> np.ndarray:
    """Return e^x [Br, Bc]: a ``share`` of every 16 columns by polynomial, the others exactly."""
    by_polynomial = np.arange(x.shape[1]) % 16 < round(16 * share)
    P = np.exp(x)
    P[:, by_polynomial] = exp2((LOG2_E * x[:, by_polynomial]).astype(np.float32), coefficients)
    return P


def correct(pipe: Pipe) -> Generator[object, Any, None]:
    """Run the correction: rescale O where m rose, between two products that add to it; in the end, divide by l."""
    design = pipe.design
    for j in range(len(pipe.keys)):
        for w in TILES:
            yield Wait(pipe.raised[w], j & 1)
            alpha = pipe.alpha[w]
            if j > 0 and (alpha != 1).any():
                pipe.rescales += 1
                O_i = yield Take(Tile("O", j - 1), pipe.sums[w])  # [Br, dv]
                yield Work("rescale", j, design.rescale)
                yield Put(Tile("O", j - 1), alpha[:, None] * O_i, pipe.sums[w])
            yield Arrive(pipe.corrected[w])
    rows = 0
    for w in TILES:
        yield Wait(pipe.o_full[w], 0)
        O_i = yield Take(Tile("O", len(pipe.keys) - 1), pipe.sums[w])  # [Br, dv]
        yield Work("divide", w, design.rescale)
        here, rows = slice(rows, rows + len(O_i)), rows + len(O_i)
        pipe.O[here], pipe.lse[here] = O_i / pipe.l[w][:, None], pipe.m[w] + np.log(pipe.l[w])
        yield Store("O", w, design.copy(design.width))


class Run(NamedTuple):
    """The results of the roles, and the times of their steps."""

    O: np.ndarray  # [Nq, dv]
    lse: np.ndarray  # [Nq]
    events: list[Event]  # in the order in which they ended
    races: list[str]  # sentences, where the run was not strict
    cycles: int  # from the first copy to the last store
    busy: dict[str, int]  # cycles in which each unit worked
    blocks: int  # of keys
    rescales: int  # of 128 rows of O
    steady: float  # cycles per block of 256 queries by 128 keys in the second half, when the pipeline is filled


@check_arguments(scale=-np.inf)
def forward(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    design: Design | None = None,
    *,
    Bc: int = 128,
    scale: float | None = None,
    strict: bool = True,
    **roles: Callable,
) -> Run:
    """Compute attention of two tiles of queries by the roles on one simulated SM, without a mask.

    Args:
        Q: queries [Nq, d], half of them in each tile; K: keys [Nk, d]; V: values [Nk, dv], of one floating dtype.
        design: a ``Design``. The clock counts its head dimensions and tiles of 128 x 128, whatever the shapes are.
        Bc: keys per block. scale: factor on the scores, 1/sqrt(d) by default.
        strict: raise ``Race`` where a tile is read or overwritten at the wrong time; else go on.
        roles: other programs in place of ``load``, ``multiply``, ``softmax`` (of pipe and w), ``correct``.

    Raises:
        ValueError: fewer than 2 queries, or no key; Deadlock, Race: the programs do not agree.
    """
    check(Q, K, V, len(TILES), Bc)
    if len(Q) < len(TILES) or not len(K):
        raise ValueError(f"expected a query for each of two tiles, and a key, got {len(Q)} and {len(K)}")
    design = Design() if design is None else design
    pipe = Pipe(Q, K, V, design, min(Bc, len(K)), scale_of(scale, Q.shape[1], Q.dtype))
    programs: dict[str, Any] = {"load": load, "multiply": multiply, "softmax": softmax, "correct": correct}
    if not roles.keys() <= programs.keys():
        raise TypeError(f"the roles are {', '.join(programs)}, got {', '.join(roles)}")
    programs |= roles
    sm = SM(latency=263, strict=strict)  # the latency of L2, on an H800: Luo et al. 2024, arXiv 2402.13499
    sm.run(
        {name: programs[name](pipe) for name in ("load", "multiply", "correct")}
        | {f"softmax {w}": programs["softmax"](pipe, w) for w in TILES}
    )
    busy = {name: getattr(sm, name.replace(" ", "_")).busy for name in UNITS}
    return Run(pipe.O, pipe.lse, sm.events, sm.races, sm.now, busy, len(pipe.keys), pipe.rescales, _steady(sm.events))


UNITS = "tensor core", "exponential unit", "vector units", "copy engine"


def _steady(events: list[Event]) -> float:
    ends = [event.end for event in events if event.kind == "S" and "Q[0]" in event.where]
    half = ends[(len(ends) - 1) // 2 :]
    return (half[-1] - half[0]) / (len(half) - 1) if len(half) > 1 else float(events[-1].end)


@check_arguments()
def teraflops(cycles: float, design: Design | None = None, card: hardware.Card = B200) -> float:
    """Return the TFLOP/s of a card whose SMs take ``cycles`` cycles for 256 queries by 128 keys, by the model."""
    design = Design() if design is None else design
    return 2 * len(TILES) * ROWS * COLS * (design.d + design.width) * card.sms * card.clock / cycles / 1e12
