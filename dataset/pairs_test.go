package dataset

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
)

// shownPair writes the tokens of both answers.
func (s *Set) shownPair(t *testing.T, x sample) string {
	tokens := s.stored(t, x)
	return shown(tokens[:x.mid]) + " | " + shown(tokens[x.mid:])
}

const plainTemplate = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}" +
	"{% if add_generation_prompt %}<assistant>{% endif %}"

func TestPairForms(t *testing.T) {
	plain := template(t, plainTemplate)
	thinks := template(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}")
	user, yes, no := `{"role": "user", "content": "hi"}`, `{"role": "assistant", "content": "yes"}`, `{"role": "assistant", "content": "no"}`
	for _, c := range []struct {
		text     string
		template *chat.Template
		want     string
	}{
		{`{"prompt": "Say: ", "chosen": "yes", "rejected": "no way"}`, nil, "Say:[ yes§] | Say:[ no way§]"}, // the tokens of the whole text, as in TRL,
		{`{"prompt": null, "chosen": [` + user + `, ` + yes + `], "rejected": [` + user + `, ` + no + `], "score": 3}`, plain, "<user>hi\n<assistant>[yes</s>\n] | <user>hi\n<assistant>[no</s>\n]"},
		{`{"prompt": [` + user + `], "chosen": [` + yes + `], "rejected": [` + no + `]}`, thinks, "<user>hi\n<assistant>[yes]\n | <user>hi\n<assistant>[no]\n"},
		{`{"prompt": [` + user + `], "chosen": [` + yes + `], "rejected": [` + no + `, ` + user + `]}`, plain, "<user>hi\n<assistant>[yes</s>\n] | <user>hi\n<assistant>[no</s>\n]<user>hi\n"},
	} {
		t.Run(c.text, func(t *testing.T) {
			s, err := Open([]string{write(t, "a.jsonl", c.text)}, tok, Options{Context: 64, EOS: eos, Template: c.template, Pairs: true})
			require.NoError(t, err)
			require.Equal(t, []string{c.want}, []string{s.shownPair(t, s.list.get(0))})
			require.Equal(t, 1, s.Pairs())
		})
	}
}

func TestPairsTruncatedAndDropped(t *testing.T) {
	text := `{"prompt": "a", "chosen": " b c d e f g h i j k l m n o p", "rejected": " b c"}
{"prompt": "` + strings.Repeat("long ", 40) + `", "chosen": "x", "rejected": "y"}
{"prompt": "a", "chosen": " b", "rejected": " b c d e f g h i j k l m n o p"}`
	s, err := Open([]string{write(t, "a.jsonl", text)}, tok, Options{Context: 8, EOS: eos, Pairs: true})
	require.NoError(t, err)
	require.Equal(t, 3, s.stats.Truncated)
	require.Equal(t, []int{2, 1, 8}, []int{s.stats.Samples, s.stats.Dropped, s.Longest()})
	require.Equal(t, "a[ b c d e f g h i] | a[ b c§]", s.shownPair(t, s.list.get(0)))
	b := s.batchesOf(t, 0, 2, 2)
	require.Len(t, b, 1)
	require.EqualValues(t, s.stats.Tokens, len(b[0].Tokens))
	require.Equal(t, float64(s.stats.Trained), b[0].Weight())
	require.Len(t, b[0].Starts, 5)
	require.ElementsMatch(t, []int{0, 1}, b[0].Pairs)
}

// TestPairsEqualWhenCut: a pair that differs only behind the context is counted, and said to be left out, once.
func TestPairsEqualWhenCut(t *testing.T) {
	text := `[{"prompt": "a", "chosen": " b", "rejected": " c"}, {"prompt": "a", "chosen": "` + strings.Repeat(" b", 9) + ` c", "rejected": "` + strings.Repeat(" b", 9) + ` d"}]`
	s, err := Open([]string{write(t, "a.json", text)}, tok, Options{Context: 8, EOS: eos, Pairs: true})
	require.NoError(t, err)
	require.Equal(t, 1, s.stats.Dropped)
	require.Equal(t, []Warning{{"left out: chosen and rejected are equal in their first 8 tokens (-context)", 1, "element 2"}}, s.stats.Files[0].Warnings)
}

func TestPairErrors(t *testing.T) {
	plain := template(t, plainTemplate)
	yes := `[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]`
	for _, c := range []struct {
		name, text, want string
		template         *chat.Template
		kind             error
	}{
		{"a.txt", "text", "a.txt: preferences are rows of JSON", nil, snug.ErrConfig},
		{"a.jsonl", `{"prompt": "x", "chosen": "y"}`, "line 1: the row has no chosen and rejected answers", nil, snug.ErrConfig},
		{"a.jsonl", `{"prompt": "x", "completion": "y"}`, "line 1: the row has no chosen and rejected answers", nil, snug.ErrConfig},
		{"a.jsonl", `{"chosen": "y", "rejected": "z"}`, "and want a prompt", nil, snug.ErrConfig},
		{"a.jsonl", `{"prompt": "x", "chosen": ` + yes + `, "rejected": ` + yes + `}`, "chosen and rejected are equal", plain, snug.ErrConfig},
		{"a.jsonl", `{"chosen": ` + yes + `, "rejected": "z"}`, "chosen is an array and rejected is a string, want both as strings or both as messages", plain, snug.ErrConfig},
		{"a.jsonl", `{"chosen": 3, "rejected": "z"}`, "chosen is a number and rejected is a string, want both", nil, snug.ErrConfig},
		{"a.jsonl", `{"chosen": [{"role": "assistant", "content": 3}], "rejected": ` + yes + `}`, "chosen: message 0: content is a number, want a string", plain, snug.ErrConfig},
		{"a.jsonl", `{"chosen": [3], "rejected": ` + yes + `}`, "chosen: message 0: a number, want an object with role and content", plain, snug.ErrConfig},
		{"a.jsonl", `{"chosen": [{"content": "x"}], "rejected": ` + yes + `}`, "chosen: message 0: no role, want role: its members are content", plain, snug.ErrConfig},
		{"a.jsonl", `{"chosen": ` + yes + `, "rejected": ` + yes + `}`, "chosen and rejected are equal", plain, snug.ErrConfig},
		{"a.jsonl", `{"chosen": ` + yes + `, "rejected": []}`, "want a chat template", nil, snug.ErrConfig},
		{"a.jsonl", `{"chosen": ` + yes + `, "rejected": [{"role": "user"}]}`, "rejected: message 0: no content, want", plain, snug.ErrConfig},
		{"a.jsonl", `{"chosen": ` + yes + `, "rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "z"}], "tools": [1]}`, "tools: tool 0 is a number, want an object", plain, snug.ErrConfig},
		{"a.jsonl", `{"prompt": "x", "chosen": "y", "rejected": "z"}` + "\n" + `{"chosen": ` + yes + `, "rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "z"}]}`, "line 2: chosen and rejected are messages, and in the first row they are texts", plain, snug.ErrConfig},
		{"a.jsonl", `{"prompt": "` + strings.Repeat("long ", 40) + `", "chosen": "x", "rejected": "y"}`, "none of 1 samples has text to train on", nil, snug.ErrConfig},
	} {
		t.Run(c.text, func(t *testing.T) {
			_, err := Open([]string{write(t, c.name, c.text)}, tok, Options{Context: 8, EOS: eos, Template: c.template, Pairs: true})
			require.ErrorIs(t, err, c.kind, c.text)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := Open([]string{write(t, "a.jsonl", `{"prompt": "x", "chosen": "y", "rejected": "z"}`)}, tok, Options{Context: 8, EOS: eos})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "tune -dpo")
}

// Once has each pair of the steps and each that is held out once, in the company that it has for any steps.
func TestOnce(t *testing.T) {
	s := newSet(Options{Context: 9, Seed: 3, HeldOut: 0.2, Pairs: true})
	const n = 30
	for i := range int32(n) {
		require.NoError(t, s.add(nil, []int32{1000 * i, 1000*i + 1}, []int32{1000 * i, 1000*i + 2}))
	}
	s.holdOut()
	require.Equal(t, n, s.Pairs())
	company := map[int]string{}
	for b, err := range s.Once(0, 100, 7, 4) {
		require.NoError(t, err)
		for _, i := range b.Pairs {
			require.Empty(t, company[i])
			company[i] = fmt.Sprint(b.Pairs)
		}
	}
	require.Len(t, company, n)
	for _, steps := range [][2]int{{0, 1}, {1, 3}, {3, 3}, {90, 91}} {
		seen := map[int]bool{}
		for b, err := range s.Once(steps[0], steps[1], 7, 4) {
			require.NoError(t, err)
			for _, i := range b.Pairs {
				require.False(t, seen[i])
				seen[i] = true
				require.Equal(t, company[i], fmt.Sprint(b.Pairs))
			}
		}
		for step := steps[0]; step < steps[1]; step++ {
			for _, b := range s.batchesOf(t, step, 7, 4) {
				require.False(t, slices.ContainsFunc(b.Pairs, func(i int) bool { return !seen[i] }))
			}
		}
		for b, err := range s.HeldOut(3) {
			require.NoError(t, err)
			require.False(t, slices.ContainsFunc(b.Pairs, func(i int) bool { return !seen[i] || i < s.training() }))
		}
		require.Less(t, len(seen), n)
	}
	for range s.Once(0, 100, 7, 4) {
		break
	}
	open := func(text string) [32]byte {
		s, err := Open([]string{write(t, "a.jsonl", text)}, tok, Options{Context: 64, EOS: none, Pairs: true})
		require.NoError(t, err)
		return s.sum(t)
	}
	require.NotEqual(t, open(`{"prompt": "a ", "chosen": "a a", "rejected": "a"}`), open(`{"prompt": "a ", "chosen": "a", "rejected": "a a"}`), "which answer is chosen")
}

// Damaged lines of preferences are errors, never panics.
func FuzzPairs(f *testing.F) {
	c := template(f, plainTemplate)
	for _, line := range []string{`{"prompt": "a", "chosen": "b", "rejected": "c"}`, `{"chosen": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "z"}]}`,
		`{"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}`, `{"input": {"messages": [{"role": "user", "content": "x"}]}, "preferred_output": {"role": "assistant", "content": "y"}, "non_preferred_output": []}`,
		`{"instruction": "a", "chosen": "b", "rejected": "c", "system": ""}`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := newSet(Options{Context: 16, EOS: eos, Template: c, Pairs: true})
		r := &reader{Set: s, tok: tok}
		r.begin("")
		if err := readLines(bytes.NewReader(text), maxLine, r.take); err != nil {
			return
		}
		for i := range s.all() {
			b, err := s.batch([]int{i})
			require.NoError(t, err)
			require.Len(t, b.Starts, 3)
			require.Positive(t, b.Weight())
		}
	})
}
