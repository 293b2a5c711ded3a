from .common import ALL, SMALL, TINY

ALPHA = {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e3}
MODELS = {
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {**SMALL, "attention_bias": True, "pad_token_id": None, "rope_parameters": ALPHA}),
}
ADAPTERS = {
    "hunyuan_v1_dense_lora": ("hunyuan_v1_dense", False, {**ALL, "r": 2}),
}
FIELDS = {
    "hunyuan_v1_dense": {**TINY, "rope_parameters": ALPHA},
}
