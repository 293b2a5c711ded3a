// Package segment has Segment Anything (Kirillov et al. 2023, arXiv:2304.02643): a model that says which pixels of an image a point or a box
// means. Its encoder of images is frozen, and its features are computed once; the prompt encoder and the mask decoder train on them.
//
//	e, err := segment.OpenEncoder(dir, layers.Options{})                    // transformers' SamModel, or MobileSAM or TinySAM in safetensors
//	features := make([]float32, e.Config().FeatureLen())
//	err = e.Encode(ctx, features, [][]float32{pixels.Values})               // of vision.Processor
//	err = e.Close()                                                         // and its memory is free
//	m, err := segment.Open(dir, segment.Options{})                          // a train.Model
//	t, err := train.New(m, train.Options{StateBits: 8, Schedule: train.Constant(1e-4)})
//	item := segment.Item{Features: snug.ViewOf(features), Prompt: segment.Prompt{Box: &segment.Box{Left: 10, Top: 20, Right: 300, Bottom: 400}}, Target: mask}
//	report, err := t.Train(ctx, [][]segment.Item{{item, other}})
//	err = m.Save("tuned")                                                   // in the layout that it came in, such as for SamModel.from_pretrained
//
// # Memory
//
// In the shape of SAM ViT-B, for images of 1024 pixels, the encoder takes 650 MiB of resident memory in float32 and 360 MiB in
// bfloat16, of them 340 and 170 MiB of weights: no matrix of scores exists. Features of an image are 4 MiB, or 2 MiB in 16 bits. Training the
// decoder with two prompts takes 270 MiB. TinyViT takes 141 MiB in float32 and 100 MiB in bfloat16, of them 22 and 11 MiB of weights and 49 and 25
// MiB of activations.
package segment
