"""Writes differential.gz here: thousands of files, and whether the reference takes them.

Python 3.11, safetensors 0.8.0:

    pip install safetensors==0.8.0
    python internal/safetensors/testdata/differential.py

The first line is the names of the kinds, in JSON. A record follows for each file: a byte
for the kind, a byte that is 1 if the reference takes the file, four bytes of length,
little-endian, and the file.
"""

import gzip
import json
import pathlib
import random
import struct

from safetensors import deserialize

rng = random.Random(1)
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
        "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}
BAD_TYPES = ["f32", "F128", "", "F32 ", "I4", "U4", "BF", "F8", "FLOAT", "F16\x00", "C128", "F8_E4M3FN", "bool", "Bool"]
NAMES = ["a", "b", "c", "layer.weight", "", "é", "😀", "a/b", "x" * 40, "__metadata_", "dtype", "0", " a", "\t", "\u2028", "\ufeff"]
# Values of JSON for any place, as text.
ODD = ["null", "true", "false", "0", "1", "-1", "-0", "1.0", "1e0", "1E2", "0.5", "18446744073709551615", "18446744073709551616", "9223372036854775807",
       "9223372036854775808", "4294967296", "1e400", "-1e400", "1e-400", '""', '"x"', '"1"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\x"',
       '"\\u12g4"', '"\x01"', '"\x7f"', "[]", "[[]]", "{}", '{"a":1}', '{"a":1,"a":2}', "NaN", "Infinity", "01", "+1", ".5", "1.", "0x1", "'a'", "tru", "nul", "1 2", "//", "[1,]",
       '{"a":1,}', '{"\\ud800":1}', '{1:2}', "[" * 60 + "]" * 60, "[" * 120 + "]" * 120, "[" * 124 + "]" * 124, "[" * 125 + "]" * 125, "[" * 126 + "]" * 126, "[" * 128 + "]" * 128, "[" * 300 + "]" * 300,
       '{"a":' * 124 + "1" + "}" * 124, '{"a":' * 200 + "1" + "}" * 200, "9" * 400, "1" + "0" * 310, "0." + "0" * 400 + "1", "\u00a0", "\f", "-", "-a", "e", '"']
SPACE = ["", "", "", "", " ", "\n", "\t", "\r", "  ", "\r\n"]


def quote(s):
    return json.dumps(s, ensure_ascii=rng.random() < 0.3)


class Tensor:
    def __init__(self, name, dtype, shape, begin, end):
        self.name, self.dtype, self.shape, self.begin, self.end = name, dtype, shape, begin, end

    def fields(self):
        return [["dtype", quote(self.dtype)], ["shape", "[" + ",".join(map(str, self.shape)) + "]"], ["data_offsets", f"[{self.begin},{self.end}]"]]


def model(n=None):
    """Tensors that lie one after the other."""
    tensors, end = [], 0
    for name in rng.sample(NAMES, rng.randint(0, 4) if n is None else n):
        dtype = rng.choice(list(BITS))
        shape = [rng.choice([0, 1, 1, 2, 2, 3, 4, 8]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))]
        bits = BITS[dtype]
        for d in shape:
            bits *= d
        if bits % 8:  # of 4 or 6 bits: whole bytes
            shape, bits = shape + [4], bits * 4
        tensors.append(Tensor(name, dtype, shape, end, end + bits // 8))
        end += bits // 8
    return tensors, end


def entries(tensors):
    return [[quote(t.name), t.fields()] for t in tensors]


def obj(members):
    """The text of an object; a value is text or a list of members."""
    s = lambda: rng.choice(SPACE) if spaced else ""
    body = ",".join(f"{s()}{k}{s()}:{s()}{v if isinstance(v, str) else obj([[quote(a), b] for a, b in v])}{s()}" for k, v in members)
    return "{" + (body or s()) + "}"


def file(header, n, length=None):
    b = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(b) if length is None else length & (2**64 - 1)) + b + bytes(max(0, min(n, 1 << 16)))


def metadata():
    return '{' + ",".join(f"{quote(rng.choice(NAMES))}:{quote(rng.choice(NAMES))}" for _ in range(rng.randint(0, 3))) + '}'


def valid():
    tensors, end = model()
    e = entries(tensors)
    for x in e:
        rng.shuffle(x[1])
    if rng.random() < 0.3:
        e.insert(rng.randint(0, len(e)), ['"__metadata__"', metadata()])
    if rng.random() < 0.5:
        rng.shuffle(e)
    return obj(e), end


def padding():
    h, n = valid()
    pad = rng.choice([" ", "\n", "\t", "\r", "\0", "\f", "\v", "}", ",", "\u00a0", "\ufeff", "x", "  \0", " " * 100, "{}"]) * rng.randint(1, 9)
    return file(h + pad, n)


def before():
    h, n = valid()
    return file(rng.choice([" ", "\n", "\t", "\r", "  \n", "\ufeff", "\0", "\f", "\u00a0", "x", "[", "//\n", '"']) + h, n)


def length():
    h, n = valid()
    real = len(h.encode())
    return file(h, n, rng.choice([0, 1, 2, real - 1, real + 1, real + n, real + n + 1, real + n - 1, 100_000_000, 100_000_001, 99_999_999, 2**31, 2**32, 2**32 + real, 2**63 - 1, 2**63, 2**63 + real,
                                  2**64 - 1, 2**64 - 8, -real, rng.getrandbits(64), rng.getrandbits(16)]))


def short():
    h, n = valid()
    b = file(h, n)
    return b[:rng.randint(0, min(len(b), 20))] if rng.random() < 0.5 else b[:rng.randint(0, len(b))]


def trailing():
    h, n = valid()
    return file(h, max(0, n + rng.choice([-8, -3, -2, -1, 1, 2, 3, 8, 100])))


def offsets():
    """Overlaps, gaps and the like."""
    tensors, end = model(rng.randint(1, 4))
    for _ in range(rng.randint(1, 2)):
        t = rng.choice(tensors)
        d = rng.choice([-8, -4, -2, -1, 1, 2, 4, 8])
        how = rng.randint(0, 7)
        if how == 0:
            t.begin += d
        elif how == 1:
            t.end += d
        elif how == 2:
            t.begin, t.end = t.begin + d, t.end + d
        elif how == 3:
            t.begin, t.end = t.end, t.begin
        elif how == 4:
            o = rng.choice(tensors)
            t.begin, t.end, o.begin, o.end = o.begin, o.end, t.begin, t.end
        elif how == 5:
            t.begin, t.end = rng.choice(tensors).begin, rng.choice(tensors).end
        elif how == 6:
            t.begin, t.end = (t.begin + 2**64, t.end) if d > 0 else (t.begin, t.end + 2**64)
        else:
            t.begin = t.end = rng.choice([0, end, end + 1, 2**63, 2**64 - 1, t.begin])
    return file(obj(entries(tensors)), end + rng.choice([0, 0, 0, 1, -1, 4]))


def shapes():
    """Zeros, long shapes, and products that overflow."""
    tensors, end = model(rng.randint(1, 3))
    t = rng.choice(tensors)
    big = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 3, 2, 1, 0, 0, 0]
    how = rng.randint(0, 3)
    if how == 0:
        t.shape = [rng.choice(big) for _ in range(rng.randint(1, 4))]
    elif how == 1:
        t.shape.insert(rng.randint(0, len(t.shape)), rng.choice([0, 1, 2]))
    elif how == 2 and t.shape:
        t.shape.pop(rng.randrange(len(t.shape)))
    else:
        t.shape = t.shape + [1] * rng.choice([1, 5, 50])
    if 0 in t.shape and rng.random() < 0.7:  # an empty tensor, and what follows it
        size, found = t.end - t.begin, False
        for o in tensors:
            if found:
                o.begin, o.end = o.begin - size, o.end - size
            if o is t:
                o.end, found = o.begin, True
        end -= size
    return file(obj(entries(tensors)), end)


def types():
    tensors, end = model(rng.randint(1, 3))
    t = rng.choice(tensors)
    t.dtype = rng.choice(BAD_TYPES + list(BITS) * 2)
    return file(obj(entries(tensors)), end)


def fields():
    """Fields that are missing, come twice, are unknown, or have odd values."""
    tensors, end = model(rng.randint(1, 2))
    e = entries(tensors)
    for _ in range(rng.choice([1, 1, 2])):
        f = rng.choice(e)[1]
        i = rng.randrange(len(f)) if f else 0
        how = rng.randint(0, 8)
        if how == 0 and f:
            f.pop(i)
        elif how == 1 and f:
            f.insert(rng.randint(0, len(f)), list(f[i]))
        elif how <= 4:
            f.insert(rng.randint(0, len(f)), [rng.choice(["x", "", "Dtype", "SHAPE", "offsets", "strides", "é", "dtype ", "\0"]), rng.choice(ODD)])
        elif how == 5 and f:
            f[i][1] = rng.choice(ODD)
        elif how == 6 and f:
            f[i][0] = f[i][0].upper()
        elif f:
            v = f[i][1]
            if v.startswith("["):
                parts = v[1:-1].split(",") if v != "[]" else []
                parts.insert(rng.randint(0, len(parts)), rng.choice(ODD))
                if rng.random() < 0.6 and len(parts) > 1:
                    parts.pop(rng.randrange(len(parts)))
                f[i][1] = "[" + ",".join(parts) + "]"
    return file(obj(e), end)


def members():
    """Entries that are no objects, names that come twice, names with escapes."""
    tensors, end = model(rng.randint(0, 3))
    e = entries(tensors)
    how = rng.randint(0, 5)
    if how == 0:
        e.insert(rng.randint(0, len(e)), [quote(rng.choice(NAMES)), rng.choice(ODD)])
    elif how == 1 and e:
        e.insert(rng.randint(0, len(e)), list(rng.choice(e)))
    elif how == 2 and e:
        rng.choice(e)[0] = rng.choice(['"\\u0061"', '"\\n"', '"\\/"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\ude00"', '"\\ud83d\\u0041"', '"a\\u0000"', '"\\q"', '"\\u00e"', "a", "1", "null", "'a'", '"\x1f"', '"a', 'a"'])
    elif how == 3 and tensors:
        t = rng.choice(tensors)
        e[tensors.index(t)][1] = f'["{t.dtype}",[{",".join(map(str, t.shape))}],[{t.begin},{t.end}]]'
    elif how == 4:
        e.append([quote(rng.choice(NAMES)), "{}"])
    else:
        e.append(['"__metadata__"', obj([[quote(a), b] for a, b in Tensor("", "U8", [0], end, end).fields()])])
    return file(obj(e), end)


def meta():
    """Metadata of all kinds."""
    tensors, end = model(rng.randint(0, 2))
    e = entries(tensors)
    how = rng.randint(0, 5)
    value = rng.choice(ODD) if how <= 1 else metadata() if how == 2 else "{" + ",".join(f"{quote(rng.choice(NAMES))}:{rng.choice(ODD)}" for _ in range(rng.randint(1, 2))) + "}"
    key = rng.choice(['"__metadata__"'] * 8 + ['"\\u005f_metadata__"', '"__Metadata__"', '"__metadata__ "'])
    e.insert(rng.randint(0, len(e)), [key, value])
    if how == 5:
        e.insert(rng.randint(0, len(e)), [key, rng.choice([value, "null", "{}"])])
    return file(obj(e), end)


def text():
    """A valid header with some characters changed."""
    h, n = valid()
    s = list(h)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        i = rng.randrange(len(s) + 1)
        how = rng.randint(0, 3)
        if how == 0:
            s.insert(i, rng.choice('{}[],:" \\0129-+.eE\n\0\x1ftnu'))
        elif how == 1 and i < len(s):
            s.pop(i)
        elif how == 2 and i < len(s):
            s[i] = rng.choice('{}[],:" \\0129-+.eE')
        elif len(s) > 1:
            j = rng.randrange(len(s))
            i = min(i, len(s) - 1)
            s[i], s[j] = s[j], s[i]
    return file("".join(s), n)


def damaged():
    """Bits and bytes that are changed anywhere, such as UTF-8 that is none."""
    b = bytearray(file(*valid()))
    for _ in range(rng.choice([1, 1, 2, 4])):
        i = rng.randrange(len(b))
        if rng.random() < 0.5:
            b[i] ^= 1 << rng.randrange(8)
        else:
            b[i:i + 1] = rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"\xef\xbb\xbf", b"\x00"])
    return bytes(b)


def whole():
    """Documents that are no objects of tensors."""
    return file(rng.choice(ODD) + rng.choice(["", "", " ", rng.choice(ODD)]), rng.choice([0, 0, 1]))


KINDS = [(lambda: file(*valid()), "valid", 500), (padding, "padding", 250), (before, "before", 150), (length, "length", 300), (short, "short", 200), (trailing, "trailing", 150), (offsets, "offsets", 600), (shapes, "shapes", 600),
         (types, "types", 250), (fields, "fields", 1000), (members, "members", 500), (meta, "meta", 600), (text, "text", 700), (damaged, "damaged", 500), (whole, "whole", 200)]


def accepted(b):
    try:
        deserialize(b)
    except BaseException as e:  # a panic of Rust is none of Exception
        if isinstance(e, KeyboardInterrupt):
            raise
        return False
    return True


def main():
    global spaced
    out, seen = bytearray((json.dumps([name for _, name, _ in KINDS]) + "\n").encode()), set()
    for k, (make, name, n) in enumerate(KINDS):
        took = total = 0
        for _ in range(n):
            spaced = rng.random() < 0.3
            b = make()
            if b in seen:
                continue
            seen.add(b)
            ok = accepted(b)
            took, total = took + ok, total + 1
            out += struct.pack("<BBI", k, ok, len(b)) + b
        print(f"{name}: {total}, {took} accepted")
    path = pathlib.Path(__file__).parent / "differential.gz"
    path.write_bytes(gzip.compress(bytes(out), 9, mtime=0))
    print(f"{len(seen)} files, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
