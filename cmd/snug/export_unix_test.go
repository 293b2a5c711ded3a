//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// wideModel publishes a model of 16 MiB with a tokenizer that llama.cpp knows.
func wideModel(t *testing.T) string {
	small := publishBytes(t, turnsChat)
	config, err := transformer.ReadConfig(small)
	require.NoError(t, err)
	config.Layers, config.Windows, config.Dim, config.Hidden = 2, make([]int, 2), 512, 2048
	config.Heads, config.KVHeads, config.HeadDim, config.Rope.Dim, config.ScoreScale = 8, 8, 64, 64, 0.125
	m, err := transformer.New(config, transformer.Options{})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, m.Save(dir, 0))
	require.NoError(t, m.Close())
	require.NoError(t, copyCompanions(dir, small, false, nil))
	return dir
}

// program is a process of the program.
func program(args ...string) (c *exec.Cmd, out, errs *bytes.Buffer) {
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	c = &exec.Cmd{Path: os.Args[0], Args: append([]string{"snug"}, args...), Stdout: out, Stderr: errs}
	return c, out, errs
}

// namesIn returns the names of the entries of a folder.
func namesIn(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestWritersEndedBySignals: a run of export or merge that SIGINT ends leaves nothing; one that is killed leaves what the next one
// removes, which writes the whole result.
func TestWritersEndedBySignals(t *testing.T) {
	model := wideModel(t)
	adapter := adapterOf(t, model, 0.25, qlora.AdapterOptions{})
	for _, c := range []struct {
		name, begun, result string
		args                func(out string) []string
		left                []string
	}{
		{"export", "x.gguf.unfinished", "x.gguf", func(out string) []string {
			return []string{"export", "-model", model, "-type", "q4_k_m", "-gguf", filepath.Join(out, "x.gguf"), "-modelfile", filepath.Join(out, "Modelfile")}
		}, []string{"Modelfile.unfinished", "x.gguf.unfinished"}},
		{"merge", "merged/" + unfinished, "merged/model.safetensors", func(out string) []string {
			return []string{"merge", "-model", model, "-adapter", adapter, "-o", filepath.Join(out, "merged")}
		}, []string{"merged"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := t.TempDir()
			end := func(signal syscall.Signal) (*exec.Cmd, string) {
				run, _, errs := program(c.args(out)...)
				require.NoError(t, run.Start())
				for begun := filepath.Join(out, c.begun); !exists(begun) && !exists(filepath.Join(out, c.result)); {
					time.Sleep(time.Millisecond)
				}
				require.NoError(t, run.Process.Signal(signal))
				_ = run.Wait()
				return run, errs.String()
			}
			run, errs := end(syscall.SIGINT)
			t.Logf("SIGINT: %v", run.ProcessState)
			if !run.ProcessState.Success() { // else it was faster
				require.Equal(t, 128+int(syscall.SIGINT), run.ProcessState.ExitCode(), errs)
				require.Contains(t, errs, "interrupted, and nothing is written")
				require.Empty(t, namesIn(t, out))
			}
			require.NoError(t, os.RemoveAll(out))
			require.NoError(t, os.Mkdir(out, 0o700))
			if end(syscall.SIGKILL); !exists(filepath.Join(out, c.result)) {
				require.Equal(t, c.left, namesIn(t, out))
			}
			status, _, errs := snugged(c.args(out)...)
			require.Zero(t, status, errs)
			require.FileExists(t, filepath.Join(out, c.result))
			require.NoFileExists(t, filepath.Join(out, c.begun))
			require.NoFileExists(t, filepath.Join(out, "Modelfile.unfinished"))
		})
	}
}

// TestExportKeepsItsLimit: the limit that the error of a smaller one names is enough, and the process stays within it and within what
// it predicts.
//
//check:not bits32
func TestExportKeepsItsLimit(t *testing.T) {
	kerneltest.Slow(t) // runs processes of their own
	model := wideModel(t)
	adapter := adapterOf(t, model, 0.25, qlora.AdapterOptions{})
	for _, more := range [][]string{{"-type", "q4_k_m"}, {"-type", "f32", "-adapter", adapter}} {
		args := append([]string{"export", "-model", model, "-gguf", filepath.Join(t.TempDir(), "x.gguf")}, more...)
		run, _, errs := program(append(args, "-memory", "8MiB")...)
		require.Error(t, run.Run())
		named := regexp.MustCompile(`export: -memory 8.00 MiB: nothing fits: .* wants -memory ([0-9]+MiB)`).FindStringSubmatch(errs.String())
		require.Len(t, named, 2, errs.String())
		require.Empty(t, namesIn(t, filepath.Dir(args[4])))
		limit, err := meter.ParseBytes(named[1])
		require.NoError(t, err)
		run, out, errs := program(append(args, "-memory", named[1])...)
		require.NoError(t, run.Run(), errs.String())
		peak := regexp.MustCompile(`peak RSS ([0-9.]+ [A-Za-z]+), ([0-9.]+ [A-Za-z]+) predicted`).FindStringSubmatch(out.String())
		require.Len(t, peak, 3, out.String())
		most, err := meter.ParseBytes(strings.ReplaceAll(peak[1], " ", ""))
		require.NoError(t, err)
		require.LessOrEqual(t, most, limit+pageNoise, out.String())
		t.Logf("%v: %s, -memory %s", more, peak[0], named[1])
	}
}

const fullVariable = "SNUG_FULL_JOB"

// TestFullDiskLeavesNothing: export and merge that cannot write all of a file leave nothing, and name the file that was to be.
func TestFullDiskLeavesNothing(t *testing.T) {
	model := wideModel(t)
	adapter := adapterOf(t, model, 0.25, qlora.AdapterOptions{})
	for _, args := range [][]string{
		{"export", "-model", model, "-gguf", "x.gguf", "-modelfile", "Modelfile"},
		{"merge", "-model", model, "-adapter", adapter, "-o", "merged"},
	} {
		t.Run(args[0], func(t *testing.T) {
			out := t.TempDir()
			text, err := json.Marshal(args)
			require.NoError(t, err)
			c := exec.Command(os.Args[0], "-test.run=^TestFullDiskJob$", "-test.v")
			c.Dir, c.Env = out, append(os.Environ(), fullVariable+"="+string(text))
			said, err := c.CombinedOutput()
			require.NoError(t, err, "%s", said)
			require.Regexp(t, `snug: .*write (x.gguf|merged/model.safetensors): file too large`, string(said))
			require.NotRegexp(t, `unfinished|\.tmp`, string(said))
			require.Empty(t, namesIn(t, out))
		})
	}
}

// TestFullDiskJob is the process whose files can have 4 MiB.
func TestFullDiskJob(t *testing.T) {
	text := os.Getenv(fullVariable)
	if text == "" {
		t.Skip("not a process of TestFullDiskLeavesNothing")
	}
	var args []string
	require.NoError(t, json.Unmarshal([]byte(text), &args))
	signal.Ignore(syscall.SIGXFSZ)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4 << 20, Max: 4 << 20}))
	status, out, errs := snugged(args...)
	fmt.Print(errs)
	require.Equal(t, 1, status)
	require.Empty(t, out)
}

// TestExportAlone: a file that another run writes is refused in a line, and so is one that appears meanwhile.
func TestExportAlone(t *testing.T) {
	model, out := publishBytes(t, turnsChat), t.TempDir()
	path, page := filepath.Join(out, "x.gguf"), filepath.Join(out, "Modelfile")
	other, err := files.Begin(path, true)
	require.NoError(t, err)
	status, _, errs := snugged("export", "-model", model, "-gguf", path, "-modelfile", page)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "snug: export: -gguf: another run writes "+path+": name another file\n")
	require.Equal(t, []string{"x.gguf.unfinished"}, namesIn(t, out))
	require.NoError(t, other.Commit())
	status, _, errs = snugged("export", "-model", model, "-gguf", path)
	require.Equal(t, 2, status)
	require.Contains(t, errs, path+" exists, and nothing is overwritten")
}
