// Code generated from docs by "rm docs_program_test.go; UPDATE=1 go test -run TestSamplesAreTheDocs ."; DO NOT EDIT.

package snug_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
	"github.com/snug-ml/snug/vision/segment"
)

var _ = []func(sample){
	sample.frompytorch0,
	sample.frompytorch1,
	sample.frompytorch2,
	sample.frompytorch3,
	sample.frompytorch4,
	sample.frompytorch5,
	sample.frompytorch6,
	sample.frompytorch7,
	sample.frompytorch8,
	sample.frompytorch9,
	sample.frompytorch10,
	sample.frompytorch11,
	sample.frompytorch12,
	sample.frompytorch13,
	sample.frompytorch14,
	sample.images1,
	sample.images3,
	sample.images4,
	sample.images6,
}

func (s sample) frompytorch0() {
	steps, ctx, tokens := s.steps, s.ctx, s.tokens

	tok, err := tokenizer.Open("Qwen3-0.6B") // AutoTokenizer.from_pretrained
	check(err)
	m, err := transformer.Open("Qwen3-0.6B", transformer.Options{ // AutoModelForCausalLM.from_pretrained
		DType: snug.BF16, Base: qlora.NF4, // BitsAndBytesConfig: quantized while it is read
		Adapter: &qlora.AdapterOptions{Rank: 16, Alpha: 32}, // get_peft_model(LoraConfig(target_modules="all-linear"))
	})
	check(err)
	trainer, err := train.New(m, train.Options{ // Trainer(TrainingArguments)
		StateBits: 8, Clip: 1, Schedule: train.Cosine(2e-4, 100, steps), Checkpoints: train.Checkpoints{Dir: "run", SaveEvery: 100},
	})
	check(err)
	for trainer.Step() < steps {
		ids, err := tok.Encode("text of this step", tokenizer.EncodeOptions{})
		check(err)
		last := len(ids) - 1 // shifts the labels by one: label i is the token after token i
		report, err := trainer.Train(ctx, []transformer.Batch{{Tokens: ids[:last], Labels: ids[1:]}})
		check(err)
		fmt.Println(report.Step, report.Loss)
	}
	check(m.SaveAdapter("tuned")) // PeftModel.save_pretrained

	g, err := m.Generate(transformer.GenerateOptions{Context: 512, Sampling: transformer.Sampling{Temperature: 0.7, TopP: 0.9}})
	check(err)
	check(g.Prompt(ctx, tokens))
	stream := tok.Stream(tokenizer.DecodeOptions{SkipSpecial: true}) // a character may be several tokens
	for range 512 - len(tokens) {
		token, err := g.Next(ctx)
		check(err)
		if g.Ends(token) {
			break
		}
		fmt.Print(stream.Next(token))
	}
	fmt.Println(stream.Flush())

	_, _, _, _, _, _, _, _, _ = ctx, err, g, m, steps, stream, tok, tokens, trainer
}

func (s sample) frompytorch1() {
	rows, in, out, h, x, y, w, gamma, dx, dh, dy, rstd, dw, dgamma, ws := s.rows, s.in, s.out, s.h, s.x, s.y, s.w, s.gamma, s.dx, s.dh, s.dy, s.rstd, s.dw, s.dgamma, s.ws

	// forward
	check(fused.RMSNorm(h, rstd, x, gamma, 1e-5)) // keeps rstd: 4 bytes a row
	check(amp.MatMul(y, h, w, amp.MatMulOptions{M: rows, N: out, K: in, TransB: true}))
	// backward, from dy
	check(amp.MatMul(dw, dy, h, amp.MatMulOptions{M: out, N: in, K: rows, TransA: true}))
	check(amp.MatMul(dh, dy, w, amp.MatMulOptions{M: rows, N: in, K: out}))
	check(fused.RMSNormBackward(dx, dgamma, dh, x, rstd, gamma, fused.GradsInto{}, ws))

	_, _, _, _, _, _, _, _, _, _, _, _, _, _, _ = dgamma, dh, dw, dx, dy, gamma, h, in, out, rows, rstd, w, ws, x, y
}

func (s sample) frompytorch2() {
	rows, in, out, targets, scale, h, x, y, w, gamma, dx, dh, dy, table, rstd, ws, logits, labels, tokens, window, head := s.rows, s.in, s.out, s.targets, s.scale, s.h, s.x, s.y, s.w, s.gamma, s.dx, s.dh, s.dy, s.table, s.rstd, s.ws, s.logits, s.labels, s.tokens, s.window, s.head

	into := func(name string) ([]float32, snug.Into) {
		acc, by, err := window.Into(name)
		check(err)
		return acc.Float32s(), by
	}
	check(window.Begin(targets)) // how many labels are not negative
	dtable, by := into("table")
	_, err := fused.CrossEntropyBackward(head, dy, dtable, y, table, labels, scale/float32(targets), by, logits)
	check(err)
	dw, by := into("w")
	check(amp.MatMul(dw, dy, h, amp.MatMulOptions{M: out, N: in, K: rows, TransA: true, Into: by}))
	check(amp.MatMul(dh, dy, w, amp.MatMulOptions{M: rows, N: in, K: out}))
	dgamma, by := into("gamma")
	check(fused.RMSNormBackward(dx, dgamma, dh, x, rstd, gamma, fused.GradsInto{Params: by}, ws))
	dtable, by = into("table") // by.Beta is 1 now
	check(fused.EmbeddingBackward(dtable, dx, tokens, in, by))
	full, err := window.End()
	check(err)

	_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _ = by, dgamma, dh, dtable, dw, dx, dy, err, full, gamma, h, head, in, into, labels, logits, out, rows, rstd, scale, table, targets, tokens, w, window, ws, x, y
}

func (s sample) frompytorch3() {
	steps, clip, backward, step, window, opt := s.steps, s.clip, s.backward, s.step, s.window, s.opt

	scaler, err := amp.NewScaler(amp.ScalerOptions{}) // GradScaler()
	check(err)
	for range steps {
		check(backward(scaler.Scale()))                           // scaler.scale(loss).backward(), until the window is full
		stats, err := scaler.Unscale("adamw", window.Gradients()) // scaler.unscale_(optimizer)
		check(err)
		clip := amp.ClipCoef(stats.Norm, 1) // clip_grad_norm_(parameters, 1.0)
		stepped, err := scaler.Step("adamw", nil, func() error {
			opt.Advance(3e-4) // within Step: a step that is skipped does not count
			return step(clip)
		})
		check(err)
		check(scaler.Update())
		if stepped {
			window.Reset() // zero_grad()
		} else {
			window.Skip() // as Reset, and counted
		}
	}

	_, _, _, _, _, _, _, _ = backward, clip, err, opt, scaler, step, steps, window
}

func (s sample) frompytorch4() {
	clip, window, master, opt, weights := s.clip, s.window, s.master, s.opt, s.weights

	step := func(clip float32) error {
		for name, grad := range window.Gradients() {
			if err := master.Update(name, weights[name], func(lo int, chunk snug.View) error {
				g, err := grad.Slice(lo, lo+chunk.Len())
				if err != nil {
					return err
				}
				return opt.StepRange(name, lo, chunk, g, clip)
			}); err != nil {
				return err
			}
		}
		return nil
	}

	_, _, _, _, _, _ = clip, master, opt, step, weights, window
}

func (s sample) frompytorch5() {
	low, w32 := s.low, s.w32

	policy, err := amp.ParsePolicy("params=f32,compute=bf16,output=f32")
	check(err)
	dtype, err := amp.CPUOps().Type("linear", policy.Compute, snug.F32, snug.F32) // snug.BF16
	check(err)
	check(amp.Cast(low, w32)) // once a step: low has the type dtype

	_, _, _, _, _ = dtype, err, low, policy, w32
}

func (s sample) frompytorch6() {
	targets, dw, params, rank := s.targets, s.dw, s.params, s.rank

	window, err := accum.New(params, accum.Options{Schedule: accum.Constant(8), Reducer: rank})
	check(err)
	for full := false; !full; {
		check(window.Begin(targets))            // the number of target tokens in this micro-batch
		check(window.Add("w", snug.ViewOf(dw))) // a mean over those tokens
		full, err = window.End()
		check(err)
	}

	_, _, _, _, _, _ = dw, err, params, rank, targets, window
}

func (s sample) frompytorch7() {
	ctx, x0, loss, chain := s.ctx, s.x0, s.loss, s.chain

	costs, err := chain.MeasureCosts(ctx, x0, loss, 5) // bytes and seconds of each stage
	check(err)
	plan, predicted, err := remat.Planner{}.Plan(costs, 1<<30)
	check(err)
	dx0, measured, err := chain.Run(ctx, plan, x0, loss) // measured.Peak == predicted.Peak, if the stages keep what they declare
	check(err)

	_, _, _, _, _, _, _, _, _, _ = chain, costs, ctx, dx0, err, loss, measured, plan, predicted, x0
}

func (s sample) frompytorch8() {
	steps, clip, dw, w32 := s.steps, s.clip, s.dw, s.w32

	opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.01}, quant8.Options{Bits: 8}) // bnb.optim.AdamW8bit
	check(err)
	check(opt.Add("w", len(w32)))
	for range steps {
		opt.Advance(3e-4) // begins a step at this rate: the scheduler is your function
		check(opt.Step("w", snug.ViewOf(w32), snug.ViewOf(dw), clip))
	}

	_, _, _, _, _, _ = clip, dw, err, opt, steps, w32
}

func (s sample) frompytorch9() {
	in, out, x, y, w, u, merged, lora := s.in, s.out, s.x, s.y, s.w, s.u, s.merged, s.lora

	w4, err := qlora.NewWeight(w, []int{out, in}, qlora.Options{}) // NF4, double quantization
	check(err)
	linear, err := qlora.NewLinear(w4, snug.BF16, 0)
	check(err)
	check(linear.Forward(snug.ViewOf(y), snug.ViewOf(x), 0))
	check(lora.Forward(snug.ViewOf(y), snug.ViewOf(u), snug.ViewOf(x), qlora.Dropout{})) // adds s·x·Aᵀ·Bᵀ
	lost, err := qlora.Merge(snug.ViewOf(merged), w4, lora, 0)                           // merge_and_unload; what rounding lost

	_, _, _, _, _, _, _, _, _, _, _, _ = err, in, linear, lora, lost, merged, out, u, w, w4, x, y
}

func (s sample) frompytorch10() {
	attn, dattn, q, k, v, dq, dk, dv := s.attn, s.dattn, s.q, s.k, s.v, s.dq, s.dk, s.dv

	o := attention.Options{Batch: 2, Heads: 8, KVHeads: 2, SeqQ: 128, Dim: 64, Causal: true} // enable_gqa
	lse := make([]float32, 2*8*128)                                                          // all that backward needs besides
	check(attention.Forward(attn, lse, q, k, v, o))
	check(attention.Backward(dq, dk, dv, dattn, q, k, v, attn, lse, o, make([]float32, o.WorkspaceLen())))

	_, _, _, _, _, _, _, _, _, _ = attn, dattn, dk, dq, dv, k, lse, o, q, v
}

func (s sample) frompytorch11() {
	rows, in, vocab, targets, x, w, dx, dw, labels := s.rows, s.in, s.vocab, s.targets, s.x, s.w, s.dx, s.dw, s.labels

	head := fused.CrossEntropy{Vocab: vocab, Cols: in, Chunk: 128}
	logits := make([]float32, head.WorkspaceLen(rows)) // of 128 rows at a time
	result, err := fused.CrossEntropyBackward(head, dx, dw, x, w, labels, 1/float32(targets), snug.Into{}, logits)
	check(err)
	mean := result.Mean()

	_, _, _, _, _, _, _, _, _, _, _, _, _, _ = dw, dx, err, head, in, labels, logits, mean, result, rows, targets, vocab, w, x
}

func (s sample) frompytorch12() {
	dir, modules, tiers := s.dir, s.modules, s.tiers

	store, err := offload.Open(dir, offload.Options{HostLimit: 8 << 30}) // what is above goes to disk
	check(err)
	paged, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 32, Storage: store})
	check(err)
	updater, err := offload.NewUpdater(store, paged, offload.UpdaterOptions{}) // ZeRO-Offload: weights, gradients, state
	check(err)
	where, err := offload.Optimal(modules, tiers) // device_map="auto"; Accelerate's own rule is offload.Greedy
	check(err)

	_, _, _, _, _, _, _, _ = dir, err, modules, paged, store, tiers, updater, where
}

func (s sample) frompytorch13() {
	dir, window, master, opt := s.dir, s.window, s.master, s.opt

	f, err := os.CreateTemp(dir, "state")
	check(err)
	for _, part := range []io.WriterTo{master, opt, window} { // read in the same order
		_, err = part.WriteTo(f)
		check(err)
	}
	check(f.Sync())
	check(f.Close())
	check(os.Rename(f.Name(), filepath.Join(dir, "training.state"))) // the old file or the new one, never a half

	_, _, _, _, _, _ = dir, err, f, master, opt, window
}

func (s sample) frompytorch14() {
	w32, try, dev := s.w32, s.try, s.dev

	monitor, err := meter.New(meter.Options{Device: dev})
	check(err)
	monitor.Add(meter.OnDevice, meter.Activations, int64(4*len(w32))) // you count what you allocate
	check(monitor.Sample())
	batch, err := accum.FindMicroBatch(256, 1, 32, try) // find_executable_batch_size, with the global batch kept
	check(err)

	_, _, _, _, _, _ = batch, dev, err, monitor, try, w32
}

func (s sample) images1() {
	dir := s.dir

	p, err := vision.OpenProcessor(dir) // preprocessor_config.json
	check(err)
	file, err := os.Open("scan.png")
	check(err)
	img, err := vision.Decode(file, vision.DecodeOptions{}) // PNG, JPEG, WebP, GIF, BMP, TIFF; turned by EXIF
	check(err)
	in, err := p.Process(img)
	check(err)
	fmt.Println(in.Shape, in.Tokens)

	_, _, _, _, _, _ = dir, err, file, img, in, p
}

func (s sample) images3() {
	steps, ctx, dir, labels, images := s.steps, s.ctx, s.dir, s.labels, s.images

	t, err := vision.OpenTower(dir, vision.TowerOptions{Labels: []string{"healthy", "ill"}}) // a new head
	check(err)
	trainer, err := train.New(t.Model, train.Options{
		StateBits: 8, Gradients: plan.InBackward, // 8-bit AdamW, and one gradient at a time
		Schedule: train.Cosine(1e-4, 20, steps),
	})
	check(err)
	for trainer.Step() < steps {
		batch, err := t.Sample(images, labels) // pixels as Process gives them, and the class of each
		check(err)
		report, err := trainer.Train(ctx, []layers.Sample{batch})
		check(err)
		fmt.Println(report.Step, report.Loss)
	}
	check(t.Save("tuned")) // from_pretrained loads it

	_, _, _, _, _, _, _, _ = ctx, dir, err, images, labels, steps, t, trainer
}

func (s sample) images4() {
	steps, ctx, labels, tokens, pixels := s.steps, s.ctx, s.labels, s.tokens, s.pixels

	m, err := vision.OpenModel("llava-1.5-7b-hf", vision.ModelOptions{Text: transformer.Options{
		DType: snug.BF16, Base: qlora.NF4, // the language model in 4 bits
		Adapter: &qlora.AdapterOptions{Rank: 16, Alpha: 32},
	}})
	check(err)
	trainer, err := train.New(m, train.Options{StateBits: 8, Schedule: train.Cosine(2e-4, 20, steps)})
	check(err)
	batch := vision.Batch{Images: pixels} // as Process gives them, in the order of their placeholders
	batch.Text.Tokens, batch.Text.Labels = tokens, labels
	_, err = trainer.Train(ctx, []vision.Batch{batch, batch}) // accumulation over micro-batches
	check(err)
	check(m.SaveAdapter("tuned")) // PEFT loads it, the projector too
	check(m.Save("whole", 0))     // adapters merged; transformers loads it

	_, _, _, _, _, _, _, _, _ = batch, ctx, err, labels, m, pixels, steps, tokens, trainer
}

func (s sample) images6() {
	ctx, images, mask := s.ctx, s.images, s.mask

	e, err := segment.OpenEncoder("sam-vit-base", layers.Options{})
	check(err)
	check(e.EncodeFile(ctx, "scan.safetensors", snug.F16, images[0])) // once for each image, 2 MiB
	check(e.Close())                                                  // training goes on without it
	features, err := segment.ReadFeatures("scan.safetensors")
	check(err)
	m, err := segment.Open("sam-vit-base", segment.Options{}) // the prompt encoder and the mask decoder
	check(err)
	trainer, err := train.New(m, train.Options{StateBits: 8, Schedule: train.Constant(1e-4)})
	check(err)
	item := segment.Item{Features: features, Target: mask} // [n, n], of the resized and padded image, as segment.Config.Target makes it
	item.Prompt.Box = &segment.Box{Left: 100, Top: 80, Right: 400, Bottom: 300}
	_, err = trainer.Train(ctx, [][]segment.Item{{item, item}}) // focal, Dice and IoU losses
	check(err)
	check(m.Save("tuned")) // SamModel.from_pretrained loads it

	_, _, _, _, _, _, _, _, _ = ctx, e, err, features, images, item, m, mask, trainer
}
