package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// TestStudentMatchesTorch: the losses and the norms of gradients of PyTorch, see testdata/distill/make.py.
func TestStudentMatchesTorch(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "distill", "golden.json"))
	require.NoError(t, err)
	var golden []struct {
		Teacher            string
		Share, Temperature float32
		Steps              []struct {
			Tokens, Labels []int32
			Loss, Norm     float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden, 2)
	for _, g := range golden {
		open := func(name string) *transformer.Model {
			m, err := transformer.Open(filepath.Join(filepath.Dir(published), name), transformer.Options{DType: snug.F32})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close()) })
			return m
		}
		s := &student{Model: open("llama"), Distillation: transformer.Distillation{Teacher: open(g.Teacher), Weight: g.Share, Temperature: g.Temperature}}
		trainer, err := train.New(learner(s), train.Options{Schedule: train.Constant(2e-3)})
		require.NoError(t, err)
		require.Len(t, g.Steps, 12)
		for i, step := range g.Steps {
			b := dataset.Batch{Batch: transformer.Batch{Tokens: step.Tokens, Labels: step.Labels, Sequences: 2}}
			report, err := trainer.Train(context.Background(), []dataset.Batch{b})
			require.NoError(t, err)
			require.InEpsilon(t, step.Loss, report.Loss, 1e-4, "%s: step %d", g.Teacher, i)
			require.InEpsilon(t, step.Norm, report.Norm, 1e-3, "%s: step %d", g.Teacher, i)
		}
	}
}

// publishTeacher makes a folder with another model of the same tokens.
func publishTeacher(t testing.TB, name string) string {
	t.Helper()
	dir, from := publish(t), filepath.Join(filepath.Dir(published), name)
	for _, file := range []string{"config.json", "model.safetensors.index.json"} {
		require.NoError(t, os.Remove(filepath.Join(dir, file)))
	}
	files, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(from, f.Name()))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name()), text, 0o600))
	}
	return dir
}

//check:not bits32
func TestTuneTeacher(t *testing.T) {
	model, teacher, data := publish(t), publishTeacher(t, "qwen3"), chats(t, 60)
	for _, flags := range [][]string{
		{}, {"-lora", "4", "-base", "nf4", "-teacher-base", "nf4", "-distill-temperature", "2"}, {"-full", "-compute", "f32", "-memory", "1GiB", "-distill-weight", "1"},
		{"-full", "-fold"}, {"-compute", "f16", "-tiles", "2", "-teacher-base", "int8"}, {"-base", "nf4", "-disk", "1GiB"}, {"-dora", "-dropout", "0.1", "-label-smoothing", "0.1"},
		{"-full", "-optimizer", "galore"}, {"-adapter", "vera", "-lora", "24", "-z-loss", "1e-4"}, {"-modules-to-save", "lm_head", "-distill-weight", "0.999"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			args := append([]string{"tune", "-model", model, "-teacher", teacher, "-data", data, "-o", out, "-epochs", "2", "-lr", "0.01", "-batch", "6", "-distill-weight", "0.98", "-json"}, flags...)
			status, stdout, errs := snugged(args...)
			require.Zero(t, status, "%v: %s", flags, errs)
			require.Contains(t, stdout, "\nteacher: ")
			require.Contains(t, stdout, "divergence from the teacher on held-out samples: ")
			r := lastLine(t, stdout)
			require.Less(t, *r.DivergenceLast, *r.DivergenceFirst, flags)
			require.LessOrEqual(t, r.Measured, r.Predicted, "%v: %s", flags, stdout)
			require.Greater(t, float64(r.Measured), 0.9*float64(r.Predicted), "%v: %s", flags, stdout)
		})
	}
}

// A run goes on to the same bits, with the same teacher only.
//
//check:not bits32
func TestTuneTeacherGoesOn(t *testing.T) {
	model, teacher, data, dir := publish(t), publishTeacher(t, "qwen3"), chats(t, 25), t.TempDir()
	saved := filepath.Join(dir, "saved")
	run := func(out string, more ...string) (int, string, string) {
		return snugged(append([]string{"tune", "-model", model, "-teacher", teacher, "-data", data, "-o", filepath.Join(dir, out), "-steps", "6", "-batch", "5", "-lora", "2",
			"-save-every", "4", "-checkpoint", saved, "-json"}, more...)...)
	}
	status, out, errs := run("one")
	require.Zero(t, status, errs)
	one := lastLine(t, out)
	require.NoError(t, os.RemoveAll(filepath.Join(saved, "step-00000006")))
	for flag, want := range map[string]string{"-distill-weight=0.9": "distill-weight is 0.5 there, 0.9 here", "-distill-temperature=2": "distill-temperature is 1 there", "-teacher-base=nf4": `teacher-base is "" there`, "-teacher=" + publishTeacher(t, "mistral"): "checksum of config.json of the teacher is"} {
		t.Run(flag, func(t *testing.T) {
			status, _, errs = run("two", flag)
			require.Equal(t, 1, status)
			require.Contains(t, errs, "it is of another run: "+want)
		})
	}
	status, out, errs = run("two", "-memory", "1GiB")
	require.Zero(t, status, errs)
	require.Contains(t, out, "going on from step 4 of 6")
	two := lastLine(t, out)
	require.Equal(t, []any{one.Loss, one.LossLast, one.DivergenceLast}, []any{two.Loss, two.LossLast, two.DivergenceLast})
	var files [2][]byte
	for i, out := range []string{"one", "two"} {
		var err error
		files[i], err = os.ReadFile(filepath.Join(dir, out, "adapter_model.safetensors"))
		require.NoError(t, err)
	}
	require.Equal(t, files[0], files[1])
}

// TestTuneTeacherRefused: what does not fit together is one line and status 2.
//
//check:not bits32
func TestTuneTeacherRefused(t *testing.T) {
	model, teacher, data, out := publish(t), publishTeacher(t, "qwen3"), chats(t, 5), filepath.Join(t.TempDir(), "out")
	spoiled := func(file, old, other string) string {
		dir := publishTeacher(t, "qwen3")
		text, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		require.Contains(t, string(text), old)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(strings.Replace(string(text), old, other, 1)), 0o600))
		return dir
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"for -teacher, and there is none", []string{"-distill-weight", "0.5"}},
		{"for -teacher, and there is none", []string{"-teacher-base", "nf4"}},
		{"-dpo learns from pairs", []string{"-teacher", teacher, "-dpo", "0.1"}},
		{"-teacher-base \"int3\": want bf16, nf4", []string{"-teacher", teacher, "-teacher-base", "int3"}},
		{"-distill-weight 0: want above 0 and up to 1", []string{"-teacher", teacher, "-distill-weight", "0"}},
		{"-distill-weight NaN: want", []string{"-teacher", teacher, "-distill-weight", "NaN"}},
		{"-distill-temperature 0: want 0.01 to 1000", []string{"-teacher", teacher, "-distill-temperature", "0"}},
		{"-distill-weight 1 leaves none", []string{"-teacher", teacher, "-distill-weight", "1", "-z-loss", "1e-4"}},
		{"-teacher is the folder of -model", []string{"-teacher", model}},
		{"-teacher is the folder of -model", []string{"-teacher", model, "-base", "nf4", "-teacher-base", "nf4"}},
		{"no such file", []string{"-teacher", model + "x"}},
		{"is a file, want the folder of the model", []string{"-teacher", filepath.Join(model, "config.json")}},
		{"has a vocabulary of 49 tokens, and -model of 48", []string{"-teacher", vocabulary(t, teacher)}},
		{"has another tokenizer than -model: token 3 is \"%\" there, and \"a\" here", []string{"-teacher", spoiled("tokenizer.json", `"a":3`, `"%":3`)}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			status, stdout, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-o", out}, c.args...)...)
			require.Equal(t, 2, status, "%s: %s", c.want, errs)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			requireNoKind(t, errs)
			require.Empty(t, stdout, c.want)
			require.NoDirExists(t, out)
		})
	}
	status, _, errs := snugged("tune", "-model", model, "-data", data, "-teacher", model, "-base", "nf4", "-dry-run")
	require.Zero(t, status, errs)
}

// vocabulary makes the folder of a model with one token more.
func vocabulary(t testing.TB, of string) string {
	t.Helper()
	c, err := transformer.ReadConfig(of)
	require.NoError(t, err)
	c.Vocab++
	m, err := transformer.New(c, transformer.Options{})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, m.Save(dir, 0))
	require.NoError(t, m.Close())
	require.NoError(t, copyCompanions(dir, of, false, nil))
	return dir
}
