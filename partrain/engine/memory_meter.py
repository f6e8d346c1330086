"""Bytes of the tensors that a process holds, where the device does not count them itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryMeter(TorchDispatchMode):
    """Counts each tensor storage on `device` from the operation that made it until it is freed.

    It sees the operations of the thread that entered it, autograd's on CPUs among them, and counts what
    another thread made once an operation here reads it. What a kernel takes and gives back within one
    operation, and what libraries of communication keep, is not seen. Fake tensors hold no memory: they
    count where `fake` is set, and then they alone.
    """

    def __init__(self, device: str = "cpu", *, fake: bool = False) -> None:
        super().__init__()
        self._device = device
        self._fake = fake
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.live_bytes = 0
        """Bytes that are held now."""
        self.peak_bytes = 0
        """The most that were held at once."""

    def __enter__(self) -> MemoryMeter:
        """Counting begins, with the tensors that exist."""
        for item in gc.get_objects():
            if issubclass(type(item), torch.Tensor):  # isinstance would ask lazy proxies of other libraries
                self._note(item)
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation, with its tensors counted."""
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors((args, kwargs, result)):
            self._note(tensor)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key, num_bytes = id(storage), storage.nbytes()  # torch keeps this object as long as the memory
        known = self._storages.get(key)
        if known is None:
            if is_fake(tensor) != self._fake:
                return
            self._storages[key] = (weakref.ref(storage, lambda _: self._forget(key)), num_bytes)
        elif known[1] != num_bytes:  # resized in place
            self._storages[key] = (known[0], num_bytes)
        self.live_bytes += num_bytes - (known[1] if known else 0)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._storages.pop(key)[1]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
