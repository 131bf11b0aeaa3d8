import numpy as np
import pytest

from figures import style
from figures import tiling as figure
from figures.canvas import Canvas
from flashlab.course import data
from flashlab.machine.memory import Event, Memory
from flashlab.reference import masks, standard_attention, tiling

STATES = [
    figure.State(),
    figure.State(N=64, Br=16, Bc=16),
    figure.State(N=100, Br=64, Bc=16),
    figure.State(N=100, Br=32, Bc=64, causal=True),
    figure.State(N=256, Br=16, Bc=64, causal=True),
    figure.State(N=512, Br=64, Bc=64),
]
states = pytest.mark.parametrize("state", STATES, ids=str)


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(9.9, 5.6), figure.build, figure.update)


@states
def test_the_last_bill_is_flashlabs(state):
    runs = [figure.moments(figure.trace(state), figure.STEPS)[name].bill for name in figure.NAMES]
    for bill, traffic in zip(runs[1:], (tiling.fa1_traffic, tiling.fa2_traffic), strict=True):
        assert bill == traffic(state.N, state.N, 32, state.Br, state.Bc, mask=masks.causal() if state.causal else None)
    standard = standard_attention.moved(state.N, 32, 4, mask=state.causal)
    assert sum(runs[0].values()) == standard


@states
def test_every_score_is_computed_unless_the_mask_skips_its_tile(state):
    standard, fa1, fa2 = figure.trace(state).values()
    seen = np.tri(state.N, dtype=bool) if state.causal else np.ones((state.N, state.N), bool)
    for run in (fa1, fa2):
        times = figure._times(run, np.inf).repeat(run.unit, 0).repeat(run.unit, 1)  # [N, N]
        assert times.max() == 1 and times[seen].min() == 1 and not run.stored
    assert standard.stored and (figure._times(standard, np.inf) == (6 if state.causal else 4)).all()


def test_all_three_stand_at_the_same_clock():
    for step in range(0, figure.STEPS + 1, 7):
        runs, now = figure.trace(STATES[0]), figure.moments(figure.trace(STATES[0]), step)
        longest = max(run.moments[-1].moved for run in runs.values())
        for name, run in runs.items():
            clock = min(longest * step / figure.STEPS, run.moments[-1].moved)
            assert clock - 16_384 - 1 < now[name].moved <= clock  # one transfer is 16,384 bytes at most


@states
def test_what_is_resident_is_what_the_memory_held(state):
    Q, K, V = (tensor[: state.N] for tensor in data.captured("alice").head())
    memory = Memory()
    tiling.fa2_forward(Q, K, V, state.Br, state.Bc, mask=masks.causal() if state.causal else None, memory=memory)
    run = figure.trace(state)[figure.NAMES[2]]
    assert max(sum(moment.resident.values()) for moment in run.moments) == memory.peak_bytes


def test_the_picture_shows_the_numbers_of_the_trace(canvas):
    state = figure.State()
    canvas.png(state)
    for at, now in enumerate(figure.moments(figure.trace(state), state.step).values()):
        amounts = [text.get_text() for text in canvas.artists[f"{at} amounts"]]
        expected = [sum(figure._of(now, tensor)) / 1000 for tensor in figure.TENSORS]
        assert amounts == [f"{kB:,.1f}" if kB else "" for kB in expected]
        assert canvas.artists[f"{at} used"].get_text() == f"{sum(now.resident.values()) / 1024:.3g} KiB"
        rows, cols = now.tile
        x0, y0, width, height = canvas.artists[f"{at} tile"].get_bbox().bounds
        assert (x0, y0, width, height) == (cols.start, rows.start, cols.stop - cols.start, rows.stop - rows.start)


def test_what_does_not_fit_says_so(canvas):
    canvas.png(figure.State(N=512, Br=64, Bc=64, step=25))
    assert "does not fit" in canvas.artists["0 used"].get_text()
    assert "does not fit" not in canvas.artists["1 used"].get_text()


def test_describe_has_the_numbers():
    assert figure.describe(figure.State(step=100)) == (
        "128 tokens, tiles of 32 × 32. What each has moved. standard attention: done, 328 kB; "
        "FlashAttention: K, V outside: done, 217 kB; FlashAttention-2: Q outside: done, 164 kB."
    )


def test_a_kernels_events_are_replayed():
    """As the interpreter books them: a slice for each of a tensor's dimensions, programs in an order of their own."""

    def move(kind, name, rows):
        return Event(kind, name, (slice(0, 1), slice(0, 1), slice(*rows), slice(0, 8)), 8 * (rows[1] - rows[0]))

    events = []
    for rows in [(4, 6), (0, 4)]:
        events += [Event("kernel", "attention_forward", (0, 0, 0), 0), move("load", "Q", rows)]
        for cols in [(0, 3), (3, 5)]:
            events += [move("load", "K", cols), move("load", "V", cols)]
        events.append(move("store", "O", rows))
    run = figure.record(events, 6, 5)
    tiles = [(rows, cols) for _, rows, cols in run.touched]
    assert tiles == [(slice(*r), slice(*c)) for r in [(4, 6), (0, 4)] for c in [(0, 3), (3, 5)]]
    explorer = figure.replay({"a kernel": events, "the same again": events}, 6, 5)
    for step in (0, 50, 100):
        explorer.widgets["step"].value = step
    assert repr(explorer) == "a kernel: program 1 of 2, 96 B of 256 B; the same again: program 1 of 2, 96 B of 256 B."


def test_an_empty_recording_says_so():
    with pytest.raises(ValueError, match="a kernel: nothing was loaded or stored"):
        figure.replay({"a kernel": []}, 6, 5)
