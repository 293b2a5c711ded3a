from .common import ALL, SMALL, TINY, small

MINISTRAL3 = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "original_max_position_embeddings": 6, "rope_theta": 1e3,
              "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.4}
PUBLISHED_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
                  "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"}

MODELS = {
    "ministral3": ("ministral3", {**SMALL, "pad_token_id": None, "rope_parameters": MINISTRAL3}),
}
ADAPTERS = {
    "ministral3_lora": ("ministral3", False, ALL),
}
SPELLINGS = {
    "ministral3, old": small("ministral3", pad_token_id=None, head_dim=16, rope_theta=5e5, sliding_window=9, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "llama_4_scaling_beta": 0.25, "mscale": 1.0, "mscale_all_dim": 0.5}),
    "ministral3, default rope": small("ministral3", pad_token_id=None, head_dim=16, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.5}),
    "ministral3, no scale": small("ministral3", pad_token_id=None, tie_word_embeddings=True, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.0}),
}
DEFAULTS = ["ministral3"]
FIELDS = {
    "ministral3": TINY,
}
GGUF = {
    "ministral3": ("ministral3", dict(pad_token_id=None, rope_parameters=dict(
    rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.5,
    llama_4_scaling_beta=0.25))),
}
