import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stages.xxh3 import LONGEST, xxh3_64


def test_every_length_has_the_hash_that_xxhash_gives() -> None:
    data = np.random.default_rng(1).integers(0, 256, LONGEST + 9, dtype=np.uint8)
    for start in (0, 1, 9):
        for size in range(LONGEST + 1):
            expected = xxhash.xxh3_64_intdigest(data[start : start + size].tobytes())
            assert int(xxh3_64(data, start, start + size)) == expected, size


@given(st.binary(max_size=LONGEST))
def test_any_bytes_have_the_hash_that_xxhash_gives(data: bytes) -> None:
    assert int(xxh3_64(np.frombuffer(data, dtype=np.uint8), 0, len(data))) == xxhash.xxh3_64_intdigest(data)
