"""Writes quantized.json: small folders with matrices in 4 and 8 bits, what their own software decodes them to, and what a model of them computes.

    pip install torch==2.15.0 transformers==5.24.0 bitsandbytes==0.50.2 compressed-tensors==0.20.1 safetensors accelerate
    python quantized.py

A case is config.json, the bytes of model.safetensors, the modules whose matrices are in floats, the SHA-256 of the matrices of the layers in the order
of their names in f32 and in the type of the folder, and in f32 the logits of one sequence and the gradients of the parameters that are not quantized.
A zero of FP4 that bitsandbytes decodes to -0 is taken as 0.
"""

import base64
import hashlib
import json
import tempfile

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, Qwen3MoeConfig

DIMS = dict(vocab_size=11, hidden_size=20, intermediate_size=28, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            head_dim=10, max_position_embeddings=16, tie_word_embeddings=False, initializer_range=0.5, bos_token_id=None, eos_token_id=None)
WIDE = DIMS | dict(hidden_size=64, intermediate_size=64, head_dim=32)
MOE = DIMS | dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, router_aux_loss_coef=0.0)
TOKENS = [3, 7, 1, 10, 2, 2, 9, 4, 6]


def matrices(tensors):
    return {n: t for n, t in tensors.items() if n.endswith("_proj.weight")}


def flat(found, dtype):
    parts = [(found[n].detach().to(dtype) + 0.0).flatten() for n in sorted(found)]
    return hashlib.sha256(torch.cat(parts).view(torch.uint8).numpy().tobytes()).hexdigest()


def numbers(t):
    return [float(f"{x:.8g}") for x in t.detach().float().flatten().tolist()]


def computed(config, tensors):
    """What a model computes in f32."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as d:
        config.save_pretrained(d)
        open(d + "/model.safetensors", "wb").write(save({n: t.detach().float().contiguous() for n, t in tensors.items()}, metadata={"format": "pt"}))
        model = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32)
    return run(model)


def run(model):
    ids = torch.tensor([TOKENS])
    out = model(ids, labels=ids)
    out.loss.backward()
    small = {n: numbers(p.grad) for n, p in model.named_parameters() if n.endswith(("embed_tokens.weight", "norm.weight", "layernorm.weight"))}
    return dict(logits=numbers(out.logits), gradients=small)


def case(config, dtype, quantization, tensors, f32, own, more):
    """f32 and own are the decoded tensors."""
    members = config.to_dict() | dict(dtype=str(dtype).removeprefix("torch."), quantization_config=quantization)
    floats = [n.removesuffix(".weight") for n in matrices(f32) if n in tensors and tensors[n].dtype == dtype and tensors[n].dim() == 2 and n + ".absmax" not in tensors]
    return dict(config=json.loads(json.dumps(members, default=str)), weights=base64.b64encode(save(tensors, metadata={"format": "pt"})).decode(),
                floats=floats, f32=flat(matrices(f32), torch.float32), own=flat(matrices(own), dtype), **more)


def states(tensors):
    """The quantized matrices of a file of bitsandbytes, with their states."""
    for n in [n for n in tensors if n + ".absmax" in tensors]:
        own = {k: t for k, t in tensors.items() if k.startswith(n + ".")}
        yield n, QuantState.from_dict(own, torch.device("cpu"))


def decoded(tensors, dtype=None):
    out = {n: t for n, t in tensors.items() if ".weight." not in n}
    for n, state in states(tensors):
        state.dtype = dtype or state.dtype
        out[n] = bnb.functional.dequantize_4bit(tensors[n], state)
    return out


def bitsandbytes(config, dtype, seed, **args):
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as d:
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(d)
        q = BitsAndBytesConfig(load_in_4bit=True, **args)
        AutoModelForCausalLM.from_pretrained(d, quantization_config=q, dtype=dtype).save_pretrained(d + "/q")
        quantization = json.load(open(d + "/q/config.json"))["quantization_config"]
        tensors = load_file(d + "/q/model.safetensors")
        model = AutoModelForCausalLM.from_pretrained(d + "/q", dtype=torch.float32)
    for m in model.modules():
        if isinstance(m, bnb.nn.Linear4bit):
            m.compute_dtype, m.compute_type_is_set, m.weight.quant_state.dtype = torch.float32, True, torch.float32
    for p in model.parameters():
        if p.dtype == dtype and not isinstance(p, bnb.nn.Params4bit):
            p.data = p.data.float()
    return case(config, dtype, quantization, tensors, decoded(tensors, torch.float32), decoded(tensors), run(model))


def experts4(config, dtype, seed):
    """Experts and a router by themselves, each in 4 bits, as bitsandbytes made them of the modules of transformers 4."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as d:
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(d)
        tensors = load_file(d + "/model.safetensors")
    for n in list(tensors):
        if n.endswith(("_proj.weight", "mlp.gate.weight")):
            tensors[n], state = bnb.functional.quantize_4bit(tensors[n], quant_type="nf4", compress_statistics=True)
            tensors |= {f"{n}.{k}": t for k, t in state.as_dict(packed=True).items()}
    quantization = dict(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, load_in_4bit=True, load_in_8bit=False, quant_method="bitsandbytes")
    f32 = decoded(tensors, torch.float32)
    return case(config, dtype, quantization, tensors, f32, decoded(tensors), computed(config, f32))


def gptq(config, dtype, seed, bits=4, size=32, zeros=False, order=False, v2=False, names=("_proj.weight",), g_idx=True):
    """As AutoGPTQ and GPTQModel pack: codes along inputs, the first in the lowest bits, zero points less 1 unless v2."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as d:
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(d)
        tensors = load_file(d + "/model.safetensors")
    f32, own, per = {}, {}, 32 // bits
    for n, w in list(tensors.items()):
        if not n.endswith(names):
            f32[n], own[n] = w.float(), w
            continue
        out, inner = w.shape
        g = size if size > 0 else inner
        index = torch.arange(inner) // g
        if order:
            index = index[torch.randperm(inner)]
        q = torch.randint(0, 2**bits, (inner, out), dtype=torch.int32)
        z = torch.randint(1, 2**bits, (inner // g, out), dtype=torch.int32) if zeros else torch.full((inner // g, out), 2 ** (bits - 1), dtype=torch.int32)
        s = (torch.rand(inner // g, out) * 0.5 / 2**bits + 0.01).to(dtype)
        own[n] = (s[index] * (q - z[index])).t()  # in the type of the scales
        f32[n] = (s.float()[index] * (q - z[index])).t()
        assert own[n].dtype == dtype
        at = torch.arange(per, dtype=torch.int64) * bits
        pack = lambda x, dim: ((x.unflatten(dim, (-1, per)).long() << at.view(-1, 1) if dim == 0 else x.unflatten(dim, (-1, per)).long() << at).sum(dim + 1)).to(torch.int32)
        del tensors[n]
        m = n.removesuffix("weight")
        tensors |= {m + "qweight": pack(q, 0), m + "qzeros": pack(z if v2 else z - 1, 1), m + "scales": s}
        if g_idx:
            tensors[m + "g_idx"] = index.to(torch.int32)
    quantization = dict(quant_method="gptq", bits=bits, group_size=size, desc_act=order, sym=not zeros, static_groups=False, true_sequential=True,
                        damp_percent=0.01, lm_head=len(names) > 1, checkpoint_format="gptq_v2" if v2 else "gptq", meta=dict(quantizer="gptqmodel:1.4.0"))
    tensors = {n: t.contiguous() for n, t in tensors.items()}
    return case(config, dtype, quantization, tensors, f32, own, computed(config, f32))


def awq(config, dtype, seed, size=32):
    """As AutoAWQ's WQLinear_GEMM packs: codes along outputs, in its order."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as d:
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(d)
        tensors = load_file(d + "/model.safetensors")
    f32, own = {}, {}
    for n, w in list(tensors.items()):
        if not n.endswith("_proj.weight"):
            f32[n], own[n] = w.float(), w
            continue
        out, inner = w.shape
        index = torch.arange(inner) // size
        q, z = (torch.randint(0, 16, (k, out), dtype=torch.int32) for k in (inner, inner // size))
        s = (torch.rand(inner // size, out) * 0.05 + 0.01).to(dtype)
        own[n], f32[n] = ((q - z[index]) * s[index]).t(), ((q - z[index]) * s.float()[index]).t()

        def pack(x):
            words = torch.zeros(x.shape[0], out // 8, dtype=torch.int32)
            for col in range(out // 8):
                for i, o in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
                    words[:, col] |= x[:, col * 8 + o] << (i * 4)
            return words

        del tensors[n]
        m = n.removesuffix("weight")
        tensors |= {m + "qweight": pack(q), m + "qzeros": pack(z), m + "scales": s}
    quantization = dict(quant_method="awq", bits=4, group_size=size, zero_point=True, version="gemm", modules_to_not_convert=None, backend="autoawq")
    return case(config, dtype, quantization, {n: t.contiguous() for n, t in tensors.items()}, f32, own, computed(config, f32))


UNSLOTH = ["lm_head", "multi_modal_projector", "merger", "modality_projection", "model.layers.0.self_attn", "model.layers.0.mlp.up_proj"]
bf16 = torch.bfloat16
cases = {
    "nf4 with nested scales": bitsandbytes(LlamaConfig(**DIMS), bf16, 0, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=bf16),
    "nf4 in whole blocks": bitsandbytes(LlamaConfig(**WIDE), bf16, 1, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=bf16),
    "nf4": bitsandbytes(LlamaConfig(**DIMS), torch.float32, 2, bnb_4bit_quant_type="nf4"),
    "fp4": bitsandbytes(LlamaConfig(**DIMS), torch.float16, 3),
    "fp4 with nested scales": bitsandbytes(LlamaConfig(**DIMS), bf16, 4, bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=True),
    "dynamic": bitsandbytes(LlamaConfig(**DIMS), bf16, 5, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, llm_int8_skip_modules=UNSLOTH),
    "stored as bf16": bitsandbytes(LlamaConfig(**DIMS), bf16, 6, bnb_4bit_quant_type="nf4", bnb_4bit_quant_storage=bf16),
    "with the head": bitsandbytes(LlamaConfig(**DIMS), bf16, 7, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=["none"]),
    "experts in floats": bitsandbytes(Qwen3MoeConfig(**MOE), bf16, 8, bnb_4bit_quant_type="nf4"),
    "experts": experts4(Qwen3MoeConfig(**MOE), bf16, 9),
}
f16 = torch.float16
GROUPS = LlamaConfig(**(DIMS | dict(hidden_size=32, intermediate_size=64, head_dim=16)))
cases |= {
    "gptq": gptq(GROUPS, f16, 20),
    "gptq with zero points": gptq(GROUPS, f16, 21, zeros=True, g_idx=False),
    "gptq with act order": gptq(GROUPS, f16, 22, size=16, order=True, zeros=True),
    "gptq by rows": gptq(GROUPS, f16, 23, size=-1, order=True),
    "gptq v2": gptq(GROUPS, f16, 24, zeros=True, v2=True),
    "gptq in 8 bits": gptq(GROUPS, f16, 25, bits=8, order=True, zeros=True),
    "gptq in 2 bits": gptq(GROUPS, f16, 26, bits=2),
    "gptq in groups of 16": gptq(GROUPS, torch.bfloat16, 27, size=16),
    "awq": awq(GROUPS, f16, 30),
    "awq in groups of 16": awq(GROUPS, f16, 31, size=16),
}
open("quantized.json", "w").write("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(c)}" for name, c in cases.items()) + "\n}\n")
