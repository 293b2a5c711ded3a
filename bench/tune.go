package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/transformer"
)

// tuneModel is a model to fine-tune: the shape of a published one, with random weights.
type tuneModel struct {
	name                                       string
	layers, dim, heads, kvHeads, hidden, vocab int
	tokens, rank                               int // of a sequence; of adapters
	steps, runs                                int // timed steps of a process; processes of each side

	// within are the resident bytes that the rows may take, so that less is computed again; nil: every half
	// of a layer is computed once more. They are parts of what the peer took on a Zen 5: a third with
	// matrices in 4 bits and with pages on disk, two thirds with adapters over bfloat16, half with all weights.
	within []int64
	limit  int64 // resident bytes under which longer sequences are tried
	longer []int
	most   int // tokens of the longest sequence that the peer is tried with
}

var tuneModels = []tuneModel{
	{"tiny", 2, 128, 4, 2, 352, 2000, 64, 4, 2, 1, nil, 128 << 20, []int{128, 192}, 128},
	{"125m", 12, 768, 12, 4, 2048, 32000, 256, 16, 2, 3, nil, 1 << 30, []int{1024, 2048}, 2048},
	{"1.1b", 22, 2048, 32, 4, 5632, 32000, 512, 16, 2, 3, []int64{1400e6, 2750e6, 4900e6, 3260e6}, 6 << 30, []int{2048, 4096, 8192}, 4096},
}

// longest is the sequence that the flag -long adds.
const longest = 16384

func tuneModelNamed(name string) (tuneModel, error) {
	for _, m := range tuneModels {
		if m.name == name {
			return m, nil
		}
	}
	return tuneModel{}, fmt.Errorf("-model %q: want tiny, 125m or 1.1b", name)
}

func (m *tuneModel) config() *transformer.Config {
	dim := m.dim / m.heads
	return &transformer.Config{
		Family: transformer.Llama, Vocab: m.vocab, Dim: m.dim, Hidden: m.hidden, Layers: m.layers, Heads: m.heads, KVHeads: m.kvHeads, HeadDim: dim, Context: 2048,
		NormEps: 1e-5, Activation: transformer.SiLU, Gated: true, Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: dim},
		Windows: make([]int, m.layers), ScoreScale: 1 / math.Sqrt(float64(dim)), EmbeddingScale: 1, InitStd: 0.02, DType: snug.BF16, BOS: -1, Pad: -1,
	}
}

// flops returns the operations of the matrix products of a step, without recomputation and adapters:
// 2 forward and 2 for the gradient of the input for each weight that a token is multiplied with, 2 more
// for the gradient of a weight that trains, and those of causal attention.
func (m *tuneModel) flops(method string, tokens int) float64 {
	kv := m.kvHeads * m.dim / m.heads
	weights := float64(m.vocab*m.dim) + float64(m.layers)*float64(2*m.dim*(m.dim+kv)+3*m.dim*m.hidden)
	each := 4.0
	if method == tuneFull {
		each = 6
	}
	return float64(tokens) * (each*weights + float64(m.layers*6*m.dim)*float64(tokens+1))
}

// What is tuned.
const (
	tuneQLoRA = "qlora" // adapters over matrices in NF4 with double quantization
	tuneLoRA  = "lora"  // adapters over matrices in bfloat16
	tuneFull  = "full"  // all weights, in bfloat16, with the optimizer's state in 8 bits
)

// tuneJob is what a process does: snug's, or the peer's.
type tuneJob struct {
	Model   string `json:"model"`  // of tuneModels
	Dir     string `json:"dir"`    // its folder
	Method  string `json:"method"` // empty writes the folder
	Tokens  int    `json:"tokens"` // of the one sequence of a step
	Rank    int    `json:"rank"`
	Warm    int    `json:"warm"` // steps that are not timed
	Steps   int    `json:"steps"`
	Threads int    `json:"threads"`

	Limit  int64  `json:"limit"`  // of snug's resident bytes, under which a plan is found; 0: the plan is given
	Within int64  `json:"within"` // resident bytes that the given plan spares recomputation up to; 0: none is spared
	Pages  string `json:"pages"`  // folder for the pages of snug's state, empty: in memory
}

// tuneReport is the last line of a process.
type tuneReport struct {
	Seconds   []float64 `json:"seconds"`        // of timed steps
	Loss      float64   `json:"loss"`           // of the first step
	Base      int64     `json:"base_rss_bytes"` // before there is a model
	Loaded    int64     `json:"loaded_rss_bytes"`
	Peak      int64     `json:"peak_rss_bytes"`
	Mapped    int64     `json:"mapped_rss_bytes"`    // of files, in the end; the peer's only
	Counted   int64     `json:"counted_bytes"`       // snug's only
	Predicted int64     `json:"predicted_rss_bytes"` // snug's only
}

// tuneWork is a row: a job in processes of snug and of the peer.
type tuneWork struct {
	tuneJob
	shape  *tuneModel
	folder *tuneFolder
	runs   int
	paged  bool
}

// tunes are runs of fine-tuning, and last with longer and longer sequences.
func tunes(s sizes) (all []work) {
	for _, m := range s.tunes {
		folder := &tuneFolder{model: m.name}
		add := func(kernel, dtype, shape string, t tuneWork) {
			t.Model, t.Rank, t.shape, t.folder = m.name, m.rank, &m, folder
			w := work{
				kernel: kernel, dtype: dtype, shape: fmt.Sprintf("model=%s tokens=1x%d", m.name, t.Tokens) + shape,
				products: m.flops(t.Method, t.Tokens), bf16: true, host: true, tune: &t,
			}
			if t.Limit == 0 || t.Tokens <= m.most {
				w.peers = []string{transformers}
			}
			all = append(all, w)
		}
		rank := fmt.Sprintf(" rank=%d", m.rank)
		whole := tuneJob{Tokens: m.tokens, Warm: 1, Steps: m.steps}
		for i, r := range []struct {
			kernel, dtype, shape, method string
			paged                        bool
		}{
			{"tune qlora", "nf4", rank, tuneQLoRA, false},
			{"tune lora", "bf16", rank, tuneLoRA, false},
			{"tune full", "bf16", " state=8bit", tuneFull, false},
			{"tune full paged", "bf16", " state=8bit", tuneFull, true},
		} {
			t := tuneWork{tuneJob: whole, runs: m.runs, paged: r.paged}
			if t.Method = r.method; m.within != nil {
				t.Within = m.within[i]
			}
			add(r.kernel, r.dtype, r.shape, t)
		}
		for _, n := range m.longer {
			t := tuneWork{tuneJob: tuneJob{Method: tuneLoRA, Tokens: n, Steps: 1, Limit: m.limit}, runs: 1}
			add("tune lora long", "bf16", fmt.Sprintf(" rss=%dMiB", m.limit>>20), t)
		}
	}
	return all
}

// tuneFolder is the folder of a model, which all its rows read.
type tuneFolder struct{ model, dir string }

// make writes the folder, in a process of its own, unless it is there.
func (f *tuneFolder) make(ctx context.Context, threads int) (err error) {
	if f.dir != "" {
		return nil
	}
	if f.dir, err = os.MkdirTemp("", "snug-bench-"); err != nil {
		return err
	}
	_, err = runTune(tuneCommand(ctx, tuneJob{Model: f.model, Dir: f.dir, Threads: threads}))
	return err
}

// remove removes the folder, if it was written.
func (f *tuneFolder) remove() error {
	if f.dir == "" {
		return nil
	}
	dir := f.dir
	f.dir = ""
	return os.RemoveAll(dir)
}

// tuneVariable holds the job of a process that this program starts of itself.
const tuneVariable = "SNUG_BENCH_TUNE"

// tuneCommand returns this program as a process for a job.
func tuneCommand(ctx context.Context, j tuneJob) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self)
	c.Env = append(os.Environ(), tuneVariable+"="+string(text), fmt.Sprintf("GOMAXPROCS=%d", j.Threads))
	return c, nil
}

// runTune runs a process for a job and returns what its last line says.
func runTune(c *exec.Cmd, err error) (r tuneReport, _ error) {
	if err != nil {
		return r, err
	}
	forgetPeak()
	out, err := c.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return r, fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, lastLine(string(exit.Stderr)))
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(lastLine(string(out))), &r); err != nil {
		return r, fmt.Errorf("%s: no report in its last line %.200q: %w", filepath.Base(c.Path), lastLine(string(out)), err)
	}
	return r, nil
}

// tuneSide is snug or the peer: a process each time.
type tuneSide struct {
	name    string
	command func() (*exec.Cmd, error)
	note    func(string)
	reports []tuneReport
}

// run ignores repeat: the process runs its steps.
func (s *tuneSide) run(int, time.Duration) (float64, error) {
	r, err := runTune(s.command())
	if err != nil {
		return 0, err
	}
	one := median(r.Seconds)
	if !(one > 0) || r.Loss <= 0 || r.Peak <= 0 {
		return 0, fmt.Errorf("steps of %v seconds, a loss of %v and %d resident bytes", r.Seconds, r.Loss, r.Peak)
	}
	s.reports = append(s.reports, r)
	if s.note != nil {
		s.note(fmt.Sprintf("%s, run %d: %s a step, peak RSS %s", s.name, len(s.reports), seconds(one), bytesText(r.Peak)))
	}
	return one, nil
}

// measureTune runs the job in processes of snug and of the peer, in turn.
func (w *work) measureTune(ctx context.Context, m *machine, against *opponents) (rows []result, err error) {
	t := w.tune
	if err := t.folder.make(ctx, m.threads); err != nil {
		return nil, err
	}
	job := t.tuneJob
	job.Dir, job.Threads = t.folder.dir, m.threads
	peersJob := job
	if t.paged {
		if job.Pages, err = os.MkdirTemp("", "snug-bench-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(job.Pages)) }()
	}
	own := &tuneSide{name: w.name() + ": snug", note: w.note, command: func() (*exec.Cmd, error) { return tuneCommand(ctx, job) }}
	sides := []*side{{name: "snug", run: own.run}}
	var peer *tuneSide
	if against != nil && len(w.peers) > 0 {
		peer = &tuneSide{name: w.name() + ": " + transformers, note: w.note, command: func() (*exec.Cmd, error) { return against.tune(peersJob) }}
		sides = append(sides, &side{name: transformers, run: peer.run, missing: against.absent})
	}
	if err := alternate(ctx, pace{cold: true, fewest: t.runs, most: t.runs}, sides); err != nil {
		return nil, err
	}
	if peer != nil && len(peer.reports) > 0 {
		if err := sameLoss(own.reports[0].Loss, peer.reports[0].Loss); err != nil {
			return nil, err
		}
	}
	rows = w.results(m, sides, nil)
	rows[0].Tune = newTuned(job, own, peer)
	if t.Limit > 0 {
		if rows[0].Tune.Longest, err = job.longest(t.shape, t.shape.tokens); err != nil {
			return nil, err
		}
	}
	rows[0].RSS, rows[0].PeerRSS = rows[0].Tune.Own.Peak, rows[0].Tune.peerPeak()
	return rows, nil
}

// sameLoss makes sure that both sides do the same work.
func sameLoss(own, peer float64) error {
	const bound = 0.01
	if !(math.Abs(own-peer) <= bound*peer) {
		return fmt.Errorf("the first step's loss is %.4f, and the peer's %.4f: want the same to %v: %w", own, peer, bound, errDiffer)
	}
	return nil
}

var errDiffer = errors.New("the sides differ")
