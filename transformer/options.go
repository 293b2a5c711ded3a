package transformer

import (
	"context"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
)

// Options are the options of [New] and [Open].
type Options struct {
	// DType is the type of weights and activations: F32, F16 or BF16. 0 is the published type,
	// or F32 if the Config does not say it. Sums and statistics are always float32.
	DType snug.DType
	// Device is where the model lives and computes; nil is the CPU.
	Device *snug.Device
	// Seed determines the initial values of [New] and of fresh adapters, and with Batch.Draw the adapters' dropout.
	Seed uint64
	// Train says which parameters train, by their published names; nil: all. The others are
	// frozen: they get no gradient, and the backward pass leaves out their products.
	Train func(name string) bool
	// LossRows is the number of rows whose logits exist at a time. 0 is 128 on the CPU, and on other devices DeviceChunk
	// of [fused.CrossEntropy], 128 to 2048, which takes more memory and fewer launches. With fewer rows the workspace is
	// smaller; [plan.Task.Fit] finds how many fit.
	LossRows int
	// LossClasses is the number of classes whose logits exist at a time, see Tile of [fused.CrossEntropy]; Config.Vocab
	// is all of them. 0 is all of them on a device other than the CPU. On the CPU 0 is all of up to 64 Ki classes, and
	// 1 Ki of a larger vocabulary: training then computes the logits twice, in a workspace that does not grow with the
	// vocabulary.
	LossClasses int
	// Smoothing and ZLoss are those of [fused.CrossEntropy], in the loss of Backprop. Evaluate returns the plain
	// cross-entropy.
	Smoothing, ZLoss float32

	// Losses, unless nil, collects the sums of Backprop's cross-entropy: on a device Backprop does not wait then. The
	// Loss that it returns has the other parts of the sum, 0 without RouterLoss. Give the same Losses to
	// train.Options. BackpropDistill and Evaluate do not use it.
	Losses *fused.Losses

	// Tiles is the largest number of tiles of rows in which the MLPs run; 0 and 1: all rows at once. There is at most
	// one for every 2048 rows begun, so that several tiles have 1024 rows or more each. An MLP then holds, besides its
	// input and output, what one tile takes, and keeps its output alone: the backward pass computes gate and up again.
	// On the CPU, losses and gradients of activations have the same bits for any number of tiles. Gradients of
	// parameters are sums over the tiles; they differ by their rounding, and a Window that holds one gradient at a time
	// holds all of an MLP until its last tile. Layers with experts are not cut into tiles; they run one expert at a
	// time. The idea is from Bekman et al. 2025, arXiv:2506.13996.
	Tiles int

	// Remat is the plan of [Model.SetPlan]; without operations everything is kept.
	Remat remat.Plan

	// Monitor, unless nil, counts the bytes that the model holds on its device, by component. If the Monitor has a
	// history, it also records layers and phases, see [meter.Monitor.WriteTrace]. The history names activations by the
	// stage that made them, such as "layers.3.mlp", followed by ", recomputed" or ", backward" for those phases. Pages
	// are not counted; to count them, set Pages to a [meter.Pages].
	// If the Monitor has a limit, New, Open and calls that need more memory fail with [snug.ErrNoMemory], and so do all
	// later calls.
	Monitor *meter.Monitor
	// PlainAttention computes attention without tiles, with all scores of a head in memory, and keeps the probabilities
	// for the backward pass, so that a program can measure what tiles save. It works on the CPU, and for models without
	// a cap of scores.
	PlainAttention bool

	// Base, unless 0, is the form of the matrices of the layers: NF4 or FP4 with double quantization, as
	// bitsandbytes has them for QLoRA, MXFP4, FP8 or FP8E5M2 with scales by block, or INT8. They are frozen. Open
	// quantizes each matrix when it has read it, so it needs the memory of the result and of one matrix. Matrices that
	// a folder has quantized, see Config.Stored, stay as they are if Base is 0 or that form: with 0 the matrices that
	// the folder has in floats, see Config.Floats, are in floats of DType, and with that form they are quantized too.
	// With another Base, Open decodes each to DType and quantizes it again. 8 bits are for the CPU.
	Base qlora.Type
	// Decode decodes matrices that a folder has quantized while they are read, some rows at a time, as if the folder had them in floats: code
	// times scale in float32, rounded once to DType. With Base 0 they are in floats, and train where nothing is frozen. It is for Open, and
	// does nothing to folders in floats.
	Decode bool
	// Pages is a Storage for the quantized matrices, and with PageFloats for matrices in floats too. A Store of package
	// offload is one, which holds a part of them in memory and the others on disk. A Pages of package accum is one for the
	// ranks of data-parallel training; each holds a part of every matrix. nil: they are in memory.
	Pages qlora.Storage
	// PageFloats puts into Pages what has two dimensions and is not quantized: matrices of the layers, embeddings and the
	// head, but not adapters and their ModulesToSave. A matrix is in memory while an operation uses it. Those that train
	// want an accum.Pages, and package train with plan.ShardWeights. DoRA of matrices in floats does not go
	// with PageFloats.
	PageFloats bool
	// Checkpoints, unless nil, keeps the outputs of stages that a plan of [Model.SetPlan] puts on disk.
	Checkpoints Checkpoints
	// Adapter, unless nil, adds a LoRA or a DoRA to each module that PEFT would choose by its fields; without Targets,
	// to all matrices of the layers. The adapters are float32. They train, and nothing else does, unless
	// ModulesToSave names embeddings, the head or norms: a tied head trains with its embedding. Set Alpha: PEFT's
	// default is 8. With the Init "pissa" or "olora" the matrices are held without the parts that the adapters take
	// over, and the model keeps the adapters' first values for SaveAdapter, 4·Rank·(in+out) bytes for each. "loftq"
	// wants the Base NF4. Adapters of VeRA want the CPU.
	Adapter *qlora.AdapterOptions
	// AdapterDir, in place of Adapter, is a folder of adapters that PEFT or [Model.SaveAdapter] wrote, or the path of a GGUF file of LoRA
	// adapters, as [AdapterFile.SaveGGUF] and llama.cpp's convert_lora_to_gguf.py write it. An embedding or a head
	// in it replaces the base model's. Adapters of an embedding or a head are added to it, rounded to the model's type; they do
	// not train on, and a tied model is untied: the embedding has its adapter, and the head its own or none, as PEFT computes.
	// SaveAdapter then writes these tables whole, as ModulesToSave.
	AdapterDir string
	// Before are folders of adapters that are merged before that of AdapterDir, in this order, each rounded to the type of the
	// model, as PEFT does with one merge_and_unload after the other. It wants SaveOnly. A Base is that of the first.
	Before []string
	// SaveOnly opens a folder for [Model.Save], [Model.SaveGGUF], [Model.Weights] and the sizes of these alone; other methods that compute are errors.
	// Matrices stay in the folder, which must not change meanwhile, and each is read, merged and written for itself: see
	// SaveSize for the memory. What ModulesToSave of AdapterDir replace is in memory. It is for Open on the CPU.
	SaveOnly bool
	// Stream, unless 0, leaves matrices in floats in the folder of Open, which must not change meanwhile, and reads one, converted, each
	// time that an operation uses it. As many stay in memory as fit into so many bytes with room for the others, one at a time, from
	// the largest on. The results have the same bits. They do not train. What a folder of adapters has in place of the
	// base's, learned positions and quantized matrices are in memory. It is for the CPU, without DoRA of matrices in floats.
	// The least is the largest matrix: with less, passes are errors that wrap [snug.ErrNoMemory].
	Stream int64
	// Context, unless nil, ends [Model.Save], [Model.SaveGGUF] and [Model.Weights] before the next tensor when it is done: their error
	// is its cause, and what they wrote is gone.
	Context context.Context
	// Beside has parameters of another part of the whole model that train beside adapters, such as a projector, by their published
	// names. SaveAdapter writes them as ModulesToSave, and Open reads those that AdapterDir has into their Values.
	Beside []qlora.Module
	// Share, unless nil, is an open model of the folder of Open without adapters. The new model uses the weights of Share that an
	// AdapterDir leaves as they are, and holds only the others, so that several adapters of one model take the memory of one. Base, Decode,
	// DType and Device are those of Share, or zero. Weights that are shared do not train. Only one of the models may compute at a time, and Share
	// is closed last. Share may have Stream, which the new model then uses too, without an option of its own; it has no Pages.
	Share *Model
}
