"""Writes stored.json: small folders with matrices in 8-bit floats, and what transformers decodes them to.

    pip install torch==2.15.0 transformers==5.24.0 compressed-tensors==0.20.1 loguru safetensors accelerate
    python stored.py

A case is config.json, the bytes of model.safetensors, and the SHA-256 of the matrices of the layers in the order of their names: in f32 as transformers
has them after a forward pass, and in bf16 as it decodes them while loading (dequantize). Where it needs a GPU or knows no such way, they are the
product of code and scale in float32, rounded once.
"""

import base64
import hashlib
import json
import tempfile

import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils.quantization_config import CompressedTensorsConfig

FLOAT8 = torch.float8_e4m3fn
DIMS = dict(vocab_size=11, hidden_size=20, intermediate_size=28, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            head_dim=10, max_position_embeddings=16, tie_word_embeddings=False, initializer_range=0.5)


def args(strategy, **more):
    return dict(actorder=None, block_structure=None, dynamic=False, group_size=None, num_bits=8, observer="minmax", observer_kwargs={},
                strategy=strategy, symmetric=True, type="float") | more


def group(strategy, inputs, targets=("Linear",), **more):
    return dict(input_activations=inputs, output_activations=None, targets=list(targets), weights=args(strategy, **more))


def compressed(groups, ignore=("lm_head",), format="float-quantized", status="compressed", **more):
    return dict(config_groups={f"group_{i}": g for i, g in enumerate(groups)}, format=format, global_compression_ratio=1.2392, ignore=list(ignore),
                kv_cache_scheme=None, quant_method="compressed-tensors", quantization_status=status) | more


TOKEN = args("token", dynamic=True, observer=None)
STATIC = args("tensor")
FP8 = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8")
# name: quantization_config, rows and columns of a block (0: all), the type of scales, the end of their names, what stays in floats, more tensors
CASES = {
    "FP8-dynamic": (compressed([group("channel", TOKEN)], version="0.12.2", sparsity_config={}, transform_config={}), (1, 0), torch.bfloat16, "weight_scale", (), ()),
    "FP8": (compressed([group("tensor", STATIC)], format="naive-quantized", status="frozen", kv_cache_scheme=STATIC), (0, 0), torch.bfloat16, "weight_scale", (),
            ("self_attn.q_proj.input_scale", "self_attn.k_scale", "self_attn.v_scale")),
    "FP8-block": (compressed([group("block", TOKEN, block_structure=[8, 16])]), (8, 16), torch.bfloat16, "weight_scale", (), ()),
    "FP8 of MLPs": (compressed([group("channel", TOKEN, [r"re:.*mlp\.(gate|up|down)_proj$"])], ["lm_head", r"re:.*down_proj"]), (1, 0), torch.float32,
                    "weight_scale", ("self_attn", "down_proj"), ()),
    "Qwen3-FP8": (FP8 | dict(weight_block_size=[128, 128], modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate_proj"]), (128, 128), torch.bfloat16,
                  "weight_scale_inv", ("gate_proj",), ()),
    "blocks of 2x4": (FP8 | dict(weight_block_size=[2, 4], modules_to_not_convert=None), (2, 4), torch.float32, "weight_scale_inv", (), ()),
    "scales in powers of two": (FP8 | dict(weight_block_size=[2, 4], scale_fmt="ue8m0"), (2, 4), torch.float8_e8m0fnu, "weight_scale_inv", (), ()),
    "fbgemm": (dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"]), (1, 0), torch.float32, "weight_scale", (), ()),
}


def expand(s, shape, block):
    return s.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: shape[0], : shape[1]]


def encode(w, block, dtype):
    rows, cols = -(-w.shape[0] // block[0]), -(-w.shape[1] // block[1])
    s = torch.stack([torch.stack([b.abs().max() / 448 for b in r.split(block[1], 1)]) for r in w.split(block[0], 0)]).reshape(rows, cols)
    if dtype == torch.float8_e8m0fnu:
        s = s.log2().ceil().exp2()
    s = s.to(dtype)
    return (w / expand(s, w.shape, block)).clamp(-448, 448).to(FLOAT8), s


def matrices(model):
    return {n: t for n, t in model.state_dict().items() if n.endswith("_proj.weight")}


def flat(found, dtype):
    parts = [found[n].to(dtype).flatten() for n in sorted(found)]
    return hashlib.sha256(torch.cat(parts).view(torch.uint8).numpy().tobytes()).hexdigest()


cases = {}
for seed, (name, (quantization, block, dtype, end, floats, more)) in enumerate(CASES.items()):
    torch.manual_seed(seed)
    config = LlamaConfig(**DIMS, dtype="bfloat16")
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    tensors, once = {}, {}
    for n, w in model.state_dict().items():
        tensors[n] = w.clone()
        if not n.endswith("_proj.weight"):
            continue
        if any(f in n for f in floats):
            once[n] = w.float()
            continue
        b = tuple(x or y for x, y in zip(block, w.shape))
        codes, s = encode(w.float(), b, dtype)
        once[n] = codes.float() * expand(s, w.shape, b)
        tensors[n], tensors[n[: -len("weight")] + end] = codes, s.reshape(1) if block == (0, 0) else s
    for n in more:
        tensors["model.layers.0." + n] = torch.tensor([0.25], dtype=torch.bfloat16)
    members = config.to_dict() | dict(architectures=["LlamaForCausalLM"], model_type="llama", quantization_config=quantization)
    with tempfile.TemporaryDirectory() as d:
        data = save(tensors, metadata={"format": "pt"})
        open(d + "/model.safetensors", "wb").write(data)
        json.dump(members, open(d + "/config.json", "w"), default=str)
        f32, bf16 = once, {n: w.to(torch.bfloat16) for n, w in once.items()}
        if quantization["quant_method"] == "fp8":
            f32, bf16 = (matrices(AutoModelForCausalLM.from_pretrained(d, dtype=t)) for t in (torch.float32, torch.bfloat16))
        elif quantization["quant_method"] == "compressed-tensors":
            bf16 = matrices(AutoModelForCausalLM.from_pretrained(d, dtype=torch.bfloat16, quantization_config=CompressedTensorsConfig(dequantize=True)))
            if quantization["quantization_status"] == "compressed":
                m = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32)
                m(torch.tensor([[1, 2]]))
                f32 = matrices(m)
        for n in once:
            assert torch.equal(f32[n], once[n]), (name, n)
            assert torch.equal(bf16[n], once[n].to(torch.bfloat16)), (name, n)
    cases[name] = dict(config=json.loads(json.dumps(members, default=str)), weights=base64.b64encode(data).decode(), floats=list(floats),
                       f32=flat(f32, torch.float32), bf16=flat(bf16, torch.bfloat16))
json.dump(cases, open("stored.json", "w"), indent=1)
