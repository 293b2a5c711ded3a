"""Times the peers' kernels for bench.

It greets with one line of JSON, then answers each line of its input

    {"peer": "torch", "kernel": "cast", "dtype": "f32-bf16", "shape": "n=1048576", "repeats": 3, "warm": 0.05}

with {"seconds": the time of one repeat} or {"error": why there is none}, after runs for
the seconds of warm that are not timed. The
operands are made when a peer is first asked for a kernel and kept until another
kernel, type or shape is asked for.

The arguments are the number of threads and the device, cpu or such as cuda:0. The
time on a GPU is that until its queue is empty.
"""

import contextlib
import importlib
import importlib.metadata
import json
import os
import sys
import time


def load(name):
    """Returns a module, or why it cannot be imported."""
    try:
        return importlib.import_module(name), None
    except Exception as error:  # a broken installation fails in its own ways
        return None, str(error).strip().split("\n")[0]


# What libraries print must not come between the answers.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

threads, device = int(sys.argv[1]), sys.argv[2]
torch, no_torch = load("torch")
numpy, no_numpy = load("numpy")
bitsandbytes, no_bitsandbytes = load("bitsandbytes")
deepspeed, no_deepspeed = load("deepspeed.ops.adam")
on_gpu = False
if torch:
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("highest")  # no TF32
    elif device != "cpu":
        no_torch = "no CUDA device"
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Missing(Exception):
    """The peer does not have the kernel."""


def random(dtype, *shape):
    return torch.randn(shape, dtype=torch.float32, device=device).to(TYPES[dtype])


def indices(limit, *shape):
    return torch.randint(limit, shape, device=device)


def wait():
    """Until a GPU has done its work."""
    if on_gpu:
        torch.cuda.synchronize()


def parse(shape):
    """Turns "rows=2 cols=3 causal" into {"rows": 2, "cols": 3, "causal": True}."""
    s = {}
    for word in shape.split():
        key, equals, value = word.partition("=")
        s[key] = (int(value) if value.isdigit() else value) if equals else True
    return s


def cast(dtype, s):
    source, target = dtype.split("-")
    x, y = random(source, s["n"]), random(target, s["n"])
    return lambda: y.copy_(x)


def cast_stochastic(dtype, s):
    """PyTorch has no such cast; this is how it is done with what it has."""
    x, y = random("f32", s["n"]), random("bf16", s["n"])

    def run():
        noise = torch.randint(1 << 16, x.shape, dtype=torch.int32, device=device)
        y.copy_((x.view(torch.int32) + noise).bitwise_and_(-(1 << 16)).view(torch.float32))

    return run


def unscale(dtype, s):
    """What GradScaler.unscale_ and clip_grad_norm_ do."""
    g, found, inverse = random(dtype, s["n"]), torch.zeros(1, device=device), torch.ones(1, device=device)

    def run():
        torch._amp_foreach_non_finite_check_and_unscale_([g], found, inverse)
        torch.linalg.vector_norm(g).item()

    return run


def check(dtype, s):
    g = random(dtype, s["n"])
    return lambda: torch.linalg.vector_norm(g, dtype=torch.float32).isfinite().item()


def accumulate(dtype, s):
    acc, g = torch.zeros(s["n"], device=device), random(dtype, s["n"])
    return lambda: acc.add_(g, alpha=1e-3)


def accumulate_measured(dtype, s):
    """With the norm of the micro-batch, which tells whether it is finite."""
    acc, g = torch.zeros(s["n"], device=device), random(dtype, s["n"])

    def run():
        acc.add_(g, alpha=1e-3)
        torch.linalg.vector_norm(g, dtype=torch.float32).item()

    return run


def accumulate_bf16(dtype, s):
    """Rounded to nearest: PyTorch has no other."""
    acc, g = torch.zeros(s["n"], device=device, dtype=torch.bfloat16), random(dtype, s["n"])
    return lambda: acc.add_(g, alpha=1e-3)


def operands(make, s):
    m, n, k, op = s["m"], s["n"], s["k"], s["op"]
    a = make(k, m).T if op[0] == "t" else make(m, k)
    b = make(n, k).T if op[1] == "t" else make(k, n)
    return a, b, make(m, n)


def matmul(dtype, s):
    a, b, c = operands(lambda *shape: random(dtype, *shape), s)
    return lambda: torch.mm(a, b, out=c)


def numpy_matmul(dtype, s):
    rng = numpy.random.default_rng(1)
    a, b, c = operands(lambda *shape: rng.standard_normal(shape, dtype=numpy.float32), s)
    return lambda: numpy.dot(a, b, out=c)


def conv(dtype, s, wanted):
    """A layer forward, or one of the three gradients of its backward pass."""
    order = torch.channels_last if "last" in s else torch.contiguous_format
    x = random(dtype, s["images"], s["in"], s["size"], s["size"]).contiguous(memory_format=order)
    w = random(dtype, s["out"], s["in"] // s["groups"], s["kernel"], s["kernel"]).contiguous(memory_format=order)
    stride, pad, one = [s["stride"]] * 2, [s["kernel"] // 2] * 2, [1, 1]

    def forward():
        return torch.conv2d(x, w, None, stride, pad, one, s["groups"])

    if wanted is None:
        return forward
    dy, backward = forward(), torch.ops.aten.convolution_backward
    return lambda: backward(dy, x, w, None, stride, pad, one, False, [0, 0], s["groups"], wanted)


def attention(dtype, s, backward, backend=None):
    q, k, v, dout = (random(dtype, 1, s["heads"], s["n"], s["d"]) for _ in range(4))

    def forward():
        with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
            return F.scaled_dot_product_attention(q, k, v, is_causal="causal" in s)

    if not backward:
        return inference(forward)
    return gradients(forward, dout, q, k, v)


def inference(forward):
    def run():
        with torch.no_grad():
            forward()

    return run


def gradients(forward, dout, *inputs):
    """Times the backward pass alone, which may run many times on one graph."""
    for x in inputs:
        x.requires_grad_()
    out = forward()
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def adamw(dtype, s):
    p = torch.nn.Parameter(random(dtype, s["n"]))
    p.grad = random(dtype, s["n"])
    return torch.optim.AdamW([p], lr=1e-4, fused=True).step


def deepspeed_adamw(dtype, s):
    p = torch.nn.Parameter(random(dtype, s["n"]))
    p.grad = random(dtype, s["n"])
    return deepspeed.DeepSpeedCPUAdam([p], lr=1e-4).step


def adamw8(dtype, s):
    p = torch.nn.Parameter(random(dtype, s["n"]))
    p.grad = random(dtype, s["n"])
    return bitsandbytes.optim.AdamW8bit([p], lr=1e-4).step


def quantize(dtype, s):
    x = random(dtype, s["n"])
    code = bitsandbytes.functional.create_dynamic_map().to(device)
    return lambda: bitsandbytes.functional.quantize_blockwise(x, code=code, blocksize=256)


def dequantize(dtype, s):
    codes, state = bitsandbytes.functional.quantize_blockwise(random(dtype, s["n"]), blocksize=256)
    return lambda: bitsandbytes.functional.dequantize_blockwise(codes, quant_state=state)


def layer(make, backward):
    """Returns the kernel of a layer: make returns a function and its operands,
    in all of which backward takes the gradient but for those of integers."""

    def kernel(dtype, s, compiled):
        function, *inputs = make(dtype, s)
        if compiled:
            function = torch.compile(function)

        def forward():
            return function(*inputs)

        if not backward:
            return inference(forward)
        return gradients(forward, torch.randn_like(forward().float()).to(forward().dtype), *(x for x in inputs if x.is_floating_point()))

    return kernel


def matrix(dtype, s):
    return random(dtype, s["rows"], s["cols"])


def layernorm(dtype, s):
    cols = s["cols"]
    return (lambda x, g, b: F.layer_norm(x, (cols,), g, b)), matrix(dtype, s), random(dtype, cols), random(dtype, cols)


def rmsnorm(dtype, s):
    cols = s["cols"]
    return (lambda x, g: F.rms_norm(x, (cols,), g)), matrix(dtype, s), random(dtype, cols)


def gelu(dtype, s):
    return (lambda x, b: F.gelu(x + b, approximate="tanh")), matrix(dtype, s), random(dtype, s["cols"])


def swiglu(dtype, s):
    return (lambda gate, up: F.silu(gate) * up), matrix(dtype, s), matrix(dtype, s)


def rotary(dtype, s):
    """Heads of 64 elements, pairs half a head apart, as in Hugging Face's LLaMA."""
    rows, dim = s["rows"], 64
    angle = indices(512, rows, 1, 1) * 10000 ** (-torch.arange(0, dim, 2, device=device) / dim)
    angle = torch.cat((angle, angle), -1)

    def turn(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return turn, random(dtype, rows, s["cols"] // dim, dim), angle.cos().to(TYPES[dtype]), angle.sin().to(TYPES[dtype])


def dropout(dtype, s):
    return (lambda x: F.dropout(x, 0.1, training=True)), matrix(dtype, s)


def add(dtype, s):
    return torch.add, matrix(dtype, s), matrix(dtype, s)


def embedding(dtype, s):
    rows, cols, vocabulary, context = s["rows"], s["cols"], 16384, 512
    return (
        (lambda table, places, tokens, positions: F.embedding(tokens, table) + F.embedding(positions, places)),
        random(dtype, vocabulary, cols),
        random(dtype, context, cols),
        indices(vocabulary, rows),
        indices(context, rows),
    )


def embedding_gradient(dtype, s):
    rows, cols, vocabulary = s["rows"], s["cols"], 16384
    return (lambda table, tokens: F.embedding(tokens, table)), random(dtype, vocabulary, cols), indices(vocabulary, rows)


def cross_entropy(dtype, s):
    vocabulary = s["vocab"]
    return (
        (lambda x, w, targets: F.cross_entropy(F.linear(x, w).float(), targets)),
        matrix(dtype, s),
        random(dtype, vocabulary, s["cols"]) / s["cols"] ** 0.5,  # logits of deviation 1
        indices(vocabulary, s["rows"]),
    )


def step(make):
    """Loss and gradients with respect to x and w, as snug's one call gives both."""

    def kernel(dtype, s, compiled):
        function, x, w, *rest = make(dtype, s)
        if compiled:
            function = torch.compile(function)
        x.requires_grad_()
        w.requires_grad_()
        return lambda: torch.autograd.grad(function(x, w, *rest), (x, w))

    return kernel


def log_probs(dtype, s):
    _, x, w, targets = cross_entropy(dtype, s)
    return (lambda x, w, targets: F.log_softmax(F.linear(x, w).float(), 1).gather(1, targets[:, None])), x, w, targets


def policy(dtype, s):
    """The sum of log-probabilities, each times a number."""
    function, x, w, targets = log_probs(dtype, s)
    return (lambda x, w, targets, by: (function(x, w, targets)[:, 0] * by).sum()), x, w, targets, random("f32", s["rows"])


def distill(dtype, s):
    _, x, w, _ = cross_entropy(dtype, s)
    _, teacher, weights, _ = cross_entropy(dtype, s)

    def divergence(x, w, teacher, weights):
        student, teacher = (F.log_softmax(F.linear(*layer).float(), 1) for layer in ((x, w), (teacher, weights)))
        return F.kl_div(student, teacher, log_target=True, reduction="batchmean")

    return divergence, x, w, teacher, weights


def attentions(backend):
    """Attention of PyTorch by one of its back ends, None for its choice."""
    return {
        "attention forward": lambda dtype, s: attention(dtype, s, False, backend),
        "attention backward": lambda dtype, s: attention(dtype, s, True, backend),
    }


KERNELS = {
    "torch": {
        "launch": cast,
        "cast": cast,
        "cast stochastic": cast_stochastic,
        "unscale+check+norm": unscale,
        "check+norm": check,
        "accumulate": accumulate,
        "accumulate+measure": accumulate_measured,
        "accumulate in bf16": accumulate_bf16,
        "matmul": matmul,
        "conv": lambda dtype, s: conv(dtype, s, None),
        "conv dx": lambda dtype, s: conv(dtype, s, [True, False, False]),
        "conv dw": lambda dtype, s: conv(dtype, s, [False, True, False]),
        "adamw": adamw,
        "adamw32": adamw,
        **attentions(None),
    },
    "torch-flash": attentions(torch and SDPBackend.FLASH_ATTENTION),
    "torch-cudnn": attentions(torch and SDPBackend.CUDNN_ATTENTION),
    "numpy": {"matmul": numpy_matmul},
    "bitsandbytes": {"adamw8": adamw8, "quantize": quantize, "dequantize": dequantize},
    "deepspeed": {"adamw": deepspeed_adamw},
}

# Kernels that torch.compile may fuse.
LAYERS = {
    "layernorm": layer(layernorm, False),
    "layernorm backward": layer(layernorm, True),
    "rmsnorm": layer(rmsnorm, False),
    "rmsnorm backward": layer(rmsnorm, True),
    "bias+gelu": layer(gelu, False),
    "bias+gelu backward": layer(gelu, True),
    "swiglu": layer(swiglu, False),
    "swiglu backward": layer(swiglu, True),
    "rotary": layer(rotary, False),
    "dropout": layer(dropout, False),
    "add": layer(add, False),
    "embedding": layer(embedding, False),
    "embedding backward": layer(embedding_gradient, True),
    "cross-entropy": layer(cross_entropy, False),
    "cross-entropy backward": step(cross_entropy),
    "log-probs": layer(log_probs, False),
    "log-probs step": step(policy),
    "distill step": step(distill),
}

REASONS = {
    "torch": no_torch,
    "torch.compile": no_torch,
    "torch-flash": no_torch,
    "torch-cudnn": no_torch,
    "numpy": no_numpy,
    "bitsandbytes": no_torch or no_bitsandbytes,
    "deepspeed": no_torch or no_deepspeed,
}


def prepare(peer, kernel, dtype, shape):
    """Returns the function to time."""
    if REASONS.get(peer):
        raise Missing(REASONS[peer])
    if kernel in LAYERS and peer in ("torch", "torch.compile"):
        return LAYERS[kernel](dtype, parse(shape), peer == "torch.compile")
    if kernel not in KERNELS.get(peer, {}):
        raise Missing(f"{peer} has no {kernel}")
    return KERNELS[peer][kernel](dtype, parse(shape))


def versions():
    v = {"python": sys.version.split()[0]}
    if torch:
        v["torch"] = f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
        if on_gpu:
            v["device"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    if numpy:
        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
        v["numpy"] = f"{numpy.__version__}, {blas['name']} {blas['version']}"
    if bitsandbytes:
        v["bitsandbytes"] = bitsandbytes.__version__
    for name in ("transformers", "peft"):  # of tune.py; importing them takes seconds
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            v[name] = importlib.metadata.version(name)
    if deepspeed:
        v["deepspeed"] = sys.modules["deepspeed"].__version__
    return v


def say(**line):
    answers.write(json.dumps(line) + "\n")


def main():
    missing = {name: why for name, why in REASONS.items() if why and name.isalpha()}
    say(versions=versions(), missing=missing)
    work, runs = None, {}  # the kernel at hand and what peers run for it
    for line in sys.stdin:
        request = json.loads(line)
        wanted = (request["kernel"], request["dtype"], request["shape"])
        peer = request["peer"]
        try:
            if wanted != work:
                work, runs = wanted, {}  # frees the operands
                if torch:
                    torch._dynamo.reset()
                if on_gpu:
                    torch.cuda.empty_cache()  # snug needs it too
            if peer not in runs:
                runs[peer] = prepare(peer, *wanted)
            run = runs[peer]
            begin = time.perf_counter()
            while time.perf_counter() - begin < request["warm"]:
                run()
                wait()
            wait()
            start = time.perf_counter()
            for _ in range(request["repeats"]):
                run()
            wait()
            say(seconds=(time.perf_counter() - start) / request["repeats"])
        except Exception as error:  # whatever a library raises, the peer lacks this kernel
            say(error=(str(error).strip() or type(error).__name__).split("\n")[0][:100])


main()
