package serve

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

const chats, completions = "/v1/chat/completions", "/v1/completions"

// alone returns the tokens that a model writes by itself.
func alone(t testing.TB, m Model, prompt string, n int, s transformer.Sampling) (tokens []int32) {
	t.Helper()
	ids, err := m.Tokenizer.Encode(prompt, tokenizer.EncodeOptions{})
	require.NoError(t, err)
	g, err := m.Model.Generate(transformer.GenerateOptions{Context: len(ids) + n, Sampling: s})
	require.NoError(t, err)
	require.NoError(t, g.Prompt(t.Context(), ids))
	for range n {
		token, err := g.Next(t.Context())
		require.NoError(t, err)
		tokens = append(tokens, token)
		if token >= end {
			break
		}
	}
	return tokens
}

// An answer is what the model writes by itself, whole and as a stream, for chats and completions.
func TestAnswers(t *testing.T) {
	m := newModel(t, "base", 1)
	want := map[string]string{}
	for _, prompt := range []string{"say", "user: say\nassistant: "} {
		tokens := alone(t, m, prompt, 30, transformer.Sampling{Temperature: 1.2, TopP: 0.8, TopK: 40, Seed: 7})
		require.Len(t, tokens, 30)
		want[prompt] = m.Tokenizer.Decode(tokens, tokenizer.DecodeOptions{SkipSpecial: true})
	}
	_, h := start(t, Options{Models: []Model{m}})
	const how = `"max_tokens": 30, "temperature": 1.2, "top_p": 0.8, "top_k": 40, "seed": 7`
	r := ask(t, h, completions, `{"model": "base", "prompt": "say", `+how+`}`)
	require.Equal(t, want["say"], r.Choices[0].Text)
	require.Equal(t, []string{"text_completion", "base", "length"}, []string{r.Object, r.Model, *r.Choices[0].FinishReason})
	require.Equal(t, []int{3, 30, 33}, []int{r.Usage.Prompt, r.Usage.Completion, r.Usage.Total})
	require.True(t, strings.HasPrefix(r.ID, "cmpl-"))
	require.Equal(t, want["say"], ask(t, h, completions, `{"prompt": [115, 97, 121], `+how+`}`).Choices[0].Text)
	require.Equal(t, want["say"], ask(t, h, completions, `{"prompt": ["say"], `+how+`, "user": "me", "n": 1, "logit_bias": {}, "presence_penalty": 0.0}`).Choices[0].Text)

	const messages = `"messages": [{"role": "user", "content": "say"}]`
	r = ask(t, h, chats, `{"model": "base", `+messages+`, `+how+`}`)
	require.Equal(t, want["user: say\nassistant: "], r.Choices[0].Message.Content)
	require.Equal(t, []string{"chat.completion", "assistant", "length"}, []string{r.Object, r.Choices[0].Message.Role, *r.Choices[0].FinishReason})
	parts := strings.ReplaceAll(messages, `"say"`, `[{"type": "text", "text": "s"}, {"type": "text", "text": "ay"}]`)
	require.Equal(t, want["user: say\nassistant: "], ask(t, h, chats, `{`+parts+`, `+strings.Replace(how, "max_tokens", "max_completion_tokens", 1)+`}`).Choices[0].Message.Content)

	for path, prompt := range map[string]string{chats: messages, completions: `"prompt": "say"`} {
		events := stream(t, h, path, `{`+prompt+`, "stream": true, "stream_options": {"include_usage": true}, `+how+`}`)
		text := ""
		for i, e := range events[:len(events)-1] {
			require.Len(t, e.Choices, 1)
			require.Equal(t, i == len(events)-2, e.Choices[0].FinishReason != nil, i)
			require.Nil(t, e.Usage)
			more := e.Choices[0].Text
			if c := e.Choices[0].Delta.Content; c != nil {
				more += *c
			}
			require.True(t, utf8.ValidString(more))
			text += more
		}
		last := events[len(events)-1]
		require.Empty(t, last.Choices)
		require.Equal(t, 30, last.Usage.Completion)
		if path == chats {
			require.Equal(t, want["user: say\nassistant: "], text)
			require.Equal(t, "assistant", events[0].Choices[0].Delta.Role)
		} else {
			require.Equal(t, want["say"], text)
		}
		require.Greater(t, len(events), 10)
	}
}

// The same request gets the same answer, alone and beside others that come and go, without a temperature and with a seed.
func TestSameAnswers(t *testing.T) {
	_, h := start(t, Options{Models: []Model{newModel(t, "base", 1), newModel(t, "other", 2)}, Rows: 3, Queue: 64})
	var bodies []string
	for i := range 24 {
		body := fmt.Sprintf(`{"prompt": "say %d", "model": "%s", "max_tokens": %d, "seed": %d, "temperature": 1.5}`, i, []string{"base", "other"}[i%2], 3+i*3, i)
		if i%3 == 0 {
			body = fmt.Sprintf(`{"prompt": "%s", "max_tokens": 25, "temperature": 0}`, strings.Repeat("long ", 1+4*i))
		}
		bodies = append(bodies, body)
	}
	want := make([]string, len(bodies))
	for i, body := range bodies {
		want[i] = ask(t, h, completions, body).Choices[0].Text
	}
	have := make([]string, len(bodies))
	var all sync.WaitGroup
	for i, body := range bodies {
		all.Go(func() { have[i] = ask(t, h, completions, body).Choices[0].Text })
	}
	for range 10 {
		all.Go(func() { post(t, h, completions, `{"prompt": "beside", "max_tokens": 9}`) })
	}
	all.Wait()
	require.Equal(t, want, have)
}

// A stop ends the text before it, wherever tokens begin and end, and nothing of it is sent.
func TestStops(t *testing.T) {
	_, h := start(t, Options{})
	const how = `"prompt": "say", "temperature": 0, "logprobs": 1, "max_tokens": 60`
	whole := ask(t, h, completions, `{`+how+`}`)
	text := []rune(whole.Choices[0].Text)
	require.Greater(t, len(text), 20)
	for _, n := range []int{1, 2, 5, 9} {
		stop := string(text[8 : 8+n])
		want, _, _ := strings.Cut(string(text), stop)
		encoded, err := json.Marshal([]string{"not there", stop})
		require.NoError(t, err)
		r := ask(t, h, completions, `{`+how+`, "stop": `+string(encoded)+`}`)
		require.Equal(t, want, r.Choices[0].Text)
		require.Equal(t, "stop", *r.Choices[0].FinishReason)
		require.Less(t, r.Usage.Completion, whole.Usage.Completion)
		if l := r.Choices[0].Logprobs; l != nil {
			require.Less(t, l.Offsets[len(l.Offsets)-1], utf8.RuneCountInString(want))
		}
		got := ""
		for _, e := range stream(t, h, completions, `{`+how+`, "stream": true, "stop": `+string(encoded)+`}`) {
			got += e.Choices[0].Text
		}
		require.Equal(t, want, got)
	}
}

func TestWriting(t *testing.T) {
	tok := bytesTokenizer(t)
	for _, c := range []struct {
		text  string
		stops []string
		want  []string // that is ready after each byte, and at the end
		stop  bool
	}{
		{"abc", nil, []string{"a", "b", "c", ""}, false},
		{"a€b", nil, []string{"a", "", "", "€", "b", ""}, false},
		{"a\xe2\x82", nil, []string{"a", "", "", "�"}, false},
		{"ababc", []string{"abc"}, []string{"", "", "ab", "", "", ""}, true},
		{"abab", []string{"abc"}, []string{"", "", "ab", "", "ab"}, false},
		{"x€y", []string{"€"}, []string{"x", "", "", "", "", ""}, true},
		{"abcd", []string{"abcde", "c"}, []string{"", "", "ab", "", ""}, true},
		{"aaab", []string{"aab"}, []string{"", "", "a", "", ""}, true},
	} {
		t.Run(c.text, func(t *testing.T) {
			w := newWriting(tok, c.stops)
			var have []string
			for _, b := range []byte(c.text) {
				have = append(have, w.next(int32(b)))
			}
			require.Equal(t, c.want, append(have, w.end()))
			require.Equal(t, c.stop, w.stopped)
			bytes, chars := w.length()
			require.Equal(t, len(strings.Join(c.want, "")), bytes)
			require.Equal(t, utf8.RuneCountInString(strings.Join(c.want, "")), chars)
		})
	}
}

// Log-probabilities are of the model's logits: they add up, the chosen token has the largest without a temperature, and chats and
// completions have the same.
func TestLogprobs(t *testing.T) {
	_, h := start(t, Options{})
	const prompt = "user: say\nassistant: "
	encoded, err := json.Marshal(prompt)
	require.NoError(t, err)
	a := ask(t, h, completions, `{"prompt": `+string(encoded)+`, "temperature": 0, "max_tokens": 12, "logprobs": 3}`).Choices[0]
	b := ask(t, h, chats, `{"messages": [{"role": "user", "content": "say"}], "temperature": 0, "max_tokens": 12, "logprobs": true, "top_logprobs": 20}`).Choices[0]
	require.Equal(t, a.Text, b.Message.Content)
	require.Len(t, a.Logprobs.Tokens, 12)
	require.Len(t, b.Logprobs.Content, 12)
	for i, c := range b.Logprobs.Content {
		require.Equal(t, c.Logprob, a.Logprobs.Odds[i])
		require.Equal(t, c.Token, a.Logprobs.Tokens[i])
		require.Equal(t, c.Token, c.Top[0].Token)
		require.Equal(t, c.Logprob, c.Top[0].Logprob)
		sum := 0.0
		for j, l := range c.Top {
			sum += math.Exp(l.Logprob)
			require.True(t, j == 0 || l.Logprob <= c.Top[j-1].Logprob)
		}
		require.Len(t, c.Top, 20)
		require.Less(t, sum, 1.0)
		if c.Bytes != nil {
			require.Equal(t, int(c.Token[0]), c.Bytes[0])
		}
	}
	streamed := 0
	for _, e := range stream(t, h, chats, `{"messages": [{"role": "user", "content": "say"}], "temperature": 0, "max_tokens": 12, "logprobs": true, "stream": true}`) {
		if l := e.Choices[0].Logprobs; l != nil {
			for _, c := range l.Content {
				require.Equal(t, b.Logprobs.Content[streamed].Logprob, c.Logprob)
				streamed++
			}
		}
	}
	require.Equal(t, 12, streamed)
	odds := mostLikely([]float32{0, 3, 1, 3, float32(math.Inf(-1))}, 2, 2)
	require.Equal(t, []int32{2, 1, 3}, []int32{odds[0].token, odds[1].token, odds[2].token})
	require.InDelta(t, 1-math.Log(1+math.E+2*math.Exp(3)), odds[0].logprob, 1e-6)
	require.Len(t, mostLikely([]float32{1, 2}, 0, 0), 1)
	require.Len(t, mostLikely([]float32{1, 2}, 0, 20), 3)
}

// A model that writes its end token stops, and the token has no text.
func TestEnds(t *testing.T) {
	m := newModel(t, "base", 1)
	first := alone(t, m, "say", 1, transformer.Sampling{})[0]
	m.Ends = []int32{first}
	_, h := start(t, Options{Models: []Model{m}})
	r := ask(t, h, completions, `{"prompt": "say", "temperature": 0}`)
	require.Empty(t, r.Choices[0].Text)
	require.Equal(t, "stop", *r.Choices[0].FinishReason)
	require.Equal(t, 1, r.Usage.Completion)
	events := stream(t, h, completions, `{"prompt": "say", "temperature": 0, "stream": true}`)
	require.Len(t, events, 1)
	require.Equal(t, "stop", *events[0].Choices[0].FinishReason)
}

// Tools and calls reach the template; system messages have both of their names.
func TestConversations(t *testing.T) {
	m := newModel(t, "base", 1)
	_, h := start(t, Options{Models: []Model{m}})
	for body, prompt := range map[string]string{
		`[{"role": "developer", "content": "be"}, {"role": "user", "content": "say"}]`: "system: be\nuser: say\nassistant: ",
		`[{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "go", "arguments": "{\"place\": \"home\"}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "ok"}]`: "user: x\nassistant: <go home>\ntool: ok\nassistant: ",
	} {
		r := ask(t, h, chats, `{"messages": `+body+`, "max_tokens": 4, "seed": 1}`)
		encoded, err := json.Marshal(prompt)
		require.NoError(t, err)
		want := ask(t, h, completions, `{"prompt": `+string(encoded)+`, "max_tokens": 4, "seed": 1}`)
		require.Equal(t, want.Usage, r.Usage)
		require.Equal(t, want.Choices[0].Text, r.Choices[0].Message.Content)
	}
	const tools = `"tools": [{"type": "function", "function": {"name": "go"}}]`
	plain := ask(t, h, chats, `{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}`).Usage.Prompt
	require.Greater(t, ask(t, h, chats, `{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, `+tools+`}`).Usage.Prompt, plain+20)
	require.Equal(t, plain, ask(t, h, chats, `{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "tool_choice": "none", `+tools+`}`).Usage.Prompt)
	status, _ := post(t, h, chats, `{"messages": [{"role": "user", "content": "refuse me"}]}`)
	require.Equal(t, http.StatusBadRequest, status)
}
