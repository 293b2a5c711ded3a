package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

// snugged runs the program.
func snugged(args ...string) (status int, stdout, stderr string) {
	return snuggedWith("", args...)
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func snuggedWith(stdin string, args ...string) (status int, stdout, stderr string) {
	var out bytes.Buffer
	var errs lockedBuffer // to which the goroutine of signals writes too
	status = run(args, strings.NewReader(stdin), &out, &errs)
	return status, out.String(), errs.String()
}

// TestWrongCommandLines: one line on stderr, nothing on stdout, status 2.
func TestWrongCommandLines(t *testing.T) {
	dir := t.TempDir()
	bad, empty := filepath.Join(dir, "bad.json"), filepath.Join(dir, "empty.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"gpt": {"vocab": 1, "colour": 2}}`), 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, args := range [][]string{
		{}, {"bogus"}, {"help", "bogus"}, {"help", "plan", "more"}, {"-x"}, {""},
		{"plan"}, {"plan", "-model", "x"}, {"plan", "-model", "gpt2", "extra"}, {"plan", "-nonsense"}, {"plan", "-model", bad}, {"plan", "-model", empty},
		{"plan", "-model", filepath.Join(dir, "none.json")}, {"plan", "-model", dir + ".json"}, {"plan", "-model", "gpt2", "-device", "9GB"},
		{"plan", "-model", "gpt2", "-memory", "-1"}, {"plan", "-model", "gpt2", "-device-memory", "NaN"}, {"plan", "-model", "gpt2", "-memory", "0"},
		{"plan", "-model", "gpt2", "-host-memory", "many"}, {"plan", "-model", "gpt2", "-disk", "1QB"},
		{"plan", "-model", "gpt2", "-batch", "0"}, {"plan", "-model", "gpt2", "-batch", "-3"}, {"plan", "-model", "gpt2", "-batch", "x"},
		{"plan", "-model", "gpt2", "-context", "-5"}, {"plan", "-model", "vit-b16", "-context", "5"}, {"plan", "-model", bad, "-context", "5"},
		{"plan", "-model", "gpt2", "-lora", "-1"}, {"plan", "-model", "gpt2", "-optimizer", "adamx"}, {"plan", "-model", "gpt2", "-compute", "f8"},
		{"plan", "-model", "gpt2", "-compute", "u8"}, {"plan", "-model", "gpt2", "-masters", "half"}, {"plan", "-model", "gpt2", "-gradients", "no"},
		{"plan", "-model", "gpt2", "-state", "7"}, {"plan", "-model", "gpt2", "-state", "x"}, {"plan", "-model", "gpt2", "-state", "0"}, {"plan", "-model", "gpt2", "-o", "x.png"},
		{"plan", "-model", "gpt2", "-base", "nf4"}, {"plan", "-model", "gpt2", "-lora", "4", "-base", "nf3"},
		{"devices", "extra"}, {"devices", "-x"}, {"inspect"}, {"inspect", "a", "b"}, {"verify"}, {"verify", "a", "b"}, {"completion"}, {"completion", "tcsh"}, {"version", "more"}, {"version", "-x"},
		{"plan", "-model", "gpt2", "-context", "1025"}, {"plan", "-model", "gpt2-xl", "-context", "100000"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			status, out, errs := snugged(args...)
			require.Equal(t, 2, status, "%q: %s", args, errs)
			require.Equal(t, 1, strings.Count(errs, "\n"), "%q: %q", args, errs)
			require.True(t, strings.HasPrefix(errs, "snug: "), errs)
			requireNoKind(t, errs)
			require.Empty(t, out, "%q", args)
		})
	}
}

// TestUnknownFlags: the error names the flags that begin as the one that is not known.
func TestUnknownFlags(t *testing.T) {
	for _, c := range []struct{ command, flag, want string }{
		{"tune", "-eval", "not defined: -eval; there is -eval-every"},
		{"tune", "--save", "not defined: -save; there is -save-every"},
		{"tune", "-d", "not defined: -d\n"}, // too many begin so
		{"tune", "-learning-rate", "not defined: -learning-rate\n"},
	} {
		t.Run(c.flag, func(t *testing.T) {
			status, _, errs := snugged(c.command, c.flag, "1")
			require.Equal(t, 2, status)
			require.Contains(t, errs, c.want)
		})
	}
}

// TestDamagedModels: what is left of a model that ends early, has a letter more or another
// case is refused in one line that says where.
func TestDamagedModels(t *testing.T) {
	const model = `{"gpt": {"vocab": 100, "dim": 16, "layers": 2, "heads": 2, "context": 8}}`
	texts := map[string]string{strings.ToUpper(model): `GPT: the key in another case, want "gpt"`, model + model: "JSON at byte 74", "{}": "want one of", "x" + model: "JSON at byte 1"}
	for n := range len(model) {
		texts[model[:n]] = ""
	}
	for text, want := range texts {
		status, out, errs := snuggedWith(text, "plan", "-model", "-")
		require.Equal(t, 2, status, text)
		require.Empty(t, out)
		require.Regexp(t, "^snug: -: read a model: [^\n]+\n$", errs)
		require.Contains(t, errs, want)
		requireNoKind(t, errs)
	}
}

// requireNoKind: no text ends in the kind of error that it is.
func requireNoKind(t *testing.T, text string) {
	t.Helper()
	for _, kind := range []error{snug.ErrConfig, snug.ErrShape, snug.ErrDType, snug.ErrNoMemory, snug.ErrCorrupt} {
		require.NotContains(t, text, strings.TrimPrefix(kind.Error(), "snug"))
	}
}

func TestOneLine(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
		args []string
	}{
		{err: fmt.Errorf("tune: %w", fmt.Errorf("dataset: %w", errors.New("chat: line 1: no text"))), want: "tune: line 1: no text"},
		{err: fmt.Errorf("tune: %w", fmt.Errorf("dataset: %w", errors.New("chat: line 1: no text"))), want: "tune: chat: line 1: no text", args: []string{"tune", "-data", "a,chat"}},
		{err: errors.New("tune: dataset: train: line 1: no text"), want: "tune: train: line 1: no text", args: []string{"tune", "-data=train"}},
		{err: errors.New("tune: plan: Open: no text"), want: "tune: plan: no text", args: []string{"tune", "-model", "./plan"}},
		{err: fmt.Errorf("plan: %q: want a size: %w", "x", snug.ErrConfig), want: `plan: "x": want a size`},
		{err: fmt.Errorf("plan: state: %w", fmt.Errorf("quant8: a matrix of 0×1: %w", snug.ErrShape)), want: "plan: state: quant8: a matrix of 0×1"},
		{err: errors.Join(fmt.Errorf("a: 1: %w", snug.ErrNoMemory), fmt.Errorf("b: 2: %w", snug.ErrDType)), want: "a: 1; b: 2"},
		{err: fmt.Errorf("offload: page 3: checksum 1, want 2: %w", snug.ErrCorrupt), want: "offload: page 3: checksum 1, want 2"},
		{err: snug.ErrNoMemory, want: "out of memory"},
	} {
		t.Run(c.want, func(t *testing.T) {
			require.Equal(t, c.want, strings.TrimPrefix(oneLine(c.err, c.args...), "snug: "))
		})
	}
}

// TestVersion: what the build says of the module, also where it is a dependency.
func TestVersion(t *testing.T) {
	status, out, errs := snugged("version")
	require.Zero(t, status, errs)
	require.Regexp(t, `^github.com/snug-ml/snug \S+\n(revision [0-9a-f]+ of \S+(, modified since)?\n)?go\S+ on `+runtime.GOOS+"/"+runtime.GOARCH+`, instructions \S+\nbackends: cpu`, out)
	status, out, errs = snugged("version", "-json")
	require.Zero(t, status, errs)
	var r versionReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, "cpu", r.Backends[0])
	require.Equal(t, runtime.Version(), r.Go)

	for _, c := range []struct {
		info *debug.BuildInfo
		want versionReport
	}{
		{nil, versionReport{Version: "(unknown)"}},
		{&debug.BuildInfo{Main: debug.Module{Path: modulePath, Version: "v1.2.3"}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
		}}, versionReport{Version: "v1.2.3", Revision: "abc", Time: "2026-01-02T03:04:05Z", Modified: true}},
		{&debug.BuildInfo{Main: debug.Module{Path: "example.com/x", Version: "v9.0.0"}, Deps: []*debug.Module{{Path: modulePath, Version: "v1.2.3"}},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}}}, versionReport{Version: "v1.2.3"}},
	} {
		got := versionOf(c.info)
		c.want.Module, c.want.Go, c.want.System = modulePath, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
		require.Equal(t, c.want, got)
	}
	t.Setenv("SNUG_CPU", "abacus")
	status, out, errs = snugged("version")
	require.Equal(t, 2, status)
	require.Empty(t, out)
	require.Contains(t, errs, "abacus")
}

// TestHelp: every command has a text, which names all of its flags.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			status, out, errs := snugged(args...)
			require.Zero(t, status)
			require.Empty(t, errs)
			for _, c := range commands() {
				require.Contains(t, out, "snug "+c.name)
			}
		})
	}
	for _, c := range commands() {
		status, out, _ := snugged("help", c.name)
		require.Zero(t, status)
		for _, f := range c.table() {
			require.Regexp(t, "(?m)^  -"+f.name+"( |$)", out, c.name)
		}
		_, same, errs := snugged(c.name, "-h")
		require.Empty(t, errs)
		require.Equal(t, out, same)
		for line := range strings.Lines(out) {
			require.LessOrEqual(t, len(line), 110, "%s: %s", c.name, line)
		}
	}
}

// TestExamplesOfHelp: the models that help shows are read, and its commands find a plan.
func TestExamplesOfHelp(t *testing.T) {
	_, text, _ := snugged("help", "plan")
	models := 0
	for part := range strings.SplitSeq(text, "\n  {") {
		d := json.NewDecoder(strings.NewReader("{" + part))
		var model json.RawMessage
		if strings.HasPrefix(part, `"`) && d.Decode(&model) == nil {
			models++
			status, _, errs := snuggedWith(string(model), "plan", "-model", "-", "-batch", "4")
			require.Zero(t, status, errs)
		}
	}
	require.Equal(t, 4, models)
	commands := 0
	for line := range strings.Lines(text) {
		args, found := strings.CutPrefix(line, "  snug ")
		if !found || strings.Contains(args, "my.json") {
			continue
		}
		commands++
		words := strings.Fields(args)
		if i := slices.Index(words, "Qwen3-0.6B"); i > 0 {
			words[i] = published
		}
		for _, flag := range []string{"-o", "-report"} {
			if i := slices.Index(words, flag); i > 0 {
				words[i+1] = filepath.Join(t.TempDir(), words[i+1])
			}
		}
		status, _, errs := snugged(words...)
		require.Zero(t, status, "%s: %s", args, errs)
	}
	require.Equal(t, 5, commands)
}

func TestPlan(t *testing.T) {
	chart := filepath.Join(t.TempDir(), "out.svg")
	status, out, errs := snugged("plan", "-model", "gpt-34m", "-device", "8GB", "-device-memory", "1GiB", "-o", chart)
	require.Zero(t, status, errs)
	require.Empty(t, errs)
	require.Contains(t, out, "gpt-34m, 33850368 parameters, on 8GB: 8 sequences of 512 tokens a step")
	require.Contains(t, out, ", at the speed of 8GB:\n10.2 TFLOP/s in f32")
	require.NotContains(t, out, "assumed")
	require.NotContains(t, out, "\x1b", "colours")
	for c := range meter.Components {
		require.Contains(t, out, c.String())
	}
	svg, err := os.ReadFile(chart)
	require.NoError(t, err)
	require.Contains(t, string(svg), "<svg")

	status, out, errs = snuggedWith(`{"gpt": {"vocab": 100, "dim": 16, "layers": 2, "heads": 2, "context": 8}}`, "plan", "-model", "-", "-json",
		"-compute", "bf16", "-masters", "none", "-gradients", "bf16", "-state", "4", "-optimizer", "lion", "-lora", "0")
	require.Zero(t, status, errs)
	var r planJSON
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, "bf16 none bf16 4", strings.Join([]string{r.Run.Compute, r.Run.Masters, r.Run.Gradients, "4"}, " "))
	require.Equal(t, 4, r.Run.StateBits)
	require.Equal(t, 8, r.Run.Micro*r.Run.Window)
	sum := int64(0)
	for name, n := range r.Peak["device"] {
		if name != "total" {
			sum += n
		}
	}
	require.Equal(t, r.Peak["device"]["total"], sum)
	require.LessOrEqual(t, sum, r.Limit)
}

// TestWhatIsAssumed: a limit without a device is that of a card that is named, in text and
// in JSON; so is the context, the number of tokens in a sequence.
func TestWhatIsAssumed(t *testing.T) {
	for _, device := range []string{"", "24GB"} {
		args := []string{"plan", "-model", "gpt2", "-device-memory", "8GiB", "-context", "256"}
		if device != "" {
			args = append(args, "-device", device)
		}
		status, out, errs := snugged(args...)
		require.Zero(t, status, errs)
		require.Contains(t, out, "8 sequences of 256 tokens a step")
		require.Contains(t, out, "at the speed of 24GB")
		require.Equal(t, device == "", strings.Contains(out, "on 24GB (assumed, as no -device is named)"))
		status, out, errs = snugged(append(args, "-json")...)
		require.Zero(t, status, errs)
		var r planJSON
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		require.Equal(t, "24GB", r.Device)
		require.Equal(t, device == "", r.Assumed)
		require.Equal(t, 256, r.Context)
	}
	status, out, errs := snugged("plan", "-model", "vit-b16", "-device", "8GB", "-lora", "16")
	require.Zero(t, status, errs)
	require.Contains(t, out, "vit-b16, 86567656 parameters and 2654208 of adapters, on 8GB: 8 samples a step")
}

func TestPlanThatMisses(t *testing.T) {
	status, out, errs := snugged("plan", "-model", "gpt-34m", "-device-memory", "10MiB")
	require.Equal(t, 1, status)
	require.Empty(t, out)
	require.Equal(t, 1, strings.Count(errs, "\n"))
	require.Contains(t, errs, "nothing fits in 10.00 MiB: the smallest plan takes ")
	requireNoKind(t, errs)
	status, out, errs = snugged("plan", "-model", "gpt-34m", "-device-memory", "200MiB", "-state", "32", "-json")
	require.Equal(t, 1, status)
	require.NotEmpty(t, errs)
	var miss struct {
		Limit, Minimum, Missing int64
		Changes                 []struct{ Change string }
	}
	require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(out, "_bytes", "")), &miss))
	require.EqualValues(t, 200<<20, miss.Limit)
	require.Equal(t, miss.Missing, miss.Minimum-miss.Limit)
	require.NotEmpty(t, miss.Changes)
}

// TestReadme: the picture in the README is what the command draws, and the error what it prints.
//
//check:not bits32
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	picture := filepath.Join("..", "..", "plan", "testdata", "llama-2b-24GB.svg")
	require.Contains(t, string(readme), "snug plan -model llama-2b -device 24GB -o")
	require.Contains(t, string(readme), "(plan/testdata/llama-2b-24GB.svg)")
	drawn := filepath.Join(t.TempDir(), "out.svg")
	status, _, errs := snugged("plan", "-model", "llama-2b", "-device", "24GB", "-o", drawn)
	require.Zero(t, status, errs)
	if os.Getenv("UPDATE") != "" {
		b, err := os.ReadFile(drawn)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(picture, b, 0o644))
	}
	status, _, errs = snugged("plan", "-model", "llama-7b", "-device", "40GB")
	require.Equal(t, 1, status)
	require.Contains(t, string(readme), strings.TrimSpace(errs))
	want, err := os.ReadFile(picture)
	require.NoError(t, err)
	got, err := os.ReadFile(drawn)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "UPDATE=1 go test ./cmd/snug draws it anew")
}

func TestDevices(t *testing.T) {
	status, out, _ := snugged("devices")
	require.Zero(t, status)
	require.Contains(t, out, "cpu")
	require.Contains(t, out, "16GB-unified")
	status, out, _ = snugged("devices", "-json")
	require.Zero(t, status)
	var found struct {
		Devices []deviceReport
		Presets []presetReport
	}
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.Equal(t, "cpu", found.Devices[0].Name)
	require.Len(t, found.Presets, len(plan.Devices()))
}

// TestCompletion: scripts name all commands and flags, and the shells that are here accept
// them. Bash completes with its own.
func TestCompletion(t *testing.T) {
	for _, shell := range shells {
		status, out, errs := snugged("completion", shell)
		require.Zero(t, status, errs)
		for _, c := range commands() {
			require.Contains(t, out, c.name)
			for _, f := range c.table() {
				require.Contains(t, out, f.name)
			}
		}
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		script := filepath.Join(t.TempDir(), "script")
		require.NoError(t, os.WriteFile(script, []byte(out), 0o600))
		text, err := exec.Command(shell, "-n", script).CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, text)
		if shell != "bash" {
			continue
		}
		for _, c := range []struct{ words, want string }{
			{"snug pl", "plan"}, {"snug plan -dev", "-device -device-memory"}, {"snug plan -device 16GB-", "16GB-unified"}, {"snug completion fi", "fish"}, {"snug help ins", "inspect"},
		} {
			t.Run(c.words, func(t *testing.T) {
				text, err := exec.Command("bash", "-c", `source "$0"; COMP_WORDS=(`+c.words+`); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _snug; echo "${COMPREPLY[*]}"`, script).CombinedOutput()
				require.NoError(t, err)
				require.Equal(t, c.want, strings.TrimSpace(string(text)), c.words)
			})
		}
	}
}

// TestPlanBase: the form of the frozen weights is what the plan says.
func TestPlanBase(t *testing.T) {
	for _, base := range []string{"fp4", "bf16", "nf4,bf16", "int8"} {
		status, _, errs := snugged("plan", "-model", "gpt2", "-lora", "8", "-adapter", "loftq", "-base", base)
		require.Equal(t, 2, status)
		require.Contains(t, errs, "want -base nf4")
	}
	status, out, errs := snugged("plan", "-model", "gpt2", "-lora", "8", "-adapter", "loftq", "-json")
	require.Zero(t, status, errs)
	require.Contains(t, out, `"frozen_bits": 4,`)
	for base, bits := range map[string]string{"bf16": "16", "nf4": "4", "fp4": "4", "nf4,fp4": "4", "mxfp4": "4", "fp8": "8", "int8": "8"} {
		t.Run(base, func(t *testing.T) {
			status, out, errs := snugged("plan", "-model", "gpt2", "-lora", "8", "-base", base, "-json")
			require.Zero(t, status, errs)
			require.Contains(t, out, `"frozen_bits": `+bits+",", base)
		})
	}
}
