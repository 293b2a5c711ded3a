"""Makes golden.gguf: what llama.cpp's Python package and its quantizer make of blocks and rows.

pip install gguf==0.19.0 llama-cpp-python==0.3.36, then: make.py [path of libggml-base.so]

The file has, for each type T that the Go package decodes, "T.blocks", random blocks of that type, and "T.values", what
gguf.quants.dequantize makes of them. "rows" are elements, and "T.rows" are the blocks of the first 512 of each row by gguf.quants.quantize,
or, for the types that it does not make, those of whole rows by ggml_quantize_chunk of the library without an importance matrix. The metadata
have a value of every type.
"""

import ctypes
import glob
import os
import sys

import gguf
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(20)
T = gguf.GGMLQuantizationType

TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4]
PYTHON = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4]
LIBRARY = [T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS]
# Where binary16 numbers are in a block.
SCALES = {T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0]}


def blocks(t):
    """1024 elements of random blocks, whose scales are finite: exponents of 31 become 30."""
    elements, size = gguf.GGML_QUANT_SIZES[t]
    b = rng.integers(0, 256, (1024 // elements, size), dtype=np.uint8)
    for at in SCALES.get(t, []):
        high = b[:, at + 1]
        b[:, at + 1] = np.where(high & 0x7C == 0x7C, high & 0xFB, high)
    if t == T.BF16:
        b[:, 1] = np.where(b[:, 1] & 0x7F == 0x7F, 0x40, b[:, 1])
    if t == T.F32:
        b[:, 3] = np.where(b[:, 3] & 0x7F == 0x7F, 0x40, b[:, 3])
    return b.reshape(1, -1)


def rows():
    """Gaussian rows of three sizes, rows with heavy tails, shifted ones, and rows with few values, of binary16 numbers."""
    def t(df, n):
        return rng.standard_t(df, n).astype(np.float32)

    n = 2048
    list = [
        rng.normal(0, 0.02, n), rng.normal(0, 1, n), rng.normal(0, 3e-4, n), 0.02 * t(3, n), 0.02 * t(2, n), rng.normal(0.05, 0.02, n),
        rng.normal(0, 0.02, n) * np.exp(rng.normal(0, 1, n // 32).repeat(32)), np.full(n, 0.37), np.full(n, -0.012), np.zeros(n),
        rng.choice([-1.0, 0.0, 1.0], n) * 0.05, np.where(np.arange(n) % 256 == 77, 5.0, rng.normal(0, 0.01, n)),
    ]
    return np.stack(list).astype(np.float16)


def library():
    if len(sys.argv) > 1:
        path = sys.argv[1]
    else:
        import llama_cpp

        path = glob.glob(os.path.join(os.path.dirname(llama_cpp.__file__), "lib", "libggml-base.so*"))[0]
    lib = ctypes.CDLL(path, mode=os.RTLD_LAZY)
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    return lib


def quantized(lib, t, x):
    elements, size = gguf.GGML_QUANT_SIZES[t]
    out = np.zeros((x.shape[0], x.shape[1] // elements * size), np.uint8)
    lib.ggml_quantize_chunk(int(t), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
    return out


def main():
    w = gguf.GGUFWriter(os.path.join(here, "golden.gguf"), "snug")
    w.add_uint8("a.uint8", 200)
    w.add_int8("a.int8", -100)
    w.add_uint16("a.uint16", 60000)
    w.add_int16("a.int16", -30000)
    w.add_uint32("a.uint32", 4000000000)
    w.add_int32("a.int32", -2000000000)
    w.add_uint64("a.uint64", 2**63 + 5)
    w.add_int64("a.int64", -(2**63))
    w.add_float32("a.float32", 0.1)
    w.add_float64("a.float64", 0.1)
    w.add_bool("a.bool", True)
    w.add_string("a.string", "snug ü \u0000 end")
    w.add_array("list.strings", ["", "a", "ｂ"])
    w.add_array("list.int32", [1, -2, 3])
    w.add_array("list.float32", [0.5, -1.25])
    w.add_array("list.bool", [True, False, True])
    w.add_array("list.bytes", b"\x00\x01\xff")
    for t in TYPES:
        b = blocks(t)
        name = t.name.lower()
        w.add_tensor(name + ".blocks", b, raw_dtype=t)
        w.add_tensor(name + ".values", gguf.quants.dequantize(b, t).reshape(1, -1))
    x = rows()
    w.add_tensor("rows", x)
    x = x.astype(np.float32)
    short = np.ascontiguousarray(x[:, :512])
    for t in PYTHON:
        q = gguf.quants.quantize(short, t)
        w.add_tensor(t.name.lower() + ".rows", q, raw_dtype=None if t == T.F16 else t)  # float16 is its own type
    lib = library()
    for t in LIBRARY:
        w.add_tensor(t.name.lower() + ".rows", quantized(lib, t, x), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
