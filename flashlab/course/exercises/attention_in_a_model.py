"""The exercises on attention_in_a_model."""

import numpy as np
import torch

from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.kernels import DEVICE
from flashlab.models import kv_cache
from flashlab.models.modules import FlashAttention
from flashlab.reference import masks
from flashlab.reference.attention import attention

__all__ = [
    "forward",
    "doubling",
    "step",
    "cache",
    "quiz_programs",
    "quiz_tiles",
    "quiz_lse",
    "quiz_narrowed",
    "quiz_owner",
    "quiz_products",
    "quiz_kept",
]  # in the lesson's order


def _weights(d_model, num_heads, num_kv_heads):
    """Projections to queries, keys, values and back: (out, in) each, the same for the same sizes."""
    rng, kv = np.random.default_rng(13), d_model // num_heads * num_kv_heads
    shapes = {"q_proj": d_model, "k_proj": kv, "v_proj": kv, "o_proj": d_model}
    return {name: rng.normal(size=(rows, d_model)).astype(np.float32) for name, rows in shapes.items()}


def _launch_forward(forward, x, num_heads, num_kv_heads, causal):
    """Run a learner's forward as the method of a module."""
    module = FlashAttention(x.shape[-1], num_heads, num_kv_heads, causal=causal)
    weights = _weights(x.shape[-1], num_heads, num_kv_heads)
    module.load_state_dict({f"{name}.weight": torch.tensor(W) for name, W in weights.items()})
    with torch.no_grad():
        return forward(module.to(DEVICE), _shared(x)).cpu().numpy()


def _shared(x):
    """x as a tensor that shares its memory on a CPU, so that a change of it is noticed."""
    return torch.from_numpy(x).to(DEVICE)


def _gradients(forward, x, num_heads, num_kv_heads, causal):
    """The gradients that reach x and the weights; None for what gets none."""
    module = FlashAttention(x.shape[-1], num_heads, num_kv_heads, causal=causal)
    weights = _weights(x.shape[-1], num_heads, num_kv_heads)
    module.load_state_dict({f"{name}.weight": torch.tensor(W) for name, W in weights.items()})
    x = torch.tensor(x, device=DEVICE, requires_grad=True)
    O = forward(module.to(DEVICE), x)
    if O.requires_grad:
        O.sin().sum().backward()
    return [x.grad, *(weight.grad for weight in module.parameters())]


def _gradients_flow(forward, x, *settings):
    """Law: x gets the gradient that the module gives it, and each weight gets one."""
    if x.shape[1] != 2:  # some cases are enough
        return None
    (yours, *weights), (right, *_) = (_gradients(it, x, *settings) for it in (forward, FlashAttention.forward))
    missing = any(gradient is None for gradient in (yours, *weights))
    if missing or not torch.allclose(yours, right, rtol=1e-3, atol=1e-3 * right.abs().max().item()):
        return (
            "the numbers are right, but not all of the gradient comes back through them: something was detached, and "
            "a model with this forward cannot learn."
        )


EXCHANGED = "the numbers are right, but they stay the same if the module has another attention. Call self.attention."
BY_HAND = (
    "the numbers are right, but not if the projections of the module have a bias: call self.q_proj(x), and the other "
    "projections in the same way."
)
REPEATED = (
    "the numbers are right, but self.attention got {} heads of K and V: they have num_kv_heads = {}, and query heads "
    "share them. Repeated ones take the memory that sharing saves."
)


def _attends(forward, x, num_heads, num_kv_heads, causal):
    """Law: the module's attention attends, whichever it is, and gets no more than num_kv_heads heads of K and V."""
    heads = []

    def to_itself(Q, K, V, *, causal):
        """Let each query see its own key only."""
        heads.extend((K.shape[1], V.shape[1]))
        return V.repeat_interleave(Q.shape[1] // V.shape[1], 1)

    sizes = x.shape[-1], num_heads, num_kv_heads
    for module, message in (
        (FlashAttention(*sizes, causal=causal, attention=to_itself), EXCHANGED),
        (FlashAttention(*sizes, causal=causal, bias=True), BY_HAND),
    ):
        module = module.to(DEVICE)
        with torch.no_grad():
            yours = forward(module, _shared(x))
            right = FlashAttention.forward(module, _shared(x))
        if not torch.allclose(yours, right, rtol=1e-3, atol=1e-3 * right.abs().max().item()):
            return message
    most = max(heads)
    return REPEATED.format(most, num_kv_heads) if most > num_kv_heads else None


def _forward(x, num_heads, num_kv_heads, causal):
    """What the module computes, head by head."""
    W = {name: weight.astype(x.dtype) for name, weight in _weights(x.shape[-1], num_heads, num_kv_heads).items()}
    q, k, v = (x @ W[name].T for name in ("q_proj", "k_proj", "v_proj"))  # [B, N, H d], [B, N, Hk d] twice
    d, shared = x.shape[-1] // num_heads, num_heads // num_kv_heads
    heads = []
    mask = masks.causal() if causal else None
    for h in range(num_heads):
        own, other = slice(h * d, (h + 1) * d), slice(h // shared * d, (h // shared + 1) * d)
        heads.append(attention(q[..., own], k[..., other], v[..., other], mask=mask))  # [B, N, d]
    return np.concatenate(heads, -1) @ W["o_proj"].T


def _normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def _draw_forward(rng, size):
    B, Hk, group, N, d = (int(rng.integers(1, most + 1)) for most in (2, 3, 2, size, 8))
    return _normal(rng, B, N, Hk * group * d), Hk * group, Hk, bool(rng.integers(2))


def _forward_edge(property, N, num_heads, num_kv_heads, causal):
    return Case(property, (_normal(np.random.default_rng(N), 1, N, 4 * num_heads), num_heads, num_kv_heads, causal))


CALL = "self.attention(Q, K, V, causal=self.causal)"

forward = Exercise(
    reference=FlashAttention.forward,
    launch=_launch_forward,
    exact=_forward,
    edges=(
        _forward_edge("one position, one head", 1, 1, 1, False),
        _forward_edge("two positions, one head", 2, 1, 1, False),
        _forward_edge("two positions, two heads", 2, 2, 2, False),
        _forward_edge("a causal module", 3, 2, 2, True),
        _forward_edge("four heads that share two key/value heads", 3, 4, 2, True),
    ),
    draw=_draw_forward,
    draws=5,
    laws=(_gradients_flow, _attends),
    sways=True,
    mistakes=(
        Mistake("took a view as [B, H, N, d], which cuts positions into pieces.",
                "Split the last dimension, then transpose.",
                CALL, "self.attention(*(X.transpose(1, 2).reshape(X.shape) for X in (Q, K, V)), causal=self.causal)"),
        Mistake("did not exchange heads and positions: heads attended to heads.", "Transpose dimensions 1 and 2.",
                CALL, "self.attention(*(X.transpose(1, 2) for X in (Q, K, V)), causal=self.causal).transpose(1, 2)"),
        Mistake("took a view of O as [B, N, d_model], which mixes positions.", "Transpose back first.",
                "O.transpose(1, 2).flatten(2)", "O.reshape(x.shape)"),
        Mistake("did not tell the attention whether it is causal.", "Pass self.causal.",
                "causal=self.causal", "causal=False"),
        Mistake("did not project the output back.", "o_proj mixes the heads.",
                "self.o_proj(O.transpose(1, 2).flatten(2))", "O.transpose(1, 2).flatten(2)"),
        Mistake("split keys and values into num_heads heads.", "They have num_kv_heads.",
                "self.k_proj(x).unflatten(-1, (self.num_kv_heads", "self.k_proj(x).unflatten(-1, (self.num_heads"),
    ),
    level=2,
    minutes=12,
    hints=(
        "self.q_proj(x) is [B, N, H·d]: the last dimension holds one head after the other. Split it first, then move.",
        "y.unflatten(-1, (heads, -1)) is [B, N, H, d]. Which two dimensions must change places? A view cannot do it.",
        "Q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2), K and V likewise with num_kv_heads; "
        "afterwards O.transpose(1, 2).flatten(2), and o_proj.",
    ),
)  # fmt: skip


doubling = Question(
    answer=1.41,
    because="N² bytes in twice the room: √2 times as many tokens. Where memory is linear, it is twice as many.",
    hints=(
        "Write room = c · N². What becomes of N when room doubles?",
        "N = √(room / c).",
        "The square root of two.",
    ),
    wrong=(
        (2, "That would be so if memory grew with N. The matrix grows with N²."),
        (4, "The other way round: four times the memory holds twice the tokens."),
    ),
)

cache = Question(
    answer=128,
    unit="KiB",
    because="2 · 32 layers · 8 heads · 128 numbers · 2 bytes = 131,072 bytes, a quarter of what 32 heads would take.",
    hints=(
        "How many numbers does one key/value head keep of one token? It keeps a key and a value.",
        "2 · 128 numbers of 2 bytes, for each of 8 heads, in each of 32 layers.",
        "2 · 128 · 2 · 8 · 32 bytes, divided by 1024.",
    ),
    wrong=(
        (512, "That is one key/value head for each of the 32 query heads. They share: there are 8."),
        (131072, "That is right in bytes. In KiB?"),
        (64, "A key and a value: both are kept."),
        (4, "That is one layer. Each of the 32 keeps its own."),
    ),
)


def _launch_step(step, *tensors):
    result = step(*map(_shared, tensors))
    return kv_cache.Step(*(part.cpu().numpy() for part in result))


def _step(Q, K, V, past_K, past_V):
    K, V = np.concatenate([past_K, K], 2), np.concatenate([past_V, V], 2)  # [B, Hk, N + n, d]
    shared = Q.shape[1] // K.shape[1]
    return kv_cache.Step(attention(Q, K.repeat(shared, 1), V.repeat(shared, 1), mask=masks.causal()), K, V)


def _new_and_past(rng, n, N, H=1, Hk=1, B=1, d=4):
    shapes = (B, H, n, d), *[(B, Hk, n, d)] * 2, *[(B, Hk, N, d)] * 2
    return tuple(_normal(rng, *shape) for shape in shapes)


def _draw_step(rng, size):
    B, Hk, group, n, d = (int(rng.integers(1, most + 1)) for most in (2, 2, 3, size, 8))
    return _new_and_past(rng, n, int(rng.integers(0, size + 1)), Hk * group, Hk, B, d)


def _step_edge(property, *sizes):
    return Case(property, _new_and_past(np.random.default_rng(5), *sizes))


step = Exercise(
    reference=kv_cache.step,
    launch=_launch_step,
    exact=_step,
    edges=(
        _step_edge("the first token of all: the cache is empty", 1, 0),
        _step_edge("one new token, one in the cache", 1, 1),
        _step_edge("two new tokens: the first must not see the second", 2, 3),
        _step_edge("two query heads that share a key/value head", 1, 3, 2),
        _step_edge("two texts, two key/value heads", 3, 2, 2, 2, 2),
    ),
    draw=_draw_step,
    draws=10,
    sways=True,
    mistakes=(
        Mistake("took torch's is_causal, which hides the past: query i sees keys up to i, counted from the first.",
                "flash_attention takes the queries to be the last positions.",
                "flash_attention(Q, K, V, causal=True)",
                "torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True)"),
        Mistake("let a new token see those that come after it.", "Pass causal=True.", "causal=True", "causal=False"),
        Mistake("attended to the past only.", "Append the new keys and values first.",
                "flash_attention(Q, K, V,", "flash_attention(Q, past_K, past_V,"),
        Mistake("put the new keys before the past ones.", "They come after them, as the values do.",
                "[past_K, K]", "[K, past_K]"),
        Mistake("returned the old cache.", "The next token needs the longer keys and values.",
                ", K, V)\n", ", past_K, past_V)\n"),
        Mistake("returned the new keys and values only.", "The next token needs the past ones as well.",
                ", K, V)\n", ", K[:, :, past_K.shape[2] :], V[:, :, past_K.shape[2] :])\n"),
    ),
    level=2,
    minutes=8,
    hints=(
        "A new token also looks at itself: its key and value belong in the cache before attention is computed.",
        "torch.cat([past_K, K], 2): along which dimension do tokens lie? Which positions have the new queries?",
        "flash_attention(Q, K, V, causal=True) with the longer K and V: it takes the queries to be the last positions.",
    ),
)  # fmt: skip


quiz_programs = Question(
    answer=512,
    because="4,096 / 128 = 32 tiles of queries, for each of 8 heads of each of 2 texts.",
    hints=(
        "One program computes one tile of O, of one head, of one text.",
        "4,096 / 128 = 32 tiles per head.",
        "32 · 8 · 2",
    ),
    wrong=(
        (32, "That is one head of one text."),
        (256, "That is one text. There are two, and each has programs of its own."),
        (128, "Key/value heads are shared, but each of the 8 query heads has its own output."),
        (64, "That is one head of each text."),
    ),
)

quiz_tiles = Question(
    answer=15,
    because="The queries are the last 256 of 1,024. Their first tile sees up to key 895, 7 tiles; their second all 8.",
    hints=(
        "Which keys does query 0 see? It is aligned at the lower right: j ≤ i + Nk − Nq.",
        "Query 127, the last of the first tile, sees the keys up to 127 + 768 = 895.",
        "896 / 128 tiles, and 1,024 / 128",
    ),
    wrong=(
        (3, "That is aligned at the upper left: 1 + 2. The queries are the last ones."),
        (16, "Those are all. The first tile of queries does not see the last tile of keys."),
        (8, "That is the last tile of queries alone. There are two."),
    ),
)

quiz_lse = Question(
    answer=3.4657,
    because="m + log₂ ℓ = 3 + 2 = 5 in units of log₂, times ln 2.",
    hints=(
        "In which unit are m and log₂ ℓ, and in which is lse outside of the kernel?",
        "m + log₂ ℓ = 5, and 2⁵ = e^(5 ln 2).",
        "5 · 0.6931",
    ),
    wrong=(
        (5, "That is in units of log₂. Outside of the kernel lse is natural: the backward pass takes e^(S − lse)."),
        (4.3863, "m is in units of log₂ as well: the whole sum is multiplied by ln 2."),
        (7.2135, "The other way round: ln x = log₂ x · ln 2."),
    ),
)

quiz_narrowed = Question(
    answer="P",
    because="The tensor cores take P and V in one dtype. S comes out of them in float32, and m, ℓ and O stay in it.",
    hints=(
        "Which of them is a factor of a product that the tensor cores compute?",
        "S and O are results of products, and results are float32.",
        "It is multiplied by V.",
    ),
    wrong=(
        ("S", "It comes out of the product in float32, and stays in it until P is made."),
        ("O", "It is rescaled and added to in every tile. Narrowed each time, it loses a digit."),
        ("lse", "One float32 per row: the backward pass takes e^(S − lse)."),
        ("m", "One number per row, in registers, in float32."),
    ),
)

quiz_owner = Question(
    answer=16,
    because="8 tiles of keys for each of 2 key/value heads; each takes the 4 query heads of its group in turn.",
    hints=(
        "Which program owns a row of dK? Does a query head have a dK of its own?",
        "1,024 / 128 = 8 tiles of keys per key/value head.",
        "8 · 2",
    ),
    wrong=(
        (64, "That would be one per query head: four programs would add to the same dK."),
        (8, "That is one key/value head."),
    ),
)

quiz_products = Question(
    answer=9,
    because="Forward 2 (S and O). Backward 4 with the keys outside (S, dV, dP, dK) and 3 for dQ (S, dP, dQ).",
    hints=(
        "Forward, a pair of tiles needs S and what is added to O.",
        "Backward, the kernel for dK and dV makes 4 products. The one for dQ has to rebuild two of them.",
        "2 + 4 + 3",
    ),
    wrong=(
        (7, "That is the backward pass, or both passes where one loop makes all gradients."),
        (6, "That is with P kept. It is rebuilt, by two kernels."),
    ),
)

quiz_kept = Question(
    answer=516,
    unit="KiB",
    because="Q, K, V and O: 4 · 1,024 · 64 · 2 bytes are 512 KiB. lse: 1,024 · 4 bytes are 4 KiB.",
    hints=(
        "Four tensors of N × d, and one number per row.",
        "1,024 · 64 · 2 bytes are 128 KiB. lse is in float32.",
        "4 · 128 + 4",
    ),
    wrong=(
        (512, "And lse: one float32 per row."),
        (388, "O is kept as well: delta is made of it."),
        (514, "lse is in float32, whatever the inputs are."),
        (2048, "That is P in float16, which is not kept."),
    ),
    rel=0.001,
)
