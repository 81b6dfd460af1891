"""Rank 0 of an NCCL communicator, without torch: NCCL and the CUDA driver by ctypes, on the buffers of JAX arrays.

The communicator is non-blocking, so that an engine that dies or hangs ends the wait by a deadline: NCCL answers "in
progress", and is asked until it is done or aborted (NCCL's user guide, "Fault Tolerance"). On a machine without a GPU
the library loads and mints identities, and joining fails with one line; no GPU has run the rest yet.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidecar.channels.link import TransferError
from sidecar.extras import install_command

_SUCCESS, _IN_PROGRESS = 0, 7  # ncclResult_t
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_UINT8, _FLOAT32, _SUM = 1, 7, 0  # ncclDataType_t, ncclRedOp_t
_POLL = 0.0005


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


class _Config(ctypes.Structure):
    """``ncclConfig_t`` as NCCL 2.14 introduced it; later libraries fill what it lacks, by its version, themselves."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )

    @classmethod
    def non_blocking(cls) -> _Config:
        return cls(ctypes.sizeof(cls), 0xCAFEBEEF, 21400, 0)


def load_nccl() -> ctypes.CDLL:
    """Loads NCCL from the ``nvidia-nccl`` wheel that jax[cuda] brings, or the system's.

    Raises:
        TransferError: NCCL is not installed.
    """
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    places = [] if spec is None else [Path(p) / "lib" / "libnccl.so.2" for p in spec.submodule_search_locations or ()]
    for name in (*(str(place) for place in places), "libnccl.so.2"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.ncclGetErrorString.restype = ctypes.c_char_p
        library.ncclGetLastError.restype = ctypes.c_char_p
        library.ncclCommInitRankConfig.argtypes = (
            *(ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, _UniqueId, ctypes.c_int, ctypes.POINTER(_Config)),
        )
        buffers = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int)
        library.ncclBroadcast.argtypes = library.ncclAllReduce.argtypes = (*buffers, ctypes.c_void_p, ctypes.c_void_p)
        library.ncclCommGetAsyncError.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
        library.ncclCommAbort.argtypes = (ctypes.c_void_p,)
        return library
    raise TransferError(f"NCCL is not installed on the learner's machine; {install_command('cuda12')} brings it")


class NcclCommunicator:
    """The learner's end of `rljax.weights.nccl.Communicator` on a GPU. One thread uses it from first to last: the
    device's context is that thread's.
    """

    def __init__(self, device: jax.Device, world_size: int, deadline: float) -> None:
        """Creates the ncclUniqueId that all ranks share.

        Raises:
            TransferError: NCCL is not installed.
        """
        self._device = device
        self._world_size = world_size
        self._deadline = deadline
        self._nccl = load_nccl()
        self._id = _UniqueId()
        self._check(self._nccl.ncclGetUniqueId(ctypes.byref(self._id)), "an identity")
        self._communicator = ctypes.c_void_p()
        self._stream = ctypes.c_void_p()
        self._cuda: ctypes.CDLL | None = None

    def init_info(self) -> dict[str, Any]:
        """See `rljax.weights.nccl.Communicator`: vLLM's torch-free rendezvous."""
        identity = base64.b64encode(bytes(self._id)).decode()
        return {"rank_offset": 1, "world_size": self._world_size, "nccl_unique_id_b64": identity}

    def join(self) -> None:
        """See `rljax.weights.nccl.Communicator`. Ends with the one-element all-reduce that vLLM's ranks begin with."""
        self._open_device()
        config, communicator = _Config.non_blocking(), ctypes.byref(self._communicator)
        begun = self._nccl.ncclCommInitRankConfig(communicator, self._world_size, self._id, 0, ctypes.byref(config))
        self._settle(begun, "the engine to join")
        one = jax.device_put(np.zeros(1, np.float32), self._device).block_until_ready()
        pointer = one.unsafe_buffer_pointer()
        arguments = (pointer, pointer, 1, _FLOAT32, _SUM, self._communicator, self._stream)
        self._settle(self._nccl.ncclAllReduce(*arguments), "the first all-reduce")
        self._drain("the first all-reduce")

    def broadcast(self, tensors: Sequence[jax.Array | np.ndarray]) -> None:
        """See `rljax.weights.nccl.Communicator`. Gathers on one device what the learner holds in shards."""
        chunk = pack([jax.device_put(tensor, self._device) for tensor in tensors]).block_until_ready()
        pointer = chunk.unsafe_buffer_pointer()
        arguments = (pointer, pointer, chunk.size, _UINT8, 0, self._communicator, self._stream)
        self._settle(self._nccl.ncclBroadcast(*arguments), "a broadcast")
        self._drain("a broadcast")

    def close(self) -> None:
        """See `rljax.weights.nccl.Communicator`."""
        if self._communicator.value is not None:
            self._nccl.ncclCommAbort(self._communicator)
            self._communicator = ctypes.c_void_p()
        if self._cuda is not None and self._stream.value is not None:
            self._cuda.cuStreamDestroy_v2(self._stream)
            self._stream = ctypes.c_void_p()

    def _open_device(self) -> None:
        try:
            cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise TransferError(f"the CUDA driver is not on the learner's machine: {error}") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        calls = (
            lambda: cuda.cuInit(0),
            lambda: cuda.cuDeviceGet(ctypes.byref(device), self._device.local_hardware_id),
            lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),  # that of JAX
            lambda: cuda.cuCtxSetCurrent(context),
            lambda: cuda.cuStreamCreate(ctypes.byref(self._stream), 1),  # CU_STREAM_NON_BLOCKING
        )
        for call in calls:
            if result := call():
                raise TransferError(f"CUDA error {result} on the learner's {self._device}")
        self._cuda = cuda

    def _settle(self, result: int, what: str) -> None:
        """Waits until NCCL has finished a call that may still be in progress."""
        state = ctypes.c_int(_IN_PROGRESS)

        def taken() -> bool:
            if self._communicator.value is not None:
                self._check(self._nccl.ncclCommGetAsyncError(self._communicator, ctypes.byref(state)), what)
                self._check(state.value, what)
            return state.value == _SUCCESS

        self._check(result, what)
        self._until(taken, what)

    def _drain(self, what: str) -> None:
        """Waits until the device has done what is queued."""
        cuda = self._cuda
        assert cuda is not None
        state = ctypes.c_int(_SUCCESS)

        def drained() -> bool:
            self._check(self._nccl.ncclCommGetAsyncError(self._communicator, ctypes.byref(state)), what)
            self._check(state.value, what)
            result = cuda.cuStreamQuery(self._stream)
            if result not in (0, _NOT_READY):
                raise TransferError(f"CUDA error {result} in {what}")
            return result == 0

        self._until(drained, what)

    def _until(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + self._deadline
        while not done():
            if time.monotonic() > until:
                self.close()
                raise TransferError(f"waited {self._deadline:g} s for {what}; look at the engine's log")
            time.sleep(_POLL)

    def _check(self, result: int, what: str) -> None:
        if result not in (_SUCCESS, _IN_PROGRESS):
            reason = self._nccl.ncclGetErrorString(result).decode()
            detail = (self._nccl.ncclGetLastError(None) or b"").decode().strip().splitlines()
            raise TransferError(f"NCCL failed in {what}: {reason}{': ' + detail[-1] if detail else ''}")


@jax.jit
def pack(tensors: Sequence[jax.Array]) -> jax.Array:
    """Returns uint8 ``[bytes]``: the tensors' bytes in C order, one after the other, as in vLLM's ``pack_tensors``."""
    return jnp.concatenate([jax.lax.bitcast_convert_type(tensor, jnp.uint8).reshape(-1) for tensor in tensors])
