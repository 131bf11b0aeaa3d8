import numpy as np
import pytest

from flashlab.machine.memory import Event, FastMemoryFull, Memory, replay
from flashlab.reference import recomputation, tiling


def test_every_byte_is_counted_under_its_tensor_and_direction():
    memory = Memory()
    memory.place(x=np.arange(12, dtype=np.float32).reshape(3, 4))
    memory.reserve("y", (3, 4), np.float32)
    memory.store("y", memory.load("x", slice(0, 2)), slice(1, 3))
    assert memory.bytes == {("load", "x"): 32, ("store", "y"): 32}
    assert (memory.loaded, memory.stored, memory.moved) == (32, 32, 64)
    assert memory.events[0] == Event("load", "x", (slice(0, 2),), 32)


def test_an_element_that_is_never_stored_is_nan():
    memory = Memory()
    memory.reserve("y", (2,), np.float32)
    memory.store("y", np.ones(1, np.float32), slice(0, 1))
    np.testing.assert_array_equal(memory.tensors["y"], [1, np.nan])


def test_a_loaded_tile_is_a_copy():
    memory = Memory()
    memory.place(x=np.zeros(4))
    memory.load("x")[:] = 7
    assert not memory.tensors["x"].any()


def test_half_precision_moves_two_bytes_and_computes_in_four():
    memory = Memory()
    memory.place(x=np.ones(8, np.float16))
    assert memory.load("x").dtype == np.float32
    assert memory.loaded == 16 and memory.resident == {"x": 16}


def test_a_tile_replaces_the_previous_one_of_its_name():
    memory = Memory()
    memory.place(K=np.zeros((4, 2)))
    for rows in (slice(0, 2), slice(2, 4)):
        memory.load("K", rows)
    assert memory.resident == {"K": 32} and memory.peak_bytes == 32


def test_tiles_that_do_not_fit_are_named_with_their_bytes():
    memory = Memory(sram_bytes=100)
    memory.place(Q=np.zeros(8), K=np.zeros(8))
    memory.load("Q")
    with pytest.raises(FastMemoryFull, match=r"Q 64 \+ K 64 = 128 bytes, but the fast memory holds 100"):
        memory.load("K")


def test_a_kernel_leaves_nothing_in_fast_memory_even_if_it_fails():
    memory = Memory()
    with pytest.raises(ZeroDivisionError), memory.kernel("broken"):
        memory.hold(S_ij=np.zeros(4))
        raise ZeroDivisionError
    assert memory.resident == {} and memory.resident_bytes == 0 and memory.peak == {"S_ij": 32}


def test_a_dropped_tile_makes_room():
    memory = Memory(sram_bytes=64)
    memory.hold(a=np.zeros(8))
    memory.drop("a")
    memory.hold(b=np.zeros(8))
    assert memory.resident == {"b": 64}


def test_integers_are_refused():
    with pytest.raises(TypeError, match="Q must hold floating-point numbers, got int64"):
        Memory().place(Q=np.arange(3))


def test_a_tile_of_the_wrong_shape_is_not_broadcast():
    memory = Memory()
    memory.reserve("y", (4, 4), np.float32)
    with pytest.raises(ValueError, match="a tile of shape"):
        memory.store("y", np.zeros((1, 4), np.float32), slice(0, 2))


def test_a_memory_that_does_not_record_has_the_same_bill():
    memories = Memory(), Memory(record=False)
    for memory in memories:
        memory.place(x=np.zeros(4))
        memory.hold(a=memory.load("x"))
        memory.drop("a")
    with_events, without = memories
    assert len(with_events.events) == 3 and len(without.events) == 0
    assert with_events.bytes == without.bytes and with_events.peak == without.peak


def two_kernels():
    """Return the memory of two kernels that load, replace, drop and store tiles."""
    memory = Memory()
    memory.place(x=np.arange(8, dtype=np.float32))
    memory.reserve("y", (8,), np.float32)
    with memory.kernel("first"):
        memory.hold(sum=memory.load("x", slice(0, 4)))
        memory.store("y", memory.load("x", slice(4, 8)), slice(0, 4))
        memory.drop("sum")
    with memory.kernel("second"):
        memory.store("y", memory.load("y", slice(0, 4)), slice(4, 8))
    return memory


def test_a_replay_shows_what_is_resident_moved_and_written_after_each_event():
    moments = list(replay(two_kernels().events))
    states = [(m.kernel, m.kernels, m.resident, m.places, m.moved) for m in moments]
    x0, x4, y0, y4 = ("x", ((0, 4),)), ("x", ((4, 8),)), ("y", ((0, 4),)), ("y", ((4, 8),))
    assert states == [
        ("first", 1, {}, {}, 0),
        ("first", 1, {"x": 16}, dict([x0]), 16),
        ("first", 1, {"x": 16, "sum": 16}, dict([x0]), 16),
        ("first", 1, {"x": 16, "sum": 16}, dict([x4]), 32),
        ("first", 1, {"x": 16, "sum": 16}, dict([x4]), 48),
        ("first", 1, {"x": 16}, dict([x4]), 48),
        ("second", 2, {}, {}, 48),
        ("second", 2, {"y": 16}, dict([y0]), 64),
        ("second", 2, {"y": 16}, dict([y0]), 80),
    ]
    assert [m.written for m in moments] == [frozenset()] * 4 + [{y0}] * 4 + [{y0, y4}]
    assert moments[-1].bytes == {("load", "x"): 32, ("store", "y"): 32, ("load", "y"): 16}
    assert [m[:4] for m in moments[4:6]] == [("store", "y", ((0, 4),), 16), ("drop", "sum", (), 16)]


def test_a_replay_ends_where_the_memory_ended():
    memory, Q = Memory(), np.random.default_rng(0).normal(size=(40, 8))
    O, lse = tiling.fa2_forward(Q, Q, Q, 16, 12, memory=memory)
    recomputation.backward(Q, Q, Q, O, lse, Q, 16, 12, memory=memory)
    moments = list(replay(memory.events))
    assert len(moments) == len(memory.events) and moments[-1].bytes == memory.bytes
    assert max(sum(moment.resident.values()) for moment in moments) == memory.peak_bytes
    assert memory.peak in [moment.resident for moment in moments]


def test_places_are_spans_for_every_kind_of_index():
    events = [Event("kernel", "k", (2, 0), 0), Event("load", "x", (slice(1, 3), 4, np.array([5, 9])), 8)]
    first, second = replay(events)
    assert (first.program, first.place) == ((2, 0), ()) == (second.program, first.place)
    assert second.place == second.places["x"] == ((1, 3), (4, 5), (5, 10))
