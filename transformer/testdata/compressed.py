"""Writes compressed.json: small folders with matrices in integers of 4 and 8 bits, as compressed-tensors writes them, what it decodes them to, and what a
model of them computes. The cases are as those of quantized.py.

    pip install torch==2.15.0 transformers==5.24.0 compressed-tensors==0.20.1 loguru safetensors accelerate
    python compressed.py
"""

import base64
import hashlib
import json
import tempfile

import torch
from compressed_tensors.compressors.naive_quantized.base import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save
from transformers import AutoModelForCausalLM, LlamaConfig

DIMS = dict(vocab_size=11, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
            max_position_embeddings=16, tie_word_embeddings=False, initializer_range=0.5, bos_token_id=None, eos_token_id=None)
TOKENS = [3, 7, 1, 10, 2, 2, 9, 4, 6]


def flat(found, dtype):
    parts = [(found[n].detach().to(dtype) + 0.0).flatten() for n in sorted(found) if n.endswith("_proj.weight")]
    return hashlib.sha256(torch.cat(parts).view(torch.uint8).numpy().tobytes()).hexdigest()


def numbers(t):
    return [float(f"{x:.8g}") for x in t.detach().float().flatten().tolist()]


def computed(config, tensors):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict({n: t.float() for n, t in tensors.items()})
    ids = torch.tensor([TOKENS])
    out = model(ids, labels=ids)
    out.loss.backward()
    small = {n: numbers(p.grad) for n, p in model.named_parameters() if n.endswith(("embed_tokens.weight", "norm.weight", "layernorm.weight"))}
    return dict(logits=numbers(out.logits), gradients=small)


def case(seed, format, bits, strategy, size=None, symmetric=True, dtype=torch.bfloat16, order=None, left=()):
    torch.manual_seed(seed)
    config = LlamaConfig(**DIMS)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=size)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    peer = PackedQuantizationCompressor if format == "pack-quantized" else IntQuantizationCompressor
    tensors, f32, own, floats = {}, {}, {}, []
    for n, w in model.state_dict().items():
        if not n.endswith("_proj.weight") or any(x in n for x in left):
            tensors[n], f32[n], own[n] = w.clone(), w.float(), w
            if n.endswith("_proj.weight"):
                floats.append(n.removesuffix(".weight"))
            continue
        out, inner = w.shape
        count = inner // size if size else 1
        shape = (1,) if strategy == "tensor" else (out, count)
        scale = (torch.rand(shape) * 0.5 / 2**bits + 0.01).to(dtype)
        zero = None if symmetric else torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), shape).to(torch.int8)
        state = dict(weight=w, weight_scale=scale) | ({} if symmetric else dict(weight_zero_point=zero))
        packed = peer.compress(state, scheme)
        own[n] = peer.decompress(packed, scheme)["weight"]
        f32[n] = peer.decompress(packed | dict(weight_scale=scale.float()), scheme)["weight"]
        assert own[n].dtype == dtype and f32[n].dtype == torch.float32
        if order:  # group, of older versions: an input has the scale of the group that weight_g_idx says
            index = torch.randperm(inner) % count
            q = torch.randint(-8, 8, (out, inner))
            values = (q - (0 if zero is None else zero[:, index].int())).float() * scale.float()[:, index]
            groups = scheme.model_copy(update=dict(weights=QuantizationArgs(num_bits=bits, type="int", strategy="channel")))
            codes = peer.compress(dict(weight=q.float(), weight_scale=torch.ones(out, 1)), groups)
            packed |= dict(weight_packed=codes["weight_packed"], weight_g_idx=index.to(torch.int32))
            f32[n], own[n] = values, values.to(dtype)
        for k, t in packed.items():
            tensors[n.removesuffix("weight") + k] = t.contiguous()
    weights = dict(actorder=order, block_structure=None, dynamic=False, group_size=size, num_bits=bits, observer="minmax", observer_kwargs={},
                   strategy=strategy, symmetric=symmetric, type="int")
    inputs = dict(weights, strategy="token", dynamic=True, symmetric=True, actorder=None, group_size=None) if format == "int-quantized" else None
    group = dict(input_activations=inputs, output_activations=None, targets=["Linear"], weights=weights)
    quantization = dict(config_groups=dict(group_0=group), format=format, global_compression_ratio=None, ignore=["lm_head", *(f"re:.*{x}" for x in left)],
                        kv_cache_scheme=None, quant_method="compressed-tensors", quantization_status="compressed")
    members = config.to_dict() | dict(architectures=["LlamaForCausalLM"], dtype=str(dtype).removeprefix("torch."), quantization_config=quantization)
    return dict(config=json.loads(json.dumps(members, default=str)), weights=base64.b64encode(save(tensors, metadata={"format": "pt"})).decode(),
                floats=floats, f32=flat(f32, torch.float32), own=flat(own, dtype), **computed(config, f32))


PACK, INT = "pack-quantized", "int-quantized"
cases = {
    "W4A16": case(0, PACK, 4, "group", 32),
    "W4A16 in short groups": case(1, PACK, 4, "group", 16, dtype=torch.float16, order="weight", left=("down_proj",)),
    "W4A16 with zero points": case(2, PACK, 4, "group", 32, symmetric=False),
    "W4A16 of rows": case(3, PACK, 4, "channel", symmetric=False, dtype=torch.float32),
    "W4A16 in act order": case(4, PACK, 4, "group", 32, symmetric=False, order="group"),
    "W8A16 packed": case(5, PACK, 8, "channel"),
    "W8A16 packed with zero points": case(6, PACK, 8, "group", 32, symmetric=False),
    "W8A8": case(7, INT, 8, "channel"),
    "W8A8 with zero points": case(8, INT, 8, "channel", symmetric=False, dtype=torch.float16),
    "W8A8 with one scale": case(9, INT, 8, "tensor"),
    "W8A16 in groups": case(10, "naive-quantized", 8, "group", 32, dtype=torch.float32),
}
with open("compressed.json", "w") as f:
    json.dump(cases, f, separators=(",", ":"))
