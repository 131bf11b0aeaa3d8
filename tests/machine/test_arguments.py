"""Every formula of the library refuses arguments of a wrong type or size with a sentence of one line."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import get_args

import numpy as np
import pytest
import torch

import flashlab
from flashlab.course import which_version_when
from flashlab.kernels.decode import PagedCache, Pool, dequantise
from flashlab.machine import costs, host
from flashlab.machine.arguments import check_arguments
from flashlab.machine.hardware import CARDS, Card
from flashlab.machine.memory import Memory
from flashlab.models import plain
from flashlab.reference import (
    block_size,
    decoding,
    eight_bits,
    linear_attention,
    next_machine,
    online_softmax,
    packed_texts,
    pipeline,
    recomputation,
    ring,
    roles,
    scores,
    the_cache,
    tiling,
)
from flashlab.reference.dropout import Dropout

VALID = {int: 16, float: 0.5, bool: True, Card: CARDS["H100 SXM"], str: "zigzag"}
WRONG = {
    int: (-7, 2.5, "4", True, None, float("nan"), [4], np.ones(2, int)),
    float: ("0.5", True, None, float("nan"), [0.5], np.ones(2)),
    bool: ("yes", 1, None, np.True_),
}
UNCHECKED = {"flashlab.reference.mask_kinds.tile"}  # a slice per tile, in the loops of the masks


def kinds(parameter):
    """Return the types that an annotation names."""
    kind = parameter.annotation
    return set(get_args(kind)) if isinstance(kind, UnionType) else {kind}


def formulas():
    """Yield the name of each public function that takes numbers and no arrays, and the function."""
    for wing in ("machine", "reference", "models", "distributed"):
        for module in pkgutil.iter_modules([f"{flashlab.__path__[0]}/{wing}"]):
            here = importlib.import_module(f"flashlab.{wing}.{module.name}")
            for name, function in vars(here).items():
                if inspect.isfunction(function) and function.__module__ == here.__name__ and name[0] != "_":
                    required = [it for it in inspect.signature(function).parameters.values() if it.name != "dtype"]
                    if required and all(kinds(it) <= {*VALID, NoneType} for it in required):
                        yield f"{here.__name__}.{name}", function


def wrong_arguments(function):
    """Yield lists of arguments for a formula, each with one wrong argument."""
    parameters = inspect.signature(function).parameters.values()
    valid = {it.name: VALID.get(it.annotation, np.float32) for it in parameters if it.default is it.empty}
    for it in parameters:
        for kind in kinds(it) & WRONG.keys():
            yield from (valid | {it.name: x} for x in WRONG[kind] if type(x) not in kinds(it) - {kind})


def refused(call):
    """Assert that a call is refused with a sentence of one line, and return it."""
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_there_are_formulas():
    names = [name for name, _ in formulas()]
    assert len(names) > 60 and "flashlab.reference.the_cache.kinds" in names


@pytest.mark.parametrize("name, function", [it for it in formulas() if it[0] not in UNCHECKED])
def test_a_formula_refuses_an_argument_of_a_wrong_type_or_size(name, function):
    for arguments in wrong_arguments(function):
        assert ", got " in refused(lambda arguments=arguments: function(**arguments)), arguments


RECORDS = {Dropout: {"p": 0.1, "seed": 1}, pipeline.Budget: {}, pipeline.Design: {}, roles.Design: {},
           scores.Softcap: {"cap": 1.0}}  # fmt: skip


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_refuses_a_field_of_a_wrong_type_or_size(record):
    for field, kind in inspect.get_annotations(record).items():
        for x in WRONG.get(kind, ()):
            assert refused(lambda wrong={field: x}: record(**RECORDS[record] | wrong)).startswith(field)


def state(rows, columns=3):
    return online_softmax.State(np.zeros(rows), np.ones(rows), np.ones((rows, columns)))


SQUARE = np.ones((4, 4))
ONE, MANY = np.ones((1, 3)), np.ones((4, 3))
ONE_ROW_FOR_MANY = {
    "merge of states": lambda: online_softmax.merge(state(4), state(1)),
    "merge of states with one column": lambda: online_softmax.merge(state(4), state(4, 1)),
    "merge of results": lambda: ring.merge(MANY, MANY[:, 0], ONE, ONE[:, 0]),
    "merge with one lse": lambda: ring.merge(MANY, MANY[:, 0], MANY, ONE[:, 0]),
    "merge of linear states": lambda: linear_attention.merge(*(linear_attention.identity(4, n) for n in (3, 1))),
    "merge of parts": lambda: decoding.merge(MANY, ONE[:, 0]),
    "finish": lambda: online_softmax.finish(state(4)._replace(l=ONE[:, 0])),
    "update with one row of scores": lambda: online_softmax.update(state(4), np.ones((1, 5)), np.ones((5, 3))),
    "lazy update": lambda: next_machine.lazy_update(state(4), np.ones((1, 5)), np.ones((5, 3))),
    "dropped": lambda: tiling.dropped(MANY, np.ones((3, 2)), ONE),
    "delta": lambda: recomputation.delta(MANY, ONE),
    "rebuild": lambda: recomputation.rebuild(MANY, ONE[:, 0]),
    "gradients with one delta": lambda: recomputation.gradients(*[SQUARE] * 5, ONE[:, 0], 1.0),
    "gradients with one row of P": lambda: recomputation.gradients(*[SQUARE] * 4, SQUARE[:1], MANY[:, 0], 1.0),
    "gradient of a sink": lambda: recomputation.sink_gradient(0.0, MANY[:, 0], ONE[:, 0]),
    "latent attention": lambda: the_cache.absorbed(MANY, MANY, MANY, MANY, np.ones((1, 3, 3)), np.ones((1, 2, 3)), 1.0),
    "error": lambda: costs.error(MANY, ONE),
    "error of one row": lambda: costs.error(ONE, MANY),
    "rotation": lambda: eight_bits.rotate(MANY, np.ones(1)),
    "update in torch": lambda: plain.update(*map(torch.ones, (4, 4, (4, 3), (1, 5), (5, 3)))),
    "dense in torch": lambda: plain.dense(torch.ones(1, 2, 4, 3), *torch.ones(2, 1, 1, 4, 3), causal=True),
    "dequantise": lambda: dequantise(torch.ones(4, 3, dtype=torch.int8), torch.ones(1)),
}


@pytest.mark.parametrize("call", ONE_ROW_FOR_MANY.values(), ids=ONE_ROW_FOR_MANY)
def test_one_row_is_not_repeated_for_many(call):
    assert ", got " in refused(call)


TEXTS_FOR_LISTS = {
    "lengths": lambda: packed_texts.offsets("12"),
    "reserved": lambda: the_cache.reserved("12", 4),
    "work": lambda: next_machine.busiest("12", 2),
    "order": lambda: next_machine.dQ_sum(MANY, "12"),
    "packages": lambda: host.versions("numpy"),
    "texts of a pool": lambda: Pool(4, 4).extend("1", 1),
    "texts of a cache": lambda: PagedCache(4, 4, 1, 16).append("1", torch.ones(1, 1, 1, 16), torch.ones(1, 1, 1, 16)),
    "a view": lambda: PagedCache(4, 4, 1, 16).view("1"),
    "masks": lambda: which_version_when.table("forward", "causal"),
}


@pytest.mark.parametrize("call", TEXTS_FOR_LISTS.values(), ids=TEXTS_FOR_LISTS)
def test_a_text_is_no_list(call):
    assert "must be a list" in refused(call)


DTYPES = {
    "reference": lambda dtype: online_softmax.identity(3, 2, dtype),
    "traffic": lambda dtype: decoding.traffic(1, 1, 8, 8, 4, 4, dtype=dtype),
    "working set": lambda dtype: block_size.working_set(8, 8, 8, dtype),
    "memory": lambda dtype: Memory().reserve("O", (2, 2), dtype),
}


@pytest.mark.parametrize("dtype", ["float33", None, torch.float16, 3])
@pytest.mark.parametrize("call", DTYPES.values(), ids=DTYPES)
def test_only_dtypes_of_numpy_are_accepted(call, dtype):
    assert refused(lambda: call(dtype)).startswith("dtype must be a dtype of numpy, such as np.float16, got ")


@check_arguments(N=0, share=(0, 1))
def sizes(
    N: int, *rest: int, card: Card | None = None, share: float = 2.0, of: Sequence[int] = (), words: Iterable[str] = ()
) -> object:
    return N, rest, card, share, of, words


def test_right_arguments_arrive():
    N, rest, card, share, of, words = sizes(np.int8(3), "any", card=None, of=np.array([1, 2]), words={"a"})
    assert type(N) is int and rest == ("any",) and card is None and words == {"a"}
    assert share == 2.0  # a default is not checked
    assert of == [1, 2] and all(type(n) is int for n in of)


@pytest.mark.parametrize("wrong, error, sentence", [
    ({"N": -1}, ValueError, "N must be a whole number from 0 on, got -1"),
    ({"N": 2.5}, ValueError, "N must be a whole number from 0 on, got 2.5"),
    ({"N": "1"}, TypeError, "N must be a whole number from 0 on, got '1'"),
    ({"share": 2}, ValueError, "share must be a finite number at least 0 and at most 1, got 2"),
    ({"card": "T4"}, TypeError, "card must be of type flashlab.machine.hardware.Card, got str"),
    ({"of": [1, 0]}, ValueError, "each element of of must be a whole number from 1 on, got 0"),
    ({"words": "a"}, TypeError, "words must be a list, got str"),
    ({"width": 1}, TypeError, r"sizes\(\) got an unexpected keyword argument 'width'"),
])  # fmt: skip
def test_wrong_arguments_are_named(wrong, error, sentence):
    with pytest.raises(error, match=f"^{sentence}$"):
        sizes(**{"N": 1} | wrong)
