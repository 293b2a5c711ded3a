package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/serve"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/transformer"
)

func serveCommand() *command {
	return &command{
		name: "serve", summary: "answer requests in OpenAI's protocol by a model and its adapters",
		help: `Answers requests in the protocol of OpenAI's API: POST /v1/chat/completions and /v1/completions, whole or
as a stream; GET /v1/models and /health. The field model of a request names the model or an adapter;
without it the model answers. Requests are computed together, a token of each at a time, and those that
begin alike compute their beginning once. With a seed, or temperature 0, a request gets the same answer
whatever else is computed; but such passes compute -batch rows, except for GGUF files, so that one alone
is slower. What a client wants and snug cannot do, such as penalties, is an error. The first SIGINT or
SIGTERM lets answers end for 10 seconds.
`,
		flags: new(serveFlags).table,
		closing: `  snug serve -model Qwen3-0.6B
  snug serve -model Qwen3-0.6B -adapter tuned=out/adapter -memory 2GiB
  curl localhost:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "tuned", "messages": [{"role": "user", "content": "Name three rivers."}]}'
`,
		run: runServe,
	}
}

// serveFlags are the command line of serve.
type serveFlags struct {
	dir                  string
	adapters             []namedAdapter
	address, tokenFile   string
	template             string
	rows, context, queue int
	memory               int64
	device               string
	form, compute        string
	options              transformer.Options
}

// namedAdapter is the folder of an adapter, and what requests call it.
type namedAdapter struct{ name, dir string }

// table returns the flags, which write into f.
func (f *serveFlags) table() flagTable {
	f.address = "127.0.0.1:8080"
	return flagTable{
		modelFlag(&f.dir, "the model: a folder as Hugging Face publishes it, with its tokenizer, or a GGUF file"),
		adaptersFlag(&f.adapters),
		textFlag("addr", "HOST:PORT", &f.address, "where it listens; default 127.0.0.1:8080, this machine alone. Other hosts want -token-file; port 0 is a free one"),
		fileFlag("token-file", "FILE", &f.tokenFile, "file of a line that clients must send as their API key (Authorization: Bearer)"),
		countFlag("batch", "N", &f.rows, 8, 1, 256, "most requests that are computed at a time; default 8"),
		countFlag("context", "N", &f.context, 0, 2, math.MaxInt32, "most tokens of a prompt and its answer; default 4096, or what the model is made for"),
		countFlag("queue", "N", &f.queue, 64, 1, 4096, "most requests that wait; others get the status 429; default 64"),
		templateFlag(&f.template),
		deviceFlag(&f.device, ""),
		sizeFlag("memory", &f.memory, "limit of the resident memory of the process, such as 2GiB: requests wait until their tokens fit, and matrices that do not fit are read from the folder each time that they are used; default: none").only(
			&use{"the processor", "there is -device", func() bool { return f.device == "" || f.device == "cpu" }}),
		baseFlag("base", &f.form, baseForms, "form of the layers' matrices: "+either(baseForms)+"; default: as the folder has them, those in floats in the type of -compute"),
		computeFlag(&f.compute, "type of weights and activations: "+either(floatTypes)+"; default: the model's type"),
		configFlag(),
	}
}

// adaptersFlag is the flag of adapters with their names.
func adaptersFlag(to *[]namedAdapter) *flagRow {
	r := fileFlag("adapter", "NAME=DIR", new(string), "an adapter of the model, as snug tune and PEFT write it or a GGUF file of one, and what requests call it; several are possible, also with commas. They share the model's weights")
	r.set = func(text string) error {
		for one := range strings.SplitSeq(text, ",") {
			name, dir, found := strings.Cut(strings.TrimSpace(one), "=")
			if !found || name == "" || dir == "" {
				return fmt.Errorf("want a name and a folder: NAME=DIR")
			}
			*to = append(*to, namedAdapter{name, dir})
		}
		return nil
	}
	return r
}

func (f *serveFlags) check() error {
	if f.dir == "" {
		return usagef("serve: want -model: a folder as Hugging Face publishes it, or a GGUF file")
	}
	names := map[string]bool{f.name(): true}
	for _, a := range f.adapters {
		if names[a.name] {
			return usagef("serve: -adapter %s=%s: %q names the model or another adapter, too", a.name, a.dir, a.name)
		}
		names[a.name] = true
		if err := wantFolders("serve", f.dir, a.dir); err != nil {
			return err
		}
	}
	if err := wantFolders("serve", f.dir, ""); err != nil {
		return err
	}
	local, err := isLoopback(f.address)
	if err != nil {
		return err
	}
	if !local && f.tokenFile == "" {
		return usagef("serve: -addr %s: other machines can reach it: want -token-file", f.address)
	}
	if err := setForms(&f.options, f.form, f.compute); err != nil || f.form != "bf16" {
		return err
	}
	if f.compute != "" && f.options.DType != snug.BF16 {
		return usagef("serve: -base bf16 and -compute %s: matrices that are not quantized have the type of activations", f.compute)
	}
	f.options.DType = snug.BF16
	return nil
}

// name returns what requests call the model.
func (f *serveFlags) name() string {
	name := f.dir
	if whole, err := filepath.Abs(name); err == nil {
		name = whole
	}
	return strings.TrimSuffix(filepath.Base(name), ".gguf")
}

// isLoopback reports whether an address is of this machine alone.
func isLoopback(address string) (bool, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, usagef("serve: -addr %.80q: want a host and a port, such as 127.0.0.1:8080", address)
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback(), nil
}

// fewestToken is the fewest letters of a token.
const fewestToken = 16

// readToken returns the line of -token-file, empty without the flag.
func readToken(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	file, err := os.Open(name)
	if err != nil {
		return "", usagef("serve: -token-file: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(file, 4097))
	_ = file.Close() // which was only read
	if err != nil {
		return "", usagef("serve: -token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(text) > 4096 || len(token) < fewestToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", usagef("serve: -token-file %s: want one line of %d letters or more, of ASCII without blanks", name, fewestToken)
	}
	return token, nil
}

func runServe(c *call) (err error) {
	var f serveFlags
	if _, err := c.parse(f.table(), 0, 0); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	o := serve.Options{Rows: f.rows, Queue: f.queue}
	if o.Token, err = readToken(f.tokenFile); err != nil {
		return err
	}
	stop, release := console.OnSignals(console.Options{Name: "snug", Stderr: c.stderr})
	defer release()
	if f.options.Device, err = openDevice("serve", f.device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.options.Device.Close()) }()
	listener, err := net.Listen("tcp", f.address)
	if err != nil {
		return usagef("serve: -addr: %w", err)
	}
	defer listener.Close() // also when nothing was served
	o.Local, _ = isLoopback(listener.Addr().String())
	house, err := f.open(c, &o)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, house.close()) }()
	var mu sync.Mutex
	o.Log = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(c.stderr, "snug: %s\n", escaped(line))
	}
	s, err := serve.New(o)
	if err != nil {
		return err
	}
	names := namesOf(o.Models, func(m serve.Model) string { return m.Name })
	fmt.Fprintf(c.stdout, "http://%s/v1: %s; up to %d requests of %d tokens at a time, weights %s\n",
		listener.Addr(), strings.Join(names, ", "), o.Rows, o.Context, meter.FormatBytes(house.weights()))
	return serveUntil(stop, s, listener)
}

// grace is the time that answers under way have to end after the first signal.
const grace = 10 * time.Second

// serveUntil answers requests until a signal comes.
func serveUntil(stop console.Stop, s *serve.Server, listener net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: log.New(io.Discard, "", 0),
	}
	ctx, cut := context.WithCancel(stop.Now)
	defer cut()
	computed, served := make(chan error, 1), make(chan error, 1)
	go func() { computed <- s.Run(ctx) }()
	go func() { served <- server.Serve(listener) }()
	var failed error
	select {
	case failed = <-served:
	case <-stop.After.Done():
	}
	s.Drain()
	ending, done := context.WithTimeout(stop.Now, grace)
	defer done()
	_ = server.Shutdown(ending) // which waits for answers; what is left then is cut
	cut()
	<-computed
	last, done := context.WithTimeout(context.Background(), time.Second) // for the last events of what was cut
	defer done()
	if server.Shutdown(last) != nil {
		_ = server.Close()
	}
	return failed
}
