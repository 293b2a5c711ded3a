"""Writes ops.json: the operations that torch autocasts, by rule, for the tests
of package amp: for CUDA from the macros of the header that torch installs, for
the CPU the names that its dispatcher has kernels for. Run it with torch 2.15.0:

    python ops.py > ops.json
"""

import json
import pathlib
import re

import torch

header = (pathlib.Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text().replace("\\\n", " ")


def names(macro):
    body = re.search(rf"#define {macro}\(_\)(.*)", header).group(1)
    return sorted(set(re.findall(r"_\(\s*(\w+)", body)))


def appended():
    """norm, whose variants are registered one by one."""
    body = re.search(r"#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE\(_\)(.*)", header).group(1)
    return sorted({n.split(".")[0] for n in re.findall(r'"([\w.]+)"', body)})


def registered(key):
    out = set()
    for full in torch._C._dispatch_get_all_op_names():
        if full.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(full, key):
            out.add(full[len("aten::"):].split(".")[0])
    return sorted(out)


print(json.dumps({
    "torch": torch.__version__.split("+")[0],
    "cuda": {
        "low": names("AT_FORALL_LOWER_PRECISION_FP"),
        "f32": sorted(set(names("AT_FORALL_FP32") + names("AT_FORALL_FP32_SET_OPT_DTYPE") + appended())),
        "widest": names("AT_FORALL_PROMOTE"),
    },
    "cuda_names": registered("AutocastCUDA"),
    "cpu_names": registered("AutocastCPU"),
}, indent=1))
