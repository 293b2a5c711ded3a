package vision

import "slices"

// deitTower is DeiT: Touvron et al. 2020, arXiv:2012.12877. It is ViT with a second token, for distillation. A head reads the class token,
// also where a folder has two heads, for a teacher.
var deitTower = func() *towerFamily {
	f := *vitTower
	f.modelType, f.tower, f.classifier, f.towerClass, f.prefix = "deit", "deit", "DeiTForImageClassification", "DeiTModel", "deit."
	f.spellings = slices.Clone(f.spellings)
	for i := range f.spellings {
		f.spellings[i].distillation = "embeddings.distillation_token"
	}
	return &f
}()
