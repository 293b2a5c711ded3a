package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/plan"
)

func tuneCommand() *command {
	return &command{
		name: "tune", summary: "fine-tune a published model under a memory limit",
		flags: []string{"-model:file", "-data:file", "-format:" + strings.Join(formNames(), " "), "-map", "-show", "-o:file", "-device", "-memory", "-disk", "-lora", "-adapter:" + strings.Join(adapterKinds, " "), "-alpha", "-rslora", "-dora", "-dropout",
			"-loraplus-ratio", "-modules-to-save", "-full", "-fold", "-mezo", "-masters:full split split24 none", "-report-rounding", "-optimizer:" + strings.Join(tuneOptimizers, " "), "-base:bf16 nf4 fp4 mxfp4 fp8 int8", "-compute:bf16 f16 f32",
			"-context", "-batch", "-tiles:auto", "-steps", "-epochs", "-lr", "-dpo", "-teacher:file", "-teacher-base:bf16 nf4 fp4 mxfp4 fp8 int8", "-distill-weight", "-distill-temperature", "-label-smoothing", "-z-loss", "-seed", "-held-out", "-eval-every", "-shard:replicate state gradients weights", "-checkpoint:file", "-save-every", "-trace:file", "-report:file", "-copy-links", "-dry-run", "-json"},
		help: strings.Replace(tuneHelp, formsMark, formsHelp(), 1),
		run:  runTune,
	}
}

const tuneHelp = `Fine-tunes a published model, without Python, in one process or in several that mpiexec starts
(ranks). It writes a LoRA adapter that PEFT loads, or with -full a model that transformers loads.
It first finds what fits in -memory: micro-batches, recomputation, the form of frozen weights and the
precision of the optimizer's state. It prints the memory that the run will take, by component, and
at the end what it took.

  -model DIR         folder with config.json, model.safetensors or shards, and a tokenizer
  -data PATH         JSON (.jsonl, .ndjson, .json: lines or one array), CSV (.csv, .tsv), Parquet, text
                     (.txt, .md, source code), or a folder of them; several with commas, or patterns
                     with * and ?. gzip and zstd are known by their first bytes. A pipe, such as
                     /dev/stdin or <(command), is JSON or text. Of a folder the files of one kind are
                     read: Parquet, or else JSON, CSV or text; not hidden ones, READMEs, licenses, or,
                     beside files for training, those for tests. Tokens beyond 4 MiB go to a temporary
                     file in $TMPDIR, or if that is not set in /var/tmp.
                     A row is read by its fields, see -format. It says how each file was read, which
                     fields are ignored, and what of it is not learned
  -format NAME       form of the rows: auto (default), or one of
FORMS
                     With a name, fields of other forms are ignored
  -map LIST          read fields under other names: name=field, with commas, such as
                     question=frage,answer=antwort. name= leaves a field out
  -show N            print the first N samples with what is learned between ⟦ and ⟧, and exit. It needs
                     no -o; with -report it writes a page of them
  -o DIR             folder to write the adapter or the model to: new, empty, or left by a killed run
  -device NAME       where the model is and computes: cpu (default), or cuda:0, hip:0 or metal:0 in a
                     program built with that tag. Not with -disk, -fold, -adapter vera, ranks, or
                     optimizers other than adamw and schedule-free
  -memory SIZE       limit of the process's resident memory, such as 6GiB; default: none. With -device
                     the limit of what is counted on the device; default: what is free there
  -disk SIZE         disk space for pages of weights, optimizer state, or activations from which others
                     are computed again. They lie in the folder DIR.pages, with the DIR of -o, which is
                     removed at the end; default: none
  -lora RANK         rank of the adapters on all matrices of the layers; default 16, with vera 256
  -adapter KIND      kind of the adapters: lora (default); dora, which also trains the magnitude of each
                     row of the matrices; pissa or olora, which begin with a part of each matrix (use
                     the adapter with the published weights; with -base nf4 it leaves out what 4 bits
                     lost of the rest of them); loftq, which begins with what 4 bits lose (-base nf4);
                     lora-fa, which trains only the second matrix (B) of each adapter; vera, which trains
                     two vectors for each matrix, beside random matrices that all adapters share
  -alpha N           the adapters' products are scaled by N/rank; default: 2·rank
  -rslora            scale them by N/√rank instead
  -dora              the same as -adapter dora
  -dropout P         probability to drop an element of an adapter's input; default 0
  -loraplus-ratio R  the second matrix (B) of each adapter learns at R times the rate (LoRA+), such as 16
  -modules-to-save LIST
                     also train all weights of these modules (embeddings, the head, norms), given by the
                     ends of their names, with commas, as in PEFT; such as embed_tokens,lm_head
  -full              train all weights instead
  -fold              with -full: hold about one gradient at a time. Each enters the optimizer's state at
                     once, so a step differs from one with the mean of the micro-batches' gradients.
                     Weights in bf16 are rounded stochastically. Not with f16. bf16 with adamw does this
                     without -fold too where nothing else fits
  -masters FORM      with -full or -modules-to-save, and bf16: master weights, which keep the small updates
                     that bf16 would lose. full: a float32. split: 2 bytes, which together with the
                     weight are a float32. split24: 1 byte, which together with the weight is 24 bits,
                     rounded stochastically. none: the weight itself is rounded stochastically. Default:
                     full or split, whichever fits; with -full, split24 if neither fits
  -report-rounding   say at the end which share of the updates rounding lost, in which parameters, and what
                     would help; the steps take a little longer
  -mezo              compute no gradients (MeZO): a step is two forward passes and takes no more memory than
                     evaluation. The rate is constant. Training takes many more steps
  -optimizer NAME    adamw (default). schedule-free: its rate stays constant after its warmup, and an average
                     of the weights is saved; not with -fold. prodigy: it finds the rate, and -lr is a
                     factor of it; not with -fold or -disk. With -full also apollo, apollo-mini, galore
                     or adam-mini, whose state is smaller, and soap, whose state is larger and whose steps
                     take longer, the first one as long as several; not with -disk or -fold, and not with
                     adapters, which are low rank already
  -base FORM         form of the frozen matrices: bf16, nf4, fp4, mxfp4, fp8 or int8; default: bf16 if that
                     fits, else nf4. Matrices that are quantized in the folder keep their form. The others,
                     such as the attention of gpt-oss, have the type of -compute, or are quantized too if
                     FORM is the folder's own
  -compute TYPE      type of weights and activations: bf16 (default), f16 or f32
  -context N         maximum tokens of a sample; longer ones are cut; default: 1024, or less if no
                     sample is longer
  -batch N           samples of a step, over all ranks; default 8
  -tiles N           for long samples: run the MLPs in N tiles of a micro-batch's tokens, one after the
                     other, so that they hold the activations of one tile. At most tokens/2048 tiles,
                     rounded up. auto: the fastest number that fits. Sums over tokens are rounded
                     differently; default 1
  -steps N           steps; default: those of -epochs
  -epochs N          times that each sample is trained on; default 1
  -lr RATE           learning rate at its peak, after the warmup and before the cosine decay;
                     default 2e-4, with -full 1e-5, or 1e-4 with -optimizer apollo, apollo-mini or galore;
                     with schedule-free 2.5 times the default of adamw; with prodigy 1. With -mezo the
                     rate is constant, by default 1e-4, with -full 1e-6
  -dpo BETA          learn preferences by Direct Preference Optimization, with a BETA such as 0.1. A line
                     has "chosen" and "rejected", both strings or both lists of messages, and "prompt" or
                     what stands for it, see -format; without it, what both answers begin with is the
                     prompt. A sample is a pair of answers; -context limits each answer with its prompt.
                     The reference is the model before the first step, with the adapters' first values.
                     The default of -lr is 1e-5, with -full 1e-6
  -teacher DIR       also learn from the predictions of a second model with the same tokens: the loss of
                     each token is (1-W)·cross-entropy + W·T²·KL(teacher ‖ model), with the W and T of
                     -distill-weight and -distill-temperature. The teacher does not train
  -teacher-base FORM form of the teacher's matrices: bf16, nf4, fp4, mxfp4, fp8 or int8; default: as the
                     folder has them, those in floats in the type of -compute
  -distill-weight W  weight of the divergence, above 0 and up to 1; default 0.5
  -distill-temperature T
                     divides the logits of both models in the divergence; 0.01 to 1000, default 1
  -label-smoothing S the target has the probability 1-S, and all tokens share S equally; 0 to 1, default 0.
                     With -dpo: the assumed share of pairs whose answers are exchanged, below 0.5
                     (conservative DPO)
  -z-loss F          add F times the square of the logarithm of the softmax's denominator to the loss of
                     each token; 0 to 1000000, such as 1e-4, default 0. The losses of steps include this
                     term and label smoothing, the loss on held-out samples neither
  -seed N            seed of the order of samples, the adapters' initial values and dropout; default 1
  -held-out SHARE    share of the samples that are not trained on, to measure the loss; default 0.02
  -eval-every N      measure that loss also every N steps; default 0: only before and after the run
  -shard WHAT        what the ranks of mpiexec divide: replicate (nothing); state (of the optimizer, and
                     master weights, ZeRO-1); gradients (state and gradients, ZeRO-2); weights (the
                     model's matrices too, ZeRO-3; under adapters all gradients stay on each rank);
                     default: the fastest that fits. Only with adamw
  -checkpoint DIR    folder of checkpoints; the same command resumes the newest, also with another
                     -memory. SIGINT, SIGTERM and SIGHUP let the current step end, and save it
  -save-every N      steps between checkpoints; default 100
  -trace FILE        also record what holds memory, by component, layer and step, and print a table of the
                     holders at the peak. FILE.json is for ui.perfetto.dev or chrome://tracing; FILE.svg
                     is a picture. FILE is written at the end, even if the run fails or is interrupted.
                     The record takes 4 MiB
  -report FILE.html  also write a page with pictures: loss, speed and memory over the steps, memory by
                     component against its limit, predicted and measured, the memory during a step, what
                     is computed again and what is paged. The run writes FILE again every few seconds, and
                     at the end, even if it fails or is interrupted. A resumed run keeps the steps in FILE.
                     A file that is not a report is not overwritten. With -dry-run FILE has what is
                     predicted, and must not be the report of a run. A report takes up to 4 MiB of memory
  -copy-links        with -full: copy also files of the tokenizer that are links out of the folder of the
                     model into -o
  -dry-run           print the plan and exit
  -json              also print the results, or with -dry-run the plan, as a line of JSON at the end. A run
                     that fails in training prints it too; "state" is done, stopped (by a signal), diverged
                     or failed

  snug tune -model Qwen3-0.6B -data chats.jsonl -memory 4GiB -o tuned
  snug tune -model Qwen3-0.6B -data text/ -full -memory 6GiB -epochs 2 -o model
  snug tune -model Qwen3-0.6B -teacher Qwen3-4B -teacher-base nf4 -data text/ -memory 8GiB -o taught
  snug tune -model tuned-model -data pairs.jsonl -dpo 0.1 -o preferred
`

// tuneFlags are the command line of tune.
type tuneFlags struct {
	dir, files, output string
	dataFlags
	device               string
	memoryText, diskText string
	memory, disk         int64
	rank                 int
	alpha, dropout       float64
	rslora               bool
	adapterFlags
	loraplus         float64
	modules          string
	full, fold, mezo bool
	masters          string
	rounding         bool
	optimizer        string
	form, compute    string
	most, batch      int
	tilesText        string
	tiles            []int // numbers of tiles that the plan may choose
	steps, epochs    int
	rate, held       float64
	smoothing, zLoss float64
	beta             float64 // of -dpo, 0 without it
	teacher          teacherFlags
	seed             uint64
	shard            string
	sharding         plan.Sharding
	checkpoint       string
	saveEvery        int
	evalEvery        int
	trace, page      string
	copyLinks        bool
	dryRun, json     bool
	dtype            snug.DType
	reading          func(path string, read, of int64) // shows how far a file is read, may be nil
	set              *flag.FlagSet                     // the parsed flags
}

func (f *tuneFlags) define(fs *flag.FlagSet) {
	f.set = fs
	fs.StringVar(&f.dir, "model", "", "")
	fs.StringVar(&f.files, "data", "", "")
	fs.StringVar(&f.format, "format", "auto", "")
	fs.StringVar(&f.maps, "map", "", "")
	fs.IntVar(&f.show, "show", 0, "")
	fs.StringVar(&f.output, "o", "", "")
	fs.StringVar(&f.device, "device", "", "")
	fs.StringVar(&f.memoryText, "memory", "", "")
	fs.StringVar(&f.diskText, "disk", "", "")
	fs.IntVar(&f.rank, "lora", 16, "")
	fs.Float64Var(&f.alpha, "alpha", 0, "")
	fs.Float64Var(&f.dropout, "dropout", 0, "")
	fs.BoolVar(&f.rslora, "rslora", false, "")
	fs.StringVar(&f.kind, "adapter", "", "")
	fs.BoolVar(&f.dora, "dora", false, "")
	fs.Float64Var(&f.loraplus, "loraplus-ratio", 0, "")
	fs.StringVar(&f.modules, "modules-to-save", "", "")
	fs.BoolVar(&f.full, "full", false, "")
	fs.BoolVar(&f.fold, "fold", false, "")
	fs.StringVar(&f.masters, "masters", "", "")
	fs.BoolVar(&f.rounding, "report-rounding", false, "")
	fs.BoolVar(&f.mezo, "mezo", false, "")
	fs.StringVar(&f.optimizer, "optimizer", tuneOptimizers[0], "")
	fs.StringVar(&f.form, "base", "", "")
	fs.StringVar(&f.compute, "compute", "bf16", "")
	fs.IntVar(&f.most, "context", 0, "")
	fs.IntVar(&f.batch, "batch", 8, "")
	fs.StringVar(&f.tilesText, "tiles", "1", "")
	fs.IntVar(&f.steps, "steps", 0, "")
	fs.IntVar(&f.epochs, "epochs", 0, "")
	fs.Float64Var(&f.rate, "lr", 0, "")
	fs.Float64Var(&f.smoothing, "label-smoothing", 0, "")
	fs.Float64Var(&f.zLoss, "z-loss", 0, "")
	fs.Float64Var(&f.beta, "dpo", 0, "")
	fs.StringVar(&f.teacher.dir, "teacher", "", "")
	fs.StringVar(&f.teacher.base, "teacher-base", "", "")
	fs.Float64Var(&f.teacher.share, "distill-weight", defaultShare, "")
	fs.Float64Var(&f.teacher.temperature, "distill-temperature", defaultTemperature, "")
	fs.Float64Var(&f.held, "held-out", 0.02, "")
	fs.IntVar(&f.evalEvery, "eval-every", 0, "")
	fs.Uint64Var(&f.seed, "seed", 1, "")
	fs.StringVar(&f.shard, "shard", "", "")
	fs.StringVar(&f.checkpoint, "checkpoint", "", "")
	fs.IntVar(&f.saveEvery, "save-every", 100, "")
	fs.StringVar(&f.trace, "trace", "", "")
	fs.StringVar(&f.page, "report", "", "")
	fs.BoolVar(&f.copyLinks, "copy-links", false, "")
	fs.BoolVar(&f.dryRun, "dry-run", false, "")
	fs.BoolVar(&f.json, "json", false, "")
}

// given reports whether the command line has a flag, even with its default value.
func (f *tuneFlags) given(name string) (is bool) {
	if f.set != nil {
		f.set.Visit(func(g *flag.Flag) { is = is || g.Name == name })
	}
	return is
}

// Limits of package plan.
const (
	maxRank  = 1 << 16
	maxBatch = 1 << 24
)

// check checks the flags, parses sizes and types, and sets the defaults that depend on other flags.
func (f *tuneFlags) check() (err error) {
	for _, s := range []struct {
		flag, text string
		to         *int64
	}{{"memory", f.memoryText, &f.memory}, {"disk", f.diskText, &f.disk}} {
		if s.text == "" {
			continue
		}
		if *s.to, err = plan.ParseBytes(s.text); err != nil {
			return usagef("tune: -%s: %w", s.flag, err)
		}
	}
	if f.tiles, err = parseTiles(cmp.Or(f.tilesText, "1")); err != nil {
		return usagef("tune: -tiles: %w", err)
	}
	if f.dtype, err = snug.ParseDType(f.compute); err != nil || !f.dtype.IsFloat() {
		return usagef("tune: -compute %.40q: want bf16, f16 or f32", f.compute)
	}
	if f.shard != "" {
		if f.sharding, err = parseSharding(f.shard); err != nil {
			return usagef("tune: -shard: %w", err)
		}
	}
	f.optimizer = cmp.Or(f.optimizer, tuneOptimizers[0])
	_, baseErr := parseBase(f.form)
	given := f.kind != "" || f.dora || f.given("loraplus-ratio") || f.modules != "" // flags that are only for adapters
	if err := f.adapterFlags.check(); err != nil {
		return usagef("tune: %w", err)
	}
	for _, c := range []struct {
		bad  bool
		what string
	}{
		{f.dir == "", "want -model: a folder as Hugging Face publishes it"},
		{f.files == "", "want -data: files of JSON, CSV, Parquet or text, or folders of them"},
		{f.files != "" && slices.Contains(strings.Split(f.files, ","), ""), fmt.Sprintf("-data %s: one of the names is empty", f.files)},
		{f.dataFlags.check(f.beta > 0, f.given("show")) != "", f.dataFlags.check(f.beta > 0, f.given("show"))},
		{f.output == "" && !f.dryRun && f.show == 0, "want -o: the folder to write, or -dry-run"},
		{f.full && f.form != "", "-base is the form of frozen weights, and -full freezes none"},
		{f.full && (given || f.given("lora") || f.given("alpha") || f.rslora || f.dropout != 0), "-lora, -adapter, -alpha, -rslora, -dora, -dropout, -loraplus-ratio and -modules-to-save are for adapters, and -full trains none"},
		{f.kind == "loftq" && f.form != "" && f.form != "nf4", fmt.Sprintf("-adapter loftq begins with what NF4 loses: want -base nf4, not %s", f.form)},
		{f.kind == vera && (f.given("alpha") || f.rslora), "-alpha and -rslora scale products, and -adapter vera trains its scales"},
		{f.kind == vera && f.given("loraplus-ratio"), "-loraplus-ratio is the rate of an adapter's second matrix, which -adapter vera does not train"},
		{f.kind == "lora-fa" && f.given("loraplus-ratio"), "-loraplus-ratio is the rate of an adapter's second matrix over that of its first, which -adapter lora-fa freezes"},
		{f.given("loraplus-ratio") && !(f.loraplus > 0 && f.loraplus <= 1e6), fmt.Sprintf("-loraplus-ratio %v: want a number above 0, up to 1000000", f.loraplus)},
		{f.copyLinks && !f.full, "-copy-links is for -full: an adapter has no copies of the model's files"},
		{f.fold && !f.full, "-fold is for -full: gradients of adapters are small"},
		{f.fold && f.compute == "f16", "-fold does not go with f16, whose loss scale needs all gradients of a step"},
		{f.checkMasters() != "", f.checkMasters()},
		{f.checkOptimizer() != "", f.checkOptimizer()},
		{f.mezo && f.given("optimizer"), "-mezo is an optimizer by itself: leave -optimizer"},
		{f.mezo && f.fold, "-fold does not go with -mezo, which has no gradients to fold"},
		{f.mezo && f.dropout != 0, "-dropout does not go with -mezo, whose forward passes are those of evaluation"},
		{f.mezo && (f.given("dpo") || f.teacher.dir != ""), "-dpo and -teacher do not go with -mezo, whose losses are those of evaluation"},
		{f.mezo && (f.masters != "" || f.rounding), "-masters and -report-rounding do not go with -mezo, which has no master weights and counts no updates"},
		{f.mezo && (f.smoothing != 0 || f.zLoss != 0), "-label-smoothing and -z-loss do not go with -mezo, whose losses are those of evaluation"},
		{f.sharding != plan.Replicate && (f.optimizer != tuneOptimizers[0] || f.rounding), "-shard " + f.shard + " divides parameters, and is for -optimizer adamw without -report-rounding"},
		{f.sharding == plan.ShardWeights && !f.dividesWeights(), "-shard weights wants as many passes on all ranks, and does not go with -dpo and -teacher"},
		{!(f.dropout >= 0 && f.dropout < 1), fmt.Sprintf("-dropout %v: want 0 or more and less than 1", f.dropout)},
		{f.rank < 1 || f.rank > maxRank, fmt.Sprintf("-lora %d: want 1 to %d", f.rank, maxRank)},
		{f.form != "" && f.form != "bf16" && baseErr != nil, fmt.Sprintf("-base %.40q: want bf16, %s", f.form, baseNames)},
		{f.most < 0 || f.most == 0 && f.given("context") || f.most > dataset.MaxContext, fmt.Sprintf("-context %d: want 1 to %d", f.most, dataset.MaxContext)},
		{f.batch < 1 || f.batch > maxBatch, fmt.Sprintf("-batch %d: want 1 to %d", f.batch, maxBatch)},
		{f.steps < 0 || f.steps > checkpoint.MaxStep || f.steps == 0 && f.given("steps"), fmt.Sprintf("-steps %d: want 1 to %d", f.steps, checkpoint.MaxStep)},
		{f.epochs < 0 || f.epochs == 0 && f.given("epochs") || f.epochs > checkpoint.MaxStep, fmt.Sprintf("-epochs %d: want 1 to %d", f.epochs, checkpoint.MaxStep)},
		{f.steps > 0 && f.epochs > 0, "-steps and -epochs both say how long to train, want one"},
		{!(f.rate >= 0 && f.rate < 1e3) || f.rate == 0 && f.given("lr"), fmt.Sprintf("-lr %v: want a rate above 0 and below 1000", f.rate)},
		{!(f.alpha >= 0 && f.alpha < 1e6) || f.alpha == 0 && f.given("alpha"), fmt.Sprintf("-alpha %v: want a number above 0 and below 1000000", f.alpha)},
		{!(f.smoothing >= 0 && f.smoothing <= 1), fmt.Sprintf("-label-smoothing %v: want 0 to 1", f.smoothing)},
		{!(f.zLoss >= 0 && f.zLoss <= 1e6) || f.zLoss > 0 && f.zLoss < 1e-30, fmt.Sprintf("-z-loss %v: want 0, or 1e-30 to 1000000", f.zLoss)},
		{f.checkPreferences() != "", f.checkPreferences()},
		{f.checkTeacher() != "", f.checkTeacher()},
		{!(f.held >= 0 && f.held <= 0.5), fmt.Sprintf("-held-out %v: want 0 to 0.5", f.held)},
		{f.evalEvery < 0, fmt.Sprintf("-eval-every %d: want a number of steps, or 0", f.evalEvery)},
		{f.evalEvery > 0 && f.held == 0, "-eval-every measures the loss on samples that -held-out 0 does not hold out"},
		{f.checkpoint == "" && f.given("save-every"), "-save-every is for -checkpoint, which is not there"},
		{f.saveEvery < 1, fmt.Sprintf("-save-every %d: want 1 or more", f.saveEvery)},
	} {
		if c.bad {
			return usagef("tune: %s", c.what)
		}
	}
	if err := f.unfitting(); err != nil {
		return err
	}
	if f.rate == 0 {
		f.rate = f.defaultRate()
	}
	if f.alpha == 0 {
		f.alpha = 2 * float64(f.rank)
	}
	if f.full {
		f.rank = 0
	}
	switch {
	case f.kind == "loftq":
		f.form = "nf4"
	case f.kind == vera && !f.given("lora"):
		f.rank = defaultVeRARank
	}
	if err := wantFolder("tune", f.dir); err != nil {
		return err
	}
	if f.full {
		if err := checkCompanions(f.dir, f.copyLinks); err != nil {
			return usagef("tune: %w", err)
		}
	}
	if err := f.checkOutput(); err != nil {
		return err
	}
	if err := f.checkTrace(); err != nil {
		return err
	}
	return f.checkReport()
}

// checkReport returns an error unless the file of -report can be written.
func (f *tuneFlags) checkReport() error {
	if err := f.checkFile("report", f.page, ".html"); err != nil || f.page == "" {
		return err
	}
	if err := checkReport(f.page, f.dryRun || f.show > 0); err != nil {
		return usagef("tune: -report: %w", err)
	}
	return nil
}

// manyTiles are the numbers of tiles from which a plan chooses.
var manyTiles = []int{1, 2, 4, 8, 16, 32}

// parseTiles returns the numbers of tiles that a plan may choose from.
func parseTiles(text string) ([]int, error) {
	if text == "auto" {
		return manyTiles, nil
	}
	n, err := parseTile(text)
	return []int{n}, err
}

func parseTile(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxBatch {
		return 0, fmt.Errorf("%.40q, want 1 to %d, or auto", text, maxBatch)
	}
	return n, nil
}

// checkOutput returns an error if the run would overwrite files.
func (f *tuneFlags) checkOutput() error {
	if f.dryRun || f.show > 0 {
		return nil
	}
	if err := emptyFolder(f.output); err != nil {
		return usagef("tune: -o: %w", err)
	}
	if f.checkpoint != "" && within(f.checkpoint, f.output) {
		return usagef("tune: -checkpoint %s is in -o, which would not be empty when the run goes on", f.checkpoint)
	}
	return nil
}

// within reports whether a path is a folder or lies in it.
func within(path, folder string) bool {
	path, folder = resolved(path), resolved(folder)
	inner, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(inner)
}

// resolved returns an absolute path, with links resolved in the part that exists.
func resolved(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolved(parent), filepath.Base(path))
	}
	return path
}

func runTune(c *call) error {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	t, err := newTuning(c)
	if err != nil {
		return leaveRanks(err)
	}
	if t.show > 0 {
		err = t.showOnRanks()
	} else {
		err = t.runOnRanks()
	}
	return errors.Join(err, t.data.Close())
}

// newTuning reads the flags, and what the files hold.
func newTuning(c *call) (*tuning, error) {
	var f tuneFlags
	if _, err := c.parse(f.define, 0, 0); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	shown, done := showReading(c.stderr)
	f.reading = shown
	m, err := f.gather()
	done()
	if err != nil {
		return nil, usageError{err}
	}
	fmt.Fprint(c.stderr, unreadFields(m.config))
	t := &tuning{tuneFlags: f, material: m, call: c}
	if n := t.stepCount(); n > checkpoint.MaxStep {
		return nil, errors.Join(usagef("tune: -epochs %d are %d steps, want at most %d", f.epochs, n, checkpoint.MaxStep), t.data.Close())
	}
	return t, nil
}
