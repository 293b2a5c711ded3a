from .common import SMALL, TINY, around_zero, small
from .gemma import GGUF_GEMMA

MODELS = {
    "gemma2": ("gemma2", {**SMALL, "num_hidden_layers": 2, "sliding_window": 6, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0,
                          "final_logit_softcapping": 6.0, "pad_token_id": None, "attention_bias": True, "tie_word_embeddings": True}),
}
PUBLISHED = {
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
        "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": True,
        "vocab_size": 256000,
    },
}
SPELLINGS = {
    "gemma2, scalar": small("gemma2", query_pre_attn_scalar=144, final_logit_softcapping=None, head_dim=16, attention_bias=True,
                            sliding_window=5, tie_word_embeddings=False),
}
DEFAULTS = ["gemma2"]
FIELDS = {
    "gemma2": TINY,
}
GGUF = {
    "gemma2": ("gemma2", dict(GGUF_GEMMA, query_pre_attn_scalar=16, sliding_window=8)),
}
initial = around_zero
