"""Writes types.parquet, values of columns whose type is not the one in which they are stored, and twice.parquet, two columns of one
name: python3 columns.py, with pyarrow 26."""
import datetime
import decimal

import pyarrow as pa
import pyarrow.parquet as pq

pq.write_table(pa.table({
    "text": pa.array(["a b"]),
    "u64": pa.array([2**64 - 1], pa.uint64()),
    "u32": pa.array([2**32 - 1], pa.uint32()),
    "i8": pa.array([-3], pa.int8()),
    "f16": pa.array([1.5], pa.float16()),
    "f64": pa.array([2.0]),
    "decimal": pa.array([decimal.Decimal("1.50")]),
    "date": pa.array([datetime.date(2024, 1, 1)]),
    "time": pa.array([datetime.time(1, 2)]),
    "timestamp": pa.array([datetime.datetime(2024, 1, 1)]),
    "members": pa.array([[{"n": 2.0}]]),
}), "types.parquet")
pq.write_table(pa.Table.from_arrays([pa.array(["a b"]), pa.array(["c d"])], names=["text", "text"]), "twice.parquet")
