// Package vision has models of images: what they see of an image, towers that turn it into rows, and models of images and text.
//
// # Images
//
// A [Processor] turns images into the numbers that published models take, as the image processors of Hugging Face's transformers do: the
// same bits.
//
//	p, err := vision.OpenProcessor("Qwen2.5-VL-3B-Instruct") // the folder of a model
//	m, err := vision.Decode(file, vision.DecodeOptions{})    // PNG, JPEG, WebP, GIF, BMP, TIFF
//	in, err := p.Process(m)                                  // in.Values, in.Shape, in.Grid, in.Tokens
//	text, err := p.Expand(prompt, in.Layout)                 // one placeholder becomes in.Tokens tokens
//
// [Processor.Layout] says the shape, the tokens and the bytes of an image from its size alone. [Frames] reads clips, whose frames are
// images to Process. [Positions] has the positions of Qwen's models along time, height and width.
//
// Qwen2-VL, Qwen2.5-VL and Qwen3-VL take videos, which become one [Pixels] each:
//
//	c, err := vision.OpenClip("frames", vision.DecodeOptions{}) // a folder of images, or an animated GIF
//	t, err := p.SampleClip(c, 2, 64)                            // 2 frames a second, at most 64 of them
//	in, _, err := p.ProcessClip(c, t)                           // in.Grid[0] patches along time
//
// # Towers
//
// A [Tower] is a vision transformer: ViT, DeiT, CLIP, SigLIP or DINOv2. It opens the folders of transformers, classifies images or returns embeddings of patches, trains
// as every layers.Model, and is saved so that transformers loads it:
//
//	t, err := vision.OpenTower("vit-base-patch16-224", vision.TowerOptions{Labels: []string{"cat", "dog"}}) // with a new head
//	s, err := t.Sample([][]float32{in.Values}, []int32{1})                                                  // a layers.Sample
//	trainer, err := train.New(t.Model, train.Options{StateBits: 8, Gradients: plan.InBackward})
//
// In float32 rows, logits and gradients differ from those of transformers by about 1e-6 of the largest. Images have the size of the
// model, or one size to which its positions are interpolated. Rates of dropout in config.json are not applied.
//
// # Models of images and text
//
// A [Model] has a frozen tower, a projector and a text model of package transformer, with all that this has: LLaVA and LLaVA-NeXT (on Llama,
// Mistral or Qwen2), Gemma 3, PaliGemma (also on Gemma 2), Idefics3, SmolVLM, and Qwen2-VL, Qwen2.5-VL and the dense Qwen3-VL with images of any size.
// LoRA adapters of the text and all of the projector train, and PEFT loads what [Model.SaveAdapter] writes. The towers of LLaVA, Gemma 3 and
// PaliGemma may train too, see [ModelOptions], and [Model.Save] writes the whole model.
//
// # Which arithmetic
//
// transformers has two forms of each processor, which differ in the last bit of a level or two: with torchvision, which AutoImageProcessor
// chooses since version 5 wherever torchvision is installed, and with Pillow. [Torchvision] is the default here too, and [Processor.Using] chooses.
// Both are the CPU's: on a GPU torchvision resizes in float32, and so does its bilinear filter on a CPU without AVX2 or NEON. Everything
// was compared with transformers 5.24, torch 2.15, torchvision 0.29 and Pillow 13; older versions of Pillow always resize rows before
// columns, where version 13 does not always.
//
// # Memory
//
// [Decode] says what it holds, within limits that are checked before it takes memory for pixels. [Processor.Process] allocates at most
// [Layout].Bytes: the values, 4 bytes each, and images of 3 bytes a pixel between the steps. Only the part of a resized image that a crop
// shows is computed. Nothing is kept after a call.
//
// A Tower holds what a layers.Model does. A Model holds the rows of the tower for the images of a batch on the host, twice: 8 bytes an
// element.
//
// # Sources
//
// Resampling: Pillow's Resample.c, and ATen's UpSampleKernel.cpp. JPEG: ITU-T T.81; the inverse DCT of
// Loeffler, Ligtenberg and Moschytz (ICASSP 1989); the rounding of libjpeg-turbo's jidctint.c, jdsample.c and jdcolor.c.
// WebP: libwebp's upsampling.c and yuv.h. Processors: image_processing_*.py, processing_*.py and get_rope_index of transformers.
package vision
