package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// fakePeer speaks the protocol of worker.py. What it is asked for says how it
// behaves.
func fakePeer() {
	if os.Getenv("BENCH_TEST_OUTPUT") == "silent" {
		fmt.Fprintln(os.Stderr, "Traceback:")
		fmt.Fprintln(os.Stderr, "broken installation")
		return
	}
	fmt.Println(`{"versions": {"torch": "9.9"}, "missing": {"numpy": "no module"}}`)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var r request
		if json.Unmarshal(in.Bytes(), &r) != nil || r.Repeats < 1 {
			return
		}
		switch r.Kernel {
		case "cast":
			fmt.Printf(`{"seconds": %g}`+"\n", 1e-3*float64(len(r.Peer)))
		case "zero":
			fmt.Println(`{"seconds": 0}`)
		case "dies":
			return
		default:
			fmt.Println(`{"error": "no such kernel"}`)
		}
	}
}

func newFake(t *testing.T, output string) *worker {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), "BENCH_TEST_AS=peer", "BENCH_TEST_OUTPUT="+output)
	w := startWorker(c)
	t.Cleanup(w.close)
	return w
}

func TestWorker(t *testing.T) {
	w := newFake(t, "")
	require.NoError(t, w.failed)
	require.Equal(t, map[string]string{"torch": "9.9"}, w.hello.Versions)
	s, err := w.time(request{Peer: "torch", Kernel: "cast", Repeats: 3})
	require.NoError(t, err)
	require.InDelta(t, 5e-3, s, 1e-12)
	_, err = w.time(request{Kernel: "softmax", Repeats: 1})
	require.EqualError(t, err, "no such kernel")
	require.NoError(t, w.failed, "it goes on")
	_, err = w.time(request{Kernel: "cast", Peer: "a", Repeats: 1})
	require.NoError(t, err)
}

func TestWorkerThatFails(t *testing.T) {
	for _, kernel := range []string{"dies", "zero"} {
		w := newFake(t, "")
		_, err := w.time(request{Kernel: kernel, Repeats: 1})
		require.ErrorContains(t, err, "answer of the peers' process")
		_, again := w.time(request{Kernel: "cast", Repeats: 1})
		require.Equal(t, err, again)
	}
	require.ErrorContains(t, newFake(t, "silent").failed, "broken installation")
	require.Error(t, startWorker(exec.Command(filepath.Join(t.TempDir(), "python"))).failed)
}

func TestPeersAreComparedOrMissing(t *testing.T) {
	p := &opponents{ctx: t.Context(), device: "cpu", workers: map[string]*worker{"": newFake(t, ""), noAMX: newFake(t, "silent")}}
	ran := func() error { return nil }
	w := &work{kernel: "cast", reads: 1, peers: []string{torch, torch + noAMX}, prepare: func(*memory) (run, done func() error, err error) {
		return ran, nil, nil
	}}
	rows, err := w.measure(t.Context(), options{short: true}, known(), p)
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, torch, *rows[0].Peer)
	require.NotNil(t, rows[0].Ratio)
	require.Equal(t, torch+noAMX, *rows[1].Peer)
	require.Nil(t, rows[1].Ratio)
	require.ErrorContains(t, rows[1].missing, "broken installation")

	var out strings.Builder
	p.print(&out)
	require.Contains(t, out.String(), "torch 9.9\n")
	require.Contains(t, out.String(), "numpy: missing, no module\n")
}

func TestNoPython(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Chdir(t.TempDir())
	p, err := newOpponents(t.Context(), 1, "cpu")
	require.NoError(t, err)
	var out strings.Builder
	p.print(&out)
	require.Contains(t, out.String(), "missing, ")
	sides := p.sides(&work{peers: []string{torch}})
	require.Error(t, sides[0].missing)
	require.NoError(t, p.close())
}

func TestScriptsAreWrittenAndRemoved(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "python3")
	require.NoError(t, os.WriteFile(python, []byte("#!/bin/sh\n"), 0o700))
	t.Setenv("PATH", dir)
	t.Chdir(t.TempDir())
	p, err := newOpponents(t.Context(), 3, "cpu")
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not take a script for a program")
	}
	require.NoError(t, err)
	require.NoError(t, p.absent)
	require.FileExists(t, filepath.Join(p.dir, "worker.py"))
	require.FileExists(t, filepath.Join(p.dir, "tune.py"))
	c := p.gptStep(torchCompile+noAMX, &preset{vocab: 5, steps: 7})
	require.Equal(t, python, c.Path)
	require.Equal(t, filepath.Join(p.dir, "gpt_step.py"), c.Args[1])
	require.Subset(t, c.Args, []string{"--vocab=5", "--steps=7", "--threads=3", "--compile"})
	require.Subset(t, c.Env, []string{"OMP_NUM_THREADS=3", "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"})
	require.NoError(t, p.close())
	require.NoDirExists(t, p.dir)
}

func TestPeersOnAGPU(t *testing.T) {
	p := &opponents{ctx: t.Context(), device: "cuda:1", threads: 2}
	for _, c := range []struct {
		w    work
		want []string
	}{
		{work{kernel: "cast", peers: []string{torch}}, []string{torch}},
		{work{kernel: "adamw", peers: []string{torch, deepspeed}}, []string{torch}},
		{work{kernel: "matmul", bf16: true, peers: []string{torch, numpy, gonum, torch + noAMX}}, []string{torch}},
		{work{kernel: "add", peers: []string{torch, torchCompile}}, []string{torch, torchCompile}},
		{work{kernel: "adamw8", peers: []string{bitsandbytes}}, []string{bitsandbytes}},
		{work{kernel: "attention forward", peers: []string{torch}}, []string{torch}},
		{work{kernel: "attention backward", bf16: true, peers: []string{torch}}, []string{torchFlash, torchCUDNN}},
	} {
		require.Equal(t, c.want, p.names(&c.w), c.w.kernel)
	}
	step := p.gptStep(torch, &preset{})
	require.Contains(t, step.Args, "--device=cuda:1")
	require.NotContains(t, step.Env, "CUDA_VISIBLE_DEVICES=")
	p.device = "cpu"
	require.Contains(t, p.gptStep(torch, &preset{}).Env, "CUDA_VISIBLE_DEVICES=")
}

func TestTrainerWithoutGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	self, err := os.Executable()
	require.NoError(t, err)
	binary, args, err := trainer(t.Context(), t.TempDir())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(filepath.Dir(self), "gpt"), binary)
	require.Equal(t, []string{"-text", "."}, args)
}

func TestGonum(t *testing.T) {
	for _, op := range []string{"nn", "nt", "tn", "tt"} {
		w := matmul(snug.F32, 3, 4, 5, op)
		s := gonumMatMul(&w)
		require.NoError(t, s.missing)
		_, err := s.run(2, 0)
		require.NoError(t, err, op)
	}
	require.Error(t, gonumMatMul(&work{shape: "n=3"}).missing)
}

func TestProgram(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for output, want := range map[string]string{
		`{"tokens_per_s": 100, "peak_rss_bytes": 5}`: "",
		`{"tokens_per_s": 0}`:                        "no tokens/s",
		`Killed`:                                     "no tokens/s",
	} {
		p := &program{tokens: 50, command: func() *exec.Cmd {
			c := exec.CommandContext(t.Context(), self)
			c.Env = append(os.Environ(), "BENCH_TEST_AS=trainer", "BENCH_TEST_OUTPUT="+output)
			return c
		}}
		s, err := p.run(1, 0)
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		require.InDelta(t, 0.5, s, 1e-12)
		require.EqualValues(t, 5, p.peak)
	}
}

func TestRequirementsArePinned(t *testing.T) {
	for _, name := range []string{"requirements.txt", "requirements-deepspeed.txt"} {
		text, err := os.ReadFile(filepath.Join("peers", name))
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			require.Regexp(t, `^[a-z]+==[0-9.]+\n$`, line)
		}
	}
}
