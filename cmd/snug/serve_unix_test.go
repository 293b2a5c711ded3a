//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/transformer"
)

// serving is a process of snug serve.
type serving struct {
	*exec.Cmd
	url    string
	first  string // line that it prints
	errors *strings.Builder
}

// startServe starts snug serve on a free port.
func startServe(t *testing.T, args ...string) *serving {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	s := &serving{Cmd: exec.Command(self), errors: &strings.Builder{}}
	s.Args = append([]string{"snug", "serve", "-addr", "127.0.0.1:0"}, args...)
	out, err := s.StdoutPipe()
	require.NoError(t, err)
	s.Stderr = s.errors
	require.NoError(t, s.Start())
	t.Cleanup(func() { _ = s.Process.Kill() })
	s.first, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = s.Wait()
		require.NoError(t, err, s.errors.String())
	}
	url, _, found := strings.Cut(s.first, ": ")
	require.True(t, found, s.first)
	s.url = url
	return s
}

// end sends a signal, and requires that the process ends with status 0.
func (s *serving) end(t *testing.T) {
	t.Helper()
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	require.NoError(t, s.Wait(), s.errors.String())
}

// peak returns the most resident bytes so far. What the system says of a process that has ended counts its parent.
func (s *serving) peak(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Process.Pid))
	require.NoError(t, err)
	_, line, found := strings.Cut(string(text), "VmHWM:")
	require.True(t, found)
	kib, err := strconv.ParseInt(strings.Fields(line)[0], 10, 64)
	require.NoError(t, err)
	return kib << 10
}

// say returns the answer of a model to a message.
func (s *serving) say(t *testing.T, model, message string) string {
	t.Helper()
	body := fmt.Sprintf(`{"model": "%s", "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": "%s"}]}`, model, message)
	r, err := http.Post(s.url+"/chat/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode, string(text))
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	require.NoError(t, json.Unmarshal(text, &answer))
	return answer.Choices[0].Message.Content
}

// The server says what snug generate says, for the model and for each adapter, which share its weights.
func TestServe(t *testing.T) {
	model, dir := publish(t), t.TempDir()
	adapters := map[string]string{}
	for _, answer := range []string{"yes, so", "no"} {
		adapter := filepath.Join(dir, answer[:2])
		status, _, errs := snugged("tune", "-model", model, "-data", answers(t, answer), "-o", adapter, "-lr", "0.02", "-lora", "8", "-compute", "f32", "-epochs", "8", "-batch", "4")
		require.Zero(t, status, errs)
		adapters[answer] = adapter
	}
	_, plain, _ := snugged("generate", "-model", model, "-prompt", "say q", "-tokens", "8")
	for _, more := range [][]string{{}, {"-base", "nf4", "-batch", "1"}, {"-memory", "200MiB"}} {
		t.Run(strings.Join(more, " "), func(t *testing.T) {
			s := startServe(t, append([]string{"-model", model, "-adapter", "yes=" + adapters["yes, so"] + ",no=" + adapters["no"], "-context", "64"}, more...)...)
			require.Contains(t, s.first, fmt.Sprintf("/v1: %s, yes, no; up to ", filepath.Base(model)))
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					require.Equal(t, "yes, so", s.say(t, "yes", "say q"))
					require.Equal(t, "no", s.say(t, "no", "say q"))
					if len(more) == 0 {
						require.Equal(t, strings.TrimSuffix(plain, "\n"), s.say(t, filepath.Base(model), "say q"))
					}
				})
			}
			all.Wait()
			if runtime.GOOS == "linux" && len(more) == 2 && more[0] == "-memory" {
				require.Less(t, s.peak(t), int64(200<<20))
			}
			s.end(t)
			require.Contains(t, s.errors.String(), "snug: yes: ")
		})
	}
}

// A GGUF file is served by its name without the extension, also within a limit, and says what snug generate says with it.
func TestServeGGUF(t *testing.T) {
	model, file := publishBytes(t, turnsChat), filepath.Join(t.TempDir(), "small.gguf")
	status, _, errs := snugged("export", "-model", model, "-gguf", file)
	require.Zero(t, status, errs)
	status, want, errs := snugged("generate", "-model", file, "-prompt", "ab", "-tokens", "8")
	require.Zero(t, status, errs)
	for _, more := range [][]string{{}, {"-memory", "200MiB"}} {
		s := startServe(t, append([]string{"-model", file, "-context", "64"}, more...)...)
		require.Equal(t, strings.TrimSuffix(want, "\n"), s.say(t, "small", "ab"), more)
		s.end(t)
	}
}

// publishLong is publish of a model that takes long texts.
func publishLong(t *testing.T) string {
	t.Helper()
	model := publish(t)
	config, err := transformer.ReadConfig(model)
	require.NoError(t, err)
	config.Context = 4096
	m, err := transformer.New(config, transformer.Options{})
	require.NoError(t, err)
	long := t.TempDir()
	require.NoError(t, m.Save(long, 0))
	require.NoError(t, copyCompanions(long, model, false, nil))
	return long
}

// PyPI's client of OpenAI's API does what programs do with it. The folder with the package is in SNUG_CLIENTS, see .ci/clients.
func TestServeClients(t *testing.T) {
	packages := os.Getenv("SNUG_CLIENTS")
	if packages == "" {
		t.Skip("SNUG_CLIENTS is no folder with the package openai")
	}
	model, key := publishLong(t), "a-key-of-16-letters-or-more"
	token, adapter := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, os.WriteFile(token, []byte(key), 0o600))
	status, _, errs := snugged("tune", "-model", model, "-data", answers(t, "no"), "-o", adapter, "-lora", "2", "-steps", "1")
	require.Zero(t, status, errs)
	s := startServe(t, "-model", model, "-adapter", "tuned="+adapter, "-token-file", token, "-batch", "2", "-queue", "4")
	python := exec.Command("python3", filepath.Join("testdata", "clients.py"), s.url, key, filepath.Base(model), "tuned")
	python.Env = append(os.Environ(), "PYTHONPATH="+packages)
	out, err := python.CombinedOutput()
	require.NoError(t, err, "%s%s", out, s.errors.String())
	require.Equal(t, "served\n", string(out))
	s.end(t)
}

// A signal lets an answer under way end.
func TestServeEnds(t *testing.T) {
	s := startServe(t, "-model", publishLong(t))
	r, err := http.Post(s.url+"/completions", "application/json", strings.NewReader(`{"prompt": "a", "max_tokens": 600, "stream": true, "temperature": 2}`))
	require.NoError(t, err)
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	require.True(t, lines.Scan())
	s.end(t)
	last := ""
	for lines.Scan() {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	require.Equal(t, "data: [DONE]", last)
	_, err = (&http.Client{Timeout: time.Second}).Get(s.url + "/models")
	require.Error(t, err)
}

// Bad command lines are one line and status 2, before a model is read.
func TestServeRefuses(t *testing.T) {
	model := publish(t)
	dir := t.TempDir()
	short, token := filepath.Join(dir, "short"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(short, []byte("secret\n"), 0o600))
	require.NoError(t, os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"want -model", nil},
		{"no such file", []string{"-model", model + "x"}},
		{"want a name and a folder: NAME=DIR", []string{"-model", model, "-adapter", model}},
		{"no such file", []string{"-model", model, "-adapter", "a=" + model + "x"}},
		{"names the model or another adapter", []string{"-model", model, "-adapter", "a=" + dir + ",a=" + dir}},
		{"names the model or another adapter", []string{"-model", model, "-adapter", filepath.Base(model) + "=" + dir}},
		{"want -token-file", []string{"-model", model, "-addr", "0.0.0.0:0"}},
		{"want -token-file", []string{"-model", model, "-addr", ":0"}},
		{"want a host and a port", []string{"-model", model, "-addr", "localhost"}},
		{"one line of 16 letters", []string{"-model", model, "-token-file", short}},
		{"no such file", []string{"-model", model, "-token-file", short + "x"}},
		{"-addr: listen", []string{"-model", model, "-addr", "127.0.0.1:99999"}},
		{"-context 65, and the model is made for 64", []string{"-model", model, "-context", "65", "-addr", "127.0.0.1:0"}},
		{"-batch 0", []string{"-model", model, "-batch", "0"}},
		{"the smallest plan wants -memory", []string{"-model", model, "-memory", "1MiB", "-addr", "127.0.0.1:0"}},
		{"adapter_model.safetensors", []string{"-model", model, "-adapter", "a=" + dir, "-addr", "127.0.0.1:0"}},
		{"-base bf16 and -compute f32", []string{"-model", model, "-base", "bf16", "-compute", "f32"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			status, stdout, errs := snugged(append([]string{"serve"}, c.args...)...)
			require.Equal(t, 2, status, "%s: %s", c.want, errs)
			require.Contains(t, errs, c.want)
			require.Empty(t, stdout)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		})
	}
}
