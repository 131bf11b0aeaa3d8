"""Wrong Gluon kernels, each one edit of a right one: waits left out, wrong phases, fences, counts and bytes."""

import sys
from contextlib import ExitStack, contextmanager
from unittest import mock

from flashlab.grading.exercise import edited
from flashlab.kernels.hopper import backward_roles, forward, pieces, roles, softmax, stages, sums, toy, work

FORWARD = [  # module, function, what is replaced, what by
    (toy, "consume", "wait_full(full, g)", "pass"),
    (toy, "produce", "wait_empty(empty, g)", "pass"),
    (toy, "consume", "release(empty, g)", "pass"),
    (toy, "consume", "        sums = warpgroup_mma_wait(0, deps=(sums,))\n        release(empty, g)",
     "        release(empty, g)\n        sums = warpgroup_mma_wait(0, deps=(sums,))"),
    (toy, "consume", "sums = warpgroup_mma_wait(0, deps=(sums,))", "pass"),
    (toy, "produce", "mbarrier.expect(stage_of(full, g), X.block_type.nbytes)", "mbarrier.arrive(stage_of(full, g))"),
    (toy, "produce", "X.block_type.nbytes", "X.block_type.nbytes // 2"),
    (toy, "produce", "X.block_type.nbytes", "X.block_type.nbytes * 2"),
    (toy, "gram_kernel", "empty.index(stage), count=1", "empty.index(stage), count=2"),
    (toy, "gram_kernel", "full.index(stage), count=1", "full.index(stage), count=2"),
    (toy, "gram_kernel", "    fence_async_shared()\n", ""),
    (toy, "gram_kernel", "        mbarrier.init(empty.index(stage), count=1)\n", ""),
    (toy, "produce", "[g * ring.shape[1], 0]", "[(g + 1) * ring.shape[1], 0]"),
    (stages, "wait_full", "phase = (g // full.shape[0]) & 1", "phase = ((g // full.shape[0]) & 1) ^ 1"),
    (stages, "wait_full", "(g // full.shape[0]) & 1", "g & 1"),
    (stages, "wait_empty", "((g // empty.shape[0]) & 1) ^ 1", "(g // empty.shape[0]) & 1"),
    (stages, "stage_of", "ring.index(g % ring.shape[0])", "ring.index(g)"),
    (pieces, "finished", "warpgroup_mma_wait(0, deps=O),", "warpgroup_mma_wait(1, deps=O),"),
    (pieces, "ask_for", "piece(ring, full, g, p), pred)", "piece(ring, full, g + 1, p), pred)"),
    (roles, "barriers", "shared.empty.index(stage), count=consumers", "shared.empty.index(stage), count=1"),
    (roles, "barriers", "shared.q_empty.index(slot), count=1", "shared.q_empty.index(slot), count=2"),
    (roles, "barriers", "    fence_async_shared()\n", ""),
    (roles, "produce", "            wait_empty(shared.empty, g)\n", ""),
    (roles, "produce", "    wait_empty(shared.empty, g)\n    mbarrier", "    mbarrier"),
    (roles, "produce", "of_K + of_V, pred=with_v", "of_K, pred=with_v"),
    (roles, "produce", "mbarrier.expect(full, of_K, pred=g == 0)", "mbarrier.expect(full, of_K + of_V, pred=g == 0)"),
    (roles, "ask_for_queries", "        wait_empty(shared.q_empty, slot)\n", ""),
    (roles, "ask_for_queries", "        mbarrier.expect(full, size)\n", ""),
    (forward, "begin", "    wait_full(shared.full, g)\n    wait_full(shared.q_full", "    wait_full(shared.q_full"),
    (forward, "begin", "    wait_full(shared.q_full, slot)\n", ""),
    (forward, "begin", "    S_ij = warpgroup_mma_wait(0, deps=(S_ij,))\n    release(shared.empty, g)",
     "    release(shared.empty, g)\n    S_ij = warpgroup_mma_wait(0, deps=(S_ij,))"),
    (forward, "begin", "    release(shared.empty, g)\n    S_ij = shown", "    S_ij = shown"),
    (forward, "begin", "    wait_full(shared.full, g + 1)\n", ""),
    (forward, "step", "    S_ij = warpgroup_mma_wait(len(O_i), deps=(S_ij,))\n", ""),
    (forward, "step", "warpgroup_mma_wait(len(O_i), deps=(S_ij,))", "warpgroup_mma_wait(len(O_i) + 1, deps=(S_ij,))"),
    (forward, "complete", "    wait_full(shared.full, g + 1)\n", ""),
    (forward, "complete", "    O_i = pieces.finished(O_i)\n    release(shared.empty, g)",
     "    release(shared.empty, g)\n    O_i = pieces.finished(O_i)"),
    (forward, "complete", "    release(shared.empty, g)\n", ""),
    (forward, "boundary", "    release(shared.q_empty, slot)\n", ""),
    (forward, "boundary", "    wait_full(shared.q_full, slot + shared.O.shape[0], pred=more)\n", ""),
    (forward, "boundary", "wait_full(shared.full, ahead, pred=more)\n    wait_turn", "pass\n    wait_turn"),
    (forward, "boundary", "    tma.store_wait(0)  # the O of the tile before has left its buffer\n", ""),
    (forward, "boundary", "    O_i = pieces.finished(O_i)\n    release(shared.empty, g)",
     "    release(shared.empty, g)\n    O_i = pieces.finished(O_i)"),
    (forward, "boundary", "    release(shared.empty, ahead, pred=skipped > 0)\n", ""),
    (forward, "boundary", "    wait_full(shared.full, ahead + 1, pred=more)\n", ""),
    (softmax, "hand_over", "    fence_async_shared()\n", ""),
    (forward, "consume", "    tma.store_wait(0)", "    pass"),
    (work, "tile_of", "(work.first + t) * columns", "(work.first + t + 1) * columns"),
    (softmax, "finish", "(row >= 0) & (row < tile.end)", "row < tile.end + 64"),
    (stages, "pass_turn", "(w + 1) % shared.O.shape[0]", "w"),
    (stages, "wait_turn", "(g & 1) ^ 1 if w == 0 else g & 1", "g & 1"),
]  # fmt: skip

BACKWARD = [
    (backward_roles, "allocate", "shared.k_full.index(0), count=1", "shared.k_full.index(0), count=2"),
    (backward_roles, "allocate", "count=1 if lag is None else 2", "count=1"),
    (backward_roles, "allocate", "shared.k_empty.index(0), count=CONSUMERS", "shared.k_empty.index(0), count=1"),
    (backward_roles, "allocate", "shared.added.index(0), count=CONSUMERS", "shared.added.index(0), count=1"),
    (backward_roles, "allocate", "shared.ds_full.index(buffer), count=CONSUMERS",
     "shared.ds_full.index(buffer), count=1"),
    (backward_roles, "allocate", "    fence_async_shared()\n", ""),
    (backward_roles, "produce", "    wait_empty(shared.k_empty, n)\n", ""),
    (backward_roles, "produce", "    release(shared.k_full, n)\n", ""),
    (backward_roles, "produce", "    finish(counter, turn, turns)", "    pass"),
    (backward_roles, "produce_turn", "wait_full(shared.ds_full, gl.maximum(t + 1 - stages, 0), pred=t >= stages)",
     "pass"),
    (backward_roles, "produce_turn", "gl.maximum(t + 1 - stages, 0)", "gl.maximum(t - stages, 0)"),
    (backward_roles, "produce_turn", "                wait_empty(shared.k_empty, n)\n", ""),
    (backward_roles, "produce_turn", "                announce(shared.turns, n, turn)\n", ""),
    (backward_roles, "produce_turn", "Q.block_type.nbytes + of_rows", "Q.block_type.nbytes"),
    (backward_roles, "produce_turn", "of_lse(shared, t, 0)", "of_lse(shared, t + 1, 0)"),
    (backward_roles, "ask_for_keys", "CONSUMERS * X.block_type.nbytes", "X.block_type.nbytes"),
    (backward_roles, "consume_turn", "    wait_full(shared.v_full, n)\n", ""),
    (backward_roles, "consume_turn", "    wait_full(shared.ds_full, end - 1)\n", ""),
    (backward_roles, "consume_turn", "    dQ_i = warpgroup_mma_wait(0, deps=(dQ_i,))\n", ""),
    (backward_roles, "consume_turn",
     "    dQ_i = warpgroup_mma_wait(0, deps=(dQ_i,))\n    release(shared.k_empty, n)",
     "    release(shared.k_empty, n)\n    dQ_i = warpgroup_mma_wait(0, deps=(dQ_i,))"),
    (backward_roles, "consume_turn", "    release(shared.k_empty, n)\n", ""),
    (backward_roles, "consume_turn", "        release(shared.added, n)\n", ""),
    (backward_roles, "consume_turn", "    wait_full(shared.k_empty, n)\n", ""),
    (backward_roles, "leave_out", "    release(shared.ds_full, t)\n", "    pass\n"),
    (backward_roles, "store", "    fence_async_shared()\n", ""),
    (backward_roles, "let_leave", "    tma.store_wait(0)\n", ""),
    (backward_roles, "consume", "    tma.store_wait(0)\n", ""),
    (backward_roles, "step", "    wait_full(shared.q_full, t)\n", ""),
    (backward_roles, "step", "    wait_full(shared.do_full, t)\n", ""),
    (backward_roles, "step", "    St_ij = warpgroup_mma_wait(1, deps=(St_ij,))\n", ""),
    (backward_roles, "step", "dPt_ij = warpgroup_mma_wait(0, deps=(dPt_ij,))", "pass"),
    (backward_roles, "step", "        wait_full(shared.ds_full, t - 1)\n", "        pass\n"),
    (backward_roles, "step", "    fence_async_shared()\n", ""),
    (backward_roles, "step", "    release(shared.ds_full, t)\n", ""),
    (backward_roles, "step", "    shared.dSt.index(w * BUFFERS + t % BUFFERS).store(dSt_ij)\n", ""),
    (backward_roles, "step", "        dQ_i = warpgroup_mma_wait(1, deps=(dQ_i,))\n", ""),
    (backward_roles, "step", "warpgroup_mma_wait(1, deps=(dQ_i,))", "warpgroup_mma_wait(2, deps=(dQ_i,))"),
    (backward_roles, "step", "share_of_dQ(shared, kept, t - 1, w)", "share_of_dQ(shared, kept, t, w)"),
    (backward_roles, "share_of_dQ", "part * BUFFERS + t % BUFFERS", "part * BUFFERS + (t + 1) % BUFFERS"),
    (stages, "taken", "    wait_full(shared.k_full, n)\n", ""),
    (stages, "finish", "turns.all + gl.num_programs(0) - 1", "turns.all"),
    (stages, "take", "1, sem", "0, sem"),
    (sums, "hold", "held.full.index(stage), count=1", "held.full.index(stage), count=2"),
    (sums, "narrow_earlier", 'while gl.atomic_add(ended + earlier, 0, sem="acquire") < turns.tiles', "while False"),
    (sums, "narrow_earlier", 'sem="acquire"', 'sem="relaxed"'),
    (sums, "narrow_earlier", 'sem="acq_rel"', 'sem="relaxed"'),
    (sums, "narrow_earlier", "< turns.tiles", "< turns.tiles - 1"),
    (sums, "narrow_earlier", "        release(shared.v_full, n)\n", ""),
    (sums, "narrow_earlier", "        wait_full(shared.added, n)\n", ""),
    (sums, "narrow_earlier", '        gl.atomic_add(ended + g, 1, sem="acq_rel")\n', ""),
    (sums, "narrow_share", "    fence_async()\n", ""),
    (sums, "narrow_share", "        wait_full(held.full, m + i)\n", ""),
    (sums, "narrow_share", "return m + count", "return m"),
    (sums, "ask", "parts.block_type.nbytes", "parts.block_type.nbytes // 2"),
    (sums, "narrow_part", "gl.store(at + gl.arange(0, size, layout=flat), gl.zeros([size], gl.float32, flat))", "pass"),
]  # fmt: skip

HARMLESS = [  # another line does as much
    (backward_roles, "leave_out", "    fence_async_shared()\n", ""),  # the next step has one before anyone reads
    (backward_roles, "leave_out", "    wait_full(shared.q_full, t)\n", ""),  # the other one waits, and both release
    (backward_roles, "step", "return warpgroup_mma_wait(0, deps=(dK_j, dV_j))", "return dK_j, dV_j"),  # the next does
    (sums, "hold", "    fence_async_shared()\n", ""),  # ``narrow_share`` begins with one, for global memory
]  # fmt: skip


@contextmanager
def wrong(module, function, old, new):
    """Put a wrong function in the place of a right one, in all modules that name it."""
    right = getattr(module, function)
    other = edited(right, old, new)
    with ExitStack() as stack:
        for path, it in list(sys.modules.items()):
            if path.startswith("flashlab.kernels.hopper") and vars(it).get(function) is right:
                stack.enter_context(mock.patch.object(it, function, other))
        yield
