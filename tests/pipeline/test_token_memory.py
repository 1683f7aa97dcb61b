"""What encoding and packing hold does not grow with the part or the shard: measured in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests.storage import Folder
from stages.tokenizer import TokenizerOptions, train_tokenizer
from tests.pipeline.crawl import article
from tests.pipeline.token_parts import BATCH, peak_of, write_part

MIB = 1 << 20


@pytest.mark.slow
def test_a_shard_ten_times_as_large_is_packed_in_the_same_memory(tmp_path: Path) -> None:
    counts = 6_000_000, 60_000_000
    found = []
    for count in counts:
        peak_of("write", tmp_path / str(count), count, 4000)
        found.append(peak_of("pack", tmp_path / str(count)))
    more = 2 * (counts[1] - counts[0]) / MIB  # 103 MiB of tokens
    assert found[1] - found[0] < more / 2


@pytest.mark.slow
def test_a_part_eight_times_as_large_is_encoded_in_the_same_memory(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([article(number) for number in range(50)], TokenizerOptions(vocabulary=512)).encode()
    batch = ["\n".join(article(number) for number in range(first, first + 10)) for first in range(BATCH)]
    size, found = sum(map(len, batch)), []
    for megabytes in (40, 320):
        corpus = Folder(tmp_path / str(megabytes))
        corpus.write("tokenizer.json", tokenizer)
        write_part(corpus, [batch] * (megabytes * 1_000_000 // size))
        found.append(peak_of("encode", corpus.url))
    assert found[1] - found[0] < 280_000_000 / 4 / MIB  # a quarter of the text that was added
