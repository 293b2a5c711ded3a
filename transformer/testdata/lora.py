# Writes lora.json: what llama.cpp's convert_lora_to_gguf.py makes of adapters of the models of the folder gguf. Python 3.13,
# `pip install torch==2.15.0 transformers==5.24.0 safetensors numpy`, and a checkout of llama.cpp of 2026-11.
#
#   python lora.py LLAMA_CPP > lora.json
#
# Each matrix of the layers has an adapter of rank 4 and alpha 8, as PEFT saves it; with "tables" also the embedding and the head. Elements are
# (7i + crc32(name)) % 255 - 127 divided by 128. A tensor is its type, its shape with rows first, and the beginning of the SHA-256 of its bytes.
# GPT-2 is not among them: the converter turns its A and B, which PEFT does not turn.
import hashlib, json, pathlib, subprocess, sys, tempfile, zlib

sys.path[:0] = [sys.argv[1] + "/gguf-py"]
import gguf, numpy as np, torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

here = pathlib.Path(__file__).parent
models = {name: model for path in sorted((here / "gguf").iterdir()) for name, model in json.loads(path.read_text()).items()}
CASES = {name: (name, ["f32"]) for name in models if name != "gpt2"} | {"llama": ("llama", ["f32", "f16", "bf16", "q8_0"]), "tables": ("llama", ["f32"])}


def values(name, shape):
    i = (np.arange(int(np.prod(shape)), dtype=np.int64) * 7 + zlib.crc32(name.encode())) % 255
    return torch.from_numpy(((i - 127) / 128).astype(np.float32)).reshape(shape)


def modules(config, tables):
    """The matrices that have adapters, with those of experts by themselves, as they are in files of transformers 4."""
    found = {}
    for name, p in AutoModelForCausalLM.from_config(config).state_dict().items():
        module = name.removesuffix(".weight")
        if ".experts." in name and p.dim() == 3:
            layer = name.split(".experts.")[0]
            inner, width = p.shape[1:] if name.endswith("down_proj") else (p.shape[2], p.shape[1])
            if config.model_type == "gpt_oss":
                continue  # its experts have no modules
            for e in range(p.shape[0]):
                if config.model_type == "mixtral":
                    block = layer.removesuffix(".mlp") + ".block_sparse_moe"
                    gate, up, down = "w1", "w3", "w2"
                else:
                    block, gate, up, down = layer, "gate_proj", "up_proj", "down_proj"
                if name.endswith("gate_up_proj"):
                    found[f"{block}.experts.{e}.{gate}"] = found[f"{block}.experts.{e}.{up}"] = (p.shape[1] // 2, p.shape[2])
                else:
                    found[f"{block}.experts.{e}.{down}"] = (p.shape[1], p.shape[2])
        elif p.dim() == 2 and ".layers." in name and ".experts." not in name and not name.endswith(("router.weight", "mlp.gate.weight")):
            found[module] = tuple(p.shape)
        elif tables and p.dim() == 2:
            found[module] = tuple(p.shape)
    return found


def adapter(config, tables):
    tensors, r = {}, 4
    for module, (out, inner) in modules(config, tables).items():
        a, b = (".lora_A.weight", ".lora_B.weight")
        if module.endswith("embed_tokens"):
            a, b, out, inner = ".lora_embedding_A", ".lora_embedding_B", inner, out
        for end, shape in ((a, (r, inner)), (b, (out, r))):
            name = "base_model.model." + module + end
            tensors[name] = values(name, shape)
    return tensors


def describe(path):
    r = gguf.GGUFReader(path)
    pairs = {k: f.contents() for k, f in r.fields.items() if not k.startswith("GGUF.") and k not in ("general.name", "general.size_label")}
    tensors = {t.name: [t.tensor_type.name.lower(), [int(n) for n in reversed(t.shape)], hashlib.sha256(t.data.tobytes()).hexdigest()[:12]] for t in r.tensors}
    return dict(metadata=pairs, tensors=tensors)


out = {}
for case, (name, kinds) in CASES.items():
    with tempfile.TemporaryDirectory() as tmp:
        dir = pathlib.Path(tmp)
        config = dict(models[name]["config"])
        (dir / "config.json").write_text(json.dumps(config))
        real = AutoConfig.from_pretrained(dir)
        config["architectures"] = ["MistralForCausalLM" if a == "MinistralForCausalLM" else a for a in config["architectures"]]
        (dir / "config.json").write_text(json.dumps(config))
        lora = dir / "lora"
        lora.mkdir()
        tensors = adapter(real, case == "tables")
        save_file(tensors, lora / "adapter_model.safetensors", metadata={"format": "pt"})
        (lora / "adapter_config.json").write_text(json.dumps(dict(peft_type="LORA", r=4, lora_alpha=8, target_modules=sorted(
            {n.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for n in tensors}))))
        files = {}
        for kind in kinds:
            path = dir / f"{kind}.gguf"
            run = subprocess.run([sys.executable, sys.argv[1] + "/convert_lora_to_gguf.py", "--base", dir, "--outtype", kind, "--outfile", path, lora],
                                 capture_output=True, text=True)
            if run.returncode:
                sys.exit(f"{case}: {run.stderr}")
            files[kind] = describe(path)
        out[case] = dict(model=name, files=files)
print("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in out.items()) + "\n}")
