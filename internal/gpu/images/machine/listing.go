// Package machine reads the machine code of the images of kernels: what a cubin says of its
// kernels, and the listing of their instructions that NVIDIA's nvdisasm gives. It holds them
// against what the sources promise and no compiler checks. The program in the folder check reads the
// images that are there; machine.sh runs it.
package machine

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Instruction is one line of a listing: `@!P0 IMAD.WIDE R2, R3, 0x4, R6 ;`.
type Instruction struct {
	At    int    // bytes from the start of the kernel
	Guard string // "@!P0", or empty
	Op    string // "IMAD.WIDE"
	Args  []string
	Part  string // the subroutine of the assembler that it belongs to, such as of a division's rare cases; empty for the kernel's own
}

func (i *Instruction) String() string {
	return strings.TrimSpace(fmt.Sprintf("/*%04x*/ %s %s %s", i.At, i.Guard, i.Op, strings.Join(i.Args, ", ")))
}

// is reports whether the instruction's name is op, whatever its modifiers are.
func (i *Instruction) is(op string) bool {
	return i.Op == op || strings.HasPrefix(i.Op, op) && i.Op[len(op)] == '.'
}

// has reports whether the instruction has a modifier, such as "128".
func (i *Instruction) has(modifier string) bool {
	return strings.Contains(i.Op+".", "."+modifier+".")
}

// Function is the instructions of a kernel and of the subroutines that only it calls.
type Function struct {
	Name   string
	Code   []Instruction
	labels map[string]int // of the next instruction
	next   [][]int        // of every instruction, those that may follow it
}

var (
	instructionLine = regexp.MustCompile(`^\s*/\*([0-9a-f]+)\*/\s+(?:(@!?U?P[T0-9]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;`)
	labelLine       = regexp.MustCompile(`^([.$\w]+):$`)
	target          = regexp.MustCompile("`\\(([^)]+)\\)")
)

const maxCode = 1<<16 - 1 // instructions of a kernel

// Parse returns the functions of what `nvdisasm -c` prints.
func Parse(listing string) ([]*Function, error) {
	var all []*Function
	var f *Function
	part := ""
	for line := range strings.Lines(listing) {
		line = strings.TrimRight(line, "\r\n")
		if m := labelLine.FindStringSubmatch(line); m != nil {
			name, kernel := strings.CutPrefix(m[1], ".text.")
			switch {
			case kernel:
				f, part = &Function{Name: name, labels: map[string]int{name: 0}}, ""
				all = append(all, f)
			case f != nil:
				f.labels[m[1]] = len(f.Code)
				if sub, ok := strings.CutPrefix(m[1], "$"); ok {
					part = sub
				}
			}
			continue
		}
		m := instructionLine.FindStringSubmatch(line)
		if m == nil {
			if text := strings.TrimSpace(line); strings.HasPrefix(text, "/*") && strings.Contains(text, ";") {
				return nil, fmt.Errorf("no instruction: %s", text)
			}
			continue
		}
		if f == nil {
			return nil, fmt.Errorf("an instruction outside of kernels: %s", line)
		}
		at, err := strconv.ParseInt(m[1], 16, 64)
		if err != nil {
			return nil, err
		}
		f.Code = append(f.Code, Instruction{At: int(at), Guard: m[2], Op: m[3], Args: arguments(m[4]), Part: part})
	}
	for _, f := range all {
		if len(f.Code) > maxCode {
			return nil, fmt.Errorf("%s has %d instructions, want at most %d", f.Name, len(f.Code), maxCode)
		}
		if err := f.link(); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return all, nil
}

// arguments splits "R2, R3.reuse, c[0x0][0x10]" and drops what is no part of the values.
func arguments(text string) []string {
	if text == "" {
		return nil
	}
	args := strings.Split(text, ",")
	for i, a := range args {
		args[i] = strings.ReplaceAll(strings.TrimSpace(a), ".reuse", "")
	}
	return args
}

// link finds which instructions may follow which. A subroutine is taken to come back to
// where it was called, and a branch to a computed address to go to any label that no other names.
func (f *Function) link() error {
	named := map[string]bool{}
	for i := range f.Code {
		for _, a := range f.Code[i].Args {
			if m := target.FindStringSubmatch(a); m != nil {
				named[m[1]] = true
			}
		}
	}
	f.next = make([][]int, len(f.Code))
	for i := range f.Code {
		c := &f.Code[i]
		goes, stays := false, true
		switch {
		case c.is("EXIT"), c.is("RET"), c.is("KILL"):
			stays = c.guarded()
		case c.is("BRX"), c.is("BRXU"), c.is("JMX"):
			stays = c.guarded()
			for label, at := range f.labels {
				if !named[label] && strings.HasPrefix(label, ".L") {
					f.next[i] = append(f.next[i], at)
				}
			}
		case c.is("BRA"): // by a predicate among its operands, or by what lanes agree on
			goes, stays = true, c.guarded() || len(c.Args) > 1 || c.Op != "BRA"
		case c.is("CALL"), c.is("WARPSYNC") && len(c.Args) > 1:
			goes = true
		}
		if goes {
			at, ok := 0, false
			if m := target.FindStringSubmatch(c.Args[len(c.Args)-1]); m != nil {
				at, ok = f.labels[m[1]]
			}
			if !ok {
				return fmt.Errorf("%v: the label is not there", c)
			}
			f.next[i] = append(f.next[i], at)
		}
		if stays {
			f.next[i] = append(f.next[i], i+1)
		}
		f.next[i] = slices.DeleteFunc(f.next[i], func(n int) bool { return n >= len(f.Code) })
	}
	return nil
}

// guarded reports whether a predicate may skip the instruction.
func (i *Instruction) guarded() bool { return i.Guard != "" && i.Guard != "@PT" && i.Guard != "@UPT" }

// reached returns the instructions that may come after number from, in order.
func (f *Function) reached(from int) []int {
	seen := make([]bool, len(f.Code))
	work := append([]int(nil), f.next[from]...)
	for len(work) > 0 {
		i := work[len(work)-1]
		work = work[:len(work)-1]
		if !seen[i] {
			seen[i] = true
			work = append(work, f.next[i]...)
		}
	}
	var all []int
	for i, s := range seen {
		if s {
			all = append(all, i)
		}
	}
	return all
}

// flow computes what holds before every instruction: start before the first one, after(i, s) after
// instruction i when s holds before it, and merge(a, b) where paths meet; merge also says whether
// a changed. What no path reaches has no state.
func flow[S any](f *Function, start S, after func(int, S) S, merge func(a, b S) (S, bool)) ([]S, []bool) {
	states, seen := make([]S, len(f.Code)), make([]bool, len(f.Code))
	if len(f.Code) == 0 {
		return states, seen
	}
	states[0], seen[0] = start, true
	queued := make([]bool, len(f.Code))
	work := []int{0}
	for len(work) > 0 {
		i := work[0]
		work = work[1:]
		queued[i] = false
		out := after(i, states[i])
		for _, n := range f.next[i] {
			changed := true
			if seen[n] {
				states[n], changed = merge(states[n], out)
			} else {
				states[n], seen[n] = out, true
			}
			if changed && !queued[n] {
				queued[n] = true
				work = append(work, n)
			}
		}
	}
	return states, seen
}
