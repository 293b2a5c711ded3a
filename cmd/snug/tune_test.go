package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// letters are the tokens of the tokenizer that the tests add to a model, which has 48.
const letters = "abcdefghijklmnopqrstuvwxyz .,?!:<>'"

// publish makes a folder with a small model of transformers, a tokenizer, and a chat template.
func publish(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} {
		text, err := os.ReadFile(filepath.Join(published, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	vocab := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	for i, r := range letters {
		vocab[string(r)] = i + 3
	}
	file := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil, "pre_tokenizer": nil, "post_processor": nil, "decoder": map[string]any{"type": "Fuse"},
		"added_tokens": []any{map[string]any{"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}},
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": "<unk>", "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []string{}},
	}
	text, err := json.Marshal(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"eos_token": "</s>", "chat_template": `+
		`"{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %} {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"}`), 0o600))
	return dir
}

// chats writes a file of conversations.
func chats(t testing.TB, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"messages": [{"role": "user", "content": "say %c"}, {"role": "assistant", "content": "%[1]c %[1]c"}]}`+"\n", letters[i%26])
	}
	name := filepath.Join(t.TempDir(), "chats.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

// orData returns flags with -data, unless they have it.
func orData(data string, flags []string) []string {
	if slices.Contains(flags, "-data") {
		return flags
	}
	return append([]string{"-data", data}, flags...)
}

func lastLine(t testing.TB, out string) (r result) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
	return r
}

//check:not bits32
func TestTune(t *testing.T) {
	model, data := publish(t), chats(t, 60)
	for _, flags := range [][]string{
		{}, {"-lora", "4", "-base", "nf4"}, {"-base", "fp4", "-compute", "f32", "-memory", "500MiB"}, {"-compute", "f16"},
		{"-full"}, {"-full", "-compute", "f32", "-memory", "1GiB"}, {"-full", "-compute", "f16"}, {"-full", "-fold"},
		{"-full", "-optimizer", "apollo"}, {"-full", "-optimizer", "apollo-mini", "-compute", "f32"}, {"-full", "-optimizer", "galore", "-memory", "1GiB"},
		{"-full", "-optimizer", "soap"},
		{"-full", "-optimizer", "adam-mini"},
		{"-full", "-optimizer", "schedule-free"}, {"-optimizer", "schedule-free", "-base", "nf4", "-adapter", "dora"},
		{"-base", "nf4", "-disk", "1GiB"}, {"-dora", "-rslora", "-dropout", "0.1"}, {"-dora", "-base", "nf4"}, {"-base", "fp8", "-compute", "f32"}, {"-base", "int8", "-dora"}, {"-adapter", "pissa", "-loraplus-ratio", "4"},
		{"-modules-to-save", "embed_tokens,norm"}, {"-modules-to-save", "lm_head", "-base", "nf4", "-adapter", "lora-fa"},
		{"-adapter", "olora", "-base", "nf4", "-lora", "4"}, {"-adapter", "loftq"}, {"-adapter", "lora-fa", "-dropout", "0.1"}, {"-adapter", "dora", "-compute", "f32"},
		{"-adapter", "vera", "-lora", "24", "-dropout", "0.1"}, {"-adapter", "vera", "-base", "nf4"}, {"-adapter", "pissa", "-base", "fp8", "-lora", "4"}, {"-adapter", "vera", "-base", "int8"},
		{"-label-smoothing", "0.1", "-z-loss", "1e-4"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			args := append([]string{"tune", "-model", model, "-data", data, "-o", out, "-epochs", "2", "-lr", "0.02", "-batch", "6", "-json"}, flags...)
			status, stdout, errs := snugged(args...)
			require.Zero(t, status, "%v: %s", flags, errs)
			require.Contains(t, stdout, "59 samples to train on and 1 held out")
			r := lastLine(t, stdout)
			require.Equal(t, 20, r.Steps)
			require.Less(t, r.LossLast, r.LossFirst, flags)
			require.LessOrEqual(t, r.Measured, r.Predicted, "%v: %s", flags, stdout) // samples are shorter than the longest
			require.Greater(t, float64(r.Measured), 0.9*float64(r.Predicted), "%v: %s", flags, stdout)
			o := transformer.Options{AdapterDir: out}
			open := model
			if len(flags) > 0 && flags[0] == "-full" {
				o.AdapterDir, open = "", out
				require.FileExists(t, filepath.Join(out, "tokenizer.json"))
			}
			m, err := transformer.Open(open, o)
			if slices.Contains(flags, "loftq") {
				require.ErrorContains(t, err, "want NF4")
				o.Base = qlora.NF4
				m, err = transformer.Open(open, o)
			}
			require.NoError(t, err)
			require.NoError(t, m.Close())
			require.NoDirExists(t, out+".pages")

			status, stdout, errs = snugged(args...) // again: nothing is overwritten
			require.Equal(t, 2, status)
			require.Contains(t, errs, "is not empty")
			require.Empty(t, stdout)
		})
	}
}

// What changes the results is chosen only where nothing else fits.
//
//check:not bits32
func TestTuneChooses(t *testing.T) {
	model, data := publish(t), chats(t, 30)
	for _, batch := range []int{0, 1, 4} { // 0: adapters, with a batch of 1
		if batch == 1 && !kerneltest.Full() {
			continue // a batch of 4 is asked for updates in the backward pass too
		}
		full := batch > 0
		f := tuneFlags{dir: model, files: data, full: full, batch: max(1, batch), compute: "bf16", adapterFlags: adapterFlags{rank: 4}, dryRun: true, seed: 1, saveEvery: 1}
		require.NoError(t, f.check())
		m, err := f.gather()
		require.NoError(t, err)
		choose := func(more int) (plan.Run, error) {
			r := &tuning{tuneFlags: f, material: m, process: plan.Process{Base: 1 << 30}}
			r.memory = r.process.Base + int64(more)
			err := r.choose()
			return r.plan.Run, err
		}
		const step = 4 << 10
		least := step * sort.Search(4<<10, func(i int) bool { _, err := choose(i * step); return err == nil })
		_, err = choose(least - step)
		require.ErrorIs(t, err, snug.ErrNoMemory)
		tight, err := choose(least)
		require.NoError(t, err)
		ample, err := choose(least + 1<<20)
		require.NoError(t, err)
		if full {
			want := plan.InBackward
			if batch > 1 {
				want = plan.Folded
			}
			require.Equal(t, []any{want, amp.NoMaster}, []any{tight.Gradients, tight.Masters})
			require.Equal(t, plan.SumF32, ample.Gradients)
			require.NotEqual(t, amp.NoMaster, ample.Masters)
		} else {
			require.Equal(t, []int{4, 16}, []int{tight.Frozen, ample.Frozen})
		}
	}
}

func TestTuneDryRun(t *testing.T) {
	status, out, errs := snugged("tune", "-model", publish(t), "-data", chats(t, 9), "-memory", "1GiB", "-dry-run")
	require.Zero(t, status, errs)
	require.Contains(t, out, "activations")
	require.NotContains(t, out, "tokens/s on")
	for _, flags := range [][]string{{"-memory", "1GiB"}, {}} {
		status, out, errs = snugged(append([]string{"tune", "-model", publish(t), "-data", chats(t, 9), "-dry-run", "-json"}, flags...)...)
		require.Zero(t, status, errs)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var r planJSON
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
		require.Equal(t, []bool{true, true, len(flags) > 0}, []bool{r.Run.Micro == 8, r.Process > 0, r.Limit > 0})
		require.Equal(t, len(flags) == 0, strings.Contains(out, "there is no limit"))
	}
}

// Bad input is one line and status 2, and writes nothing.
func TestTuneRefuses(t *testing.T) {
	model, data, out := publish(t), chats(t, 5), filepath.Join(t.TempDir(), "out")
	damaged := publish(t)
	require.NoError(t, os.Truncate(filepath.Join(damaged, "model-00001-of-00002.safetensors"), 100))
	missing := publish(t)
	require.NoError(t, os.Remove(filepath.Join(missing, "model-00002-of-00002.safetensors")))
	strange := publish(t)
	require.NoError(t, os.WriteFile(filepath.Join(strange, "tokenizer.json"), []byte(`{"model": {"type": "Other"}}`), 0o600))
	other := filepath.Join(t.TempDir(), "other.jsonl")
	require.NoError(t, os.WriteFile(other, []byte("{\"text\": \"a b\"}\n{\"body\": 1}\n"), 0o600))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"want -model", []string{"-data", data, "-o", out}},
		{"want -data", []string{"-model", model, "-o", out}},
		{"one of the names is empty", []string{"-model", model, "-data", data + ",", "-o", out}},
		{"-eval-every -1: want 0 or more", []string{"-model", model, "-data", data, "-o", out, "-eval-every", "-1"}},
		{"-eval-every is for samples that are held out, and -held-out is 0", []string{"-model", model, "-data", data, "-o", out, "-held-out", "0", "-eval-every", "2"}},
		{"want -o", []string{"-model", model, "-data", data}},
		{"no such file", []string{"-model", model + "x", "-data", data, "-o", out}},
		{"no such file", []string{"-model", model, "-data", data + "x", "-o", out}},
		{"is a file, want the folder of the model", []string{"-model", filepath.Join(model, "config.json"), "-data", data, "-o", out}},
		{"model-00001-of-00002", []string{"-model", damaged, "-data", data, "-o", out}},
		{"model-00002-of-00002", []string{"-model", missing, "-data", data, "-o", out}},
		{"tokenizer.json", []string{"-model", strange, "-data", data, "-o", out}},
		{"other.jsonl: line 2", []string{"-model", model, "-data", other, "-o", out}},
		{`-memory "much": want a size`, []string{"-model", model, "-data", data, "-o", out, "-memory", "much"}},
		{"-lora 0", []string{"-model", model, "-data", data, "-o", out, "-lora", "0"}},
		{"-compute", []string{"-model", model, "-data", data, "-o", out, "-compute", "u8"}},
		{"-base", []string{"-model", model, "-data", data, "-o", out, "-base", "int3"}},
		{"-full trains none", []string{"-model", model, "-data", data, "-o", out, "-full", "-dora"}},
		{"-optimizer \"sgd\": want adamw", []string{"-model", model, "-data", data, "-o", out, "-full", "-optimizer", "sgd"}},
		{"adapters are low rank already", []string{"-model", model, "-data", data, "-o", out, "-optimizer", "galore"}},
		{"-optimizer soap is for -full", []string{"-model", model, "-data", data, "-o", out, "-optimizer", "soap"}},
		{"-disk does not go with the optimizer soap: its step takes whole matrices", []string{"-model", model, "-data", data, "-o", out, "-full", "-optimizer", "soap", "-disk", "1GiB"}},
		{"-fold does not go with the optimizer galore: its update needs the whole gradient", []string{"-model", model, "-data", data, "-o", out, "-full", "-fold", "-optimizer", "galore"}},
		{"-fold does not go with the optimizer schedule-free", []string{"-model", model, "-data", data, "-o", out, "-full", "-fold", "-optimizer", "schedule-free"}},
		{"-fold does not go with the optimizer prodigy", []string{"-model", model, "-data", data, "-o", out, "-full", "-fold", "-optimizer", "prodigy"}},
		{"-disk does not go with the optimizer prodigy: it keeps numbers of whole parameters", []string{"-model", model, "-data", data, "-o", out, "-disk", "1GiB", "-optimizer", "prodigy"}},
		{"-optimizer adam-mini is for -full", []string{"-model", model, "-data", data, "-o", out, "-optimizer", "adam-mini"}},
		{"-fold does not go with the optimizer adam-mini", []string{"-model", model, "-data", data, "-o", out, "-full", "-fold", "-optimizer", "adam-mini"}},
		{"-fold is for training with gradients", []string{"-model", model, "-data", data, "-o", out, "-full", "-fold", "-optimizer", "mezo"}},
		{"-dropout is for training with gradients", []string{"-model", model, "-data", data, "-o", out, "-dropout", "0.1", "-optimizer", "mezo"}},
		{"is for training with gradients, and the optimizer computes none", []string{"-model", model, "-data", data, "-o", out, "-z-loss", "0.1", "-optimizer", "mezo"}},
		{"takes whole matrices", []string{"-model", model, "-data", data, "-o", out, "-full", "-optimizer", "apollo", "-disk", "1GiB"}},
		{"-label-smoothing 1.5", []string{"-model", model, "-data", data, "-o", out, "-label-smoothing", "1.5"}},
		{"-z-loss 1e-50", []string{"-model", model, "-data", data, "-o", out, "-z-loss", "1e-50"}},
		{"-fold is for -full", []string{"-model", model, "-data", data, "-o", out, "-fold"}},
		{"loss scale", []string{"-model", model, "-data", data, "-o", out, "-full", "-fold", "-compute", "f16"}},
		{"-z-loss NaN", []string{"-model", model, "-data", data, "-o", out, "-z-loss", "NaN"}},
		{"-dropout 1", []string{"-model", model, "-data", data, "-o", out, "-dropout", "1"}},
		{"-base is for adapters, and -full trains none", []string{"-model", model, "-data", data, "-o", out, "-full", "-base", "nf4"}},
		{"want one", []string{"-model", model, "-data", data, "-o", out, "-steps", "3", "-epochs", "1"}},
		{"-lora 2147483647: want 1 to", []string{"-model", model, "-data", data, "-o", out, "-lora", "2147483647"}},
		{"-context 2147483647: want 1 to", []string{"-model", model, "-data", data, "-o", out, "-context", "2147483647"}},
		{"-batch 2147483647: want 1 to", []string{"-model", model, "-data", data, "-o", out, "-batch", "2147483647"}},
		{"-epochs 2147483647: want 1 to", []string{"-model", model, "-data", data, "-o", out, "-epochs", "2147483647"}},
		{"steps, want at most 99999999", []string{"-model", model, "-data", data, "-o", out, "-epochs", "99999999", "-batch", "1"}},
		{"-batch 0", []string{"-model", model, "-data", data, "-o", out, "-batch", "0"}},
		{"-lr", []string{"-model", model, "-data", data, "-o", out, "-lr", "NaN"}},
		{"-lr 0: want", []string{"-model", model, "-data", data, "-o", out, "-lr", "0"}},
		{"-lr 1000: want a rate above 0 and below 1000", []string{"-model", model, "-data", data, "-o", out, "-lr", "1000"}},
		{"-alpha 0: want", []string{"-model", model, "-data", data, "-o", out, "-alpha", "0"}},
		{"-epochs 0: want", []string{"-model", model, "-data", data, "-o", out, "-epochs", "0"}},
		{"-steps 0: want", []string{"-model", model, "-data", data, "-o", out, "-steps", "0"}},
		{"-context 0: want", []string{"-model", model, "-data", data, "-o", out, "-context", "0"}},
		{"-save-every is for -checkpoint", []string{"-model", model, "-data", data, "-o", out, "-save-every", "3"}},
		{"-full trains none", []string{"-model", model, "-data", data, "-o", out, "-full", "-lora", "4"}},
		{"-full trains none", []string{"-model", model, "-data", data, "-o", out, "-full", "-adapter", "lora"}},
		{"-full trains none", []string{"-model", model, "-data", data, "-o", out, "-full", "-loraplus-ratio", "2"}},
		{"-adapter \"vera-fa\": want lora, dora", []string{"-model", model, "-data", data, "-o", out, "-adapter", "vera-fa"}},
		{"-dora is -adapter dora, and -adapter is pissa", []string{"-model", model, "-data", data, "-o", out, "-adapter", "pissa", "-dora"}},
		{"want -base nf4, not fp4", []string{"-model", model, "-data", data, "-o", out, "-adapter", "loftq", "-base", "fp4"}},
		{"want -base nf4, not mxfp4", []string{"-model", model, "-data", data, "-o", out, "-adapter", "loftq", "-base", "mxfp4"}},
		{"-adapter lora-fa does not train both", []string{"-model", model, "-data", data, "-o", out, "-adapter", "lora-fa", "-loraplus-ratio", "2"}},
		{"-adapter vera trains its scales", []string{"-model", model, "-data", data, "-o", out, "-adapter", "vera", "-alpha", "2"}},
		{"-adapter vera does not train both", []string{"-model", model, "-data", data, "-o", out, "-adapter", "vera", "-loraplus-ratio", "2"}},
		{"-loraplus-ratio 0: want", []string{"-model", model, "-data", data, "-o", out, "-loraplus-ratio", "0"}},
		{"-lora 99: -adapter olora takes at most 20, the smallest side", []string{"-model", model, "-data", data, "-o", out, "-adapter", "olora", "-lora", "99"}},
		{"no module of the model ends in", []string{"-model", model, "-data", data, "-o", out, "-modules-to-save", "wte"}},
		{"a matrix of a layer", []string{"-model", model, "-data", data, "-o", out, "-modules-to-save", "q_proj"}},
		{"-full trains none", []string{"-model", model, "-data", data, "-o", out, "-full", "-modules-to-save", "lm_head"}},
		{"unexpected argument", []string{"-model", model, "-data", data, "-o", out, "more"}},
	} {
		t.Run(c.want, func(t *testing.T) {
			status, stdout, errs := snugged(append([]string{"tune"}, c.args...)...)
			require.Equal(t, 2, status, "%s: %s", c.want, errs)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			require.True(t, strings.HasPrefix(errs, "snug: "), errs)
			requireNoKind(t, errs)
			require.Empty(t, stdout, c.want)
			require.NoDirExists(t, out)
		})
	}
}

// The folder's matrices are quantized already: they do not train, have no other form, and adapters take over no part.
//
//check:not bits32
func TestTuneStored(t *testing.T) {
	model, data := publish(t), chats(t, 5)
	text, err := os.ReadFile(filepath.Join(model, "config.json"))
	require.NoError(t, err)
	text = bytes.Replace(text, []byte("{"), []byte(`{"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true},`), 1)
	require.NoError(t, os.WriteFile(filepath.Join(model, "config.json"), text, 0o600))
	for _, c := range []struct {
		want  string
		flags []string
	}{
		{"", nil}, {"", []string{"-adapter", "lora-fa"}}, {"", []string{"-adapter", "vera", "-base", "int8"}},
		{"", []string{"-full"}}, {"", []string{"-base", "nf4"}}, {"", []string{"-base", "bf16"}}, {"", []string{"-adapter", "pissa"}}, {"", []string{"-adapter", "loftq"}},
		{"-adapter pissa begins with a part", []string{"-adapter", "pissa", "-base", "int8"}},
	} {
		t.Run(strings.Join(c.flags, " "), func(t *testing.T) {
			status, _, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-dry-run"}, c.flags...)...)
			require.Equal(t, c.want == "", status == 0, errs)
			require.Contains(t, errs, c.want)
		})
	}
	status, _, errs := snugged("plan", "-lora", "4", "-adapter", "olora", "-base", "int8", model)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "-adapter olora begins with a part")
}

// Where nothing fits the status is 1, as of plan, and the message names a memory that fits.
//
//check:not bits32
func TestTuneMisses(t *testing.T) {
	model, data, out := publish(t), chats(t, 30), filepath.Join(t.TempDir(), "out")
	for _, memory := range []string{"1KiB", "21.1MiB"} {
		for _, flags := range [][]string{{}, {"-full"}} {
			status, _, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-o", out, "-memory", memory}, flags...)...)
			require.Equal(t, 1, status, errs)
			require.Contains(t, errs, "nothing fits: the process takes")
			require.Contains(t, errs, ", or less with -disk\n")
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			requireNoKind(t, errs)
			require.NoDirExists(t, out)
		}
	}
	for _, full := range []bool{false, true} {
		f := tuneFlags{dir: model, files: data, full: full, batch: 8, compute: "bf16", adapterFlags: adapterFlags{rank: 4}, dryRun: true, seed: 1, saveEvery: 1}
		require.NoError(t, f.check())
		m, err := f.gather()
		require.NoError(t, err)
		r := &tuning{tuneFlags: f, material: m, process: plan.Process{Base: 16 << 20}}
		r.memory = 1 << 20
		var miss *plan.MissError
		require.ErrorAs(t, r.choose(), &miss)
		least := miss.Minimum
		r.memory = least
		require.NoError(t, r.choose())
		r.memory = least - baseNoise - 64<<10 // the next process may need baseNoise more or less
		require.ErrorIs(t, r.choose(), snug.ErrNoMemory)
	}
}

// What merge writes gives the logits of the model with its adapter, of any kind.
func TestMerge(t *testing.T) {
	for _, kind := range kindNames() {
		testMerge(t, kind)
	}
}

func testMerge(t *testing.T, kind string) {
	model, adapter, merged := publish(t), filepath.Join(t.TempDir(), "adapter"), filepath.Join(t.TempDir(), "merged")
	status, _, errs := snugged("tune", "-model", model, "-data", chats(t, 30), "-o", adapter, "-lr", "0.05", "-lora", "4", "-compute", "f32", "-adapter", kind)
	require.Zero(t, status, errs)
	f32 := transformer.Options{DType: snug.F32}
	with, plain, flags := f32, f32, []string{}
	if kind == "lora-fa" {
		with.Base, flags = qlora.INT8, []string{"-base", "int8"}
	}
	if with.AdapterDir = adapter; kind == "loftq" {
		with.Base, flags = qlora.NF4, []string{"-base", "nf4"}
		status, _, errs := snugged("merge", "-model", model, "-adapter", adapter, "-o", merged)
		require.Equal(t, 2, status)
		require.Contains(t, errs, "want NF4")
	}
	status, out, errs := snugged(append([]string{"merge", "-model", model, "-adapter", adapter, "-compute", "f32", "-o", merged}, flags...)...)
	require.Zero(t, status, errs)
	require.Contains(t, out, merged)
	require.FileExists(t, filepath.Join(merged, "tokenizer_config.json"))
	logits := func(dir string, o transformer.Options) []float32 {
		m, err := transformer.Open(dir, o)
		require.NoError(t, err)
		defer func() { require.NoError(t, m.Close()) }()
		x := make([]float32, m.Config().Vocab)
		require.NoError(t, m.Logits(context.Background(), x, transformer.Batch{Tokens: []int32{3, 4, 5}}, nil))
		return x
	}
	require.InDeltaSlice(t, logits(model, with), logits(merged, plain), 1e-4)
	require.NotEqual(t, logits(model, plain), logits(merged, plain))
	for _, args := range [][]string{{}, {"-model", model}, {"-model", model, "-adapter", adapter}, {"-model", model, "-adapter", model, "-o", merged + "2"},
		{"-model", model, "-adapter", adapter, "-o", merged}, {"-model", model, "-adapter", adapter, "-o", merged + "2", "-compute", "x"},
		{"-model", model, "-adapter", adapter, "-o", merged + "2", "-base", "bf16"}} {
		status, _, errs := snugged(append([]string{"merge"}, args...)...)
		require.Equal(t, 2, status, errs)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
	}
}
