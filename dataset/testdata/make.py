"""Writes chats.parquet, conversations as pyarrow stores them, and empty.parquet, none: python3 make.py, with pyarrow 26."""
import pyarrow as pa
import pyarrow.parquet as pq

turn = pa.struct([("role", pa.string()), ("content", pa.string())])
chats = [
    [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c é"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y <&> \u2028"}],
    [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}],
]
table = pa.table({
    "id": pa.array([1, 2, 3]),
    "messages": pa.array(chats, type=pa.list_(turn)),
    "tools": pa.array([None, None, None], type=pa.string()),
    "scores": pa.array([[1.5], None, []], type=pa.list_(pa.float64())),
})
pq.write_table(table, "chats.parquet", compression="zstd", row_group_size=2)
pq.write_table(table[:0], "empty.parquet")
