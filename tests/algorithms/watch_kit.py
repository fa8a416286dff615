"""Watches which operators an update runs, for the tests that nothing in it waits for the device."""

from torch.utils._python_dispatch import TorchDispatchMode

HOST_WAITS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select", "unique"}


class Operations(TorchDispatchMode):
    """Counts the operators that run under it, by name."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))
