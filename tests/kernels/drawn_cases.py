"""Random calls of all that ``flashlab.kernels`` offers: ``draw`` makes the call with a number, ``hold`` checks it.

Only legal combinations are drawn: dropout and packed texts without the kernels of decoding; compiled calls and float8
with a window at most, and float8 without gradients; prefixes of ``decode_shared`` with the causal mask alone; scales of
0 and below in ``flash_attention``, dense and packed, alone. Keys and values that no query sees may be NaN, under any
mask. Where a mask keeps texts apart, one query, key, value or row of dO may be NaN or infinite: then only the results
that do not depend on this row are compared. In 16 bits, scores reach about 1e4.

Beside each call that makes a mask for the kernels is the mask's definition in numpy, as its docstring has it.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch

from flashlab.kernels import DEVICE, configurations, flash_attention, flash_attention_packed, masks, scores, tl, triton
from flashlab.kernels import dropout as dropping
from flashlab.kernels.attention_float8 import flash_attention_float8
from flashlab.kernels.decode import Cache, PagedCache, decode, dequantise, operator, quantise, tiles
from flashlab.kernels.linear_attention import linear_attention
from flashlab.kernels.shared_prefix import Prefix, decode_shared
from tests.kernels import written_out
from tests.kernels.drawn_reference import Case, Mask, Step, compare, in_numpy, results_of
from tests.kernels.implementations import choose_anew
from tests.kernels.in_eight_bits import in_eight_bits, widened
from tests.kernels.inputs import laid_out
from tests.tools.bounds import assert_as_exact_as_plain

ABSURD = 2147480000  # an entry of a table that no kernel may read
LAYOUTS = "plain", "transposed", "sliced", "offset", "columns", "expanded"
RARE = 0.12  # the share of cases with each of the rare choices
TILES = [(Br, Bc) for Br in (16, 32, 64, 128) for Bc in (16, 32, 64, 128)]
WIDTHS = 1, 3, 8, *[16] * 8, 24, 33, 40, 64, 72, 100, 128, 192, 256


@triton.jit
def some_keys(b, h, i, j, Nq, Nk, shift, step):
    return (i + 2 * j + tl.load(shift + h)) % step != 0


@triton.jit
def multiplied(s, b, h, i, j, Nq, Nk, factors, part):
    return s * tl.load(factors + h) * (1 - (i + 2 * j) % 3 * part)


@triton.jit
def factor(s, b, h, i, j, Nq, Nk, factors, part):
    return tl.load(factors + h) * (1 - (i + 2 * j) % 3 * part)


@dataclass
class Own:
    """A call with a comparison of its own: ``check`` runs it and asserts that its results are right."""

    check: Callable
    name: str = ""
    tile: tuple = ()


def hold_in_tiles(case):
    """Compare the results of a call in the interpreter, with kernels in the tiles of the case."""
    Br, Bc = case.tile
    choice = configurations.INTERPRETED._replace(Br=Br, Bc=Bc)
    launch = tiles.Launch(16, min(Bc, 64), 4, 1, 1)
    of_decode = mock.patch.object(operator, "launch_for", lambda *_: launch)
    choose_anew()
    try:
        with mock.patch.object(configurations, "INTERPRETED", choice), of_decode:
            hold(case)
    finally:
        choose_anew()


def hold(case):
    """Run a case, and assert that its results are right."""
    try:
        if isinstance(case, Own):
            case.check()
            return
        compare(case, *results_of(case, [lambda x, layout=layout: laid_out(x, layout) for layout in LAYOUTS]))
    except Exception as error:
        error.add_note(case.name)
        raise


# masks


def window(left, right=0):
    seen = lambda b, i, j, own: (own - left <= j) & (j <= own + right)  # noqa: E731
    return Mask(f"window({left}, {right})", masks.window(left, right), seen)


def full():
    return Mask("full", masks.full(), lambda b, i, j, own: (i >= 0) & (j >= 0))


def causal():
    return Mask("causal", masks.causal(), lambda b, i, j, own: j <= own)


def first(n):
    return Mask(f"sinks({n})", masks.sinks(n), lambda b, i, j, own: (i >= 0) & (j < n))


def prefix(n):
    return Mask(f"prefix({n})", masks.prefix(n), lambda b, i, j, own: (j < n) | (j <= own))


def stream(n, W):
    return (causal() & (first(n) | window(W)))._replace(name=f"stream({n}, {W})")


def on_device(x):
    """Return an array of a mask as a tensor for the kernels."""
    return torch.as_tensor(x).to(DEVICE)


def padding(lengths, place=on_device):
    mask = masks.padding(place(lengths))
    return Mask(f"padding({lengths})", mask, lambda b, i, j, own: (i >= 0) & (j < lengths[b]))


def documents(ids, offsets=None, place=on_device):
    """Return a mask. ids: [Nk] or [B, Nk]. offsets: the same documents, for the kernels in place of ids."""
    of = ids if ids.ndim == 2 else ids[None]
    name, x = ("ids", ids) if offsets is None else ("offsets", offsets)
    mask = masks.documents(**{name: place(x)})
    seen = lambda b, i, j, own: (of[b % len(of)][own.clip(0)] == of[b % len(of)][j]) & (own >= 0)  # noqa: E731
    return Mask(f"documents({name}, {x.dtype}{list(x.shape)})", mask, seen)


def pattern(blocks, Br, Bc, sizes, place=on_device):
    """Return a mask. blocks: the visible ones, boolean, broadcastable to sizes: [B, H, Tr, Tc]."""
    x, whole = place(blocks), np.broadcast_to(blocks, sizes)
    mask = masks.dense(x) if Br == Bc == 1 else masks.blocks(x, Br, Bc)
    seen = lambda b, i, j, own: whole[b][:, i // Br, j // Bc]  # noqa: E731
    return Mask(f"pattern({list(blocks.shape)}, {Br}, {Bc})", mask, seen)


def custom(shift, step):
    mask = masks.custom(some_keys, torch.as_tensor(shift).to(DEVICE), step)
    seen = lambda b, i, j, own: (i + 2 * j + shift[:, None, None]) % step != 0  # noqa: E731
    return Mask(f"custom({step})", mask, seen)


def draw_mask(rng, B, H, Nq, Nk, depth=2, place=on_device):
    """Return a mask for B texts of at most Nq queries and Nk keys: up to 2^depth drawn masks, combined.

    place: ``on_device`` or another such function.
    """
    if depth and rng.random() < 0.4:
        one, other = (draw_mask(rng, B, H, Nq, Nk, depth - 1, place) for _ in "&|")
        return one & other if rng.random() < 0.5 else one | other
    n, W = (int(rng.choice([0, 1, 3, 20, rng.integers(Nk + 2)])) for _ in range(2))
    dtype = [np.int32, np.int64][rng.integers(2)]
    match rng.choice(range(12), p=[0.4, 0.1, *[0.05] * 10]):
        case 0:
            return window(n if rng.random() < 0.8 else math.inf, [0, 0, W, math.inf][rng.integers(4)])
        case 1:
            return causal()
        case 2:
            return full()
        case 3:
            return first(n)
        case 4:
            return prefix(n)
        case 5:
            return stream(n, W)
        case 6:
            return padding(rng.integers(0, Nk + 1, B).astype(dtype), place)
        case 7:
            offsets = np.r_[0, np.sort(rng.integers(0, Nk + 1, 3)), Nk].astype(dtype)
            return documents(np.searchsorted(offsets[1:], np.arange(Nk), "right"), offsets, place)
        case 8 | 9:
            ids = rng.integers(0, 4, (B, Nk) if rng.random() < 0.5 else Nk).astype(dtype)
            ids = ids - 2 if dtype == np.int64 else ids
            return documents(np.sort(ids) if rng.random() < 0.7 else ids, None, place)
        case 10:
            Br, Bc = (int(x) for x in rng.integers(1, 40, 2)) if rng.random() < 0.5 else (1, 1)
            sizes = B, H, -(-Nq // Br), -(-Nk // Bc)
            most = 2 if Br * Bc > 1 else 4  # leading dimensions that may be broadcast: of blocks, batches and heads
            shape = [1 if n < most and rng.random() < 0.3 else size for n, size in enumerate(sizes)]
            return pattern(rng.random(shape[rng.integers(3) :]) < rng.choice([0.6, 0.97, 0.995]), Br, Bc, sizes, place)
        case 11:
            return custom(rng.integers(0, 5, H), int(rng.integers(2, 5)))


# score functions


def draw_step(rng, B, H, Nq, Nk, dtype, learn, place=on_device):
    """Return a score function. place: ``on_device`` or another such function."""
    kind = rng.choice(["softcap", "alibi", "bias", "custom"])
    if kind == "softcap":
        cap = float(rng.choice([0.5, 3, 30]))
        return Step(f"softcap({cap})", scores.softcap(cap), kind, cap)
    if kind == "custom":
        factors = torch.as_tensor(rng.uniform(0.3, 1.5, H)).float().to(DEVICE)
        i, j = (torch.arange(N, device=DEVICE) for N in (Nq, Nk))
        whole = factors[:, None, None] * (1 - (i[:, None] + 2 * j) % 3 * 0.25)  # [H, Nq, Nk]
        return Step("custom", scores.custom(multiplied, factors, 0.25, derivative=factor), kind, whole[None])
    if kind == "alibi":
        shape = (B, H) if rng.random() < 0.4 else (H,)
    else:
        shape = tuple(1 if rng.random() < 0.3 else size for size in (B, H, Nq, Nk)[rng.integers(5) :])
    x = rng.standard_normal(shape) * (0.1 if kind == "alibi" else 1)
    if kind == "bias" and rng.random() < 0.3:
        x = np.where(rng.random(shape) < 0.3, -np.inf, x)  # hides keys
    x = place(torch.as_tensor(x).to([torch.float32, dtype][rng.integers(2)])).requires_grad_(learn)
    whole = x.detach()[..., None, None] if kind == "alibi" else x.detach()
    return Step(f"{kind}{list(shape)}", getattr(scores, kind)(x), kind, whole[(None,) * (4 - whole.dim())], x)


# calls


class Drawn:
    """The choices of a call: fixed ones, and random ones for the rest."""

    def __init__(self, number, form, fixed, rare=False):
        self.rng, self.fixed = np.random.default_rng([29, number]), fixed
        self.more, self.rare = np.random.default_rng([31, number]), rare
        self.dtype, self.tile = self("dtype", torch.float32, torch.bfloat16, torch.float16), self("tile", *TILES)
        self.H, self.Hk = self("heads", *[(1, 1)] * 6, *[(2, 1)] * 3, (2, 2), (3, 1), (4, 2))
        self.H, self.Hk = self.rarely("heads", (self.H, self.Hk), (6, 2), (5, 1), (5, 5), share=0.05)
        self.d = self("d", *WIDTHS)
        self.dv = self("dv", self.d, self.d, *WIDTHS)
        self.autocast, self.seeded = None, None
        if self.dtype == torch.float32 and form in ("dense", "packed"):
            self.autocast = self.rarely("autocast", None, torch.bfloat16, torch.float16)
        self.name = f"case {number}: {form} {self.dtype} tile={self.tile}{getattr(self, 'name', '')}"

    def __call__(self, name, *choices):
        """Return the fixed choice of this name, if there is one, else a random one."""
        choice = choices[self.rng.integers(len(choices))]
        return self.fixed.get(name, choice)

    def rarely(self, name, usual, *others, share=RARE):
        """Return the usual choice or, unless the choice of this name is fixed, sometimes another.

        Rare choices have a generator of their own, so they do not change the other choices of a number.
        """
        choice = others[self.more.integers(len(others))] if self.more.random() < share else usual
        choice = choice if self.rare and name not in self.fixed else usual
        if choice != usual:
            self.name = f"{getattr(self, 'name', '')} {name}={choice}"
        return choice

    def place(self, x):
        """Return an array or tensor of a call as a tensor on the device, sometimes in another dtype and layout."""
        x = torch.as_tensor(x)
        if x.is_floating_point():
            x = x.to(self.rarely("dtype of scores", x.dtype, torch.float64, torch.bfloat16, torch.float16))
        elif x.dtype != torch.bool and (not x.numel() or x.max() < 100):
            x = x.to(self.rarely("dtype of integers", x.dtype, torch.uint8, torch.int8, torch.int16))
        return laid_out(x.to(DEVICE), self.rarely("layout of it", "plain", "transposed", "sliced", "offset", "columns"))

    def length(self, name=None, parts=1):
        """Return a length of at most a few tiles."""
        most = min(2 * max(self.tile) + 7, 3 * min(self.tile), 150) // parts
        few = 0, 1, 16, 17, 31, self.tile[0], self.tile[1]
        return self(name, *(min(n, most) for n in few), *(int(n) for n in self.rng.integers(2, most + 1, 14)))

    def tensor(self, *shape, layouts=LAYOUTS, factor=1.0):
        layout = self("layout", "plain", *layouts)
        self.name += f" {layout}"
        x = self.rng.standard_normal(shape) * self("factor", 1.0, 1.0, 3.0) * factor
        if self.autocast is not None:  # numbers that autocast does not change
            x = torch.as_tensor(x).to(self.autocast).float()
        return laid_out(torch.empty(shape, dtype=self.dtype, device=DEVICE).copy_(torch.as_tensor(x)), layout)

    def tensors(self, *shapes):
        """Return Q, K and V."""
        large = self.rarely("large", 1.0, 4.0, 8.0, 25.0 if self.dtype == torch.float16 else 40.0)  # scores up to 1e4
        if large > 1 and self.dtype != torch.float32:
            self.fixed = {"factor": 1.0, **self.fixed}
        large = 1.0 if self.dtype == torch.float32 else large
        factors = zip("QKV", shapes, (large, large, 1.0), strict=True)
        return {name: self.tensor(*shape, factor=factor) for name, shape, factor in factors}

    def options(self, B, Nq, Nk, scales=(), learning=False):
        """Return options of a call, and the fields of ``Case`` that describe them."""
        steps = tuple(
            draw_step(self.rng, B, self.H, Nq, Nk, self.dtype, learning and self("learn", True, False), self.place)
            for _ in range(self("steps", 0, 0, 0, 0, 1, 1, 2, 3))
        )
        sinks = None
        if self("sinks", True, False, False):
            sinks = torch.as_tensor(self.rng.standard_normal(self.H)).to(DEVICE, self(None, torch.float32, self.dtype))
            sinks = self.place(sinks)
            sinks.requires_grad_(learning and self("learn", True, False))
        mask = self.fixed.get("mask") or draw_mask(self.rng, B, self.H, Nq, Nk, place=self.place)
        scale = self("scale", None, None, None, 0.3, 1.0, *scales)
        self.name += f" H={self.H}/{self.Hk} d={self.d}/{self.dv} {mask.name} {[s.name for s in steps]}"
        self.name += f" sinks={sinks is not None and sinks.dtype} scale={scale}"
        options = {"mask": mask.kernels, "sinks": sinks, "scale": scale, "return_lse": True}
        if mask.name == "causal":  # the default of decoding; ``differentiable`` adds causal=True
            options["mask"] = None
        if steps:
            options["score"] = steps[0].kernels if len(steps) == 1 else tuple(step.kernels for step in steps)
        scale = self.d**-0.5 if scale is None else scale
        return options, {"mask": mask, "steps": steps, "sinks": sinks, "scale": scale, "plain": self.dtype}

    def called(self, function, tensors, options):
        """Return a call of this function, perhaps under autocast, twice, or compiled."""
        context, seeded = contextlib.nullcontext, self.seeded
        if self.autocast is not None:
            context = lambda: torch.autocast(DEVICE.type, self.autocast)  # noqa: E731
        twice = self.rarely("twice", False, True)
        one_graph = isinstance(options["mask"], (masks.Window, type(None))) and options["kernel"] is None
        one_graph = one_graph and options["sinks"] is None and not {"score", "dropout", "offsets_q"} & set(options)
        if self.rarely("compiled", False, True, share=0.02) and one_graph and self.autocast is None:
            torch.compiler.reset()
            function = torch.compile(function, backend="aot_eager", fullgraph=True)

        def run():
            results = []
            for _ in range(1 + twice):
                if seeded is not None:
                    torch.manual_seed(seeded)
                with context():
                    results.append(function(*tensors.values(), **options))
            for first, last in zip(results[0], results[-1], strict=True):
                torch.testing.assert_close(first, last, rtol=0, atol=0, equal_nan=True)
            return results[-1]

        return run

    def differentiable(self, B, Nq, Nk):
        """Return options and fields of a call that can be differentiated, and which of Q, K and V get gradients."""
        learned = self("learned", "", "", "Q", "KV", "QKV", "QKV")
        learned = self.rarely("learned", learned, "K", "V", "QV")
        learning = bool(learned) or self.rarely("learned beside Q, K and V", False, True)
        options, fields = self.options(B, Nq, Nk, (0.0, -0.2), learning)
        fields["loss"] = self.rarely("loss", ("O", "lse"), ("O",), ("lse",), ("lse",))
        if self.autocast is not None:
            fields |= {"plain": self.autocast, "out": self.autocast}
        options["causal"] = fields["mask"].name == "causal"
        options["kernel"] = self("kernel", None, "portable", "decode")
        if self("dropout", True, False, False) and options["kernel"] != "decode":
            seed = int(self.rng.integers(2**64, dtype=np.uint64))
            drawn_seed = self.rarely("seed of torch's generator", False, True)
            if drawn_seed:
                self.seeded = seed % 2**31
                torch.manual_seed(self.seeded)
                seed = int(dropping.dropout(0.5, None, DEVICE).seed) % 2**64
            fields |= {"dropout": self("p", 0.1, 0.5, 0.9), "seed": seed}
            options |= {"dropout": fields["dropout"], "seed": None if drawn_seed else seed}
        self.name += f" dropout={fields.get('dropout')} kernel={options['kernel']} learned={learned}"
        return options, fields, learned


def draw(number, rare=False, **fixed):
    """Return the case of this number. fixed: choices by name, instead of random ones. rare: with rare choices, too."""
    form = fixed.get("form") or ("dense", "packed", "dense", "decode")[number % 4]
    if rare and number % 12 in OWN_FORMS:
        form = OWN_FORMS[number % 12]
    drawn = Drawn(number, form, fixed, rare)
    case = FORMS[form](drawn)
    case.name, case.tile = drawn.name, drawn.tile
    return case


def dense(drawn):
    (H, Hk), d, dv = (drawn.H, drawn.Hk), drawn.d, drawn.dv
    B, Nq, Nk = drawn("B", 1, 1, 1, 1, 2), drawn.length("Nq"), drawn.length("Nk")
    B = drawn.rarely("B", B, 0, 3)
    drawn.name += f" B={B} N={Nq}/{Nk}"
    options, fields, learned = drawn.differentiable(B, Nq, Nk)
    tensors = drawn.tensors((B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, dv))
    places = [(b, slice(0, Nq), slice(0, Nk)) for b in range(B)]
    run = drawn.called(flash_attention, tensors, options)
    case = Case("", run, tensors, places, **fields)
    if options["kernel"] != "decode" and drawn("hide", True, False):  # NaN in keys that no query sees
        drawn.name += " hidden"
        for b, x in [(b, x) for b in range(B) for x in list(tensors.values())[1:] if min(x.stride())]:
            seen = case.pairs(b, H)[0].reshape(Hk, H // Hk * Nq, Nk).any(1)
            x[b][torch.as_tensor(~seen).to(DEVICE)] = math.nan
    if options["mask"] is not None and options["mask"].keeps_apart:
        poisoned(drawn, case)
    for name in learned:
        tensors[name].requires_grad_()
    return case


def packed(drawn):
    texts = drawn("B", 1, 2, 2, 3, 4)
    Nq, Nk = ([drawn.length(parts=2) for _ in range(texts)] for _ in "qk")
    Nq = drawn("Nq", Nq)
    Nk = drawn("Nk", Nk, Nk, Nq)
    drawn.name += f" N={Nq}/{Nk}"
    options, fields, learned = drawn.differentiable(texts, max(Nq), max(Nk))
    if options["kernel"] == "decode":
        options["kernel"] = None
    ends = [np.cumsum([0, *lengths]) for lengths in (Nq, Nk)]
    for name, x in zip(["offsets_q"] if Nq == Nk else ["offsets_q", "offsets_k"], ends, strict=False):
        options[name] = torch.as_tensor(x).to(DEVICE, drawn("offsets", torch.int32, torch.int64))
    tensors = drawn.tensors((sum(Nq), drawn.H, drawn.d), (sum(Nk), drawn.Hk, drawn.d), (sum(Nk), drawn.Hk, drawn.dv))
    places = [(0, slice(*ends[0][t : t + 2]), slice(*ends[1][t : t + 2])) for t in range(texts)]
    case = Case("", drawn.called(flash_attention_packed, tensors, options), tensors, places, packed=True, **fields)
    poisoned(drawn, case)
    for name in learned:
        tensors[name].requires_grad_()
    return case


def poisoned(drawn, case):
    """Sometimes write NaN or an infinity into a case whose mask keeps texts apart."""
    name = drawn.fixed.get("poison", drawn.rarely("poison", None, "Q", "K", "V", "dO", share=0.4))
    if name is None or not case.places:
        return
    t, like = int(drawn.more.integers(len(case.places))), "Q" if name == "dO" else name
    value = (math.nan, math.inf, -math.inf)[drawn.more.integers(3)]
    of_text = case.part(case.tensors[like], like, t)
    if of_text.numel() and 0 not in case.tensors[like].stride():
        head, place = (int(drawn.more.integers(size)) for size in of_text.shape[:2])
        case.poison = name, t, head, place, value
        drawn.name += f" poison={case.poison}"
        if name != "dO":
            of_text[head, place] = value


def linear(drawn):
    """Return a call of ``linear_attention``."""
    B, N, chunk = drawn("B", 0, 1, 1, 2), drawn.length("Nq"), drawn("chunk", None, 16, 32)
    shapes = (B, drawn.H, N, drawn.d), (B, drawn.H, N, drawn.d), (B, drawn.H, N, drawn.dv)
    Q, K, V = (drawn.tensor(*shape, factor=drawn.d**-0.25) for shape in shapes)
    decay = torch.as_tensor(drawn.rng.uniform(0.5, 1, drawn.H)).float().to(DEVICE)

    def check():
        O = linear_attention(Q, K, V, decay=decay, chunk=chunk)
        if O.numel():
            plain, exact = (written_out.linear(Q, K, V, decay, dtype) for dtype in (drawn.dtype, torch.float64))
            assert_as_exact_as_plain(O, plain, exact, roundings=8)

    return Own(check)


def in_float8(drawn):
    """Return a call of ``flash_attention_float8``, which rounds each weight to 3 bits after the leading one."""
    B, Nq, Nk = drawn("B", 1, 2), max(drawn.length("Nq"), 1), max(drawn.length("Nk"), 1)
    mask = [full(), causal(), window(20), window(3, 7)][drawn("which mask", *range(4))]
    H, Hk, d, dv = drawn.H, drawn.Hk, -(-drawn.d // 16) * 16, -(-drawn.dv // 16) * 16
    drawn.name += f" B={B} N={Nq}/{Nk} H={H}/{Hk} d={d}/{dv} {mask.name}"
    shapes = (B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, dv)
    eight = in_eight_bits(*(torch.as_tensor(drawn.rng.standard_normal(x)).float().to(DEVICE) for x in shapes))
    i, j = np.ogrid[:Nq, :Nk]
    seen = np.broadcast_to(mask.seen(0, i, j, i + Nk - Nq), (Nq, Nk))
    seen = torch.as_tensor(seen.copy()).to(DEVICE)

    def check():
        codes, scales = zip(*eight, strict=True)
        O, lse = flash_attention_float8(*codes, scales=scales, mask=mask.kernels, dtype=torch.float32, return_lse=True)
        q, k, v = map(widened, eight)
        exact, exact_lse = written_out.attention(q, k, v, seen)
        size, _ = written_out.attention(q, k, abs(v), seen)
        some = exact_lse.isfinite()
        assert torch.equal(lse.isfinite(), some) and (O[~some] == 0).all()
        torch.testing.assert_close(lse[some].double(), exact_lse[some], rtol=0, atol=2e-3)  # scores have 14 bits
        small = Nk * 2.0**-17 * abs(v).max()  # weights that become 0
        assert ((O - exact).abs() <= (2**-4 + 0.01) * size + small).all()

    return Own(check)


def grown(drawn):
    """Return a step of decoding from a ``PagedCache`` that appends and forks have filled."""
    rng, page, n = drawn.rng, drawn("page", 1, 5, 16), drawn("n", 1, 2, 6)
    eight = drawn("eight", None, None, torch.int8)
    latent = drawn("latent", False, False, True)
    if latent:
        drawn.d, drawn.dv = drawn("rope", 16, 32) + 32, 32
    dtype = eight or drawn.dtype
    cache = PagedCache(200, page, drawn.Hk, drawn.d, drawn.dv, dtype=dtype, latent=latent)
    texts = {cache.add(): [np.zeros((drawn.Hk, 0, width)) for width in (drawn.d, drawn.dv)]}
    for _ in range(6):
        number = int(rng.choice([*texts]))
        if rng.random() < 0.4:
            texts[cache.fork(number)] = list(texts[number])
        tokens = int(rng.integers(n, 20))
        K = drawn.tensor(1, drawn.Hk, tokens, drawn.d, layouts=("plain", "sliced"))
        V = K[..., : drawn.dv] if latent else drawn.tensor(1, drawn.Hk, tokens, drawn.dv, layouts=("plain", "sliced"))
        cache.append([number], K, None if latent else V)
        new = [in_numpy(x[0]) if eight is None else as_stored(x[0], eight) for x in (K, V)]
        new[1] = new[0][..., : drawn.dv] if latent else new[1]
        texts[number] = [np.concatenate(pair, 1) for pair in zip(texts[number], new, strict=True)]
    numbers = [number for number, (K, _) in texts.items() if K.shape[1] >= n]
    drawn.name += f" page={page} n={n} {dtype} latent={latent} texts={[texts[it][0].shape[1] for it in numbers]}"
    options, fields = drawn.options(len(numbers), n, -(-max(texts[it][0].shape[1] for it in numbers) // page) * page)
    if eight is not None and drawn.dtype == torch.float32:  # Q is rounded to float16 as well
        fields |= {"plain": torch.float16, "of_lse": torch.float16}
    tensors = {"Q": drawn.tensor(len(numbers), drawn.H, n, drawn.d)}
    places = [(b, slice(0, n), slice(0, texts[number][0].shape[1])) for b, number in enumerate(numbers)]
    case = Case("", lambda: decode(tensors["Q"], cache.view(numbers), **options), tensors, places, **fields)
    case.keys = lambda t: texts[numbers[t]]
    return case


def as_stored(x, dtype):
    """Return x as a cache of 8 bits stores it, in float64."""
    codes, scale = quantise(x, dtype)
    return in_numpy(dequantise(codes, scale))


def decoding(drawn):
    n = 1, 1, 2, 20  # 20: with several heads in a group, more rows than a tile has
    rng, B, n, N = drawn.rng, drawn("B", 1, 2, 3), drawn("n", *n), max(drawn.length("Nk"), 1)
    n = drawn.rarely("n", n, 6, 7, 33, 70)
    eight = drawn("eight", None, None, torch.int8, torch.float8_e4m3fn)
    latent, shared = drawn("cache", (True, False), (False, True), *[(False, False)] * 3)
    if latent:
        drawn.dv = drawn("dv", 16, 40, 64, 256, 512)
        drawn.d = drawn.dv + drawn("rope", 0, 16, 32, 64)
    if shared:
        eight, drawn.fixed = None, {"mask": causal(), "steps": 0, "sinks": False, **drawn.fixed}
    page, fixed_split = drawn("page", None, None, 1, 5, 16, 64), drawn("fixed_split", None, None, 128)
    N = (-(-N // page) + 1) * page if page else N  # for which the cache has room
    lengths = [int(x) for x in rng.integers(0, N + 1, B)] if drawn("ragged", True, True, False) else [N] * B
    drawn.name += f" B={B} n={n} N={lengths}/{N} {eight} {'latent' * latent} page={page} fixed_split={fixed_split}"
    options, fields = drawn.options(B, n, N)
    if eight is not None and drawn.dtype == torch.float32:  # Q is rounded to float16 as well
        fields |= {"plain": torch.float16, "of_lse": torch.float16}
    tensors = {"Q": drawn.tensor(B, drawn.H, n, drawn.d)}
    places = [(b, slice(0, n), slice(0, length)) for b, length in enumerate(lengths)]
    case = Case("", None, tensors, places, **fields)
    near = isinstance(case.mask.kernels, masks.Window) or case.mask.name.startswith("stream")
    read, seen = (np.zeros((B, N), bool) for _ in range(2))
    for b, length in enumerate(lengths):
        seen[b, :length] = case.pairs(b, drawn.H)[0].any((0, 1))
        read[b, :length] = seen[b, :length] if near else True
    cache, exact = cached(drawn, read, seen, eight, latent, page)
    of_text = [[x[b][:, :length] for x in exact] for b, length in enumerate(lengths)]
    lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    if page or not read.all() or drawn("lengths", True, False):
        cache = cache._replace(lengths=lengths)
    prefixes = [shared_prefix(drawn, of_text, places) for _ in range(drawn("prefixes", 1, 2) if shared else 0)]
    case.keys = of_text.__getitem__
    if not shared:
        case.run = lambda: decode(tensors["Q"], cache, fixed_split=fixed_split, **options)
        return case
    before = [keys.stop - length for (_, _, keys), length in zip(places, lengths.tolist(), strict=True)]
    case.mask = causal()._replace(seen=lambda b, i, j, own: (j < before[b]) | (j <= own))
    options = {"scale": options["scale"], "return_lse": True, "fixed_split": fixed_split}
    case.run = lambda: decode_shared(tensors["Q"], prefixes, cache, **options)
    return case


def cached(drawn, read, seen, eight=None, latent=False, page=None):
    """Return a cache, and K and V in float64.

    The cache has NaN where ``seen`` [B, N] is False. Its table has absurd entries for the pages in which ``read``
    [B, N] is False everywhere.
    """
    B, N = read.shape
    pages = N // page if page else 0
    table = drawn.rng.permutation(B * pages).reshape(B, pages)
    hidden = torch.as_tensor(~seen).to(DEVICE)[:, None].expand(B, drawn.Hk, N)

    def placed(x, nothing):  # x [B, Hk, N, ..] as the cache has it, with nothing in place of hidden rows
        if not page:
            x[hidden] = nothing
            return x
        x_paged = x.new_full([B * pages, x.shape[1], page, *x.shape[3:]], nothing)
        for b, j in zip(*seen.nonzero(), strict=True):
            x_paged[table[b, j // page], :, j % page] = x[b, :, j]
        return x_paged

    def drawn_rows(d):  # rows as the cache has them, their scales, and the exact rows in float64
        if eight is None:
            x = drawn.tensor(B, drawn.Hk, N, d, layouts=("plain", "transposed", "sliced", "offset"))
            exact = in_numpy(x).copy()  # before ``placed`` hides some rows
            return placed(x, math.nan), None, exact
        x = torch.as_tensor(drawn.rng.standard_normal((B, drawn.Hk, N, d)) * 30).to(DEVICE).clamp(-127, 127).to(eight)
        scale = torch.as_tensor(drawn.rng.uniform(0.5, 1.5, (B, drawn.Hk, N)) / 30).float().to(DEVICE)
        exact = in_numpy(x.float()) * in_numpy(scale)[..., None]
        return placed(x.view(torch.uint8), 127).view(eight), placed(scale, math.nan), exact  # 127: NaN in float8

    K, K_scale, K_exact = drawn_rows(drawn.d)
    V, V_scale, V_exact = (K, K_scale, K_exact) if latent else drawn_rows(drawn.dv)
    V, V_exact = V[..., : drawn.dv], V_exact[..., : drawn.dv]
    if page:
        table = np.where(read.reshape(B, pages, page).any(-1), table, ABSURD)
    table = torch.as_tensor(table).to(DEVICE, torch.int32) if page else None
    scales = None if eight is None else torch.stack([K_scale, V_scale])
    return Cache(K, V, table, None, scales), [K_exact, V_exact]


def shared_prefix(drawn, of_text, places):
    """Return a prefix of some texts, and put its keys before theirs in ``of_text`` and ``places``."""
    P, page = drawn.length(), drawn("page of prefixes", None, 16)
    read = np.arange(-(-P // page) * page if page else P)[None] < P
    cache, exact = cached(drawn, read, read, page=page)
    texts = np.flatnonzero(drawn.rng.random(len(places)) < 0.6)
    texts = np.arange(len(places)) if len(texts) == 0 or drawn("all", True, False) else texts
    for t in texts:
        of_text[t] = [np.concatenate([x[0][:, :P], own], 1) for x, own in zip(exact, of_text[t], strict=True)]
        places[t] = (*places[t][:2], slice(0, places[t][2].stop + P))
    drawn.name += f" prefix of {P} before {texts}, page={page}"
    some = None if len(texts) == len(places) else torch.as_tensor(texts).to(DEVICE, torch.int32)
    if not page:
        return Prefix((cache.K, cache.V), some)
    return Prefix(cache._replace(lengths=torch.tensor([P], dtype=torch.int32, device=DEVICE)), some)


FORMS = {
    "dense": dense, "packed": packed, "decode": decoding, "linear": linear, "float8": in_float8, "grown": grown,
}  # fmt: skip
OWN_FORMS = {2: "float8", 7: "grown", 8: "linear"}  # by the number modulo 12
