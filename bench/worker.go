package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// worker is a long-lived process that runs peers: it greets with one line of
// JSON and then answers each line with a line.
type worker struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	stderr  bytes.Buffer
	hello   hello
	failed  error         // once set, nobody asks any more
	settle  time.Duration // to wait after each answer
}

// hello is the first line.
type hello struct {
	Versions map[string]string `json:"versions"`
	Missing  map[string]string `json:"missing"` // why a library is not there
}

// request asks for the time of a kernel.
type request struct {
	Peer    string  `json:"peer"`
	Kernel  string  `json:"kernel"`
	DType   string  `json:"dtype"`
	Shape   string  `json:"shape"`
	Repeats int     `json:"repeats"`
	Warm    float64 `json:"warm"` // seconds of runs before those that are timed
}

// answer is the time, or why there is none.
type answer struct {
	Seconds float64 `json:"seconds"` // of one repeat
	Error   string  `json:"error"`
}

// startWorker starts the process and reads its greeting. The error is in
// failed.
func startWorker(command *exec.Cmd) *worker {
	w := &worker{command: command}
	command.Stderr = &w.stderr
	in, err := command.StdinPipe()
	if err != nil {
		w.failed = err
		return w
	}
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		w.failed = err
		return w
	}
	w.in, w.out = in, json.NewDecoder(out)
	if err := w.out.Decode(&w.hello); err != nil {
		w.fail("greeting", err)
	}
	return w
}

// settle is longer than the threads of Python's libraries wait for more work with
// their cores busy; what runs next on the CPU would have one core less.
const settle = 150 * time.Millisecond

// time asks the process and waits.
func (w *worker) time(r request) (float64, error) {
	if w.failed != nil {
		return 0, w.failed
	}
	line, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return 0, w.fail("request", err)
	}
	var a answer
	if err := w.out.Decode(&a); err != nil {
		return 0, w.fail("answer", err)
	}
	time.Sleep(w.settle)
	switch {
	case a.Error != "":
		return 0, errors.New(a.Error)
	case a.Seconds <= 0:
		return 0, w.fail("answer", fmt.Errorf("%g seconds", a.Seconds))
	}
	return a.Seconds, nil
}

// fail ends the process and keeps why, with the last it said.
func (w *worker) fail(what string, err error) error {
	w.close()
	w.failed = fmt.Errorf("%s of the peers' process: %w: %s", what, err, lastLine(w.stderr.String()))
	return w.failed
}

// close ends the process, which does so itself when its input ends.
func (w *worker) close() {
	if w.in == nil {
		return
	}
	w.in.Close()
	w.in = nil
	_ = w.command.Wait() // it has nothing left to say
}
