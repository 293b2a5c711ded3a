package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// Requests that the server cannot answer get the protocol's error, which names the field.
func TestRefuses(t *testing.T) {
	m := newModel(t, "base", 1)
	plain := newModel(t, "plain", 1)
	plain.Template = nil
	_, h := start(t, Options{Models: []Model{m, plain}})
	const chat, prompt = `"messages": [{"role": "user", "content": "x"}]`, `"prompt": "x"`
	for _, c := range []struct {
		path, body   string
		status       int
		param, wants string
	}{
		{completions, `{`, 400, "", "not a JSON object: unexpected EOF"},
		{completions, ``, 400, "", "not a JSON object"},
		{completions, `null`, 400, "", "the body is null"},
		{completions, `[]`, 400, "", "not a JSON object"},
		{completions, `{"prompt": "x"} {}`, 400, "", "more behind the JSON"},
		{completions, `{}`, 400, "prompt", "there is no prompt"},
		{completions, `{"prompt": ""}`, 400, "prompt", "no tokens"},
		{completions, `{"prompt": []}`, 400, "prompt", "no tokens"},
		{completions, `{"prompt": ["a", "b"]}`, 400, "prompt", "a list of 2"},
		{completions, `{"prompt": [1, 260]}`, 400, "prompt", "a token of prompt is 260, want 0 to 259"},
		{completions, `{"prompt": [-1]}`, 400, "prompt", "a token of prompt is -1"},
		{completions, `{"prompt": {}}`, 400, "prompt", "want a text or a list of tokens"},
		{completions, `{` + prompt + `, "model": "gpt-4"}`, 404, "model", `no model "gpt-4"`},
		{completions, `{` + prompt + `, "max_tokens": 2147483648}`, 400, "prompt", "the prompt has 1 tokens and the answer up to 2147483648, and the context of the server has 600"},
		{completions, `{` + prompt + `, "max_tokens": 99999999999999999999}`, 400, "max_tokens", "want a whole number"},
		{completions, `{` + prompt + `, "max_tokens": 0}`, 400, "max_tokens", "max_tokens is 0, want 1 or more"},
		{completions, `{"prompt": "` + strings.Repeat("x", 600) + `"}`, 400, "prompt", "the prompt has 600 tokens"},
		{completions, `{` + prompt + `, "temperature": 2.1}`, 400, "temperature", "temperature is 2.1, want 0 to 2"},
		{completions, `{` + prompt + `, "temperature": "hot"}`, 400, "temperature", "want a number"},
		{completions, `{` + prompt + `, "top_p": -0.1}`, 400, "top_p", "want 0 to 1"},
		{completions, `{` + prompt + `, "n": 2}`, 400, "n", "n is 2, and this server can only have 1"},
		{completions, `{` + prompt + `, "echo": true}`, 400, "echo", "can only have false"},
		{completions, `{` + prompt + `, "frequency_penalty": 0.5}`, 400, "frequency_penalty", "can only have 0"},
		{completions, `{` + prompt + `, "logit_bias": {"5": 10}}`, 400, "logit_bias", "can only have {}"},
		{completions, `{` + prompt + `, "min_tokens": 3}`, 400, "min_tokens", `this server has no "min_tokens"`},
		{completions, `{` + prompt + `, "logprobs": 21}`, 400, "logprobs", "want 0 to 20"},
		{completions, `{` + prompt + `, "seed": 1.5}`, 400, "seed", "want a whole number"},
		{completions, `{` + prompt + `, "stop": ""}`, 400, "stop", "a text of stop has 0 bytes"},
		{completions, `{` + prompt + `, "stop": 5}`, 400, "stop", "want a text or a list of texts"},
		{completions, `{` + prompt + `, "stop": ["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}`, 400, "stop", "stop has 17 texts"},
		{completions, `{` + prompt + `, "stream_options": {"include_usage": true}}`, 400, "stream_options", "for stream: true"},
		{chats, `{"messages": []}`, 400, "messages", "there are no messages"},
		{chats, `{"messages": "x"}`, 400, "messages", "want a list of objects"},
		{chats, `{"messages": [{"role": "robot", "content": "x"}]}`, 400, "messages", "message 0: role is robot"},
		{chats, `{"messages": [{"role": "user"}]}`, 400, "messages", "message 0: there is no content"},
		{chats, `{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}`, 400, "messages", "type image_url, and this server takes text alone"},
		{chats, `{"messages": [{"role": "user", "content": "refuse me"}]}`, 400, "messages", "the chat template says: no such thing"},
		{chats, `{` + chat + `, "model": "plain"}`, 400, "messages", "no chat template"},
		{chats, `{` + chat + `, "response_format": {"type": "json_object"}}`, 400, "response_format", "can only have"},
		{chats, `{` + chat + `, "tool_choice": "required"}`, 400, "tool_choice", "can only have"},
		{chats, `{` + chat + `, "tools": [{"type": "web"}]}`, 400, "tools", "want function"},
		{chats, `{` + chat + `, "top_logprobs": 2}`, 400, "top_logprobs", "for logprobs: true"},
		{chats, `{` + chat + `, "max_tokens": 3, "max_completion_tokens": 4}`, 400, "max_tokens", "want one of them"},
		{completions, `{` + prompt + `, "max_completion_tokens": 4}`, 400, "max_completion_tokens", "has no"},
		{"/v1/embeddings", `{}`, 404, "", "this server has /v1/chat/completions"},
		{"/v1/models", `{}`, 405, "", "want GET"},
		{completions, `{"prompt": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "", "more bytes"},
		{completions, strings.Repeat("[", 1<<16), 400, "", "not a JSON object"},
	} {
		t.Run(c.wants, func(t *testing.T) {
			status, text := post(t, h, c.path, c.body)
			var body struct {
				Error struct {
					Message, Type string
					Param, Code   *string
				}
			}
			require.NoError(t, json.Unmarshal(text, &body), string(text))
			require.Equal(t, c.status, status, string(text))
			require.Contains(t, body.Error.Message, c.wants)
			require.NotContains(t, body.Error.Message, "snug:")
			require.NotEmpty(t, body.Error.Type)
			if c.param == "" {
				require.Nil(t, body.Error.Param)
			} else {
				require.Equal(t, c.param, *body.Error.Param)
			}
		})
	}
	r, err := http.Post(h.URL+completions, "text/plain", strings.NewReader(`{`+prompt+`}`))
	require.NoError(t, err)
	r.Body.Close()
	require.Equal(t, http.StatusUnsupportedMediaType, r.StatusCode)
}

func TestModels(t *testing.T) {
	_, h := start(t, Options{Models: []Model{newModel(t, "base", 1), newModel(t, "tuned/x", 2)}})
	get := func(path string) (int, string) {
		r, err := http.Get(h.URL + path)
		require.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(text)
	}
	status, text := get("/v1/models")
	require.Equal(t, 200, status)
	require.Regexp(t, `"id":"base".*"id":"tuned/x"`, text)
	status, text = get("/v1/models/tuned/x")
	require.Equal(t, 200, status)
	require.Contains(t, text, `"id":"tuned/x"`)
	status, _ = get("/v1/models/none")
	require.Equal(t, 404, status)
	status, text = get("/health")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"status": "ok"}`, text)
	a := ask(t, h, completions, `{"model": "base", "prompt": "x", "temperature": 0}`)
	b := ask(t, h, completions, `{"model": "tuned/x", "prompt": "x", "temperature": 0}`)
	require.NotEqual(t, a.Choices[0].Text, b.Choices[0].Text)
	require.Equal(t, "tuned/x", b.Model)
}

func TestToken(t *testing.T) {
	_, h := start(t, Options{Token: "open sesame", Local: true})
	for _, c := range []struct {
		path, host, token string
		want              int
	}{
		{"/v1/models", "", "Bearer open sesame", 200}, {"/v1/models", "", "bearer open sesame", 200}, {"/health", "", "", 200},
		{"/v1/models", "", "", 401}, {"/v1/models", "", "Bearer ", 401}, {"/v1/models", "", "Bearer open", 401}, {"/v1/models", "", "Basic open sesame", 401},
		{"/v1/models", "localhost:80", "Bearer open sesame", 200}, {"/v1/models", "[::1]:9", "Bearer open sesame", 200}, {"/v1/models", "127.0.0.1", "Bearer open sesame", 200},
		{"/v1/models", "evil.example:80", "Bearer open sesame", 403}, {"/health", "evil.example", "", 403}, {"/v1/models", "localhost.evil.example", "Bearer open sesame", 403},
	} {
		r, err := http.NewRequest(http.MethodGet, h.URL+c.path, nil)
		require.NoError(t, err)
		r.Host = c.host
		if c.token != "" {
			r.Header.Set("Authorization", c.token)
		}
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		require.Equal(t, c.want, answer.StatusCode, "%+v", c)
		require.Empty(t, answer.Header.Get("Access-Control-Allow-Origin"))
	}
}

// Requests beyond the rows wait, those beyond the queue get 429, and all that were taken are answered.
func TestQueue(t *testing.T) {
	s, h := start(t, Options{Rows: 2, Queue: 3})
	var mu sync.Mutex
	count := map[int]int{}
	var all sync.WaitGroup
	for range 24 {
		all.Go(func() {
			r, err := http.Post(h.URL+completions, "application/json", strings.NewReader(`{"prompt": "x", "max_tokens": 400, "temperature": 0}`))
			require.NoError(t, err)
			defer r.Body.Close()
			if r.StatusCode == 429 {
				require.NotEmpty(t, r.Header.Get("Retry-After"))
			}
			mu.Lock()
			count[r.StatusCode]++
			mu.Unlock()
		})
	}
	all.Wait()
	require.Equal(t, 24, count[200]+count[429])
	require.GreaterOrEqual(t, count[200], 5)
	require.Positive(t, count[429])
	eventually(t, func() bool { return s.idle() })
}

// idle reports whether nothing runs and nothing waits.
func (s *Server) idle() bool {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	return s.batch.places == s.o.Rows && len(s.batch.queue) == 0
}

// The caches of requests stay within Memory: more requests wait.
func TestMemory(t *testing.T) {
	m := newModel(t, "base", 1)
	one, err := m.Model.CacheBytes(CacheOptions(600))
	require.NoError(t, err)
	_, err = New(Options{Models: []Model{m}, Rows: 4, Context: 600, Memory: one - 1})
	require.ErrorIs(t, err, snug.ErrNoMemory)
	s, h := start(t, Options{Models: []Model{m}, Memory: 2*one + one/2})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { ask(t, h, completions, `{"prompt": "x", "max_tokens": 599, "temperature": 0.3}`) })
	}
	most := 0
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		case <-time.After(time.Millisecond):
			s.batch.mu.Lock()
			most = max(most, s.o.Rows-s.batch.places)
			s.batch.mu.Unlock()
		}
	}
	require.Equal(t, 2, most)
}

// Clients that go away in the middle free their place: nothing runs on, and neither memory nor goroutines grow.
func TestClientsGoAway(t *testing.T) {
	m := newModel(t, "base", 1)
	m.Ends = nil
	s, h := start(t, Options{Models: []Model{m}})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	away := func(body string, events int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+completions, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		if events == 0 {
			go func() { time.Sleep(3 * time.Millisecond); cancel() }()
		}
		answer, err := client.Do(r)
		if events == 0 {
			if err == nil {
				answer.Body.Close()
			}
			return
		}
		require.NoError(t, err)
		lines := bufio.NewScanner(answer.Body)
		for range events {
			require.True(t, lines.Scan())
		}
		cancel()
		answer.Body.Close()
	}
	const streamed = `{"prompt": "x", "max_tokens": 590, "stream": true, "temperature": 0.5}`
	for range 10 {
		away(streamed, 3)
	}
	eventually(t, s.idle)
	eventually(t, func() bool { return len(s.room) == 0 })
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	for i := range 200 {
		away(streamed, 1+i%7)
		if i%4 == 0 {
			away(`{"prompt": "x", "max_tokens": 590, "temperature": 0}`, 0)
		}
	}
	eventually(t, s.idle)
	eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(2<<20))
	ask(t, h, completions, `{"prompt": "x"}`)
}

// A body that does not arrive in time, and a client that reads nothing, do not keep a place.
func TestSlowClients(t *testing.T) {
	m := newModel(t, "base", 1)
	m.Ends = nil
	s, h := start(t, Options{Models: []Model{m}, Read: 50 * time.Millisecond, Write: 100 * time.Millisecond, Rows: 1, Context: 2000})
	address := strings.TrimPrefix(h.URL, "http://")
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"prompt\":", completions)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	text, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Contains(t, string(text), "408 Request Timeout")
	require.Contains(t, string(text), "the body did not arrive in time")
	// An answer takes longer than Read, which is for the request alone.
	ask(t, h, completions, `{"prompt": "x", "max_tokens": 500, "temperature": 0}`)
	eventually(t, s.idle)
	c, err = net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.(*net.TCPConn).SetReadBuffer(4096))
	body := `{"messages": [{"role": "user", "content": "x"}], "max_tokens": 700, "stream": true, "logprobs": true, "top_logprobs": 20}`
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chats, len(body), body)
	eventually(t, func() bool { return !s.idle() })
	eventually(t, s.idle)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	text, err = io.ReadAll(c)
	require.NotContains(t, string(text), "[DONE]", err)
}

// Drain ends what waits, lets answers under way end, and then Run returns.
func TestDrain(t *testing.T) {
	m := newModel(t, "base", 1)
	m.Ends = nil
	s, err := New(Options{Models: []Model{m}, Rows: 1, Context: 4000, Queue: 8})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	h := httptest.NewServer(s)
	defer h.Close()
	first := make(chan int, 1)
	go func() {
		status, _ := post(t, h, completions, `{"prompt": "x", "max_tokens": 500}`)
		first <- status
	}()
	eventually(t, func() bool { return !s.idle() })
	eventually(t, func() bool { s.batch.mu.Lock(); defer s.batch.mu.Unlock(); return s.batch.places == 0 })
	waiting := make(chan int, 1)
	go func() {
		status, _ := post(t, h, completions, `{"prompt": "y"}`)
		waiting <- status
	}()
	eventually(t, func() bool { s.batch.mu.Lock(); defer s.batch.mu.Unlock(); return len(s.batch.queue) == 1 })
	s.Drain()
	require.Equal(t, 503, <-waiting)
	require.Equal(t, 200, <-first)
	require.NoError(t, <-done)
	status, _ := post(t, h, completions, `{"prompt": "y"}`)
	require.Equal(t, 503, status)
}

// When its context ends, Run cuts answers under way.
func TestCut(t *testing.T) {
	m := newModel(t, "base", 1)
	m.Ends = nil
	s, err := New(Options{Models: []Model{m}, Rows: 1, Context: 4000})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	h := httptest.NewServer(s)
	defer h.Close()
	r, err := http.Post(h.URL+completions, "application/json", strings.NewReader(`{"prompt": "x", "max_tokens": 3990, "stream": true}`))
	require.NoError(t, err)
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	require.True(t, lines.Scan())
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	last := ""
	for lines.Scan() {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	require.Contains(t, last, "the server ends")
}

func TestNewRefuses(t *testing.T) {
	m := newModel(t, "base", 1)
	for _, o := range []Options{
		{}, {Models: []Model{m}, Context: 5}, {Models: []Model{m}, Rows: 1, Context: 1}, {Models: []Model{m, m}, Rows: 1, Context: 5}, {Models: []Model{{Name: "x"}}, Rows: 1, Context: 5},
		{Models: []Model{m}, Rows: 1, Context: 5, Queue: -1}, {Models: []Model{m}, Rows: 1, Context: 1 << 30},
	} {
		_, err := New(o)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}
