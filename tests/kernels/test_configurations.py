"""A call gets the right kernels and tiles, also for cards that are not here."""

import itertools
import json
import math
import re
import warnings
from importlib import resources

import numpy as np
import pytest
import torch
import triton

from flashlab.course import data
from flashlab.kernels import DEVICE, configuration, configurations, flash_attention, limits, masks, packed, scores
from flashlab.kernels.configurations import (
    Card,
    busiest,
    choose_for,
    on_hopper,
    portable,
    shared_bytes,
    slower_on_hopper,
)
from flashlab.kernels.hopper import schedule
from flashlab.kernels.limits import against_hopper
from flashlab.kernels.problem import Problem
from flashlab.kernels.tables import HALVES, MEASURED, ON_HOPPER, PORTABLE, TWO_PASSES, table_of

pytestmark = pytest.mark.usefixtures("choose_anew")

H200 = Card((9, 0), 227 * 1024)
LARGE = Problem(1, 16, 16, 4096, 4096, 128, 128, torch.bfloat16, torch.device("cuda"), masks.causal(), 0.1, "tf32")


def choice(direction, problem, kernel=None, *, card=H200, deterministic=False):
    return choose_for(card, direction, problem, kernel, deterministic)


@pytest.mark.parametrize(
    "capability, kilobytes", [((7, 5), 64), ((8, 0), 163), ((8, 9), 99), ((9, 0), 227), ((12, 0), 99)]
)
@pytest.mark.parametrize("kernel", PORTABLE)
def test_every_width_has_a_configuration_that_fits_by_construction(kernel, capability, kilobytes):
    card = Card(capability, kilobytes * 1024)
    dtypes = [(torch.float16, "tf32"), (torch.bfloat16, "tf32"), (torch.float32, "tf32"), (torch.float32, "ieee")]
    kinds = masks.full(), masks.causal(), masks.window(100, 7)
    for d, dv, (dtype, precision), mask in itertools.product((1, 64, 72, 256), (8, 256), dtypes, kinds):
        problem = LARGE._replace(Nk=100, d=d, dv=dv, dtype=dtype, precision=precision, mask=mask)
        c = portable(kernel, card, problem)
        assert 16 <= c.Br <= 128 and 16 <= c.Bc <= 128 and c.why
        if c.why.startswith("not measured"):
            itemsize = 4 if precision == "ieee" or capability < (8, 0) else dtype.itemsize
            width = max(16, triton.next_power_of_2(max(d, dv)))
            assert shared_bytes(kernel, c, width, itemsize) <= card.shared_bytes


@pytest.mark.parametrize("kernel", PORTABLE)
def test_a_card_on_which_nothing_fits_gets_an_error_that_says_so(kernel):
    with pytest.raises(ValueError, match="fits 8192 bytes"):
        portable(kernel, Card((8, 0), 8192), LARGE._replace(d=256, dv=256))


def test_measured_configurations_say_where_and_when():
    c = portable("query_gradients", H200, LARGE)
    assert MEASURED[0].device in c.why and MEASURED[0].date in c.why
    for table in (*MEASURED, ON_HOPPER):
        assert all((table.device, table.driver, table.torch, table.triton, table.date, table.dtypes, table.how))


def test_longer_sequences_may_have_other_tiles():
    short, long = (portable("query_gradients", H200, LARGE._replace(Nk=N)) for N in (64, 65536))
    assert short.Br < long.Br


def test_a_tile_that_would_reach_past_the_end_is_not_taken_where_that_was_slower():
    full = LARGE._replace(mask=masks.full())
    even, ragged = (portable("forward", H200, full._replace(Nk=N)) for N in (4096, 4097))
    assert (even.Br, ragged.Br) == (128, 64)


@pytest.mark.parametrize(
    "heads, N, mask, Br",
    [
        (512, 512, masks.full(), 128),  # 4 tiles of 128 rows per head, or 3 of 192, which reach past the end
        (128, 4096, masks.full(), 192),
        (8, 2048, masks.full(), 128),  # 128 tiles, one per multiprocessor; the 88 of 192 rows would end later
        (16, 2048, masks.full(), 128),  # two rounds of 128 rows, or two of 192
        (8, 2048, masks.causal(), 128),
        (128, 4096, masks.causal(), 192),
    ],
)
def test_the_height_of_tiles_gives_the_busiest_multiprocessor_the_least_work(heads, N, mask, Br):
    narrow = LARGE._replace(H=heads, Hk=heads, d=64, dv=64, Nq=N, Nk=N, mask=mask)
    assert on_hopper("forward", narrow).Br == Br


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("N", [512, 1000, 2048, 3333])
@pytest.mark.parametrize("heads", [4, 16, 48])
def test_the_busiest_multiprocessor_is_that_of_the_schedule(heads, N, causal):
    mask = masks.causal() if causal else masks.full()
    narrow = LARGE._replace(H=heads, Hk=heads, d=64, dv=64, Nq=N, Nk=N, mask=mask, device=torch.device("cpu"))
    for row in ON_HOPPER.rows:
        if (row.kernel, row.width, row.causal) == ("forward", 64, causal):
            table, starts, _ = schedule.table(narrow, row.Br, row.Bc, 132)
            costs = schedule.blocks(table.numpy()[:, 0], row.Br, row.Bc, narrow) + configurations.BOUNDARY
            real = np.add.reduceat(costs, starts.numpy()[:-1]).max() * row.Br
            assert busiest(row, narrow, 132) == pytest.approx(real, rel=0.25 if causal else 0.02)


@pytest.mark.parametrize(
    "kernel, d, dv, width",
    [
        *itertools.product(["forward", "backward"], [1, 64], [64], [64]),
        *itertools.product(["forward", "backward"], [72, 80, 128], [8, 128], [128]),
        *itertools.product(["forward", *TWO_PASSES], [136, 192], [64, 192], [192]),
        *itertools.product(["forward", *TWO_PASSES], [64, 200], [256], [256]),
        *itertools.product(TWO_PASSES, [72, 128], [8, 128], [128]),
    ],
)
@pytest.mark.parametrize("mask", [masks.full(), masks.causal()])
def test_every_hopper_kernel_has_a_configuration_with_its_reason(kernel, d, dv, width, mask):
    c = on_hopper(kernel, LARGE._replace(d=d, dv=dv, mask=mask, Nk=1))
    assert c == on_hopper(kernel, LARGE._replace(d=width, dv=width, mask=mask, Nk=1))
    assert ON_HOPPER.device in c.why and ON_HOPPER.date in c.why


@pytest.mark.parametrize("mask", [masks.full(), masks.causal(), masks.window(100, 7)])
def test_dK_and_dV_have_a_kernel_each_where_registers_cannot_hold_both(mask):
    wide = LARGE._replace(d=192, dv=256, mask=mask)
    launches = choice("backward", wide, "portable").launches
    assert launches.keys() == {"row_constants", *HALVES, "query_gradients"}
    for name in HALVES:  # 8 warps multiply 128 rows of keys; of 64 rows, 4 and 4 warps would compute the same scores
        assert (launches[name].Bc, launches[name].warps) in {(64, 4), (128, 8)}
    for other in (wide._replace(d=128, dv=128), wide._replace(dtype=torch.float32)):
        assert "key_value_gradients" in choice("backward", other, "portable").launches
    assert "key_value_gradients" in choice("backward", wide, card=Card((8, 0), 163 * 1024)).launches


@pytest.mark.parametrize("d", [64, 128, 200])
@pytest.mark.parametrize("mask", [masks.full(), masks.causal()])
def test_float8_has_a_hopper_kernel_of_its_own(d, mask):
    eight = LARGE._replace(d=d, dv=d, mask=mask, dtype=torch.float8_e4m3fn, scales="scales")
    own = choice("forward", eight)
    assert own.implementation == "hopper"
    assert 128 % own.launches["forward"].Bc == 0  # 128 keys share a scale: no tile reaches over two scales
    for change, why in (({"mask": masks.window(64)}, "no mask but causal"), ({"dropout": "dropout"}, "no score")):
        assert why in choice("forward", eight._replace(**change)).why
    with pytest.raises(ValueError, match="no queries in float8"):
        choice("forward", eight._replace(Nq=1), "decode")
    assert choice("forward", eight._replace(Nq=1)).implementation == "portable"


def test_a_missing_row_is_an_error_and_not_None(monkeypatch):
    monkeypatch.setattr(configurations, "ON_HOPPER", ON_HOPPER._replace(rows=()))
    with pytest.raises(ValueError, match="hopper.json has no row"):
        on_hopper("forward", LARGE)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"Br": 100}, ValueError, "multiples of 16"),
        ({"kernel": "forwards"}, ValueError, "expected a kernel of"),
        ({"warps": 5}, ValueError, "4 to 16 warps"),
        ({"stages": 0}, ValueError, "1 to 4 stages"),
        ({"products": "tensors"}, ValueError, "tensor or plain"),
        ({"extras": ["windows"]}, ValueError, "expected extras"),
        ({"N_form": 100}, TypeError, "N_form"),
    ],
)
def test_a_row_with_a_mistake_is_refused_when_the_table_is_read(change, error, message):
    values = json.loads(resources.files("flashlab.kernels").joinpath("portable.json").read_text())["unmeasured"]
    assert table_of(values, PORTABLE).rows
    values["rows"][3] |= change
    with pytest.raises(error, match=message):
        table_of(values, PORTABLE)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_hopper_is_chosen_where_possible_and_otherwise_there_is_a_reason(direction, monkeypatch):
    assert choice(direction, LARGE).implementation == "hopper"
    assert direction in choice(direction, LARGE).launches
    wide = choice(direction, LARGE._replace(d=136))
    assert wide.implementation == "hopper"
    assert wide.launches.keys() >= ({"forward"} if direction == "forward" else set(TWO_PASSES))
    portable_choice = choice(direction, LARGE, "portable")
    assert portable_choice.implementation == "portable" and "was passed" in portable_choice.why
    for change, why in (
        ({"dtype": torch.float32}, "got torch.float32"),
        ({"dropout": "dropout"}, "no dropout"),
    ):
        other = choice(direction, LARGE._replace(**change))
        assert other.implementation == "portable" and why in other.why
        with pytest.raises(ValueError, match=f"cannot do this: .*{why}"):
            choice(direction, LARGE._replace(**change), "hopper")
    assert "compute capability 9.0" in choice(direction, LARGE, card=Card((10, 0), 227 * 1024)).why
    assert "compute capability 9.0" in choice(direction, LARGE, card=None).why
    monkeypatch.setattr(triton, "__version__", "3.99.0")
    limits.left_out_with.cache_clear()
    with pytest.warns(UserWarning, match="portable kernels: .* this is 3.99.0"):
        assert "this is 3.99.0" in against_hopper(H200, LARGE, direction)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        against_hopper(H200, LARGE, direction)


def test_a_reason_names_the_kernels_it_is_about():
    kinds = (value for value in vars(limits).values() if isinstance(value, tuple) and value)
    reasons = [reason for kind in kinds if isinstance(kind[0], tuple) for reason, _ in kind]
    assert len(reasons) > 10 and all(re.match("the (Hopper|kernels of decoding)", reason) for reason in reasons)


@pytest.mark.parametrize(
    "change",
    [{"mask": masks.window(64)}, {"mask": masks.Window(64, 9)}, {"score": "score"}, {"sinks": "sinks"}]
    + [{"mask": "rule"}, {"mask": "rule", "texts": "texts"}],
)
def test_masks_and_scores_go_to_hopper_backward(change):
    assert choice("backward", LARGE._replace(**change)).implementation == "hopper"
    assert choice("backward", LARGE._replace(**change), "hopper").launches["backward"].Br == 64


@triton.jit
def anything(*_):
    """Stand in for a function of a user."""


def test_properties_outside_the_kind_may_keep_gradients_portable(monkeypatch):
    """``Problem.kind`` leaves out tensors and functions; ``limits.against_tensors`` has the reasons that need them."""
    monkeypatch.setattr(configurations, "card", lambda device: H200)
    ids = torch.zeros(4096, dtype=torch.int64)
    documents, cap = masks.documents(ids) & masks.causal(), scores.chain(scores.softcap(3.0))
    offsets = torch.tensor([0, 4096])
    texts = packed.prepared(offsets, offsets)
    few = LARGE._replace(Nq=2048)
    for problem, why in (
        (LARGE._replace(mask=documents), None),
        (LARGE._replace(score=cap), None),
        (few._replace(score=cap), None),
        (few._replace(mask=masks.window(64)), None),
        (LARGE._replace(mask=texts.apart(masks.window(9))), None),
        (few._replace(mask=documents), "keys that no query sees"),
        (LARGE._replace(mask=masks.padding(ids[:1])), "keys that no query sees"),
        (LARGE._replace(mask=documents & masks.custom(anything)), "functions of your own"),
        (LARGE._replace(mask=texts.apart(masks.custom(anything))), "functions of your own"),
        (few._replace(mask=masks.window(64), score=cap), "keys that no query sees"),
        (LARGE._replace(score=scores.chain(scores.custom(anything))), "functions of your own"),
    ):
        result = configurations.choose("backward", problem)
        assert result.implementation == ("portable" if why else "hopper") and (why or "") in result.why
    learning = configurations.choose("backward", LARGE._replace(score=cap), learning=True)
    assert learning.implementation == "portable" and "gradients of slopes" in learning.why


@pytest.mark.parametrize(
    "change",
    [
        {"mask": masks.window(64)},
        {"mask": masks.Window(64, 9)},
        {"score": "score"},
        {"sinks": "sinks"},
    ],
)
def test_masks_and_scores_go_to_hopper_forward(change):
    assert choice("forward", LARGE._replace(**change)).implementation == "hopper"


def test_properties_outside_the_kind_may_keep_the_forward_pass_portable(monkeypatch):
    monkeypatch.setattr(configurations, "card", lambda device: H200)
    ids = torch.zeros(4096, dtype=torch.int64)
    documents, cap = masks.documents(ids) & masks.causal(), scores.chain(scores.softcap(3.0))
    pieces = masks.documents(torch.arange(4096) // 100 % 3)
    offsets = torch.tensor([0, 4096])
    texts = packed.prepared(offsets, offsets)
    packed_texts = LARGE._replace(device=ids.device, mask=texts.apart(masks.causal()), texts=texts)
    few, chunk = LARGE._replace(Nq=2048), LARGE._replace(B=4, Nq=2048, mask=masks.window(64))
    for problem, why in (
        (LARGE._replace(mask=documents, device=ids.device), None),
        (LARGE._replace(mask=pieces, device=ids.device), "one interval of keys"),
        (LARGE._replace(mask=masks.prefix(9), device=ids.device), None),
        (LARGE._replace(mask=masks.causal() & (masks.window(9) | masks.sinks(4)), device=ids.device), "one interval"),
        (few._replace(mask=documents, device=ids.device), "keys that no query sees"),
        (packed_texts, None),
        (packed_texts._replace(score=cap), "not with score functions"),
        (LARGE._replace(score=cap), None),
        (few._replace(score=cap), None),
        (chunk, None),
        (LARGE._replace(mask=masks.window(64, float("inf"))), "without a right one"),
        (chunk._replace(score=cap), "keys that no query sees"),
        (LARGE._replace(score=scores.chain(scores.custom(anything))), "functions of your own"),
        (LARGE._replace(score=scores.chain((cap.steps[0], scores.bias(ids.float())))), "soft caps and ALiBi"),
    ):
        result = configurations.choose("forward", problem)
        assert result.implementation == ("portable" if why else "hopper") and (why or "") in result.why


def test_sinks_that_learn_keep_gradients_portable(monkeypatch):
    monkeypatch.setattr(configurations, "card", lambda device: H200)
    learning = configurations.choose("backward", LARGE._replace(sinks=torch.zeros(16)), learning=True)
    assert learning.implementation == "portable" and "gradients of slopes" in learning.why


def test_the_portable_backward_pass_has_a_launch_for_each_of_its_kernels():
    c = choice("backward", LARGE, "portable")
    assert c.launches.keys() == {"row_constants", "key_value_gradients", "query_gradients"}
    assert all(launch.Br > 0 and launch.warps > 0 for launch in c.launches.values())


@pytest.mark.parametrize(
    "direction, sizes, why",
    [
        (
            "forward",
            {"Nq": 512, "Nk": 512},
            "the work of 93,389 pairs",
        ),  # 64 tiles; a head's last one sees 4 blocks of 128 keys
        ("forward", {"B": 9, "Nq": 100, "Nk": 100}, "pairs of a query and a key; the Hopper kernels were"),
        ("forward", {"B": 8, "d": 31, "dv": 31}, "fewer than 32 columns"),
        ("backward", {"B": 9, "Nq": 100, "Nk": 100}, "Nk = 100; the Hopper kernels were faster from 129 on"),
        ("backward", {"B": 8, "d": 31, "dv": 31}, "fewer than 32 columns"),
    ],
)
def test_what_is_small_stays_portable_unless_asked_for(direction, sizes, why):
    small = LARGE._replace(**sizes)
    assert why in slower_on_hopper(direction, small)
    assert choice(direction, small).implementation == "portable"
    assert choice(direction, small, "hopper").implementation == "hopper"


@pytest.mark.parametrize("change", [{"H": 128, "Hk": 128}, {"Nk": 4096}, {"mask": masks.full()}])
def test_more_work_or_a_lower_threshold_goes_to_hopper(change):
    small = LARGE._replace(Nq=512, Nk=512)
    assert choice("forward", small).implementation == "portable"
    assert choice("forward", small._replace(**change)).implementation == "hopper"


def test_a_narrow_window_is_little_work():
    """A tile of 128 rows sees few blocks of keys, whatever the number of keys."""
    narrow = LARGE._replace(mask=masks.window(64), Nq=2048, Nk=65536)
    assert choice("forward", narrow).implementation == "portable"
    assert choice("forward", narrow._replace(mask=masks.window(40000))).implementation == "hopper"


def implementation(row):
    """Return the implementation that a call with the sizes of a row of h200_choice.json gets."""
    N, d, mask = row["N"], row["d"], masks.causal() if row["causal"] else masks.full()
    problem = LARGE._replace(B=row["B"], H=row["H"], Hk=row["Hk"], Nq=N, Nk=N, d=d, dv=d, mask=mask)
    return choice(row["pass"], problem).implementation


def test_the_choice_takes_little_longer_than_the_better_kernel():
    rows = data.measured("h200_choice")["rows"]
    assert {row["set"] for row in rows} == {"grid", "wide", "between", "widths", "groups"}
    for row in rows:
        longer = 1.2 if row["set"] == "wide" else 1.12  # causal, with 8 heads for 132 multiprocessors: 5 us
        assert row[implementation(row)] <= longer * min(row["portable"], row.get("hopper", math.inf)), row


def test_the_choice_is_at_most_little_slower_than_other_libraries():
    """For shapes that the grids do not contain."""
    rows = [row for row in data.measured("h200_choice")["rows"] if row["set"] not in ("grid", "wide")]
    assert {row["set"] for row in rows} == {"between", "widths", "groups"}
    for row in rows:
        assert row[implementation(row)] <= row["flash"] and row[implementation(row)] <= row["cudnn"] / 0.93, row


def test_wide_heads_are_at_least_as_fast_as_in_other_libraries():
    tflops = {}
    for row in data.measured("h200_wide")["rows"]:
        tflops.setdefault((row["pass"], row["d"], row["causal"], row["N"]), {})[row["impl"]] = row["tflops"]
    assert len(tflops) == 24
    for cell, of in tflops.items():
        assert of["flashlab"] >= of["flash"] and of["flashlab"] >= of.get("cudnn", 0), cell


def test_the_tiles_of_192_columns_are_the_fastest_measured_ones():
    tiles = data.measured("h200_wide")["tiles_ms"]
    assert len(tiles) == 32
    wide = LARGE._replace(d=192, dv=192)
    for name, mask in itertools.product((*HALVES, "query_gradients"), (masks.full(), masks.causal())):
        these = [it for it in tiles if (it["kernel"], it["causal"]) == (name, mask == masks.causal())]
        best = min(these, key=lambda it: it["ms"])
        assert not best["padded"] and portable(name, H200, wide._replace(mask=mask))[:4] == tuple(
            best[key] for key in ("Br", "Bc", "warps", "stages")
        )


def test_deterministic_algorithms_take_two_passes_or_the_portable_kernels(monkeypatch):
    monkeypatch.setattr(configurations, "card", lambda device: H200)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert configurations.choose("backward", LARGE).launches.keys() == {"row_constants", *TWO_PASSES}
    narrow = LARGE._replace(d=64, dv=64)
    assert "use_deterministic_algorithms" in configurations.choose("backward", narrow).why
    assert configurations.choose("backward", narrow, "hopper").implementation == "hopper"
    assert configurations.choose("forward", LARGE).implementation == "hopper"  # its results have the same bits anyway


def test_configuration_describes_what_a_call_will_do():
    q = torch.zeros(1, 1, 8, 256, device=DEVICE)
    for direction in ("forward", "backward"):
        c = configuration(direction, q, q, q, causal=True, kernel="portable")
        assert c.implementation == "portable" and c.launches and c.why
    with pytest.raises(ValueError, match='"forward" or "backward", got \'sideways\''):
        configuration("sideways", q, q, q)
    with pytest.raises(ValueError, match='kernel must be "portable", "hopper", "decode" or None, got \'fast\''):
        configuration("forward", q, q, q, kernel="fast")
    with pytest.raises(TypeError, match="q, k and v must have one dtype"):
        configuration("forward", q, q.half(), q)
    with pytest.raises(ValueError, match=r"expected q \[B, H, Nq, d\]"):
        configuration("forward", q, q[..., :3], q)
    with pytest.raises(TypeError, match="q must be a torch tensor"):
        configuration("forward", None, q, q)


def test_asking_for_hopper_without_a_hopper_gpu_is_refused():
    q = torch.zeros(1, 1, 8, 64, device=DEVICE)
    if q.is_cuda and torch.cuda.get_device_capability() == (9, 0):
        pytest.skip("this is a Hopper GPU")
    with pytest.raises(ValueError, match="need a GPU of compute capability 9.0"):
        flash_attention(q, q, q, kernel="hopper")
    with pytest.raises(ValueError, match='kernel must be "portable", "hopper", "decode" or None, got \'fast\''):
        flash_attention(q, q, q, kernel="fast")
    assert torch.equal(flash_attention(q, q, q, kernel="portable"), flash_attention(q, q, q))
