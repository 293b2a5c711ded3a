//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// raw sends bytes to a server, and returns the status of its answer, 0 for none. more, unless it is nil, goes on writing until the server
// answers.
func (s *serving) raw(t *testing.T, text string, more func(w io.Writer) error) int {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/v1"))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	go func() {
		_, err := io.WriteString(c, text)
		for err == nil && more != nil {
			err = more(c)
		}
	}()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	r.Body.Close()
	return r.StatusCode
}

const attackHead = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

// body returns the bytes of a request with a body.
func attackBody(body string) string {
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", attackHead, len(body), body)
}

// Whatever a client sends gets one status, and the server goes on within its memory.
func TestServeAttacks(t *testing.T) {
	model := publishLong(t)
	s := startServe(t, "-model", model, "-context", "300", "-memory", "200MiB")
	deep := func(n int) string { return strings.Repeat(`{"a":[`, n/2) + "1" + strings.Repeat("]}", n/2) }
	chat := func(fields string) string {
		return strings.Replace(attackBody(`{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2`+fields+`}`), "/completions", "/chat/completions", 1)
	}
	with := func(fields string) string { return attackBody(`{"prompt": "a", "max_tokens": 2` + fields + `}`) }
	for _, c := range []struct {
		name   string
		status int
		text   string
		more   func(w io.Writer) error
	}{
		{"no protocol", 400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", nil},
		{"a long line", 431, "GET /" + strings.Repeat("a", 1<<20), nil},
		{"a long header", 431, attackHead + "X: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", nil},
		{"headers without end", 431, attackHead, func(w io.Writer) error { _, err := io.WriteString(w, "X: a\r\n"); return err }},
		{"no host", 400, "POST /v1/completions HTTP/1.1\r\n\r\n", nil},
		{"another host", 403, "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", nil},
		{"another host, old", 403, "GET /v1/models HTTP/1.0\r\n\r\n", nil},
		{"a path upwards", 404, "GET /v1/models/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", nil},
		{"a method", 405, "BREW /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", nil},
		{"a length of 10 GB", 413, attackHead + "Content-Length: 10000000000\r\n\r\n", func(w io.Writer) error { _, err := w.Write(bytes.Repeat([]byte(" "), 1<<16)); return err }},
		{"a length below 0", 400, attackHead + "Content-Length: -1\r\n\r\n", nil},
		{"two lengths", 400, attackHead + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", nil},
		{"chunks without end", 413, attackHead + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", func(w io.Writer) error {
			_, err := io.WriteString(w, "1000\r\n"+strings.Repeat(" ", 4096)+"\r\n")
			return err
		}},
		{"chunks of another size", 400, attackHead + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{\r\n", nil},
		{"an unknown coding", 501, attackHead + "Transfer-Encoding: gzip\r\n\r\n", nil},
		{"no JSON", 400, attackBody("prompt=a"), nil},
		{"no UTF-8", 400, attackBody("{\"prompt\": \"a\xff\xfe\"}"), nil},
		{"a name that is no UTF-8", 400, with(", \"\xff\": 1"), nil},
		{"half a pair", 200, with(`, "user": "\ud800"`), nil},
		{"10,000 deep", 400, attackBody(strings.Repeat("[", 10_000)), nil},
		{"5,000 deep in a field", 400, with(`, "x": ` + deep(5_000)), nil},
		{"tools 3,000 deep", 400, chat(`, "tools": [{"type": "function", "function": ` + deep(3_000) + `}]`), nil},
		{"values 3,000 deep", 400, chat(`, "chat_template_kwargs": ` + deep(3_000)), nil},
		{"20,000 fields", 413, with(strings.Repeat(`, "user": 1`, 20_000)), nil},
		{"5,000 stops", 400, with(`, "stop": [` + strings.Repeat(`"a",`, 5_000) + `"b"]`), nil},
		{"a stop of 1 MB", 413, with(`, "stop": "` + strings.Repeat("a", 1<<20) + `"`), nil},
		{"a stop of 60 KB", 400, with(`, "stop": "` + strings.Repeat("a", 60_000) + `"`), nil},
		{"most tokens", 400, attackBody(`{"prompt": "a", "max_tokens": 9223372036854775807}`), nil},
		{"more tokens", 400, attackBody(`{"prompt": "a", "max_tokens": 9223372036854775808}`), nil},
		{"fewer tokens", 400, attackBody(`{"prompt": "a", "max_tokens": -9223372036854775808}`), nil},
		{"tokens by an exponent", 400, attackBody(`{"prompt": "a", "max_tokens": 1e99999999}`), nil},
		{"NaN", 400, with(`, "temperature": NaN`), nil},
		{"infinite", 400, with(`, "temperature": 1e999`), nil},
		{"a temperature near 0", 200, with(`, "temperature": 1e-300`), nil},
		{"top_p 0", 200, with(`, "top_p": 0`), nil},
		{"a seed below 0", 200, with(`, "seed": -7`), nil},
		{"the least seed", 200, with(`, "seed": -9223372036854775808`), nil},
		{"a larger seed", 400, with(`, "seed": 18446744073709551616`), nil},
		{"an unknown field", 400, with(`, "grammar": "root"`), nil},
		{"a token beyond", 400, attackBody(`{"prompt": [2147483647]}`), nil},
		{"a token of 64 bits", 400, attackBody(`{"prompt": [4294967297]}`), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.status, s.raw(t, c.text, c.more))
			require.Equal(t, 200, s.raw(t, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", nil))
		})
	}
	var slow []net.Conn // which send nothing, or a part of a request, and read nothing
	part := attackBody(`{"prompt": "a", "max_tokens": 200, "stream": true}`)
	for i := range 200 {
		c, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/v1"))
		require.NoError(t, err)
		slow = append(slow, c)
		_, err = io.WriteString(c, part[:i%(len(part)+1)])
		require.NoError(t, err)
	}
	require.Equal(t, 200, s.raw(t, with(""), nil))
	for _, c := range slow {
		require.NoError(t, c.Close())
	}
	if runtime.GOOS == "linux" {
		require.Less(t, s.peak(t), int64(200<<20))
	}
	status, _, errs := snugged("serve", "-model", model, "-addr", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/v1"))
	require.Equal(t, 2, status, "two servers on one port")
	require.Contains(t, errs, "address already in use")
	require.Equal(t, 1, strings.Count(errs, "\n"), errs)
	s.end(t)
}

// Two interrupts end the server at once, also amid streams that nobody reads.
func TestServeInterrupts(t *testing.T) {
	s := startServe(t, "-model", publishLong(t))
	for range 12 {
		c, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/v1"))
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, attackBody(`{"prompt": "a", "max_tokens": 4000, "stream": true, "temperature": 2}`))
		require.NoError(t, err)
	}
	began := time.Now()
	require.NoError(t, s.Process.Signal(syscall.SIGINT))
	time.Sleep(20 * time.Millisecond)
	_ = s.Process.Signal(syscall.SIGINT) // it may have ended
	_ = s.Wait()                         // with the status of an interrupt
	require.Less(t, time.Since(began), 8*time.Second)
}

// A damaged adapter is one line and status 2, and no server.
func TestServeDamagedAdapters(t *testing.T) {
	model, adapter := publish(t), filepath.Join(t.TempDir(), "adapter")
	status, _, errs := snugged("tune", "-model", model, "-data", answers(t, "no"), "-o", adapter, "-lora", "2", "-steps", "1")
	require.Zero(t, status, errs)
	whole, err := os.ReadFile(filepath.Join(adapter, "adapter_model.safetensors"))
	require.NoError(t, err)
	for name, damage := range map[string]func(dir string) error{
		"no weights": func(dir string) error { return os.Remove(filepath.Join(dir, "adapter_model.safetensors")) },
		"half": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), whole[:len(whole)/2], 0o600)
		},
		"a long header": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, whole[8:]...), 0o600)
		},
		"zeros": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), make([]byte, len(whole)), 0o600)
		},
		"no config": func(dir string) error { return os.Remove(filepath.Join(dir, "adapter_config.json")) },
		"an empty config": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte("{}"), 0o600)
		},
		"no JSON": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte("r=8"), 0o600)
		},
		"another rank": func(dir string) error {
			text, err := os.ReadFile(filepath.Join(dir, "adapter_config.json"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(strings.Replace(string(text), `"r": 2`, `"r": 2000000000`, 1)), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "damaged")
			require.NoError(t, os.CopyFS(dir, os.DirFS(adapter)))
			require.NoError(t, damage(dir))
			status, stdout, errs := snugged("serve", "-model", model, "-addr", "127.0.0.1:0", "-adapter", "a="+dir)
			require.Equal(t, 2, status, errs)
			require.Empty(t, stdout)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		})
	}
}
