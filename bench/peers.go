package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// The peers. All but gonum are Python's.
const (
	torch        = "torch"
	torchCompile = "torch.compile"
	torchFlash   = "torch-flash" // PyTorch's attention with one of its back ends
	torchCUDNN   = "torch-cudnn"
	numpy        = "numpy"
	bitsandbytes = "bitsandbytes"
	deepspeed    = "deepspeed"
	gonum        = "gonum"
	transformers = "transformers" // with PEFT and bitsandbytes
)

// noAMX marks peers that are kept from using AMX tiles, an extension of few
// processors that snug does not use.
const noAMX = "-noamx"

// withoutAMX returns torch without AMX, if only torch would use it.
func withoutAMX(dt snug.DType) []string {
	limit, _ := cpu.Limit()
	if dt == snug.BF16 && cpu.AMX.Has() && limit < cpu.AMX {
		return []string{torch + noAMX}
	}
	return nil
}

//go:embed peers/worker.py peers/gpt_step.py peers/tune.py
var scripts embed.FS

// opponents are the peers of this run. A nil pointer has none.
type opponents struct {
	ctx     context.Context
	device  string // as both snug and PyTorch name it
	python  string
	dir     string // of the scripts
	threads int
	absent  error              // why there is no Python, nil if there is
	workers map[string]*worker // by noAMX or ""
}

// newOpponents starts the Python peers, if Python is there.
func newOpponents(ctx context.Context, threads int, device string) (*opponents, error) {
	p := &opponents{ctx: ctx, device: device, threads: threads, workers: map[string]*worker{}}
	if p.python, p.absent = findPython(); p.absent != nil {
		return p, nil
	}
	var err error
	if p.dir, err = os.MkdirTemp("", "snug-peers-"); err != nil {
		return nil, err
	}
	for _, name := range []string{"worker.py", "gpt_step.py", "tune.py"} {
		text, err := scripts.ReadFile("peers/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(p.dir, name), text, 0o600)
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(p.dir))
		}
	}
	return p, nil
}

// findPython returns the interpreter of .build/peers in the module's folder,
// else the one on the path, such as that of an active virtual environment.
func findPython() (string, error) {
	python := filepath.Join(".build", "peers", "bin", "python")
	if runtime.GOOS == "windows" {
		python = filepath.Join(".build", "peers", "Scripts", "python.exe")
	}
	for dir, up := ".", 0; up < 3; up++ {
		path, err := filepath.Abs(filepath.Join(dir, python))
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		dir = filepath.Join(dir, "..")
	}
	return exec.LookPath("python3")
}

// worker returns the process for a peer's name, which it starts when it is
// first asked for.
func (p *opponents) worker(suffix string) (*worker, error) {
	if p.absent != nil {
		return nil, p.absent
	}
	if p.workers[suffix] == nil {
		w := startWorker(p.command(suffix, "worker.py", fmt.Sprint(p.threads), p.device))
		if p.onCPU() {
			w.settle = settle
		}
		p.workers[suffix] = w
	}
	w := p.workers[suffix]
	return w, w.failed
}

// command returns a call of one of the scripts.
func (p *opponents) command(suffix, script string, args ...string) *exec.Cmd {
	c := exec.CommandContext(p.ctx, p.python, append([]string{filepath.Join(p.dir, script)}, args...)...)
	c.Env = append(os.Environ(), "TORCHINDUCTOR_COMPILE_THREADS=1")
	if p.onCPU() {
		c.Env = append(c.Env, "CUDA_VISIBLE_DEVICES=")
	}
	for _, library := range []string{"OMP", "MKL", "OPENBLAS"} {
		c.Env = append(c.Env, fmt.Sprintf("%s_NUM_THREADS=%d", library, p.threads))
	}
	if suffix == noAMX {
		c.Env = append(c.Env, "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS=AVX512_E3")
	}
	return c
}

// split returns the library that a peer's name stands for, and noAMX or "".
func split(name string) (library, suffix string) {
	if library, ok := strings.CutSuffix(name, noAMX); ok {
		return library, noAMX
	}
	return name, ""
}

func (p *opponents) onCPU() bool { return p.device == "cpu" }

// names returns the peers of w: all on the CPU, and those of Python that use a
// GPU on one. PyTorch has two attentions for it, each a peer.
func (p *opponents) names(w *work) (names []string) {
	if p.onCPU() {
		return w.peers
	}
	for _, name := range w.peers {
		switch {
		case name == torch && w.bf16 && strings.HasPrefix(w.kernel, "attention"):
			names = append(names, torchFlash, torchCUDNN)
		case name == torch || name == torchCompile || name == bitsandbytes:
			names = append(names, name)
		}
	}
	return names
}

// sides returns the peers that can do w's work.
func (p *opponents) sides(w *work) (all []*side) {
	if p == nil {
		return nil
	}
	for _, name := range p.names(w) {
		if name == gonum {
			all = append(all, gonumMatMul(w))
			continue
		}
		library, suffix := split(name)
		s := &side{name: name}
		var python *worker
		if python, s.missing = p.worker(suffix); s.missing == nil {
			s.run = func(repeat int, warm time.Duration) (float64, error) {
				return python.time(request{library, w.kernel, w.dtype, w.shape, repeat, warm.Seconds()})
			}
		}
		all = append(all, s)
	}
	return all
}

// gptStep returns the training program of a peer.
func (p *opponents) gptStep(name string, m *preset) *exec.Cmd {
	library, suffix := split(name)
	args := []string{fmt.Sprintf("--threads=%d", p.threads), fmt.Sprintf("--steps=%d", m.steps), "--device=" + p.device}
	for _, a := range []struct {
		name  string
		value int
	}{{"vocab", m.vocab}, {"dim", m.dim}, {"layers", m.layers}, {"heads", m.heads}, {"context", m.context},
		{"sequences", m.sequences}, {"micros", m.micros}} {
		args = append(args, fmt.Sprintf("--%s=%d", a.name, a.value))
	}
	if library == torchCompile {
		args = append(args, "--compile")
	}
	return p.command(suffix, "gpt_step.py", args...)
}

// tune returns the peer's process for a job.
func (p *opponents) tune(j tuneJob) (*exec.Cmd, error) {
	text, err := json.Marshal(j)
	return p.command("", "tune.py", string(text)), err
}

// print writes the peers' versions and who is missing.
func (p *opponents) print(out io.Writer) {
	fmt.Fprintln(out, "peers")
	w, err := p.worker("")
	if err != nil {
		fmt.Fprintf(out, "  Python's: missing, %v\n", err)
	} else {
		for _, name := range sortedKeys(w.hello.Versions) {
			fmt.Fprintf(out, "  %s %s\n", name, w.hello.Versions[name])
		}
		for _, name := range sortedKeys(w.hello.Missing) {
			fmt.Fprintf(out, "  %s: missing, %s\n", name, w.hello.Missing[name])
		}
	}
	fmt.Fprintln(out)
}

// close ends the processes and removes the scripts.
func (p *opponents) close() error {
	for _, w := range p.workers {
		w.close()
	}
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

// gonumMatMul is gonum's product of the same shape, in this process.
func gonumMatMul(w *work) *side {
	s := &side{name: gonum}
	var m, n, k int
	var op string
	if _, s.missing = fmt.Sscanf(w.shape, "m=%d n=%d k=%d op=%s", &m, &n, &k, &op); s.missing != nil {
		return s
	}
	host := &memory{dev: snug.CPU()}
	matrix := func(rows, cols int, transposed bool) (blas32.General, blas.Transpose) {
		t := blas.NoTrans
		if transposed {
			rows, cols, t = cols, rows, blas.Trans
		}
		return blas32.General{Rows: rows, Cols: cols, Stride: cols, Data: host.operand(snug.F32, rows*cols).Float32s()}, t
	}
	a, ta := matrix(m, k, op[0] == 't')
	b, tb := matrix(k, n, op[1] == 't')
	c, _ := matrix(m, n, false)
	own := &local{f: func() error { blas32.Gemm(ta, tb, 1, a, b, 0, c); return nil }}
	s.run = own.run
	return s
}
