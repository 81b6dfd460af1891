"""Memory that was freed and kept."""

import ctypes
import platform

import psutil
import pytest

from rljax.models.common.heap import map_large, return_freed

BLOCK, BLOCKS = 32 << 10, 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives back on demand")
def test_what_was_freed_between_what_is_held_is_given_back() -> None:
    """128 MiB in blocks too small for maps of their own; the last one is held, so that nothing above it is free."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(BLOCK) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    held = blocks.pop()
    for block in blocks:
        libc.free(block)
    process = psutil.Process()
    before = process.memory_info().rss
    return_freed()
    assert before - process.memory_info().rss > 100 << 20
    libc.free(held)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is large")
def test_large_arrays_that_replace_each_other_leave_no_holes() -> None:
    """64 blocks of 2 MiB, after glibc has met one of 16 MiB; the last one is held."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(libc.malloc(16 << 20))
    map_large()
    blocks = [libc.malloc(2 << 20) for _ in range(64)]
    for block in blocks:
        ctypes.memset(block, 1, 2 << 20)
    held = blocks.pop()
    before = psutil.Process().memory_info().rss
    for block in blocks:
        libc.free(block)
    assert before - psutil.Process().memory_info().rss > 100 << 20
    libc.free(held)
