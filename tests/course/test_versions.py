"""The limits of versions agree with our kernels and with all measurements, and profiles name the version that ran."""

import ast
import subprocess
from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

from flashlab.course import data, measurements, versions  # noqa: E402
from flashlab.course.versions import BY_NAME, VERSIONS, Call, against, ran, shown  # noqa: E402

CALL = Call(2, 8, 1024, 64, 1024, 8)


def can(name, **changes):
    return not against(BY_NAME[name], CALL._replace(**changes))


def test_names_are_unique_and_each_limit_has_a_source_and_says_something():
    assert len(BY_NAME) == len(VERSIONS)
    for limit in (limit for version in VERSIONS for limit in version.limits):
        assert len(limit.message.split()) >= 2 and not limit.message.endswith(".")
        assert limit.source.startswith(("https://", "flashlab/", "a profile"))


def test_no_measured_row_is_beyond_its_versions_limits():
    for row in measurements.rows():
        if row.version in BY_NAME:
            assert against(BY_NAME[row.version], row.call) == [], row


def test_each_limit_excludes_some_calls_and_not_all():
    fields = {
        "dtype": ("float32", "float8", "int8 cache"),
        "mask": versions.MASKS, "direction": ("backward", "both"), "Nk": (1, 512),
        "capability": (None, (7, 5), (8, 0), (9, 0), (10, 0)), "d": (65, 160, 288), "Nq": (1,),
        "dv": (128,),
    }  # fmt: skip
    calls = [CALL._replace(**dict(zip(fields, values, strict=False)))
             for values in product(*([getattr(CALL, field), *more] for field, more in fields.items()))]  # fmt: skip
    for version in VERSIONS:
        for limit in version.limits:
            assert any(limit.of(call) for call in calls), (version.name, limit.message)
            assert not all(limit.of(call) for call in calls), (version.name, limit.message)
    for name in ("flashlab portable", "flashlab Hopper", "SDPA cuDNN", "FlexAttention", "FlashAttention-4"):
        assert can(name)


def test_our_limits_are_those_of_the_kernels_choice():
    limits = pytest.importorskip("flashlab.kernels.limits")
    from flashlab.kernels import masks
    from flashlab.kernels.problem import Problem

    kinds = {"full": masks.full(), "causal": masks.causal(), "window": masks.window(100)}
    cards = {capability: limits.Card(capability, 227 * 1024) for capability in ((8, 0), (9, 0), (10, 0))}
    for capability, dtype, d, mask, Nq in product(
        cards, ("bfloat16", "float16", "float32"), (64, 128, 192), kinds, (1, 1024)
    ):
        call = CALL._replace(capability=capability, dtype=dtype, d=d, mask=mask, Nq=Nq)
        problem = Problem(
            2, 8, 8, Nq, 1024, d, d, getattr(torch, dtype), torch.device("cuda"), kinds[mask], 1.0, "tf32"
        )
        reason = limits.against_hopper(cards[capability], problem)
        if reason is None or "compiled with Triton" not in reason:
            assert (reason is None) == (against(BY_NAME["flashlab Hopper"], call) == []), (call, reason)
        reason = limits.against_decoding(cards[capability], problem, False)
        assert (reason is None) == (against(BY_NAME["flashlab decoding"], call) == []), (call, reason)
    assert versions.FEW == limits.FEW


def kernels(texts):
    """Return the compiled functions of modules without comments and docstrings, and the constants that they read."""
    statements = [it for text in texts for it in ast.parse(text).body]
    compiled = [it for it in statements if "jit" in "".join(map(ast.unparse, getattr(it, "decorator_list", ())))]
    read = set().union(*map(_names, compiled))
    constants = [it for it in statements if isinstance(it, ast.Assign) and read & _names(it.targets[0])]
    bodies = [it.body[ast.get_docstring(it) is not None :] for it in compiled]
    return ["\n".join(map(ast.unparse, body)) for body in bodies] + list(map(ast.unparse, constants))


def _names(node):
    return {it.id for it in ast.walk(node) if isinstance(it, ast.Name)}


SOURCES = {  # folders of flashlab/kernels
    "flashlab": ["portable", "hopper"], "flashlab portable": ["portable"], "flashlab Hopper": ["hopper"],
    "flashlab decoding": ["decode"], "flashlab float8": ["portable", "hopper"],
}  # fmt: skip


@pytest.mark.exhaustive
def test_measurements_that_are_not_outdated_are_of_the_kernels_of_today():
    """If this fails, set ``since`` of the version to the day after the measurement."""
    root = Path(versions.__file__).resolve().parents[2]
    current = {(row.version, row.file) for row in measurements.rows() if row.version in SOURCES and not row.outdated}
    for version, file in sorted(current):
        commit, then, now = data.measured(file)["commit"], [], []
        for path in sorted(path for it in SOURCES[version] for path in (root / "flashlab/kernels" / it).glob("*.py")):
            name = path.relative_to(root).as_posix()
            shown = subprocess.run(["git", "-C", root, "show", f"{commit}:{name}"], capture_output=True, text=True)
            if "invalid object name" in shown.stderr or "not a git repository" in shown.stderr:
                pytest.skip(f"no history of git has {commit}")
            then.append(shown.stdout)
            now.append(path.read_text(encoding="utf-8"))
        assert kernels(now) == kernels(then), (version, file)


def test_some_facts_from_the_sources():
    assert can("SDPA FlashAttention-2", mask="causal") and not can("SDPA FlashAttention-2", mask="causal", Nk=2048)
    assert not can("SDPA FlashAttention-2", mask="alibi") and can("SDPA efficient", mask="alibi")
    assert not can("SDPA cuDNN", d=160, capability=(8, 0)) and can("SDPA cuDNN", d=160)
    assert not can("SDPA cuDNN", capability=(7, 5)) and not can("SDPA cuDNN", Nk=1)
    assert can("SDPA efficient", capability=(7, 5), dtype="float16") and not can("SDPA efficient", capability=(7, 5))
    assert not can("FlexAttention", mask="dropout") and can("FlexAttention", mask="softcap")
    assert not can("SDPA cuDNN", mask="window and softcap") and can("FlashAttention-3", mask="window and softcap")
    assert not can("FlashAttention-3", capability=(10, 0)) and can("FlashAttention-3", dtype="float8")
    assert not can("FlashAttention-4", capability=(8, 0), direction="both")
    assert can("FlashAttention-4", Nq=1)
    assert can("SDPA cuDNN", d=192, dv=128, capability=(10, 0)) and not can("SDPA cuDNN", d=192, capability=(10, 0))
    assert can("FlashAttention-3", d=192, dv=128) and not can("FlashAttention-2", d=192, dv=128)
    assert can("flashlab decoding", Nq=1, Hk=1, d=576, dv=512) and not can("flashlab decoding", Nq=1, d=576)
    assert can("flashlab decoding", Nq=1, mask="sinks") and not can("flashlab decoding", Nq=1, mask="dropout")
    assert can("flashlab decoding", Nq=1, dtype="int8 cache") and not can("flashlab decoding", Nq=1, dtype="float8")
    assert can("flashlab float8", dtype="float8") and not can("flashlab float8", dtype="float8", direction="both")
    assert not can("FlashAttention-2", capability=(10, 0)) and not can("FlashAttention-2", mask="sinks")


@pytest.mark.parametrize("kernel, version", [  # names in public profiles
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1", "SDPA cuDNN"),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention", "SDPA efficient"),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128", "SDPA FlashAttention-2"),
    ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128", "FlashAttention-2"),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<", "FlashAttention-3"),
    ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__", "FlashAttention-4"),
    ("triton_tem_fused_flex_attention_0", "FlexAttention"),
    ("attention_split", "flashlab decoding"), ("attention_forward", "flashlab portable"),
    ("nvjet_sm90_tst_128x256_64x4", None), ("aten::softmax", None),
])  # fmt: skip
def test_a_kernels_name_tells_the_version(kernel, version):
    assert shown(kernel) == version


def test_a_profile_tells_what_ran_on_a_cpu():
    q = torch.randn(1, 2, 64, 16)
    assert ran(sdpa, q, q, q) == ("SDPA on a CPU",)
    assert ran(sdpa, q, q, q, dropout_p=0.5) == ("SDPA math",)  # torch gives no warning
    with sdpa_kernel(SDPBackend.MATH):
        assert ran(sdpa, q, q, q) == ("SDPA math",)
    assert ran(torch.matmul, q, q.mT) == ()
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="No viable backend"):
        sdpa(q, q, q)


def test_flex_attention_has_no_backward_pass_on_a_cpu():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 1, 16, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(q, q, q)
