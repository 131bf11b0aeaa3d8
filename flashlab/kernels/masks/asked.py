"""What a call and a launch ask of a mask."""

import itertools

from flashlab.kernels.masks.algebra import Rule, Window
from flashlab.kernels.masks.questions import Told


def parts(mask):
    """Return all parts of a mask, and those of the mask inside packed texts."""
    own = [*itertools.chain(*mask.terms)]
    return [*own, *(part for x in own if hasattr(x, "mask") for part in parts(x.mask))]


def shows_own_key(mask) -> bool:
    """Return whether every query that has a key at its position sees it."""
    return any(all(getattr(part, "shows_own_key", False) for part in term) for term in mask.terms)


def hides_keys(mask, problem) -> bool:
    """Return whether there may be keys that no query sees."""
    if problem.Nq >= problem.Nk and shows_own_key(mask):  # and every key is some query's own
        return False
    return isinstance(mask, Rule) or mask.left is not None


def check(mask, problem):
    """Raise ValueError if a tensor of the mask does not fit the problem."""
    for part in itertools.chain(*mask.terms):
        if hasattr(part, "check"):
            part.check(problem)


def launches(problem, *options):
    """Return a dict for the launches of a problem with these options, which lasts as long as its ``Rule``.

    None: there is no rule, or more that changes scores or weights.
    """
    if isinstance(problem.mask, Window):
        return None
    rest = problem._replace(mask=Window(), texts=None)
    return problem.mask.kept(("launches", rest, *options), dict) if rest.plain else None


def told(mask, problem, Br, Bc, transposed=False):
    """Return a mask as the kernels take it, for tiles of this size.

    transposed: for a loop with the keys outside, which asks with queries and keys exchanged.
    """
    if isinstance(mask, Window):
        return Told(*(mask.T if transposed else mask))
    return mask.told(problem, Br, Bc, transposed)
