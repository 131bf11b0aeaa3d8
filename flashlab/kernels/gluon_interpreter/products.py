"""Products on the tensor cores: until a wait covers one, it reads shared memory, and nobody may read its sums."""

import numpy as np
from triton.experimental.gluon import language as gl

from flashlab.kernels.gluon_interpreter.agents import me, place
from flashlab.kernels.gluon_interpreter.knowledge import READ
from flashlab.kernels.gluon_interpreter.shared_memory import View
from flashlab.kernels.gluon_interpreter.values import Value
from flashlab.machine.sm import Race


class Sums(Value):
    """The sums of a product, which nobody may read before a wait has covered it."""

    def __init__(self, a, b, begin, layout):
        self.a, self.b, self.begin, self.dtype, self._layout = a, b, begin, gl.float32, layout
        self.reads = [x.access(READ, "has the tensor cores read", "products") for x in (a, b) if isinstance(x, View)]
        self.size, self.agent, self.sums = [a.shape[0], b.shape[1]], me(), None

    @property
    def shape(self):
        return self.size

    @property
    def data(self):
        if self.sums is None:
            raise Race(f"{me().name} reads the sums of a product{place()} before a warpgroup_mma_wait has covered it")
        return self.sums

    def finish(self):
        """Compute the sums, and let the agent know that its operands are read."""
        A, B = (x.read() if isinstance(x, View) else x.data for x in (self.a, self.b))
        self.sums = A.astype(np.float32) @ B.astype(np.float32)
        if self.begin is not None:
            self.sums += self.begin.data
        for number in self.reads:
            self.agent.know(number)
        self.a = self.b = self.begin = None


def warpgroup_mma(a, b, acc, *, use_acc=True, precision=None, max_num_imprecise_acc=None, is_async=False):
    """Issue acc + a b, and wait for it unless it is asynchronous."""
    if a.shape[1] != b.shape[0] or list(acc.shape) != [a.shape[0], b.shape[1]]:
        raise ValueError(f"no product of {a.shape} and {b.shape} has the shape {acc.shape}")
    sums = Sums(a, b, acc if use_acc else None, acc._layout)
    me().products.append(sums)
    return sums if is_async else warpgroup_mma_wait(0, (sums,))


def warpgroup_mma_wait(num_outstanding=0, deps=None):
    """Wait until at most so many products are under way, and return ``deps``; one alone is returned as it is."""
    products = me().products
    while len(products) > num_outstanding:
        products.pop(0).finish()
    return deps[0] if len(deps) == 1 else tuple(deps)
