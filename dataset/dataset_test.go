package dataset

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
)

var tok = func() *tokenizer.Tokenizer {
	f, err := os.Open("../tokenizer/testdata/qwen/tokenizer.json.gz")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		panic(err)
	}
	t, err := tokenizer.Parse(text)
	if err != nil {
		panic(err)
	}
	return t
}()

// eos is the token that ends texts, and none is for texts without one.
var eos, none = new(int32), func() *int32 { n := int32(-1); return &n }()

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func template(t testing.TB, text string) *chat.Template {
	t.Helper()
	c, err := chat.Parse(tokenizer.Config{ChatTemplate: text, EOS: "</s>"}, chat.Options{})
	require.NoError(t, err)
	return c
}

// stored returns the tokens of a sample.
func (s *Set) stored(t require.TestingT, x sample) (tokens []int32) {
	b, err := s.spool.read(x.at, int(x.n))
	require.NoError(t, err)
	for ; len(b) > 0; b = b[tokenBytes:] {
		tokens = append(tokens, int32(binary.LittleEndian.Uint32(b)))
	}
	return tokens
}

// batchesOf returns the micro-batches of a step.
func (s *Set) batchesOf(t require.TestingT, step, samples, micro int) []Batch {
	list, err := s.Batch(step, samples, micro)
	require.NoError(t, err)
	return list
}

// sum returns the sum of a set.
func (s *Set) sum(t require.TestingT) [sha256.Size]byte {
	sum, err := s.Sum()
	require.NoError(t, err)
	return sum
}

// shown writes tokens: those that are predicted in brackets.
func shown(tokens []int32) string {
	var b strings.Builder
	in := false
	for _, t := range tokens {
		if p := t >= 0; p != in {
			b.WriteString(map[bool]string{true: "[", false: "]"}[p])
			in = p
		}
		if t < 0 {
			t = ^t
		}
		if t == *eos {
			b.WriteString("§")
			continue
		}
		b.WriteString(tok.Decode([]int32{t}, tokenizer.DecodeOptions{}))
	}
	if in {
		b.WriteString("]")
	}
	return b.String()
}

func TestForms(t *testing.T) {
	plain := template(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"+
		"{% if add_generation_prompt %}<assistant>{% endif %}")
	marked := template(t, "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}?{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}")
	for _, c := range []struct {
		name, text string
		template   *chat.Template
		want       []string
	}{
		{"a.txt", "one two three", nil, []string{"[one two three§]"}},
		{"a.jsonl", `{"text": "one"}` + "\n\n" + `{"text": "two", "source": 3}`, nil, []string{"[one§]", "[two§]"}},
		{"a.jsonl", `{"prompt": "Say: ", "completion": "yes"}`, nil, []string{"Say:[ yes§]"}},
		{"a.jsonl", `{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}`,
			plain, []string{"<user>hi\n<assistant>[ho</s>\n]<user>x\n<assistant>[y</s>\n]"}},
		{"a.jsonl", `{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}`, marked, []string{"<user>hi\n<assistant>[ho?\n]"}},
	} {
		t.Run(strings.Join(c.want, " "), func(t *testing.T) {
			s, err := Open([]string{write(t, c.name, c.text)}, tok, Options{Context: 64, EOS: eos, Template: c.template})
			require.NoError(t, err)
			var have []string
			for _, x := range s.all() {
				have = append(have, shown(s.stored(t, x)))
			}
			require.Equal(t, c.want, have)
		})
	}
}

// TestEndOfTexts: without Options.EOS texts end with the token that the tokenizer names, and never with token 0 by chance.
func TestEndOfTexts(t *testing.T) {
	path := write(t, "a.jsonl", `{"prompt": "Say:", "completion": " yes"}`)
	_, err := Open([]string{path}, tok, Options{Context: 64})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "the tokenizer names no token that ends a text: give Options.EOS, which is -1 for none")

	folder := t.TempDir()
	f, err := os.Open("../tokenizer/testdata/qwen/tokenizer.json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "tokenizer.json"), text, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "tokenizer_config.json"), []byte(`{"eos_token": "<|im_end|>"}`), 0o600))
	named, err := tokenizer.Open(folder)
	require.NoError(t, err)
	end, known := named.ID("<|im_end|>")
	require.True(t, known)
	for _, c := range []struct {
		eos  *int32
		want []int32
	}{{nil, []int32{end}}, {eos, []int32{0}}, {none, nil}} {
		s, err := Open([]string{path}, named, Options{Context: 64, EOS: c.eos})
		require.NoError(t, err)
		yes, err := named.Encode(" yes", tokenizer.EncodeOptions{NoSpecial: true})
		require.NoError(t, err)
		tokens := s.stored(t, s.sample(0))
		require.Equal(t, slices.Concat(yes, c.want), tokens[firstLabel(tokens):])
	}
}

func TestTruncatedAndDropped(t *testing.T) {
	text := `{"prompt": "a", "completion": " b c d e f g h i j k l m n o p"}
{"prompt": "` + strings.Repeat("long ", 40) + `", "completion": "x"}
{"prompt": "a", "completion": " b"}`
	s, err := Open([]string{write(t, "a.jsonl", text)}, tok, Options{Context: 8, EOS: eos})
	require.NoError(t, err)
	stats := s.Stats()
	stats.Files = nil
	require.Equal(t, Stats{Samples: 2, Tokens: 8 + 2, Trained: 8 + 2, Truncated: 2, Dropped: 1}, stats)
	b := s.batchesOf(t, 0, 2, 2)
	require.Len(t, b, 1)
	require.Equal(t, 10, len(b[0].Tokens))
	require.Equal(t, float64(10), b[0].Weight())
}

func TestErrors(t *testing.T) {
	messages := `{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]}`
	plain := template(t, "{% for m in messages %}{{ m.content }}{% endfor %}")
	for _, c := range []struct {
		name, text, want string
		template         *chat.Template
		kind             error
	}{
		{"a.txt", "", "no text to train on", nil, snug.ErrConfig},
		{"a.txt", "ab\xffc", "a.txt: byte 2 is not UTF-8", nil, snug.ErrCorrupt},
		{"a.jsonl", "{\"text\": \"a\"}\n{", "a.jsonl: line 2", nil, snug.ErrCorrupt},
		{"a.jsonl", "{\"text\": \"\xff\"}", "line 1: text: byte 10 is not UTF-8", nil, snug.ErrCorrupt},
		{"a.jsonl", `{"text": [3]}`, "line 1: text is an array, want a string", nil, snug.ErrConfig},
		{"a.json", `["x"]`, "element 1: line 1: a string, want an object with the fields of a sample", nil, snug.ErrConfig},
		{"a.json", `[{"text": "x"}, "x"]`, "a.json: element 2: a string, want an object with the fields of a sample", nil, snug.ErrConfig},
		{"a.json", "[{\"text\": \"x\"},\n\"x\"]", "a.json: element 2: line 2: a string, want an object with the fields of a sample", nil, snug.ErrConfig},
		{"a.jsonl", `{"messages": [{"role": "user", "content": [{"type": "text"}]}]}`, `line 1: messages: message 0: part 0: its type is "text" and it has no text`, plain, snug.ErrConfig},
		{"a.jsonl", `{"body": "x"}`, "the fields of the row are body, want those of a form: messages, each with role and content; ", nil, snug.ErrConfig},
		{"a.jsonl", `{"text": "x", "prompt": "y", "completion": "z"}`, "read as prompt and completion, and has the field text besides, which says something else; -format completion leaves it out", nil, snug.ErrConfig},
		{"a.jsonl", `{"prompt": "y"}`, "the fields of the row are prompt, want those of a form", nil, snug.ErrConfig},
		{"a.jsonl", "{\"text\": \"a\"}\n" + `{"prompt": "y", "completion": "z"}`, "line 2: the row has prompt and completion, and the first has text: divide the file, one form each, and give both files", nil, snug.ErrConfig},
		{"a.jsonl", messages, "has none", nil, snug.ErrConfig},
		{"a.jsonl", `{"messages": []}`, "there are no messages", plain, snug.ErrConfig},
		{"a.jsonl", `{"messages": [{"role": "assistant", "content": null}]}`, "message 0: no content, want a string, or a list of parts with texts", plain, snug.ErrConfig},
		{"a.jsonl", `{"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]}`, "message 0: tool_calls[0] has no name of a function", plain, snug.ErrConfig},
		{"a.jsonl", `{"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]}`, "message 0: weight is 0.5, want 1, or 0 for an answer that is not learned", plain, snug.ErrConfig},
		{"a.jsonl", `{"messages": [{"role": "user", "content": "x"}], "tools": [{}]}`, "tools: tool 0 has neither function nor name", plain, snug.ErrConfig},
		{"a.jsonl", `{"messages": [{"role": "user", "content": "x"}]}`, "line 1: no message has the role assistant; there are user", plain, snug.ErrConfig},
	} {
		_, err := Open([]string{write(t, c.name, c.text)}, tok, Options{Context: 8, EOS: eos, Template: c.template})
		require.ErrorIs(t, err, c.kind, c.text)
		require.ErrorContains(t, err, c.want)
	}
	_, err := Open([]string{filepath.Join(t.TempDir(), "none")}, tok, Options{Context: 8, EOS: eos})
	require.ErrorIs(t, err, os.ErrNotExist)
	for path, want := range map[string]string{
		"org-of-none/data-of-none":   "hf download --repo-type dataset org-of-none/data-of-none --local-dir data-of-none",
		"https://a.example/a.jsonl":  "nothing is downloaded here",
		"org-of-none/data.jsonl":     "no such file",
		"hf://datasets/of-none/data": "nothing is downloaded here",
	} {
		_, err := Open([]string{path}, tok, Options{Context: 8})
		require.ErrorIs(t, err, os.ErrNotExist, path)
		require.ErrorContains(t, err, want, path)
	}
	for _, o := range []Options{{}, {Context: MaxContext + 1}, {Context: math.MaxInt}, {Context: 4, HeldOut: 0.6}, {Context: 4, HeldOut: -1}} {
		_, err := Open(nil, tok, o)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// What changes nothing passes: a byte order mark, empty lists, a weight of 1, and fields of the dataset's own.
func TestHarmless(t *testing.T) {
	plain := template(t, "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
	o := Options{Context: 8, EOS: eos, Template: plain}
	want, err := Open([]string{write(t, "a.jsonl", `{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}`)}, tok, o)
	require.NoError(t, err)
	got, err := Open([]string{write(t, "a.jsonl", "\ufeff"+`{"id": 3, "tools": [], "messages": [{"role": "user", "content": "x", "tool_calls": null}, `+
		`{"role": "assistant", "content": "y", "tool_calls": [], "weight": 1}]}`)}, tok, o)
	require.NoError(t, err)
	require.Equal(t, want.Stats().Trained, got.Stats().Trained)
	require.Equal(t, []string{"id"}, got.Stats().Files[0].Ignored)
	require.Empty(t, got.Stats().Files[0].Warnings)
	require.Equal(t, want.sum(t), got.sum(t))
}

// Each epoch has every sample once, whatever the sizes; a step depends on nothing before it; blocks of
// text cover every token.
func batches(t *rapid.T) {
	n, context := rapid.IntRange(1, 40).Draw(t, "samples"), rapid.IntRange(1, 9).Draw(t, "context")
	s := newSet(Options{Context: context, Seed: rapid.Uint64().Draw(t, "seed"), HeldOut: rapid.Float64Range(0, 0.5).Draw(t, "held out"), memory: rapid.IntRange(0, 200).Draw(t, "memory")})
	defer func() { require.NoError(t, s.Close()) }()
	for i := range n {
		var tokens []int32
		for j := range 2 + i%context {
			tokens = append(tokens, int32(1000*i+j))
		}
		require.NoError(t, s.add(nil, tokens))
	}
	require.NoError(t, s.end())
	s.holdOut()
	require.Equal(t, n, s.stats.Samples+s.stats.HeldOut)
	global, micro := rapid.IntRange(1, 12).Draw(t, "batch"), rapid.IntRange(1, 5).Draw(t, "micro")
	seen := map[int32]int{}
	steps := 2 * s.training() // whole epochs of samples
	var all []int32
	for step := range steps {
		count := 0
		for _, b := range s.batchesOf(t, step, global, micro) {
			require.LessOrEqual(t, len(b.Starts)-1, micro)
			for i, lo := range b.Starts[:len(b.Starts)-1] {
				seen[b.Tokens[lo]]++
				all = append(all, b.Tokens[lo])
				require.Equal(t, b.Tokens[lo]+int32(b.Starts[i+1]-lo), b.Labels[b.Starts[i+1]-1])
				count++
			}
		}
		require.Equal(t, global, count)
	}
	require.Len(t, seen, s.training())
	for _, times := range seen {
		require.Equal(t, 2*global, times)
	}
	again := &Set{options: s.options, spool: s.spool, list: s.list, held: s.held, epoch: -1}
	at := rapid.IntRange(0, steps-1).Draw(t, "resumed at")
	var part []int32
	for _, b := range again.batchesOf(t, at, global, global) {
		for _, lo := range b.Starts[:len(b.Starts)-1] {
			part = append(part, b.Tokens[lo])
		}
	}
	require.Equal(t, all[at*global:(at+1)*global], part)
	part = nil // and in parts, as ranks have them
	cut := rapid.IntRange(0, global).Draw(t, "cut")
	low, err := again.Part(at, global, micro, 0, cut)
	require.NoError(t, err)
	high, err := again.Part(at, global, micro, cut, global)
	require.NoError(t, err)
	for _, b := range slices.Concat(low, high) {
		require.Equal(t, uint64(at)<<16+uint64(len(part)), b.Draw)
		for _, lo := range b.Starts[:len(b.Starts)-1] {
			part = append(part, b.Tokens[lo])
		}
	}
	require.Equal(t, all[at*global:(at+1)*global], part)
	for b, err := range s.HeldOut(micro) {
		require.NoError(t, err)
		for _, lo := range b.Starts[:len(b.Starts)-1] {
			require.Zero(t, seen[b.Tokens[lo]])
		}
	}

	set := newSet(s.options)
	defer func() { require.NoError(t, set.Close()) }()
	var tokens []int32
	for i := range rapid.IntRange(0, 50).Draw(t, "tokens") {
		tokens = append(tokens, int32(i))
	}
	b := &cutter{Set: set}
	require.NoError(t, b.add(tokens[:len(tokens)/3]))
	require.NoError(t, b.add(tokens[len(tokens)/3:]))
	b.end()
	require.NoError(t, set.end())
	next := int32(1)
	for _, x := range set.all() {
		b, err := set.pack([]sample{x})
		require.NoError(t, err)
		for _, label := range b.Labels {
			require.Equal(t, next, label)
			next++
		}
	}
	require.Equal(t, max(1, len(tokens)), int(next))
}

func TestBatches(t *testing.T) { rapid.Check(t, batches) }

func FuzzBatches(f *testing.F) { f.Fuzz(rapid.MakeFuzz(batches)) }

func TestSum(t *testing.T) {
	path := write(t, "a.txt", strings.Repeat("some words ", 50))
	open := func(o Options) *Set {
		s, err := Open([]string{path}, tok, o)
		require.NoError(t, err)
		return s
	}
	one := open(Options{Context: 16, EOS: eos})
	require.Equal(t, one.sum(t), open(Options{Context: 16, EOS: eos}).sum(t))
	for _, o := range []Options{{Context: 15, EOS: eos}, {Context: 16, EOS: none}, {Context: 16, EOS: eos, Seed: 1}, {Context: 16, EOS: eos, HeldOut: 0.1}} {
		require.NotEqual(t, one.sum(t), open(o).sum(t))
	}
}

// Damaged lines are errors, never panics.
func FuzzLines(f *testing.F) {
	c, err := chat.Parse(tokenizer.Config{ChatTemplate: "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"}, chat.Options{})
	require.NoError(f, err)
	for _, line := range []string{`{"text": "a"}`, `{"prompt": "a", "completion": "b"}`, `{"messages": [{"role": "assistant", "content": "x"}]}`,
		`{"system": "s", "tools": "[{\"name\": \"f\"}]", "conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\"}"}]}`,
		`{"instruction": "a", "input": "b", "output": "c", "history": [["x", "y"]]}`, `{"system": "SYSTEM: x\n{\"name\": \"f\"}", "chat": "USER: a\n\nASSISTANT: b <functioncall> {\"name\": \"f\"}"}`,
		`{"messages": {"role": ["user", "assistant"], "content": [[{"type": "text", "text": "x"}], null]}}`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := newSet(Options{Context: 16, EOS: eos, Template: c})
		r := &reader{Set: s, tok: tok}
		r.begin("")
		if err := readLines(bytes.NewReader(text), maxLine, r.take); err != nil {
			return
		}
		for _, x := range s.all() {
			b, err := s.pack([]sample{x})
			require.NoError(t, err)
			require.Positive(t, b.Weight())
			require.False(t, slices.ContainsFunc(b.Tokens, func(id int32) bool { return id < 0 }), fmt.Sprint(b.Tokens))
		}
	})
}
