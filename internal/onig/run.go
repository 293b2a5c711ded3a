package onig

import (
	"fmt"
	"math/bits"
	"sync"
	"unicode/utf8"
)

// The steps that a search may take: patterns that would take quadratic time are stopped. A text that is cut into short
// pieces gives them no more steps than the whole text has, by more than a factor.
const (
	stepsPerByte = 200
	stepsMore    = 1 << 20
	shortPerByte = 512 // of stepsMore, for short texts
	shortMore    = 16  // bytes

	maxWays  = 1 << 20 // choices that are left open, of 40 bytes each
	keptWays = 1 << 14 // in a machine that waits for another search
)

// allowance returns the steps that a search in a text may take.
func allowance(text string) int64 {
	return stepsPerByte*int64(len(text)) + min(stepsMore, shortPerByte*int64(len(text)+shortMore))
}

// way is a choice that a match has not tried yet.
type way struct {
	pc, pos int
	min     int    // of a loop: the first position that it may give back to
	left    uint32 // of a choice: the branches that are left
	kind    wayKind
}

type wayKind byte

const (
	wayJump   wayKind = iota
	wayLoop           // give one code point back and go on at pc
	wayChoice         // take the next of left
)

// machine is the state of a search.
type machine struct {
	*Pattern
	text  string
	steps int64
	ways  []way
	ended bool // the search has looked for something behind the text
}

var machines = sync.Pool{New: func() any { return new(machine) }}

// Each calls f with the begin and end of every match in text, which is UTF-8, from the
// front, and does not overlap them. An empty match right after a match does not count.
// The error is f's, or says that the pattern takes too long for the text.
func (p *Pattern) Each(text string, f func(from, to int) error) error {
	_, err := p.each(text, false, f)
	return err
}

// Begin is Each for the beginning of a text that goes on. It calls f with the matches that are the same whatever follows,
// and returns where it stopped: all matches before, and none that begins there or later, are known. A pattern that is
// not [Pattern.Local] may match otherwise where the text before is left out.
func (p *Pattern) Begin(text string, f func(from, to int) error) (known int, err error) {
	return p.each(text, true, f)
}

// Local reports whether a match depends only on the text from its begin on, and is never empty: a search that begins
// between two matches, or at the end of one, finds the same matches as one that began before.
func (p *Pattern) Local() bool { return p.local }

func (p *Pattern) each(text string, more bool, f func(from, to int) error) (known int, err error) {
	m := machines.Get().(*machine)
	*m = machine{Pattern: p, text: text, steps: allowance(text), ways: m.ways[:0]}
	defer func() {
		m.text, m.Pattern = "", nil
		if cap(m.ways) > keptWays {
			m.ways = nil
		}
		machines.Put(m)
	}()
	last := -1 // the end of the last match
	for at := 0; at <= len(text); {
		m.ended = false
		end, ok := m.run(0, at)
		if m.steps < 0 {
			return at, fmt.Errorf("pattern %.200q takes more than %d steps or %d open choices on a text of %d bytes", p.source, allowance(text), maxWays, len(text))
		}
		if more && m.ended {
			return at, nil
		}
		if !ok || end == at && end == last {
			_, size := utf8.DecodeRuneInString(text[at:])
			at += max(size, 1)
			continue
		}
		if err := f(at, end); err != nil {
			return at, err
		}
		at, last = end, end
	}
	return len(text), nil
}

// run matches the code from pc on at pos and returns the end of the match.
func (m *machine) run(pc, pos int) (end int, ok bool) {
	base := len(m.ways)
	defer func() { m.ways = m.ways[:base] }()
	for {
		if m.steps--; m.steps < 0 || len(m.ways) > maxWays {
			m.steps = -1
			return 0, false
		}
		i := &m.code[pc]
		matched := true
		switch i.op {
		case opOne:
			var size int
			if size, matched = i.at(m.text, pos); matched {
				pos += size
				pc++
			} else if pos == len(m.text) {
				m.ended = true
			}
		case opLoop:
			if pos, matched = m.loop(i, pc, pos); matched {
				pc++
			}
		case opSplit:
			in, out := pc+1, i.other
			if i.not {
				in, out = out, in
			}
			m.ways = append(m.ways, way{pc: out, pos: pos})
			pc = in
		case opJump:
			pc = i.other
		case opChoice:
			pc, matched = m.choose(i, pc, pos)
		case opLook:
			_, found := m.run(pc+1, pos)
			matched = found != i.not
			pc = i.other + 1
		case opAtomic:
			pos, matched = m.run(pc+1, pos)
			pc = i.other + 1
		case opBehind:
			matched = m.behind(i, pos) != i.not
			pc++
		case opMatch:
			return pos, true
		default:
			matched = m.edge(i.op, pos)
			pc++
		}
		for !matched {
			if len(m.ways) == base {
				return 0, false
			}
			pc, pos, matched = m.back()
		}
	}
}

// at returns the size of the code point at pos if it is one of the set.
func (i *inst) at(text string, pos int) (size int, ok bool) {
	if pos >= len(text) {
		return 0, false
	}
	if b := text[pos]; b < utf8.RuneSelf {
		return 1, i.ascii[b/64]>>(b%64)&1 != 0
	}
	r, size := utf8.DecodeRuneInString(text[pos:])
	return size, i.set.Contains(r)
}

// loop takes as many code points as there are and leaves a way to give them back.
func (m *machine) loop(i *inst, pc, pos int) (end int, ok bool) {
	least, n := pos, 0
	start := pos
	for i.max < 0 || n < i.max {
		size, ok := i.at(m.text, pos)
		if !ok {
			break
		}
		pos += size
		if n++; n == i.min {
			least = pos
		}
	}
	if pos == len(m.text) && n != i.max {
		m.ended = true
	}
	m.steps -= int64(pos-start) / 8
	if n < i.min {
		return 0, false
	}
	if !i.keep && pos > least {
		m.ways = append(m.ways, way{pc: pc + 1, pos: pos, min: least, kind: wayLoop})
	}
	return pos, true
}

// choose goes to the first branch that the next byte allows.
func (m *machine) choose(i *inst, pc, pos int) (to int, ok bool) {
	if i.allowed == nil {
		m.steps -= int64(len(i.branches)) / 8
		for n := len(i.branches) - 1; n > 0; n-- {
			m.ways = append(m.ways, way{pc: i.branches[n], pos: pos})
		}
		return i.branches[0], true
	}
	left := uint32(1)<<(len(i.branches)-1)<<1 - 1
	if pos < len(m.text) {
		left = i.allowed[m.text[pos]]
	} else {
		m.ended = true
	}
	return m.branch(i, pc, pos, left)
}

// branch goes to the first of the branches that are left.
func (m *machine) branch(i *inst, pc, pos int, left uint32) (to int, ok bool) {
	if left == 0 {
		return 0, false
	}
	n := bits.TrailingZeros32(left)
	if left &= left - 1; left != 0 {
		m.ways = append(m.ways, way{pc: pc, pos: pos, left: left, kind: wayChoice})
	}
	return i.branches[n], true
}

// back goes on with the last way that is left.
func (m *machine) back() (pc, pos int, ok bool) {
	w := &m.ways[len(m.ways)-1]
	switch w.kind {
	case wayLoop:
		_, size := utf8.DecodeLastRuneInString(m.text[w.min:w.pos])
		w.pos -= size
		pc, pos = w.pc, w.pos
		if pos == w.min {
			m.ways = m.ways[:len(m.ways)-1]
		}
		return pc, pos, true
	case wayChoice:
		pc, pos, left := w.pc, w.pos, w.left
		m.ways = m.ways[:len(m.ways)-1]
		to, ok := m.branch(&m.code[pc], pc, pos, left)
		return to, pos, ok
	}
	pc, pos = w.pc, w.pos
	m.ways = m.ways[:len(m.ways)-1]
	return pc, pos, true
}

func (m *machine) behind(i *inst, pos int) bool {
	m.steps -= int64(len(i.sets)) / 8
	for _, set := range i.sets {
		r, size := utf8.DecodeLastRuneInString(m.text[:pos])
		if size == 0 || !set.Contains(r) {
			return false
		}
		pos -= size
	}
	return true
}

func (m *machine) edge(op opcode, pos int) bool {
	if pos == len(m.text) {
		m.ended = true
	}
	switch op {
	case opTextBegin:
		return pos == 0
	case opTextEnd:
		return pos == len(m.text)
	case opLineBegin:
		return pos == 0 || pos < len(m.text) && m.text[pos-1] == '\n'
	}
	return pos == len(m.text) || m.text[pos] == '\n'
}
