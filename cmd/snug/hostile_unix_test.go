//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
)

// Limits of what any command may do with any folder.
const (
	hostileMemory  = 300 << 20 // bytes of resident memory; tune gets them as -memory
	hostileSeconds = 10        // of processor time, for a command
	hostileWait    = 120       // seconds of a command on a busy machine
	hostileFolders = 60        // SNUG_FOLDERS changes it
)

// secretMark is in a file outside of the folders, and must not come into an output.
const secretMark = "snug-secret-5b1f0c"

const hostileVariable, foldersVariable = "SNUG_HOSTILE_JOB", "SNUG_FOLDERS"

// ground is where a folder is prepared: root has model, adapter and data; beside it lies the secret.
type ground struct {
	root, secret string
	rng          *rand.Rand
}

// TestHostileFolders prepares folders of a model, an adapter and data, replaces files in them by what an enemy or an
// accident would put there, and runs the commands that read them: none crashes, waits, takes much memory, or copies what
// lies outside. The number of a folder is its seed.
func TestHostileFolders(t *testing.T) {
	n := hostileFolders
	if !kerneltest.Full() {
		n /= 4
	}
	first := 0
	if text := os.Getenv(foldersVariable); text != "" { // a number of folders, or a range as 7-9
		from, to, found := strings.Cut(text, "-")
		if !found {
			from, to = "0", text
		}
		var err, err2 error
		first, err = strconv.Atoi(from)
		n, err2 = strconv.Atoi(to)
		require.NoError(t, errors.Join(err, err2))
	}
	base := t.TempDir()
	require.NoError(t, os.Rename(publish(t), filepath.Join(base, "model")))
	withCompanions(t, filepath.Join(base, "model"))
	require.NoError(t, os.Mkdir(filepath.Join(base, "data"), 0o700))
	require.NoError(t, os.Rename(chats(t, 12), filepath.Join(base, "data", "chats.jsonl")))
	status, _, errs := snugged("tune", "-model", filepath.Join(base, "model"), "-data", filepath.Join(base, "data"), "-o", filepath.Join(base, "adapter"), "-lora", "2", "-steps", "1")
	require.Zero(t, status, errs)

	var refused atomic.Int32
	all := hostileMutations()
	for i := first; i < n; i++ {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			g := &ground{rng: rand.New(rand.NewPCG(uint64(i), 1))}
			work := filepath.Join(t.TempDir(), "work")
			g.root, g.secret = filepath.Join(work, "given"), filepath.Join(work, "secret")
			require.NoError(t, os.CopyFS(g.root, os.DirFS(base)))
			require.NoError(t, os.WriteFile(g.secret, []byte(`{"eos_token": "`+secretMark+`"}`), 0o600))
			what := ""
			if i > 0 { // folder 0 stays whole
				m := all[(i-1)*hostileStride%len(all)]
				what = m.name + " " + m.do(g)
				if i > len(all) { // and a second one
					m = all[g.rng.IntN(len(all))]
					what += "; " + m.name + " " + m.do(g)
				}
			}
			ran := g.run(t, i, what)
			if i == 0 {
				require.Zero(t, ran, "commands that refuse a whole folder")
			}
			if ran > 0 {
				refused.Add(1)
			}
		})
	}
	t.Cleanup(func() {
		t.Logf("%d folders, %d of them refused by a command; %d mutations", n-first, refused.Load(), len(all))
	})
}

// hostileStride spreads a short run over the list of mutations. It is a prime.
const hostileStride = 389

// run runs the commands in a process of their own, and returns how many of them refused the folder.
func (g *ground) run(t *testing.T, i int, what string) (refused int) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*hostileWait*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHostileJob$", "-test.v", "-test.timeout=0")
	c.Env = append(os.Environ(), hostileVariable+"="+g.root)
	out, err := c.CombinedOutput()
	about := fmt.Sprintf("folder %d (%.200s): %s", i, what, out[:min(len(out), 6000)])
	require.NoError(t, err, about)
	ended := false
	for line := range bytes.Lines(out) {
		f := strings.Fields(string(line))
		if len(f) == 0 || f[0] != "ran" {
			ended = ended || bytes.HasPrefix(line, []byte("ended"))
			continue
		}
		status, _ := strconv.Atoi(f[2])
		require.Contains(t, []int{0, 1, 2}, status, about)
		seconds, err := strconv.ParseFloat(f[3], 64)
		require.NoError(t, err)
		require.Less(t, seconds, float64(hostileSeconds), about)
		peak, err := strconv.ParseInt(f[4], 10, 64)
		require.NoError(t, err)
		if !kerneltest.Race {
			require.LessOrEqual(t, peak, int64(hostileMemory), about)
		}
		if status != 0 {
			refused++
		}
	}
	require.True(t, ended, about)
	require.NoError(t, filepath.WalkDir(filepath.Join(g.root, "..", "out"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // outputs of refused folders do not exist
		}
		require.True(t, d.Type().IsRegular(), "%s %s", path, about)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(text), secretMark, "%s %s", path, about)
		return nil
	}))
	return refused
}

// TestHostileJob is the process of a folder.
func TestHostileJob(t *testing.T) {
	root := os.Getenv(hostileVariable)
	if root == "" {
		t.Skip("not a process of TestHostileFolders")
	}
	limitData(t)
	debug.SetTraceback("all")
	out := filepath.Join(filepath.Dir(root), "out")
	at := func(name string) string { return filepath.Join(root, name) }
	model, data, adapter := at("model"), at("data"), at("adapter")
	for i, args := range [][]string{
		{"plan", model},
		{"inspect", model}, {"inspect", adapter}, {"verify", root},
		{"tune", "-dry-run", "-model", model, "-data", data, "-lora", "2", "-memory", "300MiB"},
		{"tune", "-model", model, "-data", data, "-lora", "2", "-steps", "1", "-memory", "300MiB", "-o", filepath.Join(out, "tuned")},
		{"tune", "-full", "-model", model, "-data", data, "-steps", "1", "-memory", "300MiB", "-o", filepath.Join(out, "full")},
		{"merge", "-model", model, "-adapter", adapter, "-o", filepath.Join(out, "merged")},
		{"generate", "-model", model, "-adapter", adapter, "-prompt", "say q", "-tokens", "2"},
		{"serve", "-model", model, "-adapter", "a=" + adapter, "-memory", "300MiB", "-addr", freeAddress(t)},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			before, began := processorSeconds(t), time.Now()
			type result struct {
				status int
				errs   string
			}
			done := make(chan result, 1)
			ended := make(chan struct{})
			go func() {
				status, _, errs := snugged(args...)
				close(ended)
				done <- result{status, errs}
			}()
			if args[0] == "serve" {
				go visit("http://"+args[len(args)-1], ended)
			}
			for waiting := true; waiting; {
				select {
				case r := <-done:
					_, peak := meter.Resident()
					fmt.Printf("ran %s-%d %d %.3f %d %.1f %.2000q\n", args[0], i, r.status, processorSeconds(t)-before, peak, time.Since(began).Seconds(), r.errs)
					waiting = false
				case <-time.After(100 * time.Millisecond):
					if processorSeconds(t)-before > hostileSeconds || time.Since(began) > hostileWait*time.Second {
						panic("it hangs")
					}
				}
			}
			debug.FreeOSMemory()
		})
	}
	fmt.Println("ended")
}

// freeAddress returns an address on which nobody listens.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// visit asks a server of this process for answers of its model and its adapter when it is there, and ends it by a signal, which ends
// nothing else.
func visit(url string, ended <-chan struct{}) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	for {
		if r, err := http.Get(url + "/health"); err == nil {
			r.Body.Close()
			break
		}
		select {
		case <-ended: // it refused the folder
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
	for _, body := range []string{`{"prompt": "say q", "max_tokens": 2, "logprobs": 2}`, `{"model": "a", "messages": [{"role": "user", "content": "say q"}], "max_tokens": 2, "stream": true}`} {
		path := "/v1/completions"
		if strings.Contains(body, "messages") {
			path = "/v1/chat/completions"
		}
		if r, err := http.Post(url+path, "application/json", strings.NewReader(body)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
}

func processorSeconds(t *testing.T) float64 {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// A mutation changes a prepared folder and says how.
type mutation struct {
	name string
	do   func(g *ground) string
}

func (g *ground) path(name string) string { return filepath.Join(g.root, name) }

// read returns the contents of a file, or others if the first of two mutations has put something else there.
func (g *ground) read(name string) []byte {
	info, err := os.Lstat(g.path(name))
	if err != nil || !info.Mode().IsRegular() || info.Size() > 100<<20 {
		return []byte("{}")
	}
	text, err := os.ReadFile(g.path(name))
	if err != nil {
		panic(err)
	}
	return text
}

func (g *ground) write(name string, text []byte) {
	_ = os.RemoveAll(g.path(name))
	if err := os.WriteFile(g.path(name), text, 0o600); err != nil {
		panic(err)
	}
}

// edit changes the JSON object of a file.
func (g *ground) edit(name string, change func(doc map[string]any)) {
	doc := map[string]any{}
	if json.Unmarshal(g.read(name), &doc) != nil || doc == nil {
		doc = map[string]any{}
	}
	change(doc)
	text, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	g.write(name, text)
}

// keysOf are the keys of the JSON object of a file, sorted.
func (g *ground) keysOf(name string) (keys []string) {
	doc := map[string]any{}
	_ = json.Unmarshal(g.read(name), &doc)
	for key := range doc {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// writeBig writes a file piece by piece.
func (g *ground) writeBig(name string, write func(w *bufio.Writer)) {
	_ = os.RemoveAll(g.path(name))
	f, err := os.Create(g.path(name))
	if err != nil {
		panic(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	write(w)
	if err := w.Flush(); err != nil {
		panic(err)
	}
	if err := f.Close(); err != nil {
		panic(err)
	}
}
