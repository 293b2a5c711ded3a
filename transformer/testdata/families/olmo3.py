from .common import SOME, TINY_WHOLE, WHOLEHEADS, YARN

ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0}, "full_attention": YARN}
MODELS = {
    "olmo3": ("olmo3", {**WHOLEHEADS, "num_hidden_layers": 2, "intermediate_size": 28, "pad_token_id": None, "attention_bias": True, "tie_word_embeddings": False, "sliding_window": 5,
                        "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": ROPES}),
}
ADAPTERS = {
    "olmo3_lora": ("olmo3", False, SOME),
}
FIELDS = {
    "olmo3": {**TINY_WHOLE, "sliding_window": 3},
}
