"""Queries, keys and values of a small trained model on real sentences, for "and on real data?".

The model is sentence-transformers/all-MiniLM-L6-v2, an encoder: no causal mask, every token sees every token. How the
files were made stands in ``notebooks/data/README.md``.

``LAYER`` and ``HEAD`` name the head that the lessons look at: from "bank" it looks at the words that say which bank.
It lies in the first layer, where a query knows its word and its position but nothing yet of the sentence, so it gathers
the evidence for a meaning and has not decided on one. It was chosen for being easy to read: most heads are not.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LAYER, HEAD = 0, 4
DATA = Path(__file__).resolve().parents[2] / "notebooks" / "data"


@dataclass(frozen=True, eq=False)
class Captured:
    """Q, K, V of some layers of the model, all heads, for one text of N tokens."""

    tokens: list[str]  # N; [CLS] first and [SEP] last are the model's own
    layers: list[int]  # L; which layers of the model these are
    Q: np.ndarray  # [L, H, N, d] float32, stored in float16
    K: np.ndarray  # [L, H, N, d]
    V: np.ndarray  # [L, H, N, d]
    scale: float  # factor on the scores, 1/sqrt(d)
    about: dict  # text, model, package, licence, versions, date, script, errors of the rounding to float16

    def head(self, layer=LAYER, head=HEAD):
        """Q, K, V of one head, each [N, d] float32. ``layer`` is the model's number: one of ``layers``."""
        heads = self.Q.shape[1]
        if layer not in self.layers or head not in range(heads):
            raise ValueError(f"expected a layer of {self.layers} and a head from 0 to {heads - 1}, got {layer}, {head}")
        at = self.layers.index(layer), head
        return self.Q[at], self.K[at], self.V[at]


def names():
    """What there is to load, sorted."""
    if not DATA.is_dir():
        raise FileNotFoundError(f"expected captured inputs in {DATA}: install flashlab from its checkout, editable")
    return sorted(path.stem for path in DATA.glob("*.npz"))


def load(name):
    """The captured inputs of one text: "bank" (14 tokens), "two_banks" (23) or "alice" (512), as ``Captured``.

    Raises: ValueError for an unknown name, FileNotFoundError where the course is not run from its checkout.
    """
    if name not in names():
        raise ValueError(f"expected one of {', '.join(names())}, got {name!r}")
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as stored:
        about = json.loads(stored["about"].item())
        Q, K, V = (stored[tensor].astype(np.float32) for tensor in "QKV")  # [L, H, N, d]
        return Captured(stored["tokens"].tolist(), about["layers"], Q, K, V, about["scale"], about)
