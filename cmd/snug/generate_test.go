package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/transformer"
)

// answers writes conversations that all have one answer.
func answers(t testing.TB, answer string) string {
	t.Helper()
	var b strings.Builder
	for i := range 52 {
		fmt.Fprintf(&b, `{"messages": [{"role": "user", "content": "say %c"}, {"role": "assistant", "content": "%s"}]}`+"\n", letters[i%26], answer)
	}
	name := filepath.Join(t.TempDir(), "answers.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

// A tuned model says what it was taught, as an adapter over any form of its base, and merged.
func TestGenerate(t *testing.T) {
	model, dir := publish(t), t.TempDir()
	adapter, merged := filepath.Join(dir, "adapter"), filepath.Join(dir, "merged")
	status, _, errs := snugged("tune", "-model", model, "-data", answers(t, "yes, so"), "-o", adapter, "-lr", "0.02", "-lora", "8", "-compute", "f32", "-epochs", "8", "-batch", "4")
	require.Zero(t, status, errs)
	status, _, errs = snugged("merge", "-model", model, "-adapter", adapter, "-compute", "f32", "-o", merged)
	require.Zero(t, status, errs)
	for _, args := range [][]string{
		{"-model", model, "-adapter", adapter}, {"-model", merged}, {"-model", merged, "-compute", "bf16"}, {"-model", model, "-adapter", adapter, "-base", "nf4"},
		{"-model", merged, "-temperature", "0.01", "-top-p", "0.9"}, {"-model", merged, "-temperature", "2", "-top-k", "1", "-seed", "9"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			status, out, errs := snugged(append([]string{"generate", "-prompt", "say q"}, args...)...)
			require.Zero(t, status, errs)
			require.Equal(t, "yes, so\n", out, args)
			require.Contains(t, errs, "23 tokens of a prompt, ")
			require.Contains(t, errs, "; 8 tokens, ")
		})
	}
	status, out, errs := snugged("generate", "-model", merged, "-prompt", "say q", "-tokens", "3")
	require.Zero(t, status, errs)
	require.Equal(t, "yes\n", out)
	status, out, errs = snuggedWith("say q", "generate", "-model", merged, "-prompt", "-")
	require.Zero(t, status, errs)
	require.Equal(t, "yes, so\n", out)
	status, out, errs = snugged("generate", "-model", merged, "-plain", "-prompt", "user: say q assistant: yes,")
	require.Zero(t, status, errs)
	require.Equal(t, " so\n", out)
}

// A text beyond the positions that the model is made for goes on, and says so once.
func TestGenerateBeyond(t *testing.T) {
	model := publish(t)
	config, err := transformer.ReadConfig(model)
	require.NoError(t, err)
	config.Context, config.EOS = 16, []int{2}
	m, err := transformer.New(config, transformer.Options{})
	require.NoError(t, err)
	short := t.TempDir()
	require.NoError(t, m.Save(short, 0))
	require.NoError(t, copyCompanions(short, model, false, nil))
	for tokens, want := range map[string]int{"6": 0, "40": 1} {
		status, _, errs := snugged("generate", "-model", short, "-plain", "-prompt", "a b c", "-tokens", tokens)
		require.Zero(t, status, errs)
		require.Equal(t, want, strings.Count(errs, "beyond the 16 positions"), errs)
	}
}

// The end tokens of generation_config.json count too.
func TestEndTokens(t *testing.T) {
	model := publish(t)
	file := filepath.Join(model, "generation_config.json")
	for text, want := range map[string]string{
		`{"eos_token_id": 5}`: "", `{"eos_token_id": [7, 5]}`: "", `{"eos_token_id": null}`: "", `{}`: "",
		`{"eos_token_id": "x"}`: "eos_token_id is \"x\", want a token or a list of them", `{`: "generation_config.json",
	} {
		t.Run(text, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			status, _, errs := snugged("generate", "-model", model, "-prompt", "a", "-tokens", "2")
			if want == "" {
				require.Zero(t, status, errs)
				return
			}
			require.Equal(t, 2, status)
			require.Contains(t, errs, want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		})
	}
}

// A prompt that is too long is refused, not cut.
func TestLongPrompt(t *testing.T) {
	model := publish(t)
	status, _, errs := snugged("generate", "-model", model, "-plain", "-prompt", strings.Repeat("a", 64), "-tokens", "1")
	require.Zero(t, status, errs)
	status, _, errs = snugged("generate", "-model", model, "-plain", "-prompt", strings.Repeat("a", 65), "-tokens", "1")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "the prompt has 65 tokens, and the model is made for 64 positions")
	status, _, errs = snuggedWith(strings.Repeat("a", maxPrompt+1), "generate", "-model", publish(t), "-prompt", "-")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "more than 64.00 MiB")
}

// Bad input is one line and status 2.
func TestGenerateRefuses(t *testing.T) {
	model := publish(t)
	plain := publish(t)
	require.NoError(t, os.Remove(filepath.Join(plain, "tokenizer_config.json")))
	damaged := publish(t)
	require.NoError(t, os.Truncate(filepath.Join(damaged, "model-00001-of-00002.safetensors"), 100))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"want -model", []string{"-prompt", "a"}},
		{"want -prompt", []string{"-model", model}},
		{"no such file", []string{"-model", model + "x", "-prompt", "a"}},
		{"model-00001-of-00002", []string{"-model", damaged, "-prompt", "a"}},
		{"no such file", []string{"-model", model, "-adapter", model, "-prompt", "a"}},
		{"-tokens 0", []string{"-model", model, "-prompt", "a", "-tokens", "0"}},
		{"-temperature NaN", []string{"-model", model, "-prompt", "a", "-temperature", "NaN"}},
		{"-top-p 0", []string{"-model", model, "-prompt", "a", "-temperature", "1", "-top-p", "0"}},
		{"for drawing a token, and -temperature 0", []string{"-model", model, "-prompt", "a", "-top-k", "4"}},
		{"-plain leaves that out", []string{"-model", model, "-prompt", "a", "-plain", "-system", "b"}},
		{"no chat template", []string{"-model", plain, "-prompt", "a", "-system", "b"}},
		{"no tokens", []string{"-model", plain, "-prompt", "-"}},
		{"-base", []string{"-model", model, "-prompt", "a", "-base", "int3"}},
		{"-base bf16 and -compute f32", []string{"-model", model, "-prompt", "a", "-base", "bf16", "-compute", "f32"}},
		{"-compute", []string{"-model", model, "-prompt", "a", "-compute", "u8"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			status, stdout, errs := snugged(append([]string{"generate"}, c.args...)...)
			require.Equal(t, 2, status, "%s: %s", c.want, errs)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			require.Empty(t, stdout, c.want)
			requireNoKind(t, errs)
		})
	}
}
