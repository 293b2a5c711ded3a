from .cohere import extra as cohere
from .common import ALL, NARROW, TINY_WHOLE, small

MODELS = {
    "cohere2": ("cohere2", {**NARROW, "num_hidden_layers": 3, "intermediate_size": 20, "pad_token_id": None, "logit_scale": 0.7, "sliding_window": 5,
                            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
}
ADAPTERS = {
    "cohere2_lora": ("cohere2", False, ALL),
}
PUBLISHED = {
    "c4ai-command-r7b-12-2024": {
        "_sliding_window_pattern": 4, "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5, "cache_implementation": "hybrid",
        "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 132096, "model_type": "cohere2", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0, "position_embedding_type": "rope_gptj",
        "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4, "torch_dtype": "bfloat16",
        "transformers_version": "4.48.0.dev0", "use_cache": True, "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
        "use_parallel_embedding": True, "vocab_size": 256000,
    },
}
SPELLINGS = {
    "cohere2, types": small("cohere2", attention_bias=True, logit_scale=1.0, tie_word_embeddings=False, rope_theta=500.0, sliding_window=7,
                            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]),
    "cohere2, pattern": small("cohere2", sliding_window=9, sliding_window_pattern=2),
}
DEFAULTS = ["cohere2"]
FIELDS = {
    "cohere2": {**TINY_WHOLE, "sliding_window": 3},
}
GGUF = {
    "cohere2": ("cohere2", dict(tie_word_embeddings=True, num_hidden_layers=5, sliding_window=6, rotary_pct=1.0)),
}


def extra(config, body):
    full = [layer.self_attn.sliding_window is None for layer in body.layers]
    return {**cohere(config, body), "NoRope": full if any(full) else None}
