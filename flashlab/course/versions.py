"""The versions of attention: the call of each, its limits, and a way to find out which one ran.

A limit is a sentence with its source and a test, so that the table of the lesson and the answers of
``which_version_when`` cannot differ. The sources were read on 22 November 2026; versions change.
"""

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from flashlab.machine.arguments import check_arguments, check_fields

FEW = 16  # the most queries with which it pays to divide the keys
HALVES = "float16", "bfloat16"
DTYPES = *HALVES, "float32", "float8", "float8 cache", "int8 cache"  # with a cache of 8 bits, queries are bfloat16
DIRECTIONS = "forward", "backward", "both"
PLAIN = "full", "causal"
BY_TENSOR = "window", "documents", "alibi"  # masks and biases that a tensor [N, N] can also hold
MASKS = *PLAIN, *BY_TENSOR, "softcap", "sinks", "dropout"


class Call(NamedTuple):
    """The properties of a call of attention that the choice depends on."""

    B: int
    H: int
    Nq: int
    d: int
    Nk: int
    Hk: int
    dtype: str = "bfloat16"
    mask: str = "full"  # of MASKS: a mask, a score function, sinks or dropout, or several, joined by " and "
    direction: str = "forward"  # "both" is a step of training
    card: str | None = "H200"  # None: no GPU
    capability: tuple[int, int] | None = (9, 0)
    gpus: int = 1
    dv: int | None = None  # the width of values, if it is not d
    window: int | None = None  # how many keys before its own a query sees, if there is a window

    @property
    def parts(self) -> list[str]:
        """Return the masks, score functions and so on."""
        return self.mask.split(" and ")

    @property
    def widest(self) -> int:
        """Return the larger width of a head, of its keys or its values."""
        return max(self.d, self.dv or 0)

    @property
    def sizes(self) -> str:
        """All numbers of the shape, in words."""
        heads = f"H = {self.H}" + (f", Hk = {self.Hk}" if self.Hk != self.H else "")
        lengths = f"N = {self.Nq:,}" if self.Nq == self.Nk else f"Nq = {self.Nq:,}, Nk = {self.Nk:,}"
        widths = f"d = {self.d}" + (f", dv = {self.dv}" if self.dv else "")
        window = f", a window of {self.window:,}" if self.window is not None else ""
        return f"B = {self.B}, {heads}, {lengths}, {widths}{window}"

    def __str__(self):
        mask = "no mask" if self.mask == "full" else self.mask
        direction = "forward and backward" if self.direction == "both" else self.direction
        gpus = f", {self.gpus} GPUs" if self.gpus > 1 else ""
        return f"{self.sizes}, {self.dtype}, {mask}, {direction}{gpus}"


def check(call: Call) -> None:
    """Raise TypeError or ValueError for a call with an unknown name or impossible sizes."""
    if not isinstance(call, Call):
        raise TypeError(f"call must be a versions.Call, got {type(call).__name__}")
    check_fields(call)
    check_choice("dtype", call.dtype, DTYPES)
    check_choice("direction", call.direction, DIRECTIONS)
    check_mask("mask", call.mask)
    if len(call.parts) > 1 and not set(call.parts).isdisjoint(PLAIN):
        raise ValueError(f"the mask {' or '.join(PLAIN)} stands alone, as all others are causal, got {call.mask}")
    if call.window is not None and "window" not in call.parts:
        raise ValueError(f"a window needs the mask window, got {call.mask}")
    if call.H % call.Hk:
        raise ValueError(f"the heads must be a multiple of the kv-heads, got {call.H} and {call.Hk}")


def check_mask(name: str, mask: str) -> None:
    """Raise ValueError unless this is one of ``MASKS``, or several, joined by " and "."""
    for part in str(mask).split(" and "):
        check_choice(name, part, MASKS)


def check_choice(name: str, x: str, choices: Iterable[str]) -> None:
    """Raise ValueError unless x is one of ``choices``."""
    if not (isinstance(x, str) and x in choices):
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {x!r:.40}")


class Limit(NamedTuple):
    """A kind of call that a version does not support."""

    message: str
    of: Callable[[Call], bool]  # whether a call is of that kind
    source: str


class Version(NamedTuple):
    """One implementation, with the release that was read or measured."""

    name: str
    called: str
    release: str
    shown_as: tuple[str, ...]  # parts of the names of its kernels, or of its operator on a CPU
    limits: tuple[Limit, ...]
    comes_with_torch: bool = False
    since: str = ""  # of our kernels: measurements from this day on are of today's code


def below(*capability):
    """Return a function that says whether a call's card is older than this compute capability, or no GPU."""
    return lambda call: call.capability is None or call.capability < capability


def beyond(masks):
    """Return a function that says whether a call has a mask or score function that is not among these."""
    return lambda call: not set(call.parts) <= set(masks)


def with_any(*masks):
    """Return a function that says whether a call has one of these masks or score functions."""
    return lambda call: not set(call.parts).isdisjoint(masks)


def wide(d):
    """Return a function that says whether a call has heads of more than d columns."""
    return lambda call: call.widest > d


def other_values(call):
    """Return whether a call has values of another width than keys."""
    return call.dv not in (None, call.d)


def too_wide_for_cudnn(call):
    """Return whether a call has heads of more than 128 columns, and cuDNN does not support them on its card."""
    on_blackwell = (call.capability or (0, 0))[0] == 10 and (call.d, call.dv) == (192, 128)
    return call.widest > 128 and call.capability != (9, 0) and not on_blackwell


def other_dtype(*dtypes):
    """Return a function that says whether a call has a dtype that is not among these."""
    return lambda call: call.dtype not in dtypes


TORCH = "https://github.com/pytorch/pytorch/blob/001f694aef6f/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
FLEX = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/attention/flex_attention.py"
SDPA = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"
DAO = "https://github.com/Dao-AILab/flash-attention/blob/0251105a2fb1/"
FA2, FA2_CALL = f"{DAO}README.md", f"{DAO}flash_attn/flash_attn_interface.py"
FA3, FA3_CALL, FA4 = f"{DAO}README.md", f"{DAO}hopper/flash_attn_interface.py", f"{DAO}flash_attn/cute/interface.py"
SEEN = "a profile on a CPU, torch 2.13"
OURS, CHOICE = "flashlab/kernels/attention.py", "flashlab/kernels/configurations.py"
FLOAT8, DECODE = "flashlab/kernels/attention_float8.py", "flashlab/kernels/decode/operator.py"

NO_SCORE = Limit("no soft caps and no sinks", beyond((*PLAIN, *BY_TENSOR, "dropout")), SDPA)

VERSIONS = (
    Version("flashlab", "flash_attention(q, k, v)", "this checkout: the kernels for Hopper where they are faster", (), (
        Limit("tested from compute capability 8.0 on; without a GPU interpreted, which is slow", below(8, 0), CHOICE),
        Limit("no heads wider than 256", wide(256), OURS),
        Limit("float16, bfloat16 and float32 only", other_dtype(*HALVES, "float32"), OURS),
    ), since="2026-11-30"),
    Version("flashlab portable", 'flash_attention(q, k, v, kernel="portable")', "this checkout",
        ("attention_forward", "key_value_gradients", "query_gradients", "flashlab::attention"), (
        Limit("tested from compute capability 8.0 on; without a GPU interpreted, which is slow", below(8, 0), CHOICE),
        Limit("no heads wider than 256", wide(256), OURS),
        Limit("float16, bfloat16 and float32 only", other_dtype(*HALVES, "float32"), OURS),
    ), since="2026-11-30"),
    Version("flashlab Hopper", "flash_attention(q, k, v)", "this checkout",
        ("attention_forward", "attention_backward", "key_value_gradients", "query_gradients", "flashlab::attention"), (
        Limit("compute capability 9.0 only", lambda call: call.capability != (9, 0), CHOICE),
        Limit("no dropout", with_any("dropout"), CHOICE),
        Limit("no heads wider than 256", wide(256), CHOICE),
        Limit("float16 and bfloat16 only", other_dtype(*HALVES), CHOICE),
    ), since="2026-11-30"),
    Version("flashlab decoding", "flashlab.kernels.decode.decode(q, cache)", "this checkout",
        ("attention_split", "attention_combine"), (
        Limit("tested from compute capability 8.0 on; without a GPU interpreted, which is slow", below(8, 0), CHOICE),
        Limit(f"for up to {FEW} queries", lambda call: call.Nq > FEW, CHOICE),
        Limit("no backward pass", lambda call: call.direction != "forward", CHOICE),
        Limit("no dropout", with_any("dropout"), DECODE),
        Limit("no heads wider than 256, except latents of 512 and 64 columns",
              lambda call: wide(256)(call) and (call.Hk, call.d, call.dv) != (1, 576, 512), DECODE),
        Limit("no queries in float8", lambda call: call.dtype == "float8", DECODE),
    ), since="2026-11-30"),
    Version("flashlab float8", "flash_attention_float8(q, k, v, scales=...)", "this checkout", ("attention_forward",), (
        Limit("needs compute capability 8.9; without a GPU interpreted, which is slow", below(8, 9), FLOAT8),
        Limit("float8 only", other_dtype("float8"), FLOAT8),
        Limit("no backward pass", lambda call: call.direction != "forward", FLOAT8),
        Limit("no score functions, sinks or dropout", beyond((*PLAIN, "window", "documents")), FLOAT8),
        Limit("no heads wider than 256", wide(256), FLOAT8),
    ), since="2026-11-30"),
    Version("SDPA math", "sdpa_kernel(SDPBackend.MATH)", "torch 2.13", ("_scaled_dot_product_attention_math",), (
        Limit("no numbers of 8 bits", lambda call: "8" in call.dtype, SEEN),
        NO_SCORE,
    ), comes_with_torch=True),
    Version("SDPA on a CPU", "scaled_dot_product_attention", "torch 2.13",
        ("_scaled_dot_product_flash_attention_for_cpu",), (
        Limit("tensors on a CPU only", lambda call: call.capability is not None, SEEN),
        Limit("no dropout", with_any("dropout"), SEEN),
        NO_SCORE,
    ), comes_with_torch=True),
    Version("SDPA efficient", "sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)", "torch 001f694a",
        ("fmha_cutlass", "_scaled_dot_product_efficient_attention"), (
        Limit("needs a GPU", below(5, 0), TORCH),
        Limit("no bfloat16 below compute capability 8.0",
              lambda call: call.dtype == "bfloat16" and below(8, 0)(call), TORCH),
        Limit("float16, bfloat16 and float32 only", other_dtype(*HALVES, "float32"), TORCH),
        Limit("d must be a multiple of 8 in 16 bits, of 4 in float32",
              lambda call: call.d % (4 if call.dtype == "float32" else 8) > 0, TORCH),
        NO_SCORE,
    ), comes_with_torch=True),
    Version("SDPA FlashAttention-2", "sdpa_kernel(SDPBackend.FLASH_ATTENTION)", "torch 001f694a",
        ("pytorch_flash::", "_scaled_dot_product_flash_attention"), (
        Limit("needs compute capability 8.0", below(8, 0), TORCH),
        Limit("takes no attn_mask: causal, or none", beyond((*PLAIN, "dropout")), TORCH),
        Limit("is_causal only for as many queries as keys",
              lambda call: call.mask == "causal" and call.Nq != call.Nk, TORCH),
        Limit("float16 and bfloat16 only", other_dtype(*HALVES), TORCH),
        Limit("no heads wider than 256", wide(256), TORCH),
        Limit("values as wide as keys", other_values, TORCH),
    ), comes_with_torch=True),
    Version("SDPA cuDNN", "sdpa_kernel(SDPBackend.CUDNN_ATTENTION)", "torch 2.11 and 001f694a, cuDNN 9.19",
        ("cudnn_generated_fort_native_sdpa", "_scaled_dot_product_cudnn_attention"), (
        Limit("needs compute capability 8.0", below(8, 0), TORCH),
        Limit("float16 and bfloat16 only", other_dtype(*HALVES), TORCH),
        Limit("no heads wider than 256", wide(256), TORCH),
        Limit("no heads wider than 128, except on compute capability 9.0, as measured with torch 2.11 (torch 001f694a "
              "asks for cuDNN above 9.22 there), and d = 192 with values of 128 on 10.0", too_wide_for_cudnn, TORCH),
        Limit("d must be a multiple of 8", lambda call: call.d % 8 > 0, TORCH),
        Limit("no single key", lambda call: call.Nk == 1, TORCH),
        NO_SCORE,
    ), comes_with_torch=True),
    Version("FlexAttention", "torch.compile(flex_attention)", "torch 2.13", ("triton_tem_fused",), (
        Limit("on a CPU no backward pass",
              lambda call: call.capability is None and call.direction != "forward", FLEX),
        Limit("no dropout, and no sinks in the call", with_any("dropout", "sinks"), FLEX),
        Limit("no cache in 8 bits with scales", lambda call: "cache" in call.dtype, FLEX),
    ), comes_with_torch=True),
    Version("FlashAttention-2", "flash_attn.flash_attn_func", "flash-attention 0251105a", ("flash::flash_",), (
        Limit("needs an Ampere, Ada or Hopper GPU",
              lambda call: call.capability is None or not (8, 0) <= call.capability < (10, 0), FA2),
        Limit("float16 and bfloat16 only", other_dtype(*HALVES), FA2),
        Limit("no heads wider than 256", wide(256), FA2),
        Limit("no sinks, no mask or score function of one's own", with_any("sinks"), FA2_CALL),
        Limit("values as wide as keys", other_values, f"{DAO}csrc/flash_attn/flash_api.cpp"),
    )),
    Version("FlashAttention-3", "flash_attn_3.flash_attn_interface.flash_attn_func", "flash-attention 0251105a",
        ("flash::FlashAttn", "flash::enable_sm90"), (
        Limit("needs an H100, H800 or H200, and is built from source", lambda call: call.capability != (9, 0), FA3),
        Limit("float8 forward only", lambda call: call.dtype == "float8" and call.direction != "forward", FA3),
        Limit("float16, bfloat16 and float8 only", other_dtype(*HALVES, "float8"), FA3),
        Limit("no dropout, ALiBi or sinks", with_any("dropout", "alibi", "sinks"), FA3_CALL),
    )),
    Version("FlashAttention-4", "flash_attn.cute.flash_attn_func", "flash-attention 0251105a", ("flash_attncute",), (
        Limit("needs compute capability 8.0", below(8, 0), FA4),
        Limit("no backward pass on compute capability 8",
              lambda call: call.direction != "forward" and below(9, 0)(call), FA4),
        Limit("float16, bfloat16 and float8 only", other_dtype(*HALVES, "float8"), FA4),
        Limit("float8 on compute capability 10 only, and forward only", lambda call: call.dtype == "float8"
              and ((call.capability or (0, 0))[0] != 10 or call.direction != "forward"), FA4),
        Limit("no heads wider than 256", wide(256), FA4),
        Limit("on compute capability 10, d is at most 128, 192 with values of 128, or 256",
              lambda call: (call.capability or (0, 0))[0] == 10 and call.d > 128 and call.d not in (192, 256), FA4),
        Limit("no dropout", with_any("dropout"), FA4),
    )),
)  # fmt: skip
BY_NAME = {version.name: version for version in VERSIONS}


@check_arguments()
def against(version: Version, call: Call) -> list[Limit]:
    """Return the limits of a version that a call exceeds; none if it can compute the call."""
    return [limit for limit in version.limits if limit.of(call)]


def shown(name: str) -> str | None:
    """Return the version whose kernel or operator has this name in a profile, or None.

    flashlab's portable and Hopper kernels share their names; ``flashlab.kernels.configuration`` tells them apart.
    """
    return next((version.name for version in VERSIONS if any(part in name for part in version.shown_as)), None)


@check_arguments()
def ran(function: Callable, *args, **options) -> tuple[str, ...]:
    """Call a function under torch's profiler and return the versions of attention that ran, sorted by name.

    It finds operators, and kernels of a GPU. It does not find attention that consists of separate products.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the first profile reads it; otherwise it logs to standard error
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    with profile(activities=activities) as profiled:
        function(*args, **options)
        if gpu:
            torch.cuda.synchronize()
    return tuple(sorted({version for event in profiled.key_averages() if (version := shown(event.key))}))
