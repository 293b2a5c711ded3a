package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/dataset"
)

func dataFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestTuneShow: -show prints how files were read and the first samples with what is learned, in the report and as JSON too,
// without weights, an output or a training.
//
//check:not bits32
func TestTuneShow(t *testing.T) {
	model := chatModel(t, chatML)
	data := dataFile(t, "a.jsonl", `{"id": 1, "conversations": [{"from": "human", "value": "a <b>"}, {"from": "gpt", "value": "c \u001b[31m & d"}]}
{"id": 2, "conversations": [{"from": "human", "value": "x"}]}
{"id": 3, "conversations": [{"from": "human", "value": "y"}, {"from": "gpt", "value": "z"}]}
`)
	page := filepath.Join(t.TempDir(), "data.html")
	status, out, errs := snugged("tune", "-model", model, "-data", data, "-show", "5", "-held-out", "0", "-json", "-report", page)
	require.Zero(t, status, errs)
	require.Empty(t, errs)
	text, line := out[:strings.LastIndex(strings.TrimSpace(out), "\n")+1], lastText(out)
	require.Equal(t, `      a.jsonl: read as ShareGPT: human → user, gpt → assistant
      a.jsonl: ignored fields: id
      a.jsonl: line 2: left out: no message has the role assistant; there are user

`, text[strings.Index(text, "\n")+1:strings.Index(text, "sample 1")])
	require.True(t, strings.HasPrefix(text, "data: 2 samples to train on and 0 held out, "))
	require.Contains(t, text, "sample 1, "+data+" line 1: ")
	require.Contains(t, text, "<|im_start|>user\na <b><|im_end|>\n<|im_start|>assistant\n⟦c \\x1b[31m & d<|im_end|>")
	require.Contains(t, text, "sample 2, "+data+" line 3: ")
	var found struct {
		Data    dataset.Stats
		Samples []shownSample
	}
	require.NoError(t, json.Unmarshal([]byte(line), &found))
	require.Equal(t, 2, found.Data.Samples)
	require.Equal(t, []dataset.Warning{{Text: "left out: no message has the role assistant; there are user", Rows: 1, First: "line 2"}}, found.Data.Files[0].Warnings)
	require.Len(t, found.Samples, 2)
	require.Contains(t, found.Samples[0].Texts[0], "⟦c \x1b[31m & d<|im_end|>")

	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<li>a.jsonl: read as ShareGPT: human → user, gpt → assistant</li>")
	require.Contains(t, string(html), `a &lt;b&gt;&lt;|im_end|&gt;`)
	require.Contains(t, string(html), `<mark>⟦c \x1b[31m &amp; d&lt;|im_end|&gt;`)
	require.NotContains(t, string(html), "Peak memory")

	status, out, errs = snugged("tune", "-model", model, "-data", data, "-show", "1", "-format", "sharegpt", "-map", "note=id")
	require.Zero(t, status, errs)
	require.Contains(t, out, "ignored fields: note\n")
	require.Equal(t, 1, strings.Count(out, "sample 1, "))
	require.NotContains(t, out, "sample 2, ")
}

// lastText returns the last line of a text.
func lastText(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

//check:not bits32
func TestTuneShowRefused(t *testing.T) {
	model := chatModel(t, chatML)
	data := dataFile(t, "a.jsonl", `{"text": "a b"}`)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"-show 0: want 1 or more", []string{"-show", "0"}},
		{"-show -1: want", []string{"-show", "-1"}},
		{`-format "chatml": want auto or, without -dpo, one of messages, sharegpt, glaive, completion, alpaca, text`, []string{"-show", "1", "-format", "chatml"}},
		{`-format "text": want auto or, with -dpo, one of hh-rlhf, preference`, []string{"-show", "1", "-format", "text", "-dpo", "0.1"}},
		{`-map: "prompt", want name=field, each name once`, []string{"-show", "1", "-map", "prompt"}},
		{`-map: "a=y", want name=field, each name once`, []string{"-show", "1", "-map", "a=x,a=y"}},
		{"-map prompt=question: the row has no field question, its fields are text", []string{"-show", "1", "-map", "prompt=question"}},
		{"the format messages wants messages, each with role and content", []string{"-show", "1", "-format", "messages"}},
		{"want -o: the folder to write, or -dry-run", nil},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			status, _, errs := snugged(append([]string{"tune", "-model", model, "-data", data}, c.args...)...)
			require.Equal(t, 2, status, c.args)
			require.Contains(t, errs, c.want)
		})
	}
}

// TestTuneReportsData: a run says in its lines, its report and its JSON how data were read.
func TestTuneReportsData(t *testing.T) {
	model, dir := publish(t), t.TempDir()
	lines, err := os.ReadFile(chats(t, 8))
	require.NoError(t, err)
	data := dataFile(t, "a.jsonl", string(lines)+`{"messages": [{"role": "user", "content": "a"}]}`)
	page := filepath.Join(dir, "run.html")
	status, out, errs := snugged("tune", "-model", model, "-data", data, "-o", filepath.Join(dir, "out"), "-steps", "1", "-report", page, "-json")
	require.Zero(t, status, errs)
	require.Contains(t, out, "\n      a.jsonl: read as messages\n      a.jsonl: line 9: left out: no message has the role assistant; there are user\n")
	var r struct{ Data dataset.Stats }
	require.NoError(t, json.Unmarshal([]byte(lastText(out)), &r))
	require.Equal(t, 8, r.Data.Files[0].Samples)
	require.Equal(t, 9, r.Data.Files[0].Rows)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<li>a.jsonl: read as messages</li>")
	require.Contains(t, string(html), "<mark>⟦")
	require.Contains(t, string(html), "Peak memory")
}
