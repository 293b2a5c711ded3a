package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/snug-ml/snug/meter"
)

// flagRow is a flag of a command: all that parsing, help, completion, -config and conflicts know of it. The functions below
// make rows, each with its own kind of value.
type flagRow struct {
	name  string
	arg   string             // stands for the value in help; a switch has none
	help  string             // its sentences, which help breaks into lines
	above string             // a paragraph of help before it
	words []string           // completions of the value
	file  bool               // the value names a file or a folder
	set   func(string) error // stores a value; an error begins with what is wanted
	uses  []*use
	given bool   // also with its default value; a switch that is on
	text  string // as it was given
	seen  bool   // on the command line
	once  string // what to do in place of giving it several times, where one of the inputs would be lost; else the last one counts
}

// use is what some flags are for. Where that is off, they are wrong command lines.
type use struct {
	what string // such as "adapters"
	off  string // why there is no use for them, such as "-full trains none"
	on   func() bool
}

// only says what the flag is for.
func (r *flagRow) only(uses ...*use) *flagRow {
	r.uses = append(r.uses, uses...)
	return r
}

// under begins a part of the help.
func (r *flagRow) under(paragraph string) *flagRow {
	r.above = paragraph
	return r
}

// inOne says that several inputs are one value, or what else takes them.
func (r *flagRow) inOne(how string) *flagRow {
	r.once = how
	return r
}

// withCommas is how flags have several inputs.
const withCommas = "with commas between them"

// completed gives words that complete the value.
func (r *flagRow) completed(words []string) *flagRow {
	r.words = words
	return r
}

func switchFlag(name string, to *bool, help string) *flagRow {
	r := &flagRow{name: name, help: help}
	r.set = func(text string) (err error) {
		if *to, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("want true or false")
		}
		r.given = *to
		return nil
	}
	return r
}

func textFlag(name, arg string, to *string, help string) *flagRow {
	return &flagRow{name: name, arg: arg, help: help, set: func(text string) error {
		*to = text
		return nil
	}}
}

// fileFlag is a flag with the name of a file or a folder.
func fileFlag(name, arg string, to *string, help string) *flagRow {
	return &flagRow{name: name, arg: arg, help: help, file: true, set: func(text string) error {
		if text == "" {
			return fmt.Errorf("want a name")
		}
		*to = text
		return nil
	}}
}

// foldersFlag is a flag with the name of a folder that may be there several times, or has a list of names with commas, as the file of
// -config gives it, unless a folder has all of it as its name.
func foldersFlag(name string, to *[]string, help string) *flagRow {
	r := fileFlag(name, "DIR", new(string), help)
	r.set = func(text string) error {
		list := []string{text}
		if !isFolder(text) {
			list = strings.Split(text, ",")
		}
		for i, one := range list {
			if list[i] = strings.TrimSpace(one); list[i] == "" {
				return fmt.Errorf("want a name")
			}
		}
		*to = append(*to, list...)
		return nil
	}
	return r
}

// wordFlag is a flag whose value is one of some words, the first one by default unless to has another.
func wordFlag(name, arg string, to *string, words []string, help string) *flagRow {
	return &flagRow{name: name, arg: arg, help: help, words: words, set: func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("want %s", either(words))
		}
		*to = text
		return nil
	}}
}

// countFlag is a flag with a whole number from least to most.
func countFlag(name, arg string, to *int, standard, least, most int, help string) *flagRow {
	*to = standard
	return &flagRow{name: name, arg: arg, help: help, set: func(text string) error {
		n, err := strconv.Atoi(text)
		switch {
		case (err != nil || n < least) && most == math.MaxInt:
			return fmt.Errorf("want %d or more", least)
		case err != nil || n < least || n > most:
			return fmt.Errorf("want %d to %d", least, most)
		}
		*to = n
		return nil
	}}
}

// seedFlag is a flag with a whole number of 64 bits.
func seedFlag(name, arg string, to *uint64, standard uint64, help string) *flagRow {
	*to = standard
	return &flagRow{name: name, arg: arg, help: help, set: func(text string) (err error) {
		if *to, err = strconv.ParseUint(text, 0, 64); err != nil {
			return fmt.Errorf("want a whole number from 0 to 2^64-1")
		}
		return nil
	}}
}

// numberFlag is a flag with a number that passes a test. want describes the test.
func numberFlag(name, arg string, to *float64, standard float64, want string, valid func(float64) bool, help string) *flagRow {
	*to = standard
	return &flagRow{name: name, arg: arg, help: help, set: func(text string) error {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !valid(x) {
			return fmt.Errorf("want %s", want)
		}
		*to = x
		return nil
	}}
}

// sizeFlag is a flag with a number of bytes, of 1 or more.
func sizeFlag(name string, to *int64, help string) *flagRow {
	return &flagRow{name: name, arg: "SIZE", help: help, set: func(text string) (err error) {
		if *to, err = meter.ParseBytes(text); err != nil {
			return fmt.Errorf("want a size such as 512KiB, 1.5GiB or 64MB")
		}
		return nil
	}}
}

// durationFlag is a flag with a time above 0, such as 20us.
func durationFlag(name string, to *time.Duration, help string) *flagRow {
	return &flagRow{name: name, arg: "DURATION", help: help, set: func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return fmt.Errorf("want a time above 0, such as 20us or 1ms")
		}
		*to = d
		return nil
	}}
}

// listFlag is a flag with a list of values, with commas.
func listFlag[T any](name string, to *[]T, words []string, parse func(string) (T, error), help string) *flagRow {
	return &flagRow{name: name, arg: "LIST", help: help, words: words, set: func(text string) error {
		var all []T
		for word := range strings.SplitSeq(text, ",") {
			v, err := parse(strings.TrimSpace(word))
			if err != nil {
				return err
			}
			all = append(all, v)
		}
		*to = all
		return nil
	}}
}

// namesOf returns the names of values.
func namesOf[T any](list []T, name func(T) string) (names []string) {
	for _, v := range list {
		names = append(names, name(v))
	}
	return names
}

// either joins words as in "a, b or c".
func either(words []string) string { return joinWords(words, " or ") }

func joinWords(words []string, last string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + last + words[n]
}

// flagTable are the flags of a command, in the order of help.
type flagTable []*flagRow

// named returns the row of a flag, or nil.
func (t flagTable) named(name string) *flagRow {
	for _, r := range t {
		if r.name == name {
			return r
		}
	}
	return nil
}

// given reports whether a flag is on the command line or in the file of -config, even with its default value.
func (t flagTable) given(name string) bool {
	r := t.named(name)
	return r != nil && r.given
}

// flagError is an error of a value.
type flagError struct {
	flag, text string
	err        error
}

func (e *flagError) Error() string {
	if _, err := strconv.ParseFloat(e.text, 64); err == nil {
		return fmt.Sprintf("-%s %.40s: %v", e.flag, e.text, e.err)
	}
	return fmt.Sprintf("-%s %.40q: %v", e.flag, e.text, e.err)
}

func (e *flagError) Unwrap() error { return e.err }

// take stores a value.
func (r *flagRow) take(text string) error {
	r.given, r.text = true, text
	if err := r.set(text); err != nil {
		return &flagError{r.name, text, err}
	}
	return nil
}

// rowValue is a row as package flag wants it. It keeps the first error, whose text that package would change.
type rowValue struct {
	row *flagRow
	err *error
}

func (v rowValue) String() string   { return "" }
func (v rowValue) IsBoolFlag() bool { return v.row != nil && v.row.arg == "" }

func (v rowValue) Set(text string) error {
	err := v.row.again(text)
	if err == nil {
		err = v.row.take(text)
	}
	if err != nil && *v.err == nil {
		*v.err = err
	}
	return nil
}

// again returns an error for another input on the same command line, of which one would be lost.
func (r *flagRow) again(text string) error {
	if r.seen && r.once != "" && text != r.text {
		return fmt.Errorf("-%s is there twice, as %.200q and %.200q: want it once, %s", r.name, r.text, text, r.once)
	}
	r.seen = true
	return nil
}

// parse reads the flags of a command line, and then those of the file of -config that it does not have. It returns the operands.
func (t flagTable) parse(args []string) (operands []string, err error) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var wrong error
	for _, r := range t {
		fs.Var(rowValue{r, &wrong}, r.name, "")
	}
	if err := fs.Parse(args); err != nil {
		return nil, fmt.Errorf("%w%s", err, t.meant(err))
	}
	if wrong != nil {
		return nil, wrong
	}
	if r := t.named("config"); r != nil && r.given {
		return fs.Args(), t.configure(r.text)
	}
	return fs.Args(), nil
}

// meant names the flags that begin with the one that err does not know, if there are a few.
func (t flagTable) meant(err error) string {
	_, given, unknown := strings.Cut(err.Error(), "flag provided but not defined: -")
	var names []string
	for _, r := range t {
		if strings.HasPrefix(r.name, given) {
			names = append(names, "-"+r.name)
		}
	}
	if !unknown || given == "" || len(names) == 0 || len(names) > 3 {
		return ""
	}
	return "; there is " + strings.Join(names, ", ")
}

// check returns an error if a flag is given that has no use beside the others.
func (t flagTable) check() error {
	var off *use
	var names []string
	for _, r := range t {
		for _, u := range r.uses {
			if r.given && (off == nil || off == u) && !u.on() {
				off = u
				names = append(names, "-"+r.name)
			}
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s is for %s, and %s", names[0], off.what, off.off)
	}
	return fmt.Errorf("%s are for %s, and %s", joinWords(names, " and "), off.what, off.off)
}

// helpColumn is the column in which the texts of flags begin, helpWidth the most letters of a line.
const helpColumn, helpWidth = 21, 105

// help returns the lines of help.
func (t flagTable) help() string {
	var b strings.Builder
	for _, r := range t {
		if r.above != "" {
			fmt.Fprintf(&b, "\n%s\n\n", r.above)
		}
		head := strings.TrimRight("  -"+r.name+" "+r.arg, " ")
		if len(head) >= helpColumn {
			b.WriteString(head + "\n")
			head = ""
		}
		for _, line := range wrapped(r.help, helpWidth-helpColumn) {
			fmt.Fprintf(&b, "%-*s%s\n", helpColumn, head, line)
			head = ""
		}
	}
	return b.String()
}
