package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

// end is the token that ends a text. The tokens before it are the bytes.
const end = 256

// bytesTokenizer has a token for each byte.
func bytesTokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	vocab := map[string]int{"</s>": end}
	other := rune(256)
	for b := range rune(256) {
		r := b
		if b < '!' || b > '~' && b < '¡' || b == 0xad {
			r = other
			other++
		}
		vocab[string(r)] = int(b)
	}
	text, err := json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": []any{map[string]any{"id": end, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	require.NoError(t, err)
	tok, err := tokenizer.Parse(text)
	require.NoError(t, err)
	return tok
}

const template = "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}{% if m.role == 'refused' or m.content == 'refuse me' %}{{ raise_exception('no such thing') }}{% endif %}" +
	"{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments.place }}>{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"

func newModel(t testing.TB, name string, seed uint64) Model {
	t.Helper()
	m, err := transformer.New(&transformer.Config{
		Family: "llama", Vocab: 260, Dim: 64, Hidden: 96, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Context: 4096, NormEps: 1e-6, Activation: transformer.SiLU, Gated: true,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 1e4, Dim: 16}, Windows: []int{0, 0}, ScoreScale: 0.25, EmbeddingScale: 1, Tied: true, InitStd: 0.3,
	}, transformer.Options{Seed: seed})
	require.NoError(t, err)
	parsed, err := chat.Parse(tokenizer.Config{ChatTemplate: template, EOS: "</s>"}, chat.Options{})
	require.NoError(t, err)
	return Model{Name: name, Model: m, Tokenizer: bytesTokenizer(t), Template: parsed, Ends: []int32{end, 257, 258, 259}}
}

// start runs a server with a model named base, unless the options have others.
func start(t testing.TB, o Options) (*Server, *httptest.Server) {
	t.Helper()
	if o.Models == nil {
		o.Models = []Model{newModel(t, "base", 1)}
	}
	if o.Rows == 0 {
		o.Rows = 4
	}
	if o.Context == 0 {
		o.Context = 600
	}
	if o.Queue == 0 {
		o.Queue = 16
	}
	s, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	h := httptest.NewUnstartedServer(s)
	h.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		require.NoError(t, c.(*net.TCPConn).SetWriteBuffer(4096)) // so that a client that reads nothing is soon one
		return ctx
	}
	h.Start()
	t.Cleanup(func() {
		cancel()
		<-done
		h.Close()
	})
	return s, h
}

// post sends a request, and returns the status and the body of the answer.
func post(t testing.TB, h *httptest.Server, path, body string) (int, []byte) {
	t.Helper()
	r, err := http.Post(h.URL+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, text
}

// reply is an answer or an event.
type reply struct {
	ID, Object, Model string
	Choices           []struct {
		Text    string
		Message struct{ Role, Content string }
		Delta   struct {
			Role    string
			Content *string
		}
		FinishReason *string `json:"finish_reason"`
		Logprobs     *struct {
			Content []struct {
				Token   string
				Logprob float64
				Bytes   []int
				Top     []struct {
					Token   string
					Logprob float64
				} `json:"top_logprobs"`
			}
			Tokens  []string
			Odds    []float64            `json:"token_logprobs"`
			Tops    []map[string]float64 `json:"top_logprobs"`
			Offsets []int                `json:"text_offset"`
		}
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// ask sends a request that succeeds.
func ask(t testing.TB, h *httptest.Server, path, body string) (r reply) {
	t.Helper()
	status, text := post(t, h, path, body)
	require.Equal(t, http.StatusOK, status, "%s: %s", body, text)
	require.NoError(t, json.Unmarshal(text, &r))
	require.Len(t, r.Choices, 1)
	return r
}

// stream sends a request for a stream that is complete, and returns its events.
func stream(t testing.TB, h *httptest.Server, path, body string) (list []reply) {
	t.Helper()
	status, text := post(t, h, path, body)
	require.Equal(t, http.StatusOK, status, "%s: %s", body, text)
	events := bytes.Split(bytes.TrimSuffix(text, []byte("\n\n")), []byte("\n\n"))
	require.Equal(t, "data: [DONE]", string(events[len(events)-1]))
	for _, e := range events[:len(events)-1] {
		var r reply
		data, is := bytes.CutPrefix(e, []byte("data: "))
		require.True(t, is, string(e))
		require.NoError(t, json.Unmarshal(data, &r))
		list = append(list, r)
	}
	return list
}

// eventually waits for a condition.
func eventually(t testing.TB, what func() bool) {
	t.Helper()
	require.Eventually(t, what, 20*time.Second, 5*time.Millisecond)
}
