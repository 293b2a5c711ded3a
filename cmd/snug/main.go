// Snug fine-tunes models in the memory that there is, predicts what training takes, and checks files.
//
//	go install github.com/snug-ml/snug/cmd/snug@latest
//
//	snug plan Qwen3-0.6B                       predict the memory of training, and find what fits
//	snug tune -model Qwen3-0.6B -data chats.jsonl -memory 4GiB -o tuned
//	                                           fine-tune a published model within that memory
//	snug generate -model DIR -prompt TEXT      continue a text with a model
//	snug serve -model DIR                      answer requests in OpenAI's protocol
//	snug merge -model DIR -adapter DIR -o DIR  merge an adapter into its model
//	snug export -model DIR -gguf FILE.gguf     write a model for llama.cpp and Ollama, or its adapter for llama.cpp and mlx-lm
//	snug devices                               the devices of this machine, and the presets of plan
//	snug inspect FILE                          what a file, a checkpoint or a store holds
//	snug verify DIR                            whether a store or a checkpoint is whole
//	snug version                               version, revision, Go, system and backends
//	snug completion bash                       completion for a shell
//
// It exits with 0 for success, with 1 for failure, such as when nothing fits or verify finds
// damage, and with 2 for a wrong command line, or a model or data that cannot be read.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// command is a command of the program, such as plan.
type command struct {
	name, args, summary string
	help                string // what it does; the flags follow
	closing             string // what follows the flags, such as examples
	flags               func() flagTable
	operands            string // completions of the operands: words separated by spaces, or "file"
	run                 func(c *call) error
}

// table returns the flags of a command.
func (c *command) table() flagTable {
	if c.flags == nil {
		return nil
	}
	return c.flags()
}

// call is one use of a command.
type call struct {
	*command
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run is the program: it returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := dispatch(args, stdin, stdout, stderr)
	var usage usageError
	var ended console.Interruption
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		if ended.Text != "" {
			fmt.Fprintf(stderr, "snug: %s\n", ended.Text)
		}
		return ended.Status
	}
	fmt.Fprintf(stderr, "snug: %s\n", oneLine(err, args[min(1, len(args)):]...))
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// oneLine returns the text of an error in one line. It leaves out names of packages and functions, because the user called a
// command, unless the command line has the word, too, such as a file called chat; and the text of a sentinel after a
// sentence. It escapes characters that control a terminal, which names of files may have.
func oneLine(err error, args ...string) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' })
	for i, line := range lines {
		for _, kind := range []error{snug.ErrConfig, snug.ErrShape, snug.ErrDType, snug.ErrNoMemory, snug.ErrCorrupt} {
			line = strings.TrimSuffix(line, ": "+kind.Error())
		}
		lines[i] = line
	}
	text := strings.Join(lines, "; ")
	parts := strings.Split(text, ": ")
	for i := len(parts) - 1; i > 0; i-- {
		if slices.ContainsFunc(args, func(arg string) bool { return slices.Contains(argWords(arg), parts[i]) }) {
			continue
		}
		switch parts[i] {
		case "snug", "plan", "meter", "offload", "amp", "transformer", "train", "qlora", "tokenizer", "chat", "dataset", "ReadConfig", "Check", "Plan", "Open", "New", "Save", "Generate", "Prompt", "Next":
			parts = slices.Delete(parts, i, i+1)
		}
	}
	return escaped(strings.Join(parts, ": "))
}

// argWords returns what names of files may be in a word of the command line: -data=a,b and its parts.
func argWords(arg string) []string {
	_, value, _ := strings.Cut(arg, "=")
	return append(append(strings.Split(arg, ","), strings.Split(value, ",")...), filepath.Clean(arg))
}

// escaped returns a text with invisible characters written as in Go.
func escaped(text string) string {
	if printable(text) == text {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if unicode.IsGraphic(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(text[:n])
		} else {
			quoted := strconv.QuoteToGraphic(text[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String()
}

func dispatch(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usagef("want a command: %s; snug help tells more", strings.Join(commandNames(), ", "))
	}
	name := args[0]
	switch name {
	case "help", "-h", "-help", "--help":
		return help(args[1:], stdout)
	}
	c := commandNamed(name)
	if c == nil {
		return usagef("unknown command %.40q, want one of %s; snug help tells more", name, strings.Join(commandNames(), ", "))
	}
	err := c.run(&call{c, args[1:], stdin, stdout, stderr})
	if errors.Is(err, flag.ErrHelp) {
		return help(args[:1], stdout)
	}
	return err
}

// commands are all commands of the program, in the order of help.
func commands() []*command {
	return []*command{planCommand(), tuneCommand(), generateCommand(), serveCommand(), mergeCommand(), exportCommand(), devicesCommand(), inspectCommand(), verifyCommand(), versionCommand(), completionCommand()}
}

func commandNames() []string { return namesOf(commands(), func(c *command) string { return c.name }) }

func commandNamed(name string) *command {
	for _, c := range commands() {
		if c.name == name {
			return c
		}
	}
	return nil
}

// parse gives flags the values of the command line, and checks that there are from fewest to most operands, or any number
// from fewest on if most is negative.
func (c *call) parse(flags flagTable, fewest, most int) ([]string, error) {
	rest, err := flags.parse(c.args)
	if err == nil {
		err = flags.check()
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, usagef("%s: %w", c.name, err)
	case len(rest) < fewest:
		return nil, usagef("%s: want %s; snug help %s tells more", c.name, c.command.args, c.name)
	case most > 0 && len(rest) > most && strings.HasPrefix(rest[most], "-"):
		return nil, usagef("%s: %.40q after %.40q: flags come first", c.name, rest[most], rest[most-1])
	case most >= 0 && len(rest) > most:
		return nil, usagef("%s: unexpected argument %.40q", c.name, rest[most])
	}
	return rest, nil
}
