"""States (m, l, O) for the cases, written by hand or drawn."""

import numpy as np

from flashlab.grading.draws import scores
from flashlab.reference.online_softmax import State

inf = np.inf
MADE_UP = 32  # how far below the maximum a part may be that still counts, since its sums are large


def state_of(m, l, O):
    """Return a state, with its parts in float32."""
    return State(*(np.array(part, np.float32) for part in (m, l, O)))


def draw_state(rng, m, dv, large=True):
    """Draw the state of rows whose maxima are m [Br]; large: sums may be very large, and values very small or large."""
    met = m > -inf  # [Br]
    l = rng.choice([np.ones(len(m)), rng.uniform(1, 3, len(m))])  # [Br]; 1 is the sum of one key
    l *= 10.0 ** (large * rng.uniform(0, rng.choice([0, 30]), len(m)))
    size = 10.0 ** (large * rng.choice([0, -18, 5]))
    O = size * rng.choice([0, 1], (len(m), 1), p=[0.2, 0.8]) * l[:, None] * rng.normal(size=(len(m), dv))  # [Br, dv]
    return state_of(m, np.where(met, l, 0), np.where(met[:, None], O, 0))


def draw_maxima(rng, Br):
    """Draw maxima [Br] of any size; -inf where a row has met no key."""
    return scores(rng, Br, 1)[:, 0]


def draw_maxima_near(rng, m):
    """Draw maxima of another part: equal to m [Br], the next number, a little or far to one side, or anything."""
    apart = rng.choice([1e-4, 0.01, 0.5, 3, 25, 60]) * rng.choice([-1, 1])
    near = m + apart * rng.uniform(0.5, 1, len(m))  # [Br]
    following = np.where(m == 0, 0, np.nextafter(m, np.float32(rng.choice([-inf, inf]))))  # [Br]
    maxima = (m, following, near, near, near, draw_maxima(rng, len(m)))[rng.choice(6)]  # [Br]
    maxima = np.where(m == -inf, draw_maxima(rng, len(m)), maxima)  # [Br]
    return np.where(rng.random(len(m)) < 0.1, -inf, maxima).astype(m.dtype)


def draw_two_states(rng, size, dv):
    """Draw the states of two parts of the keys of up to ``size`` rows. The lower part may have sums that count."""
    m_a = draw_maxima(rng, rng.integers(1, size + 1))  # [Br]
    m_b = draw_maxima_near(rng, m_a)
    large = rng.random() < 0.5
    a, b = (draw_state(rng, m, dv, large) for m in (m_a, m_b))
    if large:
        return a, b
    with np.errstate(invalid="ignore"):  # -inf - (-inf)
        gap = np.nan_to_num(np.float64(m_a) - m_b, posinf=0, neginf=0)  # [Br]
    return times(a, np.exp(np.clip(-gap, 0, MADE_UP))), times(b, np.exp(np.clip(gap, 0, MADE_UP)))


def times(state, factor):
    """Return a state whose sums are multiplied by ``factor`` [Br]."""
    return state_of(state.m, factor * state.l, factor[:, None] * state.O)
