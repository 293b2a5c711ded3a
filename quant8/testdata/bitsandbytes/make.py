"""Makes the files of this folder with bitsandbytes on the CPU.

Python 3.11, bitsandbytes 0.50.2, torch 2.15.0, safetensors 0.8.0, numpy 2.4.6:

    pip install bitsandbytes==0.50.2 torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    python quant8/testdata/bitsandbytes/make.py

maps.safetensors       the signed and unsigned dynamic and linear maps
blockwise.safetensors  vectors x, their codes and absmax by quantize_blockwise, and
                       the values of the codes; the metadata have the blocks
adamw.safetensors      parameters and the state dict of AdamW8bit after 5 steps, with
                       the names that state_dict gives, joined by dots
continued.safetensors  the same after 3 more steps, with the names that the
                       optimizer uses itself
rules.safetensors      the same, after 5 and after 6 steps, of RMSprop8bit, Adagrad8bit,
                       Adam8bit and SGD8bit, each with weight decay: behind "rmsprop.5.",
                       "rmsprop.6." and so on; and behind "tiny." a vector of blocks of 64
                       whose magnitudes are below 1e-38, as of blockwise.safetensors

With a file as argument it makes nothing: it loads the state in that file, which is
that of adamw.safetensors written by another program, into AdamW8bit, does the 3
steps and says whether parameters and state are those of continued.safetensors.
"""

import pathlib
import sys

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

here = pathlib.Path(__file__).parent
torch.set_num_threads(1)

MAPS = {
    "dynamic.signed": F.create_dynamic_map(True),
    "dynamic.unsigned": F.create_dynamic_map(False),
    "linear.signed": F.create_linear_map(True),
    "linear.unsigned": F.create_linear_map(False),
}
SHAPES = {"w": (60, 70), "b": (70,)}
NESTED = bnb.optim.AdamW8bit._FSDP_WRAPPED_QUANT_STATE_KEY
FIRST, MORE = 5, 3


def vectors():
    gen = torch.Generator().manual_seed(8)
    normal = lambda n: torch.randn(n, generator=gen)
    uniform = lambda n: torch.rand(n, generator=gen)
    special = torch.zeros(7 * 64 + 3)
    special[64:128] = 0.3
    special[128:192] = -2
    special[192:256] = normal(64) * 1e38 / 4
    special[256:320] = normal(64) * 1e-36
    special[320:384:5] = normal(13)  # and zeros
    special[384:448] = torch.logspace(0, -8, 64)
    special[448:] = torch.tensor([1, -1e-9, 1e-9])
    yield "normal", normal(1000), True, 256
    yield "normal.unsigned", normal(700).abs(), False, 256
    yield "uniform", uniform(500) * 2 - 1, True, 64
    yield "uniform.unsigned", uniform(515), False, 128
    yield "magnitudes", normal(1100) * 10 ** (uniform(1100) * 8 - 6), True, 512
    yield "float16", normal(1030).half(), True, 1024
    yield "bfloat16", normal(4100).bfloat16(), True, 4096
    yield "small", normal(40), True, 32
    yield "special", special, True, 64


def blockwise():
    tensors, metadata = {}, {}
    for name, x, signed, block in vectors():
        code = MAPS["dynamic.signed" if signed else "dynamic.unsigned"]
        codes, state = F.quantize_blockwise(x, code=code.clone(), blocksize=block)
        values = F.dequantize_blockwise(codes, state)
        tensors |= {f"{name}.x": x, f"{name}.codes": codes, f"{name}.absmax": state.absmax, f"{name}.values": values}
        metadata[name] = f"{'signed' if signed else 'unsigned'} {block}"
    save_file(tensors, here / "blockwise.safetensors", metadata)


def noise(n, step):
    """Numbers from -0.5 on to 0.5 that other languages compute alike."""
    x = (torch.arange(n, dtype=torch.int64) + 7919 * step) * 2654435761 % 2**32
    return ((x >> 8).double() / 2**24 - 0.5).float()


def optimizer(params):
    return bnb.optim.AdamW8bit([params[name] for name in SHAPES], lr=1e-3, weight_decay=1e-2)


def steps(opt, params, first, last):
    for step in range(first, last + 1):
        for p in params.values():
            p.grad = noise(p.numel(), step).reshape(p.shape)
        opt.step()


def named(opt, params):
    """The tensors that the optimizer uses, by the name of the parameter."""
    tensors = {}
    for name, p in params.items():
        tensors[name] = p.detach().clone()
        for key, value in opt.state[p].items():
            tensors[f"{name}.{key}"] = torch.as_tensor(value).clone()
    return tensors


def nested(opt, params):
    """The tensors of the state dict."""
    tensors = {name: p.detach().clone() for name, p in params.items()}
    for name, state in zip(params, opt.state_dict()["state"].values()):
        for key, value in state.items():
            if key == NESTED:
                for inner, tensor in value.items():
                    tensors[f"{name}.{NESTED}.{inner}"] = tensor.clone()
            else:
                tensors[f"{name}.{key}"] = torch.as_tensor(value).clone()
    return tensors


def adamw():
    params = {name: torch.nn.Parameter(noise(torch.Size(shape).numel(), 0).reshape(shape)) for name, shape in SHAPES.items()}
    opt = optimizer(params)
    steps(opt, params, 1, FIRST)
    save_file(nested(opt, params), here / "adamw.safetensors")
    steps(opt, params, FIRST + 1, FIRST + MORE)
    save_file(named(opt, params), here / "continued.safetensors")


RULES = {
    "rmsprop": lambda p: bnb.optim.RMSprop8bit(p, lr=1e-2, weight_decay=1e-2),
    "adagrad": lambda p: bnb.optim.Adagrad8bit(p, lr=1e-2, weight_decay=1e-2),
    "adam": lambda p: bnb.optim.Adam8bit(p, lr=1e-3, weight_decay=1e-2),
    "sgd": lambda p: bnb.optim.SGD8bit(p, lr=1e-2, momentum=0.9, weight_decay=1e-2),
}


def rules():
    tensors = {}
    for rule, make in RULES.items():
        params = {name: torch.nn.Parameter(noise(torch.Size(shape).numel(), 0).reshape(shape)) for name, shape in SHAPES.items()}
        opt = make([params[name] for name in SHAPES])
        done = 0
        for last in (FIRST, FIRST + 1):
            steps(opt, params, done + 1, last)
            tensors |= {f"{rule}.{last}.{name}": x for name, x in named(opt, params).items()}
            done = last
    x = noise(2 * 64 + 20, 3)
    x[:64] *= 4e-39
    x[64:] *= 1e-42
    x[128:] = 0
    codes, state = F.quantize_blockwise(x, code=MAPS["dynamic.signed"].clone(), blocksize=64)
    tensors |= {"tiny.x": x, "tiny.codes": codes, "tiny.absmax": state.absmax, "tiny.values": F.dequantize_blockwise(codes, state)}
    save_file(tensors, here / "rules.safetensors")


def check(path):
    with safe_open(path, "pt") as f:
        state = {key: f.get_tensor(key) for key in f.keys()}
    before, after = load_file(here / "adamw.safetensors"), load_file(here / "continued.safetensors")
    params = {name: torch.nn.Parameter(before[name]) for name in SHAPES}
    opt = optimizer(params)
    dictionary = opt.state_dict()
    for i, name in enumerate(SHAPES):
        entry = dictionary["state"][i] = {}
        for key, value in state.items():
            if key.startswith(f"{name}.{NESTED}."):
                entry.setdefault(NESTED, {})[key.rsplit(".", 1)[1]] = value
            elif key.startswith(f"{name}."):
                entry[key.rsplit(".", 1)[1]] = value.item() if value.ndim == 0 else value
    opt.load_state_dict(dictionary)
    steps(opt, params, FIRST + 1, FIRST + MORE)
    got = named(opt, params)
    different = [key for key in after if not torch.equal(after[key], got[key])]
    sys.exit(f"different: {different}" if different or got.keys() != after.keys() else 0)


if len(sys.argv) > 1:
    check(sys.argv[1])
save_file(MAPS, here / "maps.safetensors")
blockwise()
adamw()
rules()
