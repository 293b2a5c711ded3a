# Writes golden.json: what PyTorch computes on the CPU between convolutions. Run with torch 2.15.0:
#
#   python3 fused/testdata/cnn/make.py
import json
import pathlib

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def tensor(number, n, scale, dtype=torch.float32):
    """Numbers from -scale to scale that the test makes too."""
    x = (torch.arange(n, dtype=torch.int64) * 2654435761 + number * 97531) % 2**32
    return ((x.double() / 2**31 - 1) * scale).to(dtype)


def numbers(t):
    return [float("%.9g" % x) for x in t.detach().double().flatten().tolist()]


ACTIVATIONS = {
    "ReLU": F.relu,
    "ReLU6": F.relu6,
    "LeakyReLU(0.1)": lambda x: F.leaky_relu(x, 0.1),
    "SquaredReLU": lambda x: F.relu(x).square(),
    "HardSwish": F.hardswish,
    "HardSigmoid": F.hardsigmoid,
    "Sigmoid": F.sigmoid,
    "Tanh": F.tanh,
    "SiLU": F.silu,
}
KINKS = [-3, 0, 3, 6, -0.0, -100, 100]


def activation(name, f, dtype, dt):
    x = torch.cat([torch.tensor(KINKS, dtype=dtype), tensor(1, 17, 8, dtype)]).requires_grad_()
    dy = tensor(2, x.numel(), 2, dtype)
    y = f(x)
    y.backward(dy)
    return {"name": name, "dtype": dt, "y": numbers(y), "dx": numbers(x.grad)}


def norm(name, layer):
    """A norm of [3, 4, 5], with the gradients of its parameters."""
    x = (tensor(1, 60, 3) + 1).reshape(3, 4, 5).requires_grad_()
    dy = tensor(2, 60, 2).reshape(3, 4, 5)
    with torch.no_grad():
        layer.weight.copy_(tensor(3, 4, 1))
        layer.bias.copy_(tensor(4, 4, 1))
    y = layer(x)
    y.backward(dy)
    running = {k: numbers(v) for k, v in layer.named_buffers() if k != "num_batches_tracked"}
    return {"name": name, "y": numbers(y), "dx": numbers(x.grad), "dgamma": numbers(layer.weight.grad), "dbeta": numbers(layer.bias.grad),
            "runningMean": running.get("running_mean"), "runningVar": running.get("running_var")}


class LayerNorm2d(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def norms():
    evaluated = torch.nn.BatchNorm1d(4).eval()
    with torch.no_grad():
        evaluated.running_mean.copy_(tensor(5, 4, 1))
        evaluated.running_var.copy_(tensor(6, 4, 1).abs())
    return [norm("GroupNorm", torch.nn.GroupNorm(2, 4)), norm("BatchNorm", torch.nn.BatchNorm1d(4)),
            norm("ChannelNorm", LayerNorm2d(4, eps=1e-5)), norm("evaluated", evaluated)]


def focal(x, t, alpha, gamma):
    """torchvision.ops.sigmoid_focal_loss."""
    p = torch.sigmoid(x)
    p_t = p * t + (1 - p) * (1 - t)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - p_t) ** gamma
    return loss if alpha < 0 else (alpha * t + (1 - alpha) * (1 - t)) * loss


def dice(x, t, squared):
    """Of rows of 6, with 1 added to both sides."""
    p, t = torch.sigmoid(x).reshape(4, 6), t.reshape(4, 6)
    size = p.square() + t.square() if squared else p + t
    return 1 - (2 * (p * t).sum(1) + 1) / (size.sum(1) + 1)


LOSSES = {
    "MSE": lambda x, t: F.mse_loss(x, t, reduction="none"),
    "L1": lambda x, t: F.l1_loss(x, t, reduction="none"),
    "Huber": lambda x, t: F.huber_loss(x, t, reduction="none", delta=0.5),
    "SmoothL1": lambda x, t: F.smooth_l1_loss(x, t, reduction="none", beta=0.5),
    "BCE": lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
    "BCE of classes": lambda x, t: F.binary_cross_entropy_with_logits(
        x.reshape(4, 3, 2), t.reshape(4, 3, 2), reduction="none", pos_weight=torch.tensor([[0.5], [2.0], [3.0]])).flatten(),
    "Focal": lambda x, t: focal(x, t, 0.25, 2),
    "Focal of 1.5": lambda x, t: focal(x, t, -1, 1.5),
    "Dice": lambda x, t: dice(x, t, False),
    "Dice of squares": lambda x, t: dice(x, t, True),
}


def loss(name, f, weighted):
    """Half the weighted sum; x equals t in the first element."""
    x, t = tensor(1, 24, 4), tensor(2, 24, 0.5) + 0.5
    x[0] = t[0]
    x.requires_grad_()
    losses = f(x, t)
    weights = torch.tensor([1.0, 0.25, 2.0, 0.0]).repeat_interleave(losses.numel() // 4) if weighted else torch.ones(losses.numel())
    total = (losses * weights).sum()
    (0.5 * total).backward()
    return {"name": name, "weighted": weighted, "loss": total.item(), "dx": numbers(x.grad)}


def main():
    path = pathlib.Path(__file__).parent / "golden.json"
    path.write_text(json.dumps({
        "torch": torch.__version__,
        "activations": [activation(name, f, dtype, dt) for dt, dtype in DTYPES.items() for name, f in ACTIVATIONS.items()],
        "norms": norms(),
        "losses": [loss(name, f, weighted) for name, f in LOSSES.items() for weighted in (False, True)],
    }))


if __name__ == "__main__":
    main()
