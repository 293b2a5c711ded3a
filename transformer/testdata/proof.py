# Compares snug export with llama.cpp's own conversion and quantization of the same folders, and prints the tables of bench/RESULTS.md.
# Python 3.13, `pip install torch==2.15.0 transformers==5.24.0 safetensors numpy`, gcc, a checkout of llama.cpp of 2026-11 with
# its libraries in one folder, the snug binary, and a folder of SmolLM2-135M-Instruct with its tokenizer.
#
#   python proof.py LLAMA_CPP LIBRARIES SNUG SMOLLM2 TEXT|FAMILY...
#
# A family is a small random model in bfloat16 with SmolLM2's tokenizer, whose rows are whole blocks of all types. "Same tensors" have the
# same bytes. "Same tokens" are the most likely ones, one after another, by llama.cpp from both files. "Error" is the root mean square
# of the differences to the folder's elements over matrices whose bytes differ, in at most 2^20 elements of each, as a multiple of
# llama.cpp's. With TEXT, a file: the perplexity of SmolLM2 on it, by llama.cpp from both files.
import glob, math, os, pathlib, shutil, subprocess, sys, tempfile

checkout, libraries, snug, smol = sys.argv[1:5]
asked = sys.argv[5:]
sys.path[:0] = [checkout, checkout + "/gguf-py"]
import gguf, numpy as np, torch
import conversion
from conversion import base
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GemmaConfig, GPT2Config, LlamaConfig, MistralConfig,
                          MixtralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig)

conversion.load_all_models()
here = pathlib.Path(__file__).parent
F = gguf.LlamaFileType
KINDS = {"f16": F.MOSTLY_F16, "q8_0": F.MOSTLY_Q8_0, "q4_0": F.MOSTLY_Q4_0, "q4_k_m": F.MOSTLY_Q4_K_M, "q5_k_m": F.MOSTLY_Q5_K_M,
         "q6_k": F.MOSTLY_Q6_K}
VOCABULARY, PROMPT, TOKENS = 49152, [504, 2365, 6354, 16438], 60

sizes = dict(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
             max_position_embeddings=512, head_dim=32, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
experts = dict(num_experts_per_tok=2)
gemma = dict(query_pre_attn_scalar=32, sliding_window=64)
FAMILIES = {
    "llama": (LlamaConfig, dict(tie_word_embeddings=False)),
    "mistral": (MistralConfig, dict(sliding_window=None)),
    "mixtral": (MixtralConfig, dict(num_local_experts=4, **experts)),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {}),
    "qwen3_moe": (Qwen3MoeConfig, dict(num_experts=4, moe_intermediate_size=256, norm_topk_prob=True, **experts)),
    "gemma": (GemmaConfig, {}),
    "gemma2": (Gemma2Config, gemma),
    "gemma3": (Gemma3TextConfig, gemma),
    "gpt2": (GPT2Config, None),
}


def vocabulary_of_bytes(cls):
    cls.set_vocab = lambda self: self._set_vocab_gpt2()
    for sub in cls.__subclasses__():
        vocabulary_of_bytes(sub)


vocabulary_of_bytes(base.TextModel)


def build(tmp):
    out = tmp / "proof"
    libs = [f for name in ("libllama", "libggml", "libggml-base") for f in sorted(glob.glob(f"{libraries}/{name}.*so*"))[:1]]
    subprocess.run(["gcc", "-O2", here / "proof.c", f"-I{checkout}/include", f"-I{checkout}/ggml/include", "-o", out, *libs, "-lm",
                    f"-Wl,-rpath,{libraries}"], check=True)
    return out


def run(*args):
    r = subprocess.run([str(a) for a in args], env=dict(os.environ, LLAMA_LIB=libraries), text=True, capture_output=True)
    if r.returncode:
        raise SystemExit(f"{args}: {r.stdout[-500:]}{r.stderr[-1500:]}")
    return r.stdout


def tokenizer_into(dir):
    for f in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (pathlib.Path(smol) / f).exists():
            shutil.copy(pathlib.Path(smol) / f, dir)


def publish(dir, cls, more):
    torch.manual_seed(7)
    if more is None:
        c = cls(vocab_size=VOCABULARY, n_embd=256, n_head=8, n_layer=4, n_positions=512, bos_token_id=1, eos_token_id=2)
    else:
        c = cls(**{**sizes, **more})
    m = AutoModelForCausalLM.from_config(c)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.5 / math.sqrt(p.shape[-1]) if "embed" in name or "wte" in name else 1.5 / math.sqrt(p.shape[-1]))
            elif "norm" not in name and "ln_" not in name:
                p.normal_(0, 0.02)
    m.to(torch.bfloat16).save_pretrained(dir)
    tokenizer_into(dir)


def convert(dir, kind, out):
    hparams = base.ModelBase.load_hparams(dir, False)
    model = conversion.get_model_class(hparams["architectures"][0])(dir, kind, out, eager=True, hparams=hparams)
    model.hparams.setdefault("n_ctx", model.hparams.get("n_positions"))
    with torch.inference_mode():
        model.write()


def of(path):
    r = gguf.GGUFReader(path)
    pairs = {k: f.contents() for k, f in r.fields.items() if not k.startswith("GGUF.")}
    return pairs, {t.name: t for t in r.tensors}


def squares(t, exact):
    x = head(t) - exact
    return float((x * x).sum())


def head(t):
    rows = t.data.reshape(-1, t.data.shape[-1])[: max(1, 2**20 // int(t.shape[0]))]
    return gguf.quants.dequantize(rows, t.tensor_type).astype(np.float64).ravel()


def compare(ours, theirs, source):
    pairs, tensors = of(ours)
    wanted, others = of(theirs)
    assert sorted(tensors) == sorted(others), set(tensors) ^ set(others)
    same, mine, its = 0, 0.0, 0.0
    for name, t in tensors.items():
        o = others[name]
        assert (t.tensor_type, list(t.shape)) == (o.tensor_type, list(o.shape)), (name, t.tensor_type, o.tensor_type)
        if t.data.tobytes() == o.data.tobytes():
            same += 1
            continue
        exact = head(source[name])
        mine, its = mine + squares(t, exact), its + squares(o, exact)
    keys = {}
    for k in sorted(set(pairs) | set(wanted)):
        a, b = pairs.get(k, "none"), wanted.get(k, "none")
        if a != b:
            keys[k] = f"{str(a)[:40]} for {str(b)[:40]}"
    return same, len(tensors), math.sqrt(mine / its) if its else None, keys


def main():
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        proof = build(tmp)
        differences = {}
        print("| family | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
        for family in [f for f in asked if f in FAMILIES]:
            cls, more = FAMILIES[family]
            dir = tmp / family
            publish(dir, cls, more)
            exact = tmp / "exact.gguf"
            convert(dir, F.MOSTLY_BF16, exact)
            source, cells = of(exact)[1], []
            for kind, number in KINDS.items():
                ours, theirs = tmp / "ours.gguf", tmp / "theirs.gguf"
                ours.unlink(missing_ok=True)
                run(snug, "export", "-model", dir, "-type", kind, "-gguf", ours)
                if kind == "f16":
                    convert(dir, number, theirs)
                else:
                    run(proof, "quantize", exact, theirs, int(number))
                same, all, error, keys = compare(ours, theirs, source)
                for k, v in keys.items():
                    differences.setdefault(k, {})[f"{family} {kind}"] = v
                a, b = (run(proof, "greedy", f, TOKENS, *PROMPT).split() for f in (ours, theirs))
                tokens = next((i for i in range(TOKENS) if a[i] != b[i]), TOKENS)
                cells.append(f"{same}/{all}" + (f", {error:.3f}" if error else "") + f", {tokens}")
            print(f"| {family} | " + " | ".join(cells) + " |", flush=True)
            shutil.rmtree(dir)
        print("\nMetadata, snug's for llama.cpp's:")
        for k, v in differences.items():
            print(f"  {k}: {len(v)} files, as {next(iter(v.items()))}")
        for text in [f for f in asked if f not in FAMILIES]:
            perplexity(tmp, proof, text)


def perplexity(tmp, proof, text):
    exact, ours, theirs = (tmp / f"{n}.gguf" for n in ("exact", "ours", "theirs"))
    convert(pathlib.Path(smol), F.ALL_F32, exact)
    print("\n| SmolLM2-135M | snug | llama.cpp | ratio |\n|---|---|---|---|")
    for kind, number in KINDS.items():
        ours.unlink(missing_ok=True)
        run(snug, "export", "-model", smol, "-type", kind, "-gguf", ours)
        run(proof, "quantize", exact, theirs, int(number))
        a, b = (math.exp(float(run(proof, "loss", f, text, 512, 4))) for f in (ours, theirs))
        print(f"| {kind} | {a:.4f} | {b:.4f} | {a / b:.5f} |", flush=True)


main()
