"""Makes embeddings.json with transformers: models with vectors in place of some embeddings, positions in three axes, and spans.

Python 3.11, transformers 5.24.0, torch 2.15.0, safetensors 0.8.0:

    python transformer/testdata/embeddings.py

The weights are those of a folder in models, in float32. A case has the vectors [rows, width], the rows that take them, the tokens and the
labels, and

spans      rows lo to hi-1 that see each other both ways: images of Gemma 3, and the prefixes of a PaliGemma, whose text model is a Gemma
logits     of the rows LOGITS
vectors    the gradient of the mean loss in the vectors
gradients  of the loss in each parameter: its norm, and its products with vectors of signs, see signs
losses     before each of 5 steps of AdamW of the parameters and the vectors, and after them

Arrays are float32 in base64. Qwen2.5-VL and Qwen3-VL have the weights of Qwen2 and Qwen3, and the head of these.
"""

import base64
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.masking_utils import create_causal_mask
from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextConfig, Qwen3VLTextModel

here = pathlib.Path(__file__).parent
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
SEQUENCES, TOKENS, STEPS, PRODUCTS, PLACEHOLDER = 2, 10, 5, 3, 7
ROWS = [0, 3, 4, 5, 11, 12, 19]  # of the batch
LOGITS = [0, 2, 4, 6, 9, 12, 16, 19]
SPANS = {"gemma3_spans": [[2, 9], [11, 13], [15, 19]], "gemma_prefix": [[0, 6], [10, 14]]}
CASES = {  # folder, and what config.json has in place of its rope
    "llama": ("llama", None), "gemma3": ("gemma3", None), "qwen2": ("qwen2", None), "gpt2": ("gpt2", None),
    "gemma3_spans": ("gemma3", None), "gemma_prefix": ("gemma", None),
    "qwen2_5_vl": ("qwen2", {"type": "mrope", "mrope_section": [2, 1, 1]}),
    "qwen3_vl": ("qwen3", {"rope_type": "default", "mrope_section": [3, 1, 1], "mrope_interleaved": True}),
}
# An image of 2 × 2 behind a token, or of 1 × 3 with a token before it and more time; text goes on behind the largest position.
POSITIONS = [[0, 1, 2, 2, 2, 2, 4, 5, 6, 7, 0, 1, 5, 5, 5, 8, 9, 10, 11, 12],
             [0, 1, 2, 2, 3, 3, 4, 5, 6, 7, 0, 1, 1, 1, 1, 8, 9, 10, 11, 12],
             [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 0, 1, 1, 2, 3, 8, 9, 10, 11, 12]]


def code(x):
    return base64.b64encode(x.detach().float().contiguous().numpy().tobytes()).decode()


def signs(n, k):
    """1 or -1 for n elements: bit k of the upper half of 2654435761·(i+1) mod 2^32, squared."""
    i = torch.arange(1, n + 1, dtype=torch.int64) * 2654435761 % 2**32 // 65536
    return ((i * i) // 2**(k + 8) % 2).double() * 2 - 1


class WithHead(torch.nn.Module):
    """A text model, which has no head, with one."""

    def __init__(self, model, tied):
        super().__init__()
        self.model = model
        self.lm_head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False)
        if tied:
            self.lm_head.weight = model.embed_tokens.weight

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def forward(self, **inputs):
        hidden = self.model(**inputs).last_hidden_state
        return type("Out", (), {"logits": self.lm_head(hidden)})


def open_model(name, folder, rope):
    path = here / "models" / folder
    if rope is None:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    raw = json.loads((path / "config.json").read_text())
    for key in ("model_type", "architectures", "dtype"):
        raw.pop(key, None)
    theta = raw.pop("rope_parameters")["rope_theta"]
    config_class, model_class = (Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel) if name == "qwen2_5_vl" else (Qwen3VLTextConfig, Qwen3VLTextModel)
    config = config_class(**raw, rope_parameters={**rope, "rope_type": "default", "rope_theta": theta})
    model = WithHead(model_class._from_config(config, attn_implementation="eager").float(), raw.get("tie_word_embeddings", False))
    weights = {key: w.float() for key, w in load_file(path / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return model


def make(name, folder, rope):
    torch.manual_seed(sum(map(ord, name)))
    model = open_model(name, folder, rope).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    tokens = torch.randint(0, 48, (SEQUENCES * TOKENS,))
    tokens[ROWS], tokens[8] = PLACEHOLDER, PLACEHOLDER
    labels = torch.randint(0, 48, tokens.shape)
    labels[[3, 4, 9]] = -100  # and the labels of other rows with vectors count
    width = model.get_input_embeddings().weight.shape[1]
    vectors = torch.nn.Parameter(torch.randn(len(ROWS), width) * 0.7)
    more = {"use_cache": False}
    if rope:
        more["position_ids"] = torch.tensor(POSITIONS).reshape(3, SEQUENCES, TOKENS)

    def run():
        embedded = model.get_input_embeddings()(tokens.reshape(SEQUENCES, TOKENS))
        mask = torch.zeros(SEQUENCES * TOKENS, dtype=torch.bool)
        mask[ROWS] = True
        mask = mask.reshape(SEQUENCES, TOKENS, 1).expand_as(embedded)
        if name in SPANS:
            blocks = torch.full((SEQUENCES * TOKENS,), -1)
            for i, (lo, hi) in enumerate(SPANS[name]):
                blocks[lo:hi] = i
            make_masks = create_masks_for_vision_model if name == "gemma3_spans" else create_causal_mask
            more["attention_mask"] = make_masks(config=model.config, inputs_embeds=embedded, attention_mask=None, position_ids=None,
                                                block_sequence_ids=blocks.reshape(SEQUENCES, TOKENS), cache=None)
        logits = model(inputs_embeds=embedded.masked_scatter(mask, vectors), **more).logits
        return logits, torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels, ignore_index=-100)

    logits, loss = run()
    loss.backward()
    gradients = {}
    for key, p in model.named_parameters():
        g = p.grad.double().flatten()
        gradients[key] = [float(f"{x:.7g}") for x in [g.norm(), *(g @ signs(g.numel(), k) for k in range(PRODUCTS))]]
    case = {"name": name, "folder": folder, "rope": rope, "sequences": SEQUENCES, "tokens": tokens.tolist(), "labels": labels.tolist(), "rows": ROWS,
            "positions": POSITIONS if rope else None, "spans": SPANS.get(name),
            "values": code(vectors), "logits": code(logits.reshape(-1, logits.shape[-1])[LOGITS]), "vectors": code(vectors.grad), "gradients": gradients}
    optimizer = torch.optim.AdamW([*model.parameters(), vectors], lr=1e-3, weight_decay=0.01)
    case["losses"] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run()[1]
        case["losses"].append(loss.item())
        loss.backward()
        optimizer.step()
    case["losses"].append(run()[1].item())
    print(name, case["losses"][0], case["losses"][-1])
    return case


cases = ",\n".join(json.dumps(make(name, *case), separators=(",", ":")) for name, case in CASES.items())
head = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
(here / "embeddings.json").write_text(json.dumps(head)[:-1] + ', "cases": [\n' + cases + "\n]}\n")
