package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
)

// client does something that clients do, and may go away amid it.
type client func(ctx context.Context, url string, rng *rand.Rand) error

// send sends a request and reads at most the given number of bytes of the answer.
func send(ctx context.Context, url, body string, most int64) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(r.Body, most))
	return err
}

var clients = []client{
	func(ctx context.Context, url string, rng *rand.Rand) error { // a whole answer
		return send(ctx, url, fmt.Sprintf(`{"prompt": "%d", "max_tokens": %d}`, rng.IntN(1e6), 1+rng.IntN(60)), 1<<20)
	},
	func(ctx context.Context, url string, rng *rand.Rand) error { // a stream of a long prompt, which begins as others do
		return send(ctx, url, fmt.Sprintf(`{"prompt": "%s%d", "max_tokens": 30, "stream": true, "logprobs": 5}`, strings.Repeat("z", rng.IntN(400)), rng.IntN(1e6)), 1<<20)
	},
	func(ctx context.Context, url string, rng *rand.Rand) error { // goes away amid a stream
		return send(ctx, url, `{"prompt": "a", "max_tokens": 500, "stream": true}`, rng.Int64N(3000))
	},
	func(ctx context.Context, url string, rng *rand.Rand) error { // goes away before the answer
		ctx, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
		defer cancel()
		_ = send(ctx, url, `{"prompt": "a", "max_tokens": 500}`, 1<<20)
		return nil
	},
	func(ctx context.Context, url string, rng *rand.Rand) error { // bodies that are refused
		bad := []string{"", "{", "[]", `{"prompt": 1}`, `{"prompt": "a", "max_tokens": 0}`, `{"prompt": "a", "n": 2}`, `{"prompt": "\ud800`, strings.Repeat("[", 20000), `{"prompt": "` + strings.Repeat("y", 1<<18) + `"}`}
		return send(ctx, url, bad[rng.IntN(len(bad))], 1<<20)
	},
	func(ctx context.Context, url string, rng *rand.Rand) error { // breaks off its request
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/v1/completions"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"prompt\""[:1+rng.IntN(110)])
		if rng.IntN(2) == 0 {
			time.Sleep(time.Millisecond)
		}
		return err
	},
	func(ctx context.Context, url string, rng *rand.Rand) error { // pipelines a request behind one that it does not read
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/v1/completions"))
		if err != nil {
			return err
		}
		defer c.Close()
		one := "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 34\r\n\r\n{\"prompt\": \"ab\", \"max_tokens\": 40}"
		if _, err = io.WriteString(c, one+one); err == nil {
			_, _ = bufio.NewReader(c).ReadString('\n')
		}
		return err
	},
}

// Eight clients come and go for some seconds, or the time of SNUG_SOAK, such as 10m: after that all places, memory and goroutines are free
// again. Each minute prints what the process takes.
func TestSoak(t *testing.T) {
	duration, minute := 2*time.Second, time.Second
	if text := os.Getenv("SNUG_SOAK"); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err)
		minute = time.Minute
	} else if kerneltest.Full() {
		duration = 10 * time.Second
	}
	m := newModel(t, "base", 1)
	one, err := m.Model.CacheBytes(CacheOptions(600))
	require.NoError(t, err)
	s, h := start(t, Options{Models: []Model{m}, Rows: 4, Queue: 2, Memory: 2 * one})
	http.DefaultClient.CloseIdleConnections()
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var all sync.WaitGroup
	var done [16]atomic.Int64
	for i := range uint64(8) {
		all.Go(func() {
			for rng := rand.New(rand.NewPCG(i, 7)); ctx.Err() == nil; {
				kind := rng.IntN(len(clients))
				_ = clients[kind](ctx, h.URL+"/v1/completions", rng)
				done[kind].Add(1)
			}
		})
	}
	for begin := time.Now(); ctx.Err() == nil; {
		select {
		case <-time.After(minute):
		case <-ctx.Done():
		}
		var counts []int64
		for i := range clients {
			counts = append(counts, done[i].Load())
		}
		rss, _ := meter.Resident()
		t.Logf("%v: resident %s, %d goroutines, requests by kind %v", time.Since(begin).Round(time.Second), meter.FormatBytes(rss), runtime.NumGoroutine(), counts)
	}
	all.Wait()
	for i := range clients {
		require.Positive(t, done[i].Load(), "kind %d", i)
	}
	s.Drain()
	eventually(t, func() bool {
		s.batch.mu.Lock()
		defer s.batch.mu.Unlock()
		return s.batch.places == 4 && len(s.batch.queue) == 0 && len(s.room) == 0 && s.batch.kept.bytes.Load() == 0
	})
	http.DefaultClient.CloseIdleConnections()
	h.CloseClientConnections()
	eventually(t, func() bool { return runtime.NumGoroutine() <= before })
}
