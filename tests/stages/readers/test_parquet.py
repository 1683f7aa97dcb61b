"""Parquet: one document a row, read by row groups."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.readers import ReaderConfigurationError, find_reader

ROWS = 1000


def parquet(columns: dict[str, pa.Array], rows_per_group: int = 100, **options) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=rows_per_group, **options)
    return out.getvalue()


def texts(count: int = ROWS) -> pa.Array:
    return pa.array([f"text {n}" for n in range(count)])


def test_rows_come_in_order_with_their_index_url_and_date(archive):
    import datetime

    dates = pa.array([datetime.date(2024, 1, 1)] * ROWS)
    data = parquet(
        {"id": pa.array(range(ROWS)), "text": texts(), "url": pa.array([f"http://a/{n}" for n in range(ROWS)]), "day": dates}
    )
    rows, _ = archive.read(data, "parquet", date_column="day")
    assert [(row["position"], row["text"], row["url"], row["date"]) for row in rows] == [
        (n, f"text {n}", f"http://a/{n}", "2024-01-01") for n in range(ROWS)
    ]


def test_a_range_of_row_groups_gives_the_rows_that_the_whole_file_has_there(archive):
    data = parquet({"text": texts()})
    whole, _ = archive.read(data, "parquet")
    parts = [archive.read(data, "parquet", row_groups=groups)[0] for groups in (range(0, 3), range(3, 4), range(4, 10))]
    assert [row for part in parts for row in part] == whole


@pytest.mark.parametrize(
    "type_", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_type_of_text_is_read(archive, type_):
    values = texts(10).cast(pa.binary()) if "binary" in str(type_) else texts(10)
    rows, _ = archive.read(parquet({"text": values.cast(type_)}), "parquet")
    assert [row["text"] for row in rows] == texts(10).to_pylist()


def test_a_null_an_empty_and_a_mangled_text_are_losses(archive):
    column = pa.array([b"a", None, b"", b"\xff\xfe", b"x" * 101, b"b"], pa.binary())
    rows, _ = archive.read(parquet({"text": column}), "parquet", max_payload_bytes=100)
    assert [row["rule"] for row in rows] == [None, "missing_text", "empty_text", "bad_utf8", "too_large", None]
    assert rows[4]["value"] == 101


def test_strings_that_another_writer_did_not_check_are_losses_not_crashes(archive):
    lying = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xc3("], pa.binary()).buffers())
    rows, _ = archive.read(parquet({"text": lying}), "parquet")
    assert [row["rule"] for row in rows] == [None, "bad_utf8"]


def test_a_column_of_nulls_gives_one_loss_a_row(archive):
    rows, _ = archive.read(parquet({"text": pa.nulls(3)}), "parquet")
    assert [row["rule"] for row in rows] == ["missing_text"] * 3


def test_html_comes_as_a_page(archive):
    row = archive.read(parquet({"html": pa.array(["<p>Größe"])}), "parquet", html_column="html")[0][0]
    assert (row["payload"], row["media_type"], row["charset"]) == ("<p>Größe".encode(), "text/html", "utf-8")


def test_a_missing_column_is_the_recipes_fault_and_names_those_there_are(archive):
    with pytest.raises(ReaderConfigurationError, match=r"data/a.parquet: there is no column 'text'; its columns are content, id"):
        archive.read(parquet({"content": texts(), "id": pa.array(range(ROWS))}), "parquet", file="data/a.parquet")
    with pytest.raises(ReaderConfigurationError, match="column 'text' is int64"):
        archive.read(parquet({"text": pa.array(range(ROWS))}), "parquet")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"words" * 100, b"PAR1" + bytes(100) + b"PAR1"])
def test_a_file_that_is_no_parquet_is_unreadable(archive, data):
    rows, _ = archive.read(data, "parquet")
    assert [(row["position"], row["rule"]) for row in rows] == [(0, "unreadable")]


def test_a_damaged_row_group_is_one_row_and_the_next_group_is_read(archive):
    data = bytearray(parquet({"text": texts()}, compression="zstd", use_dictionary=False))
    column = pq.read_metadata(io.BytesIO(data)).row_group(4).column(0)
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 40] = b"\xff" * 40
    rows, _ = archive.read(bytes(data), "parquet")
    kept = {row["position"] for row in rows if row["rule"] is None}
    assert kept >= set(range(400)) | set(range(500, 1000))
    damaged = [row for row in rows if row["rule"] == "damaged"]
    assert len(damaged) == 1 and damaged[0]["position"] + damaged[0]["value"] == 500


def test_trouble_of_the_machine_is_raised_though_arrow_raises_the_same_kind_for_bad_content(archive):
    class Failing(io.BytesIO):
        broken = False

        def read(self, size: int | None = -1) -> bytes:
            if self.broken and self.tell() < 20_000:
                raise OSError(5, "Input/output error")
            data = super().read(size)
            self.broken = b"PAR1" in data  # the footer was read
            return data

    data = parquet({"text": pa.array(["x" * 500 + str(n) for n in range(ROWS)])}, compression="none", use_dictionary=False)
    with pytest.raises(OSError, match="Input/output"):
        archive.read(Failing(data), "parquet")


@pytest.mark.slow
def test_only_a_big_file_is_split_and_its_ranges_cover_every_row_group_once():
    reader_type = find_reader("parquet")
    reader = reader_type(reader_type.options_type())
    assert reader.splits(io.BytesIO(parquet({"text": texts()}))) is None
    assert reader.splits(io.BytesIO(b"no parquet")) is None
    big = pa.array([b"x" * (1 << 20)] * 150, pa.large_binary())
    data = parquet({"text": big}, rows_per_group=10, compression="none", use_dictionary=False)
    ranges = reader.splits(io.BytesIO(data))
    assert ranges == [range(0, 7), range(7, 14), range(14, 15)]
