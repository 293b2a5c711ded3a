package vision

// idefics3Tower is the tower of Idefics3: Laurençon et al. 2024, arXiv:2408.12637. It is SigLIP's, with positions in buckets for images of
// several sizes. Tiles have one size here, whose patches are each in a bucket of their own. transformers computes buckets in float32, so
// that with 19, 25, 29, 31 or above 37 patches a side some are in the bucket before, other ones on other processors; published
// models have 26, 27 or 32.
var idefics3Tower = bucketTower("idefics3_vision", "Idefics3VisionTransformer")

// smolvlmTower is that of SmolVLM: Marafioti et al. 2025, arXiv:2504.05299.
var smolvlmTower = bucketTower("smolvlm_vision", "SmolVLMVisionTransformer")

func bucketTower(modelType, class string) *towerFamily {
	return &towerFamily{
		modelType: modelType, tower: modelType, towerClass: class, biased: true, patchBias: true, norms: true, buckets: true,
		standard:  TowerConfig{Image: 224, Patch: 32, Channels: 3, Width: 1152, Hidden: 3072, Layers: 12, Heads: 16, Activation: "gelu_pytorch_tanh", Eps: 1e-6, QKVBias: true},
		spellings: siglipTower.spellings,
	}
}
