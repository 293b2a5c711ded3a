package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/internal/checkpoint"
)

func tuneCommand() *command {
	return &command{
		name: "tune", summary: "fine-tune a published model under a memory limit",
		help: `Fine-tunes a published model, without Python, in one process or in several that mpiexec starts
(ranks). It writes a LoRA adapter that PEFT loads, or with -full a model that transformers loads.
It first finds what fits in -memory: micro-batches, recomputation, the form of frozen weights and the
precision of the optimizer's state. It prints the memory that the run will take, by component, and
at the end what it took.
-data of a vision transformer (ViT, DeiT, CLIP, SigLIP, DINOv2) is a folder with a folder of images
for each class, or a table of images and classes: all weights train, or with -train head a new head.
-data of Segment Anything is a folder with images and masks: the mask decoder trains.
`,
		flags: new(tuneFlags).table,
		closing: `  snug tune -model Qwen3-0.6B -data chats.jsonl -memory 4GiB -o tuned
  snug tune -model Qwen3-0.6B -data text/ -full -memory 6GiB -epochs 2 -o model
  snug tune -model Qwen3-0.6B -teacher Qwen3-4B -teacher-base nf4 -data text/ -memory 8GiB -o taught
  snug tune -model tuned-model -data pairs.jsonl -dpo 0.1 -o preferred
  snug tune -model vit-base-patch16-224 -data photos/ -memory 2GiB -o classifier
  snug tune -model sam-vit-base -data cells/ -features cells.features -o segmenter
`,
		run: runTune,
	}
}

// Limits of package plan.
const (
	maxRank  = 1 << 16
	maxBatch = 1 << 24
)

// table returns the flags, which write into f.
func (f *tuneFlags) table() flagTable {
	adapters := &use{"adapters", "-full trains none", func() bool { return !f.full }}
	whole := &use{"-full", "adapters train without it", func() bool { return f.full }}
	gradients := &use{"training with gradients", "the optimizer computes none", func() bool { return !f.traits().ForwardOnly }}
	elsewhere := func() bool { return f.device != "" && f.device != "cpu" }
	device := &use{"another device than the CPU", "-device names none", elsewhere}
	teacher := &use{"-teacher", "there is none", func() bool { return f.teacher.dir != "" }}
	checkpoints := &use{"-checkpoint", "there is none", func() bool { return f.checkpoint != "" }}
	heldOut := &use{"samples that are held out", "-held-out is 0", func() bool { return f.held > 0 }}
	f.optimizer, f.compute = defaultOptimizer, floatTypes[0]
	return append(flagTable{
		modelFlag(&f.dir, "folder with config.json, model.safetensors or shards, and a tokenizer, or a GGUF file"),
		f.filesFlag(),
		f.formatFlag(),
		f.mapFlag(),
		templateFlag(&f.template),
		countFlag("show", "N", &f.show, 0, 1, math.MaxInt, "print the first N samples with what is learned between ⟦ and ⟧, and exit. It needs no -o; with -report it writes a page of them"),
		outputFlag("DIR", &f.output, "folder to write the adapter or the model to: new, empty, or left by a killed run"),
		f.targetFlag(),
		deviceFlag(&f.device, ". Not with -disk, -fold, -adapter vera or ranks"),
		memoryFlag(&f.memory).only(&use{"a process that trains on the CPU", "-device names another device: want -device-memory", func() bool { return !elsewhere() }}),
		deviceMemoryFlag(&f.deviceMemory, "default: what is free there").only(device),
		sizeFlag("disk", &f.disk, "disk space for pages of weights, optimizer state, or activations from which others are computed again. They lie in the folder DIR.pages, "+
			"with the DIR of -o, which is removed at the end; default: none"),
		countFlag("lora", "RANK", &f.rank, 0, 1, maxRank, "rank of the adapters on all matrices of the layers; default 16, with vera 256").only(adapters),
		f.kindFlag().only(adapters),
		numberFlag("alpha", "N", &f.alpha, 0, "a number above 0 and below 1000000", func(x float64) bool { return x > 0 && x < 1e6 },
			"the adapters' products are scaled by N/rank; default: 2·rank").only(adapters),
		switchFlag("rslora", &f.rslora, "scale them by N/√rank instead").only(adapters),
		f.doraFlag().only(adapters),
		f.dropoutFlag().only(adapters, gradients),
		numberFlag("loraplus-ratio", "R", &f.loraplus, 0, "a number above 0, up to 1000000", func(x float64) bool { return x > 0 && x <= 1e6 },
			"the second matrix (B) of each adapter learns at R times the rate (LoRA+), such as 16").only(adapters),
		textFlag("modules-to-save", "LIST", &f.modules, "also train all weights of these modules (embeddings, the head, norms), given by the ends of their names, "+
			"with commas, as in PEFT; such as embed_tokens,lm_head").only(adapters).inOne(withCommas),
		switchFlag("full", &f.full, "train all weights instead"),
		switchFlag("fold", &f.fold, "with -full: hold about one gradient at a time. Each enters the optimizer's state at once, so a step differs from one with the mean "+
			"of the micro-batches' gradients. Weights in bf16 are rounded stochastically. Not with f16. bf16 with adamw does this without -fold too where nothing else fits").only(whole, gradients),
		wordFlag("masters", "FORM", &f.masters, names(masterForms), "with -full or -modules-to-save, and bf16: master weights, which keep the small updates that bf16 would lose. "+
			"full: a float32. split: 2 bytes, which together with the weight are a float32. split24: 1 byte, which together with the weight is 24 bits, rounded stochastically. "+
			"none: the weight itself is rounded stochastically. Default: full or split, whichever fits; with -full, split24 if neither fits").only(gradients),
		switchFlag("report-rounding", &f.rounding, "say at the end which share of the updates rounding lost, in which parameters, and what would help; the steps take a little longer").only(gradients),
		f.optimizerFlag(),
		baseFlag("base", &f.form, baseForms, "form of the frozen matrices: "+either(baseForms)+"; default: bf16 if that fits, else nf4. Matrices that are quantized in the folder "+
			"keep their form by default, and the others, such as the attention of gpt-oss, have the type of -compute; if FORM is the folder's own, these are quantized too, and else the folder's are decoded").only(adapters),
		computeFlag(&f.compute, "type of weights and activations: bf16 (default), f16 or f32"),
		countFlag("context", "N", &f.most, 0, 1, dataset.MaxContext, "maximum tokens of a sample; longer ones are cut; default: "+strconv.Itoa(defaultContext)+", or less if no sample is longer"),
		batchFlag(&f.batch, "samples of a step, over all ranks"),
		tilesFlag("N", &f.tiles, "for long samples: run the MLPs in N tiles of a micro-batch's tokens, one after the other, so that they hold the activations of one tile. "+
			"At most tokens/2048 tiles, rounded up. auto: the fastest number that fits. Sums over tokens are rounded differently; default 1"),
		countFlag("steps", "N", &f.steps, 0, 1, checkpoint.MaxStep, "steps; default: those of -epochs"),
		countFlag("epochs", "N", &f.epochs, 0, 1, checkpoint.MaxStep, "times that each sample is trained on; default 1"),
		numberFlag("lr", "RATE", &f.rate, 0, "a rate above 0 and below 1000", func(x float64) bool { return x > 0 && x < 1e3 }, rateHelp),
		numberFlag("dpo", "BETA", &f.beta, 0, fmt.Sprintf("a number above 0, up to %d, such as 0.1", maxBeta), func(x float64) bool { return x > 0 && x <= maxBeta },
			`learn preferences by Direct Preference Optimization, with a BETA such as 0.1. A line has "chosen" and "rejected", both strings or both lists of messages, and "prompt" or `+
				"what stands for it, see -format; without it, what both answers begin with is the prompt. A sample is a pair of answers; -context limits each answer with its prompt. "+
				"The reference is the model before the first step, with the adapters' first values. The default of -lr is then lower: with adamw 1e-5, with -full 1e-6").only(gradients),
		fileFlag("teacher", "DIR", &f.teacher.dir, "also learn from the predictions of a second model with the same tokens: the loss of each token is (1-W)·cross-entropy + "+
			"W·T²·KL(teacher ‖ model), with the W and T of -distill-weight and -distill-temperature. The teacher does not train").only(gradients),
		baseFlag("teacher-base", &f.teacher.base, baseForms, "form of the teacher's matrices: "+either(baseForms)+"; default: as the folder has them, those in floats in the type of -compute").only(teacher),
		numberFlag("distill-weight", "W", &f.teacher.share, defaultShare, "above 0 and up to 1", func(x float64) bool { return x > 0 && x <= 1 },
			fmt.Sprintf("weight of the divergence, above 0 and up to 1; default %v", defaultShare)).only(teacher),
		numberFlag("distill-temperature", "T", &f.teacher.temperature, defaultTemperature, "0.01 to 1000", func(x float64) bool { return x >= 0.01 && x <= 1000 },
			fmt.Sprintf("divides the logits of both models in the divergence; 0.01 to 1000, default %v", defaultTemperature)).only(teacher),
		numberFlag("label-smoothing", "S", &f.smoothing, 0, "0 to 1", func(x float64) bool { return x >= 0 && x <= 1 }, "the target has the probability 1-S, and all tokens share S equally; "+
			"0 to 1, default 0. With -dpo: the assumed share of pairs whose answers are exchanged, below 0.5 (conservative DPO)").only(gradients),
		numberFlag("z-loss", "F", &f.zLoss, 0, "0, or 1e-30 to 1000000", func(x float64) bool { return x == 0 || x >= 1e-30 && x <= 1e6 },
			"add F times the square of the logarithm of the softmax's denominator to the loss of each token; 0 to 1000000, such as 1e-4, default 0. The losses of steps include this "+
				"term and label smoothing, the loss on held-out samples neither").only(gradients),
		seedFlag("seed", "N", &f.seed, 1, "seed of the order of samples, the adapters' initial values and dropout; default 1"),
		numberFlag("held-out", "SHARE", &f.held, 0.02, "0 to 0.5", func(x float64) bool { return x >= 0 && x <= 0.5 },
			fmt.Sprintf("share of the samples that are not trained on, to measure the loss; default 0.02, and then at most %d samples", defaultHeldOut)),
		countFlag("eval-every", "N", &f.evalEvery, 0, 0, math.MaxInt, "measure that loss also every N steps; default 0: only before and after the run").only(heldOut),
		wordFlag("shard", "WHAT", &f.shard, names(shardings), "what the ranks of mpiexec divide: "+shardHelp+"; default: the fastest that fits"),
		fileFlag("checkpoint", "DIR", &f.checkpoint, "folder of checkpoints; the same command resumes the newest, also with another -memory. SIGINT, SIGTERM and SIGHUP let the current step end, and save it"),
		countFlag("save-every", "N", &f.saveEvery, 100, 1, math.MaxInt, "steps between checkpoints; default 100").only(checkpoints),
		fileFlag("trace", "FILE", &f.trace, "also record what holds memory, by component, layer and step, and print a table of the holders at the peak. FILE.json is for ui.perfetto.dev or "+
			"chrome://tracing; FILE.svg is a picture. FILE is written at the end, even if the run fails or is interrupted. The record takes 4 MiB"),
		reportFlag(&f.page, "loss, speed and memory over the steps, memory by component against its limit, predicted and measured, the memory during a step, what is computed again and "+
			"what is paged. The run writes FILE again every few seconds, and at the end, even if it fails or is interrupted. A resumed run keeps the steps in FILE. A file that is not a "+
			"report is not overwritten. With -dry-run FILE has what is predicted, and must not be the report of a run. A report takes up to 4 MiB of memory"),
		copyLinksFlag(&f.copyLinks, "with -full: copy also files of the tokenizer that are links out of the folder of the model into -o").only(whole),
		switchFlag("dry-run", &f.dryRun, "print the plan and exit"),
		switchFlag("json", &f.json, `also print the results, or with -dry-run the plan, as a line of JSON at the end. A run that fails in training prints it too; "state" is done, stopped (by a signal), diverged or failed`),
		configFlag(),
	}, f.imageFlags.rows()...)
}

// rateHelp says what -lr is.
const rateHelp = "learning rate at its peak, after the warmup and before the cosine decay; default: see -optimizer, and -dpo"

// manyTiles are the numbers of tiles from which a plan chooses.
var manyTiles = []int{1, 2, 4, 8, 16, 32}

// tilesFlag is a flag with one number of tiles or, if its value is a LIST, several of them; auto are many.
func tilesFlag(arg string, to *[]int, help string) *flagRow {
	r := listFlag("tiles", to, []string{"auto"}, parseTile, help)
	list := r.set
	r.arg, r.set = arg, func(text string) error {
		switch {
		case text == "auto":
			*to = manyTiles
			return nil
		case arg != "LIST" && strings.Contains(text, ","):
			return fmt.Errorf("want 1 to %d, or auto", maxBatch)
		}
		return list(text)
	}
	return r
}

// tilesText returns the value of -tiles, and "" for one tile.
func (f *tuneFlags) tilesText() string {
	switch {
	case slices.Equal(f.tiles, manyTiles):
		return "auto"
	case len(f.tiles) == 1 && f.tiles[0] == 1:
		return ""
	}
	return strconv.Itoa(f.tiles[0])
}

func parseTile(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxBatch {
		return 0, fmt.Errorf("want 1 to %d, or auto", maxBatch)
	}
	return n, nil
}
