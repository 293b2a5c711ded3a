package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/snug-ml/snug"
)

// preset is a model of examples/gpt, as that program names and shapes it.
type preset struct {
	name                               string
	vocab, dim, layers, heads, context int
	sequences, micros                  int // sequences in a micro-batch, micro-batches in a step
	steps                              int // to run
}

var presets = []preset{
	{"small", 1024, 128, 4, 4, 128, 1, 4, 10},
	{"34m", 16384, 512, 8, 8, 512, 2, 4, 4},
}

// steps are whole training steps of examples/gpt, with all its techniques.
func steps(s sizes) (all []work) {
	for _, p := range s.presets {
		peers := []string{torch, torchCompile}
		for _, capped := range withoutAMX(snug.BF16) {
			peers = append(peers, capped, torchCompile+capped[len(torch):])
		}
		all = append(all, work{
			kernel: "step", dtype: "bf16", shape: fmt.Sprintf("preset=%s tokens=%dx%dx%d", p.name, p.micros, p.sequences, p.context),
			products: p.flops(), bf16: true, peers: peers, step: &p,
		})
	}
	return all
}

// tokens returns the tokens of an optimizer step.
func (p *preset) tokens() float64 { return float64(p.micros * p.sequences * p.context) }

// flops returns the operations of an optimizer step's matrix products, without
// recomputation: 6 for each weight that a token is multiplied with, and those
// of causal attention.
func (p *preset) flops() float64 {
	weights := float64(p.vocab*p.dim + p.layers*12*p.dim*p.dim)
	attention := float64(p.layers * 6 * p.dim * (p.context + 1))
	return p.tokens() * (6*weights + attention)
}

// trained is what a program that trains says about itself.
type trained struct {
	TokensPerS float64 `json:"tokens_per_s"`
	PeakRSS    int64   `json:"peak_rss_bytes"`
}

// program is a side of the comparison that is a process of its own each time.
type program struct {
	tokens  float64 // of a step
	command func() *exec.Cmd
	peak    int64
}

// run ignores repeat: the program runs its steps.
func (p *program) run(int, time.Duration) (float64, error) {
	forgetPeak()
	c := p.command()
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, lastLine(stderr.String()))
	}
	var t trained
	if err := json.Unmarshal([]byte(lastLine(string(out))), &t); err != nil || t.TokensPerS <= 0 {
		return 0, fmt.Errorf("%s: no tokens/s in its last line %q", filepath.Base(c.Path), lastLine(string(out)))
	}
	p.peak = max(p.peak, t.PeakRSS)
	return p.tokens / t.TokensPerS, nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// forgetPeak makes the peak of this process's memory its present size. On Linux
// a program that it starts would count that peak as its own.
func forgetPeak() {
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // not there on other systems
}

// trainer returns the program of examples/gpt and the arguments that it needs. With Go it builds the
// program in dir, with the tags of this program. Without Go the program must lie in the folder of this
// one; it then trains on the text of the working directory.
func trainer(ctx context.Context, dir string) (binary string, args []string, err error) {
	if _, err := exec.LookPath("go"); err != nil {
		self, err := os.Executable()
		if err != nil {
			return "", nil, err
		}
		return filepath.Join(filepath.Dir(self), "gpt"), []string{"-text", "."}, nil
	}
	binary = filepath.Join(dir, "gpt")
	out, err := exec.CommandContext(ctx, "go", "build", "-tags", buildTags(), "-o", binary, "github.com/snug-ml/snug/examples/gpt").CombinedOutput()
	if err != nil {
		return "", nil, fmt.Errorf("build examples/gpt: %w: %s", err, out)
	}
	return binary, nil, nil
}

// buildTags returns the tags that this program was built with.
func buildTags() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return s.Value
		}
	}
	return ""
}

// measureStep runs whole training programs in turn.
func (w *work) measureStep(ctx context.Context, m *machine, against *opponents) (rows []result, err error) {
	dir, err := os.MkdirTemp("", "snug-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary, args, err := trainer(ctx, dir)
	if err != nil {
		return nil, err
	}
	args = append(args, "-preset", w.step.name, "-steps", fmt.Sprint(w.step.steps), "-device", m.dev.Name(), "-json")
	own := &program{tokens: w.step.tokens(), command: func() *exec.Cmd {
		c := exec.CommandContext(ctx, binary, args...)
		c.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", m.threads))
		return c
	}}
	programs := []*program{own}
	sides := []*side{{name: "snug", run: own.run}}
	if against != nil {
		for _, name := range against.names(w) {
			p := &program{tokens: own.tokens, command: func() *exec.Cmd { return against.gptStep(name, w.step) }}
			programs = append(programs, p)
			sides = append(sides, &side{name: name, run: p.run, missing: against.absent})
		}
	}
	if err := alternate(ctx, pace{cold: true, fewest: 3, most: 3}, sides); err != nil {
		return nil, err
	}
	rows = w.results(m, sides, nil)
	for i := range rows {
		rows[i].RSS = own.peak
		if len(sides) > 1 {
			rows[i].PeerRSS = programs[i+1].peak
		}
	}
	return rows, nil
}
