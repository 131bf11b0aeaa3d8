"""The stored data of the course: inputs captured from a trained model, measurements of GPUs, and a book.

Only this module contains their paths. ``notebooks/data/README.md`` describes how each file was made.

The captured queries, keys and values show how real data behave. The model is sentence-transformers/all-MiniLM-L6-v2,
an encoder: it has no causal mask, so every token sees every token. ``LAYER``
and ``HEAD`` name the head that the lessons look at: from "bank" it looks at the words that tell which bank is meant. It
belongs to the first layer, where a query depends only on its word and its position, not yet on the sentence: the head
gathers the evidence for a meaning. It is easy to read, unlike most heads.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LAYER, HEAD = 0, 4
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
DATA = NOTEBOOKS / "data"


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

    def head(self, layer: int = LAYER, head: int = HEAD) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Q, K, V of one head, each [N, d] float32. ``layer`` is the model's number: one of ``layers``."""
        heads = self.Q.shape[1]
        if layer not in self.layers or head not in range(heads):
            raise ValueError(f"expected a layer of {self.layers} and a head from 0 to {heads - 1}, got {layer}, {head}")
        at = self.layers.index(layer), head
        return self.Q[at], self.K[at], self.V[at]


def captured(name: str) -> Captured:
    """Load the captured inputs of one text: "bank" (14 tokens), "two_banks" (23) or "alice" (512).

    Raises ValueError for an unknown name and FileNotFoundError where the course is not run from its checkout.
    """
    with np.load(_path(name, ".npz"), allow_pickle=False) as stored:
        about = json.loads(stored["about"].item())
        Q, K, V = (stored[tensor].astype(np.float32) for tensor in "QKV")  # [L, H, N, d]
        return Captured(stored["tokens"].tolist(), about["layers"], Q, K, V, about["scale"], about)


def measured(name: str) -> dict:
    """Load a stored measurement, such as "h200_hopper": a dict with device, versions, date and command in it.

    Raises ValueError for an unknown name and FileNotFoundError where the course is not run from its checkout.
    """
    return json.loads(_path(name, ".json").read_text(encoding="utf-8"))


def text() -> str:
    """Return chapters I to VII of *Alice's Adventures in Wonderland*, 86,889 characters."""
    return _path("alice", ".txt").read_text(encoding="utf-8")


def names(suffix: str = ".npz") -> list[str]:
    """Return the names of all stored files of a kind, sorted: ".npz" for ``captured``, ".json" for ``measured``."""
    if not DATA.is_dir():
        raise FileNotFoundError(f"expected the stored data in {DATA}: install flashlab from its checkout, editable")
    return sorted(path.stem for path in DATA.glob(f"*{suffix}"))


def _path(name, suffix):
    if name not in names(suffix):
        raise ValueError(f"expected one of {', '.join(names(suffix))}, got {name!r}")
    return DATA / f"{name}{suffix}"
