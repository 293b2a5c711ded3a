# Writes golden.json: what routers of transformers choose, with the gradients of their logits that PyTorch computes; the loss
# that balances experts over two layers; rows that are added by index; and the gate of gpt-oss. Run with torch 2.15.0 and
# transformers 5.23.0:
#
#   python3 fused/testdata/moe/make.py
import json
import pathlib
from types import SimpleNamespace

import torch
import transformers
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter, load_balancing_loss_func
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

ROWS, EXPERTS, CHOSEN = 9, 16, 4


def tensor(number, *shape, scale=1.0):
    """Numbers from -scale to scale that the test makes too."""
    x = (torch.arange(torch.Size(shape).numel(), dtype=torch.int64) * 2654435761 + number * 97531) % 2**32
    return ((x.double() / 2**31 - 1) * scale).float().reshape(shape)


def numbers(t):
    return [float("%.9g" % x) for x in t.detach().double().flatten().tolist()]


def router(name, cls, low=0.0, bias=None, **config):
    """The weights of a router are the identity, so that its inputs are its logits; low is added to them."""
    r = cls(SimpleNamespace(num_experts_per_tok=CHOSEN, num_local_experts=EXPERTS, num_experts=EXPERTS, hidden_size=EXPERTS,
                            n_group=1, topk_group=1, **config))
    r.weight.data = torch.eye(EXPERTS)
    if bias is not None:
        r.e_score_correction_bias.copy_(bias)
    x = (tensor(1, ROWS, EXPERTS, scale=4) + low).requires_grad_()
    logits, weights, experts = r(x)
    assert torch.equal(logits, x)
    (weights * tensor(2, ROWS, CHOSEN)).sum().backward()
    return {"name": name, "low": low, "bias": None if bias is None else numbers(bias), "experts": experts.flatten().tolist(),
            "weights": numbers(weights), "dlogits": numbers(x.grad)}


def balance():
    layers = [tensor(n, ROWS, EXPERTS, scale=4).requires_grad_() for n in (3, 4)]
    loss = load_balancing_loss_func(tuple(layers), EXPERTS, CHOSEN)
    (0.5 * loss).backward()
    return {"loss": loss.item(), "dlogits": [numbers(x.grad) for x in layers]}


def add_rows():
    """Rows 1, 4 and 7 get 0.5 rows of x and more; the gradient is that of a sum with numbers."""
    y, x, w = tensor(5, ROWS, 5), tensor(6, 3, 5).requires_grad_(), tensor(7, ROWS, CHOSEN).requires_grad_()
    rows, choices = torch.tensor([1, 4, 7]), torch.tensor([3, 0, 2])
    out = y.index_add(0, rows, x * w[rows, choices, None])
    (out * tensor(8, ROWS, 5)).sum().backward()
    return {"pairs": (rows * CHOSEN + choices).tolist(), "y": numbers(out), "dx": numbers(x.grad), "dweights": numbers(w.grad)}


def clamped():
    """With a limit of 3 many are clamped, and some are at the limit."""
    gate, up = tensor(9, 64, scale=6), tensor(10, 64, scale=6)
    gate[:2], up[2:4], up[4:6] = 3.0, 3.0, -3.0
    gate.requires_grad_(), up.requires_grad_()
    out = GptOssExperts._apply_gate(SimpleNamespace(alpha=1.702, limit=3.0), torch.stack([gate, up], -1).flatten())
    (out * tensor(11, 64)).sum().backward()
    return {"gate": numbers(gate), "up": numbers(up), "out": numbers(out), "dgate": numbers(gate.grad), "dup": numbers(up.grad)}


def main():
    bias = tensor(12, EXPERTS, scale=0.25)
    routers = [
        router("mixtral", MixtralTopKRouter),
        router("qwen3", Qwen3MoeTopKRouter, norm_topk_prob=False),
        router("qwen3 normalized", Qwen3MoeTopKRouter, norm_topk_prob=True),
        router("gpt-oss", GptOssTopKRouter),
        router("gpt-oss", GptOssTopKRouter, low=-1000.0),
        router("deepseek", DeepseekV3TopkRouter, routed_scaling_factor=2.5, norm_topk_prob=True),
        router("deepseek", DeepseekV3TopkRouter, bias=bias, routed_scaling_factor=2.5, norm_topk_prob=True),
        router("deepseek sums", DeepseekV3TopkRouter, bias=bias, routed_scaling_factor=0.5, norm_topk_prob=False),
    ]
    path = pathlib.Path(__file__).parent / "golden.json"
    path.write_text(json.dumps({
        "torch": torch.__version__, "transformers": transformers.__version__, "routers": routers, "balance": balance(),
        "addrows": add_rows(), "clamped": clamped(),
    }))


if __name__ == "__main__":
    main()
