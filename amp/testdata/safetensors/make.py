"""Makes the files of this folder, and verdicts.json of internal/safetensors, with
the reference implementation.

Python 3.11, safetensors 0.8.0, torch 2.15.0, numpy 2.4.6:

    pip install safetensors==0.8.0 torch==2.15.0 numpy==2.4.6
    python amp/testdata/safetensors/make.py

floats.safetensors  tensors of the three floating-point types that are loaded
floats.json         their bits in float32 after a conversion by torch to each type
types.safetensors   a tensor of every other type that torch has
types.json          the name, type and shape of those, in the order of the file
halves.safetensors  the float32 tensors of floats.safetensors, as bfloat16 and float16,
                    with 0 for NaN
verdicts.json       files, and whether the reference implementation accepts them
"""

import json
import pathlib
import struct

import torch
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent
headers = here.parents[2] / "internal" / "safetensors" / "testdata"

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-45, 2.0**-24, 2.0**-25,
    1.5 * 2.0**-25, 65504.0, 65519.0, 65520.0, -65520.0, 1e38, 3.4028234663852886e38, 1.0 + 2.0**-8,
    1.0 + 3 * 2.0**-8, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1.0 / 3,
]
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def ramp(*shape):
    n = 1
    for d in shape:
        n *= d
    return (torch.arange(n, dtype=torch.float32) * 0.37 - 3).reshape(shape)


def floats():
    special = torch.tensor(SPECIAL, dtype=torch.float32)
    tensors = {}
    for name, dtype in TYPES.items():
        tensors[f"{name}.special"] = special.to(dtype)
        tensors[f"{name}.matrix"] = ramp(3, 5).to(dtype)
        tensors[f"{name}.scalar"] = torch.tensor(2.5, dtype=dtype)
        tensors[f"{name}.empty"] = torch.zeros((0, 3), dtype=dtype)
    tensors['é 😀 "\\/\b\f\n\r\t\x01\x7f<&>\u2028'] = ramp(2, 1, 2)
    return tensors


def bits(tensor):
    return [code & 0xFFFFFFFF for code in tensor.to(torch.float32).contiguous().view(torch.int32).flatten().tolist()]


def other_types():
    named = {
        "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E8M0": torch.float8_e8m0fnu, "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
        "I16": torch.int16, "U16": torch.uint16, "I32": torch.int32, "U32": torch.uint32, "C64": torch.complex64,
        "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64,
    }
    tensors = {f"a {name}": torch.zeros((2, 3), dtype=torch.uint8).to(dtype) for name, dtype in named.items()}
    tensors["a F4"] = torch.zeros((2, 3), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return tensors


def listing(path):
    with safe_open(path, framework="pt") as file:
        return [
            {"name": name, "dtype": file.get_slice(name).get_dtype(), "shape": file.get_slice(name).get_shape()}
            for name in file.offset_keys()
        ]


def entry(dtype="F32", shape="[1]", offsets="[0,4]", more=""):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}'


def cases():
    """Yields a name, a header and the number of bytes that follow it."""
    def one(name, n=4, **fields):
        return name, f'{{"a":{entry(**fields)}}}', n

    def two(name, first, second, n=8):
        return name, f'{{"a":{entry(offsets=first)},"b":{entry(offsets=second)}}}', n

    yield "no tensors", "{}", 0
    yield "no tensors, data", "{}", 1
    yield "padding", "{}      ", 0
    yield "padding with all white space", "{} \t\r\n", 0
    yield "padding with zeros", "{}\0\0", 0
    yield "space before", " {}", 0
    yield "byte order mark", "\ufeff{}", 0
    yield "empty", "", 0
    yield "spaces", "    ", 0
    yield "an array", "[]", 0
    yield "a number", "1", 0
    yield "null", "null", 0
    yield "not closed", '{"a":', 0
    yield "two values", "{}{}", 0
    yield "trailing comma", "{},", 0
    yield "no UTF-8", b'{"\xff":' + entry().encode() + b"}", 4
    yield "a control character in a name", '{"\x01":' + entry() + "}", 4
    yield "an escaped control character", '{"\\u0001":' + entry() + "}", 4
    yield "a surrogate pair", '{"\\ud83d\\ude00":' + entry() + "}", 4
    yield "half a surrogate pair", '{"\\ud83d":' + entry() + "}", 4
    yield "the other half", '{"\\ude00":' + entry() + "}", 4
    yield "two first halves", '{"\\ud83d\\ud83d":' + entry() + "}", 4
    yield "half a pair and a letter", '{"\\ud83dabcdef":' + entry() + "}", 4
    yield "an unknown escape", '{"\\x":' + entry() + "}", 4
    yield "an empty name", '{"":' + entry() + "}", 4
    yield one("good")
    yield one("spaces", shape=" [ 1 ] ", offsets="[ 0 , 4 ]")
    yield one("a scalar", shape="[]")
    yield one("no elements", 0, shape="[7,0]", offsets="[0,0]")
    yield one("an unknown field", more=',"x":[{"y":[1,"]}",null]},true]')
    yield one("an unknown field that is not JSON", more=',"x":[}')
    yield one("a field twice", more=',"dtype":"F32"')
    yield one("shape twice", more=',"shape":[1]')
    yield one("offsets twice", more=',"data_offsets":[0,4]')
    yield "an entry that is a number", '{"a":1}', 0
    yield "an entry that is null", '{"a":null}', 0
    yield "an entry that is an array", '{"a":["F32",[1],[0,4]]}', 4
    yield "no dtype", '{"a":{"shape":[1],"data_offsets":[0,4]}}', 4
    yield "no shape", '{"a":{"dtype":"F32","data_offsets":[0,4]}}', 4
    yield "no offsets", '{"a":{"dtype":"F32","shape":[1]}}', 4
    yield "a dtype that is a number", '{"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}', 4
    yield one("an unknown dtype", dtype="F99")
    yield one("dtype in small letters", dtype="f32")
    yield one("an empty dtype", dtype="")
    yield one("a shape that is a number", shape="1")
    yield one("a shape that is null", shape="null")
    yield one("a negative dimension", shape="[-1]")
    yield one("minus zero", 0, shape="[-0]", offsets="[0,0]")
    yield one("a fraction", shape="[1.5]")
    yield one("a whole number with a point", shape="[1.0]")
    yield one("an exponent", shape="[1e0]")
    yield one("a leading zero", shape="[01]")
    yield one("a string as dimension", shape='["1"]')
    yield one("an array as dimension", shape="[[1]]")
    yield one("a dimension of 64 bits", shape="[18446744073709551616]")
    yield one("a dimension of 65 bits", shape="[36893488147419103232]")
    yield one("a product that overflows", shape="[4294967296,4294967296]")
    yield one("a product that overflows to the size", shape="[4294967296,4294967296,1]")
    yield one("a product that overflows before it is zero", 0, shape="[4294967296,4294967296,0]", offsets="[0,0]")
    yield one("zero before a product that overflows", 0, shape="[0,4294967296,4294967296]", offsets="[0,0]")
    yield one("bytes that overflow", shape="[4611686018427387905]")
    yield one("offsets that are a number", offsets="4")
    yield one("one offset", offsets="[0]")
    yield one("three offsets", offsets="[0,4,4]")
    yield one("a negative offset", offsets="[-4,0]")
    yield one("a fraction as offset", offsets="[0,4.0]")
    yield one("an offset of 65 bits", offsets="[0,18446744073709551620]")
    yield one("the end before the begin", offsets="[4,0]")
    yield one("an end before the begin, of no elements", 4, shape="[0]", offsets="[4,0]")
    yield one("too few bytes", 3, offsets="[0,3]")
    yield one("too many bytes", 5, offsets="[0,5]")
    yield one("the file is too short", 3)
    yield one("the file has more", 5)
    yield one("out of the file", offsets="[4,8]")
    yield one("a hole before", 5, offsets="[1,5]")
    yield two("one after the other", "[0,4]", "[4,8]")
    yield two("in another order", "[4,8]", "[0,4]")
    yield two("a hole between", "[0,4]", "[5,9]", 9)
    yield two("overlapping", "[0,4]", "[3,7]", 7)
    yield two("the same bytes", "[0,4]", "[0,4]", 4)
    yield "no elements between", f'{{"a":{entry()},"b":{entry(shape="[0]", offsets="[4,4]")},"c":{entry(offsets="[4,8]")}}}', 8
    yield "no elements within", f'{{"a":{entry()},"b":{entry(shape="[0]", offsets="[2,2]")}}}', 4
    yield "a name twice", f'{{"a":{entry()},"a":{entry()}}}', 4
    yield "a name twice, one escaped", f'{{"a":{entry()},"\\u0061":{entry()}}}', 4
    yield "metadata", '{"__metadata__":{"format":"pt","":""}}', 0
    yield "no metadata", '{"__metadata__":{}}', 0
    yield "metadata at the end", f'{{"a":{entry()},"__metadata__":{{"format":"pt"}}}}', 4
    yield "metadata twice", '{"__metadata__":{},"__metadata__":{}}', 0
    yield "a key of metadata twice", '{"__metadata__":{"a":"1","a":"2"}}', 0
    yield "metadata that is null", '{"__metadata__":null}', 0
    yield "metadata that is an array", '{"__metadata__":[]}', 0
    yield "metadata that is a string", '{"__metadata__":"pt"}', 0
    yield "metadata with a number", '{"__metadata__":{"a":1}}', 0
    yield "metadata with null", '{"__metadata__":{"a":null}}', 0
    yield "metadata with an object", '{"__metadata__":{"a":{}}}', 0
    yield "deep", '{"a":' + "[" * 200 + "]" * 200 + "}", 0
    for dtype, bits in {
        "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64,
        "I64": 64, "U64": 64,
    }.items():
        yield one(dtype, bits, dtype=dtype, shape="[4,2]", offsets=f"[0,{bits}]")
    yield one("F4, half a byte", 1, dtype="F4", shape="[1]", offsets="[0,1]")
    yield one("F6_E2M3, not whole bytes", 2, dtype="F6_E2M3", shape="[2]", offsets="[0,2]")


def verdict(name, file):
    try:
        deserialize(file)
        accepted = True
    except SafetensorError:
        accepted = False
    return {"name": name, "file": file.hex(), "accepted": accepted}


def verdicts():
    found = []
    for name, header, n in cases():
        text = header if isinstance(header, bytes) else header.encode()
        found.append(verdict(name, struct.pack("<Q", len(text)) + text + bytes(n)))
    for name, file in {
        "an empty file": b"",
        "part of the length": bytes(7),
        "a length of 0": bytes(8),
        "a length and no header": struct.pack("<Q", 2),
        "a length past the end": struct.pack("<Q", 3) + b"{}",
        "a length over the limit": struct.pack("<Q", 100_000_001) + b"{}",
        "a length of 64 bits": b"\xff" * 8 + b"{}",
    }.items():
        found.append(verdict(name, file))
    return found


def write_json(path, entries):
    path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


tensors = floats()
save_file(tensors, here / "floats.safetensors", metadata={"format": "pt"})
write_json(
    here / "floats.json",
    [{"name": name} | {to: bits(t.to(dtype)) for to, dtype in TYPES.items()} for name, t in tensors.items()],
)
halves = {}
for name, tensor in tensors.items():
    if tensor.dtype == torch.float32:
        tensor = tensor.where(~tensor.isnan(), 0)  # torch's code of a NaN depends on the machine
        halves[name + " BF16"] = tensor.to(torch.bfloat16)
        halves[name + " F16"] = tensor.to(torch.float16)
save_file(halves, here / "halves.safetensors")
save_file(other_types(), here / "types.safetensors")
write_json(here / "types.json", listing(here / "types.safetensors"))
write_json(headers / "verdicts.json", verdicts())
