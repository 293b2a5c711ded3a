package main

import (
	"fmt"
	"github.com/snug-ml/snug/vision"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
)

func planCommand() *command {
	return &command{
		name: "plan", args: "[FOLDER]", operands: "file", summary: "predict the memory of training, and find what fits",
		help: `Predicts the memory and the time of a training step from a model's shapes, and finds
the fastest way to run it within a limit: -memory of a process on the CPU, as snug tune
keeps it, or -device-memory of a device. The batch never changes. FOLDER is a published
model or its config.json; without it, -model names the model. The plan does not need the
weights; if the folder has them, they are compared with config.json. Plans are those that
snug tune and the packages transformer and train can follow, unless -own is given.
`,
		flags:   new(planFlags).table,
		closing: planClosing,
		run:     runPlan,
	}
}

const planClosing = `The components of the memory:

  weights            what the forward pass reads
  master weights     float32 precision kept in addition to 16-bit weights
  gradients          sums over the micro-batches of a step
  optimizer state    moments and their scales
  activations        values kept for the backward pass or passed between layers
  workspace          scratch of one layer at a time
  allowance          what an allocator may lose to fragmentation

Times assume half the rates of data sheets. Use them only to compare plans.

When nothing fits, the exit status is 1, and the message says how much memory is missing
and which change costs the least time; -json lists every change that makes it fit.

  snug plan -memory 6GiB -lora 16 Qwen3-0.6B
  snug plan -model llama-2b -device-memory 24GB
  snug plan -model llama-7b -device 40GB -host-memory 64GiB -disk 1TB
  snug plan -model llama-7b -device 8GB -lora 16 -base nf4
  snug plan -model gpt2 -device-memory 6GiB -batch 512 -o gpt2.svg -report gpt2.html
  snug plan -model my.json -json

A model file is an object with exactly one of four members; unknown fields are errors:

  {"gpt": {"vocab": 32000, "dim": 768, "layers": 12, "heads": 12, "context": 1024}}
      optional: name, kv_heads, hidden, positions, and true or false: gated, rmsnorm, rotary, untied,
      bias, split_qkv
  {"vit": {"image": 224, "patch": 16, "classes": 1000, "dim": 768, "layers": 12, "heads": 12}}
      optional: name, channels, hidden
  {"cnn": {"image": 224, "classes": 1000, "blocks": [3, 4, 6, 3], "bottleneck": true}}
      optional: name, channels, width
  {"chain": {"name": "mlp", "input": 784, "layers": [
      {"name": "linear", "repeat": 4, "params": [[784, 784], [784]],
       "output": 784, "kept": 784, "forward": 784, "backward": 784, "macs": 614656}]}}
      counts are elements of one sample; "go doc github.com/snug-ml/snug/plan.Layer" explains every field
`

func deviceNames() []string {
	return namesOf(plan.Devices(), func(d plan.Device) string { return d.Name })
}

// planFlags are the command line of plan.
type planFlags struct {
	model, device         string
	memory, deviceMemory  int64
	host, disk, network   int64
	batch, context, ranks int
	adapterFlags
	longest      int        // tokens of the longest sequence that the model of a folder is made for
	stored       qlora.Type // form of the matrices of a folder
	unread       string     // the line about fields of its config.json that change nothing
	optimizer    string
	compute      []snug.DType
	masters      []amp.MasterForm
	gradients    []plan.Gradient
	stateBits    []int
	base         []string
	tiles        []int
	shard        []plan.Sharding
	latency      time.Duration
	output, page string
	own, json    bool
	images       []int        // sides of images, in pixels
	most         int          // pixels of an image
	frames       int          // of a video in place of the image, 0: none
	extra        int64        // bytes of the process beside the plan
	process      plan.Process // that trains, where -memory limits it
	flags        flagTable    // as they were parsed
}

// table returns the flags, which write into f.
func (f *planFlags) table() flagTable {
	network := &use{"several ranks", "-ranks is 1", func() bool { return f.ranks > 1 }}
	f.optimizer, f.tiles = defaultOptimizer, []int{1}
	device := &use{"a device", "-memory is of a process on the CPU: want -device-memory", func() bool { return f.memory == 0 }}
	adapters := &use{"adapters", "without -lora none train", func() bool { return f.rank > 0 }}
	return flagTable{
		textFlag("model", "NAME", &f.model, strings.Join(planModels(), ", ")+", or a file that ends in .json, see below; - reads it from standard input").completed(planModels()),
		wordFlag("device", "NAME", &f.device, deviceNames(), strings.Join(deviceNames(), ", ")+" (GPUs with that much memory); default: "+defaultDevice).only(device),
		memoryFlag(&f.memory),
		deviceMemoryFlag(&f.deviceMemory, "default: all that the device gives a program").only(device),
		sizeFlag("host-memory", &f.host, "host memory that the plan may use; default: none").only(device),
		switchFlag("own", &f.own, "plan for a program of your own on the packages of snug: it may hold gradients and all weights on the host and the disk, sum gradients in bf16, "+
			"and have master weights beside gradients that are not held. snug tune does none of this").only(device),
		sizeFlag("disk", &f.disk, "disk that the plan may use; default: none"),
		batchFlag(&f.batch, "samples of a step, over all ranks: sequences or images"),
		countFlag("context", "N", &f.context, 0, 1, math.MaxInt, "tokens in a sequence, at most as many as the model has positions for; default: the preset's, or the folder's but at most "+strconv.Itoa(usualContext)+", and with -memory "+strconv.Itoa(defaultContext)+" as in snug tune"),
		listFlag("pixels", &f.images, nil, parseSide, "with a folder of a model that sees images: also a plan for one square image of each of these sides in every sample, such as 448,1024. Its tokens come to those "+
			"of -context, and the projector trains"),
		maxPixelsFlag(&f.most).only(&use{"-pixels", "there is none", func() bool { return len(f.images) > 0 }}),
		countFlag("frames", "N", &f.frames, 0, 1, 1<<18, "with -pixels: plan for a video of this many frames of each of these sides instead of an image. The seconds that Qwen3-VL writes between frames count as text").
			only(&use{"-pixels", "there is none", func() bool { return len(f.images) > 0 }}),
		countFlag("ranks", "N", &f.ranks, 1, 1, maxBatch, "processes that make a step together, each on such a device; -batch is for all of them"),
		sizeFlag("network", &f.network, `with -ranks: bytes a second that a rank sends, as "mpiexec -n 2 snug devices" measures them; default: 10GB, with 16GB-unified 1GB`).only(network),
		durationFlag("latency", &f.latency, "with -ranks: time of a message between ranks; default: 20us, with 16GB-unified 50us").only(network),
		countFlag("lora", "RANK", &f.rank, 0, 0, maxRank, "freeze the weights, and train adapters of this rank on all matrices of the layers; default: train all weights"),
		f.kindFlag().only(adapters),
		f.doraFlag().only(adapters),
		f.dropoutFlag().only(adapters),
		wordFlag("optimizer", "NAME", &f.optimizer, plan.Optimizers(), strings.Join(plan.Optimizers(), ", ")+"; default: "+f.optimizer),
		outputFlag("FILE", &f.output, "also write an SVG chart of the bytes"),
		reportFlag(&f.page, "memory by component against its limit, the memory during a step, what is computed again and what is paged. The report of a run is not overwritten"),
		jsonFlag(&f.json),
		configFlag(),
		listFlag("compute", &f.compute, floatTypes, snug.ParseDType, "types of weights and activations; default bf16,f32; or f16").
			under("The plan chooses from these comma-separated lists. The values after \"or\" change the\narithmetic of a step more, so the plan uses them only when you name them:"),
		listFlag("masters", &f.masters, names(masterForms), named(masterForms...),
			"master weights for 16-bit weights: full (4 bytes), split (2 bytes); or split24 (1 byte: with the bf16 weight a number of 24 bits), none"),
		listFlag("gradients", &f.gradients, names(gradientForms), named(gradientForms...),
			"f32 (sums in float32), in-backward (one gradient at a time, in a single micro-batch); or folded (in-backward with several "+
				"micro-batches, whose gradients are folded into the optimizer's state), and with -own bf16 (sums in bfloat16). 16-bit weights have no master weights beside in-backward and folded: -masters none"),
		listFlag("state", &f.stateBits, []string{"32", "16", "8", "4"}, parseBits, "bits of an element of optimizer state; default 32,8; or 16,4"),
		listFlag("base", &f.base, baseForms, parseBaseName, "forms of the frozen weights below adapters: bf16 (any type of -compute), nf4 or fp4 (4.13 bits with their scales), "+
			"mxfp4 (4.25), fp8 or int8 (8 and scales); at most one below 16 bits; default bf16,nf4. Matrices that are quantized in a folder "+
			"keep their form, and its others stay in floats, unless you name the folder's form; another one decodes them").only(adapters),
		listFlag("shard", &f.shard, names(shardings), named(shardings...), "what the ranks divide: "+shardHelp+"; default: what the optimizer allows"),
		tilesFlag("LIST", &f.tiles, "numbers of tiles of rows in which the MLPs of a published model run; default 1; or more, such as 4 or 1,2,8; auto: 1,2,4,8,16,32"),
	}
}

// masterForms are the values of -masters, gradientForms those of -gradients, and shardings those of -shard.
var (
	masterForms   = []amp.MasterForm{amp.FullMaster, amp.SplitMaster, amp.Split24Master, amp.NoMaster}
	gradientForms = []plan.Gradient{plan.SumF32, plan.SumBF16, plan.InBackward, plan.Folded}
	shardings     = []plan.Sharding{plan.Replicate, plan.ShardState, plan.ShardGradients, plan.ShardWeights}
)

// names returns the names of values.
func names[T fmt.Stringer](values []T) []string { return namesOf(values, T.String) }

func parseSide(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > vision.DefaultSide {
		return 0, fmt.Errorf("want pixels from 1 to %d", vision.DefaultSide)
	}
	return n, nil
}

func parseBits(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("want some of 32,16,8,4")
	}
	return n, nil
}

func parseBaseName(name string) (string, error) {
	if !slices.Contains(baseForms, name) {
		return "", fmt.Errorf("want some of %s", strings.Join(baseForms, ","))
	}
	return name, nil
}

// choices gives a task the lists of choices.
func (f *planFlags) choices(t *plan.Task) (err error) {
	t.Compute, t.Masters, t.Gradients, t.StateBits, t.Shard, t.Tiles = f.compute, f.masters, f.gradients, f.stateBits, f.shard, f.tiles
	if err := f.adapterFlags.check(); err != nil {
		return usagef("plan: %w", err)
	}
	f.describe(t)
	forms, err := f.frozenForms()
	for _, form := range forms {
		bits := 16
		if form != 0 {
			if t.Base != 0 && t.Base != form {
				return usagef("plan: -base %.60q: want at most one form below 16 bits", strings.Join(f.base, ","))
			}
			t.Base, bits = form, plan.BitsOf(form)
		}
		t.Frozen = append(t.Frozen, bits)
	}
	return err
}

// frozenForms returns the forms of the frozen weights that a plan may choose, 0 for 16 bits.
func (f *planFlags) frozenForms() (forms []qlora.Type, err error) {
	base := strings.Join(f.base, ",")
	if wants := f.kind().base; wants != "" {
		if base != "" && base != wants {
			return nil, usagef("plan: -base %s: -adapter %s begins with what %s loses: want -base %s", base, f.kind().name, wants, wants)
		}
		base = wants
	}
	if f.stored != 0 && f.rank > 0 {
		if f.kind().init != "" {
			return nil, usagef("plan: -adapter %s begins with a part of the matrices before they are quantized, and the folder has them in %s", f.kind().name, f.stored)
		}
		return []qlora.Type{f.stored}, nil
	}
	if base == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(base, ",") {
		form, _ := parseBase(name) // 0 for bf16
		if form == qlora.FP4 {     // which is NF4 for a plan
			form = qlora.NF4
		}
		forms = append(forms, form)
	}
	return forms, nil
}
