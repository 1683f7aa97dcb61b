"""xxh3_64 (Yann Collet's XXH3, 64 bits, seed 0, default secret) for compiled kernels, on up to `LONGEST` bytes.

It equals `xxhash.xxh3_64_intdigest`; longer inputs are left to that library. Written from the algorithm's
specification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_intrinsic: Any = intrinsic  # it takes the typing context away from what it decorates, which no type says

LONGEST = 240
"""Bytes. Beyond it XXH3 is another algorithm, made for files."""

SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    dtype=np.uint8,
)


@numba.njit(cache=True)
def xxh3_64(data: np.ndarray, start: int, end: int) -> np.uint64:  # pragma: no cover - compiled
    """Of data[start:end] (uint8), at most `LONGEST` bytes."""
    size = end - start
    length = np.uint64(size)
    if size > 16:
        total = length * np.uint64(0x9E3779B185EBCA87)
        if size <= 128:
            if size > 32:
                if size > 64:
                    if size > 96:
                        total += mix(data, start + 48, 96) + mix(data, end - 64, 112)
                    total += mix(data, start + 32, 64) + mix(data, end - 48, 80)
                total += mix(data, start + 16, 32) + mix(data, end - 32, 48)
            total += mix(data, start, 0) + mix(data, end - 16, 16)
            return avalanche(total)
        for block in range(8):
            total += mix(data, start + 16 * block, 16 * block)
        total = avalanche(total)
        for block in range(8, size // 16):
            total += mix(data, start + 16 * block, 16 * (block - 8) + 3)
        total += mix(data, end - 16, 119)
        return avalanche(total)
    if size > 8:
        low: np.uint64 = read64(data, start) ^ np.uint64(0x6782737BEA4239B9)
        high: np.uint64 = read64(data, end - 8) ^ np.uint64(0xAF56BC3B0996523A)
        return avalanche(length + _swapped(low) + high + _folded(low, high))
    if size >= 4:
        value: np.uint64 = (_read32(data, end - 4) + (_read32(data, start) << np.uint64(32))) ^ np.uint64(0xC73AB174C5ECD5A2)
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value *= np.uint64(0x9FB21C651E98DF25)
        value ^= (value >> np.uint64(35)) + length
        value *= np.uint64(0x9FB21C651E98DF25)
        return value ^ (value >> np.uint64(28))
    if size > 0:
        first, middle, last = (
            np.uint64(data[start]), np.uint64(data[start + (size >> 1)]), np.uint64(data[end - 1]),
        )  # fmt: skip
        value = (first << np.uint64(16)) | (middle << np.uint64(24)) | last | (length << np.uint64(8))
        return _avalanche_xxh64(value ^ np.uint64(0x87275A9B))
    return np.uint64(0x2D06800538D394C2)


@numba.njit(cache=True)
def avalanche(value: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    value ^= value >> np.uint64(37)
    value *= np.uint64(0x165667919E3779F9)
    return value ^ (value >> np.uint64(32))


@numba.njit(cache=True)
def _avalanche_xxh64(value: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC2B2AE3D27D4EB4F)
    value ^= value >> np.uint64(29)
    value *= np.uint64(0x165667B19E3779F9)
    return value ^ (value >> np.uint64(32))


@numba.njit(cache=True)
def mix(data: np.ndarray, at: int, secret: int) -> np.uint64:  # pragma: no cover - compiled
    low = read64(data, at) ^ read64(SECRET, secret)
    high = read64(data, at + 8) ^ read64(SECRET, secret + 8)
    product: np.uint64 = _folded(low, high)
    return product


@numba.njit(cache=True)
def _rotated(value: np.uint64, bits: int) -> np.uint64:  # pragma: no cover - compiled
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@numba.njit(cache=True)
def _swapped(value: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    """The eight bytes in reverse."""
    ones, twos = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    value = ((value >> np.uint64(8)) & ones) | ((value & ones) << np.uint64(8))
    value = ((value >> np.uint64(16)) & twos) | ((value & twos) << np.uint64(16))
    return _rotated(value, 32)


@_intrinsic
def read64(typing_context: Any, data: Any, at: Any) -> Any:
    """Eight bytes of `data` from `at`, little-endian (as every machine that numba compiles for here)."""
    return types.uint64(data, at), _reader(64)


@_intrinsic
def _read32(typing_context: Any, data: Any, at: Any) -> Any:
    """Four bytes of `data` from `at`, as uint64."""
    return types.uint64(data, at), _reader(32)


def _reader(bits: int) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte = builder.gep(array.data, [arguments[1]])
        pointer = builder.bitcast(byte, ir.IntType(bits).as_pointer())
        value = builder.load(pointer, align=1)
        return value if bits == 64 else builder.zext(value, ir.IntType(64))

    return generate


@_intrinsic
def _folded(typing_context: Any, left: Any, right: Any) -> Any:
    """The halves of the 128-bit product of two uint64, joined by exclusive or."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, narrow = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(value, wide) for value in arguments))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), narrow)
        return builder.xor(builder.trunc(product, narrow), high)

    return types.uint64(types.uint64, types.uint64), generate
