from .common import NARROW, SOME, TINY, small

MODELS = {
    "gpt_neox": ("gpt_neox", {**NARROW, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "gpt_neox_follow": ("gpt_neox", {**NARROW, "num_hidden_layers": 1, "use_parallel_residual": False, "attention_bias": False, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
}
ADAPTERS = {
    "gpt_neox_lora": ("gpt_neox", False, SOME),
}
PUBLISHED = {
    "pythia-1.4b": {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 16,
        "num_hidden_layers": 24, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
    },
}
SPELLINGS = {
    "gpt_neox, follow": small("gpt_neox", use_parallel_residual=False, attention_bias=False, rotary_pct=0.5, rotary_emb_base=500, hidden_dropout=0.25, tie_word_embeddings=True),
    "gpt_neox, linear": small("gpt_neox", rotary_pct=0.5, rope_scaling={"type": "linear", "factor": 2.5}, hidden_act="gelu_new"),
}
DEFAULTS = ["gpt_neox"]
FIELDS = {
    "gpt_neox": {**TINY, "head_dim": 4},
}
GGUF = {
    "gpt_neox": ("gpt_neox", dict(rotary_pct=0.5)),
}


def parts(key, tensor):
    yield key.replace("lm_head", "embed_out"), tensor
