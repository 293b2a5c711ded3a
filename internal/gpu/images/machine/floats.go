package machine

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// quotients is which registers belong to the division, reciprocal or square root that starts with
// an instruction MUFU: operand are the registers of its operand, approach those of its
// approximations. The numbers are those of MUFUs, from 1 on.
type quotients struct {
	operand  [256][2]uint16 // of the last two
	approach [256]uint16
	copied   [256]uint16 // the instruction, from 1 on, that copied a value of the constant bank
}

func (q *quotients) merge(o *quotients) (*quotients, bool) {
	if q == o || *q == *o {
		return q, false
	}
	m, changed := *q, false
	for r := range m.operand {
		for k := range m.operand[r] {
			if m.operand[r][k] != 0 && !slices.Contains(o.operand[r][:], m.operand[r][k]) {
				m.operand[r][k], changed = 0, true
			}
		}
		if m.approach[r] != 0 && m.approach[r] != o.approach[r] {
			m.approach[r], changed = 0, true
		}
		if m.copied[r] != 0 && m.copied[r] != o.copied[r] {
			m.copied[r], changed = 0, true
		}
	}
	return &m, changed
}

// Fused returns the FFMA and DFMA that may round once where the source rounds twice. The others are:
// in the assembler's subroutines of rare cases; with an addend of 0 or a factor of 1, so that
// one of the two operations is exact; and steps of Newton's method for x/y, 1/y and √y, which join
// approximations of one MUFU, its operand and 1. A result of a division that is multiplied by
// another value and added to a third is none of these.
func (f *Function) Fused() (single, double []string) {
	divides := false
	for i := range f.Code {
		c := &f.Code[i]
		divides = divides || c.is("MUFU")
		if c.is("DFMA") && c.Part == "" {
			double = append(double, c.String())
		}
	}
	states, seen := make([]*quotients, len(f.Code)), []bool(nil)
	if divides {
		after := func(i int, q *quotients) *quotients { n, _ := f.afterFloat(i, q); return n }
		states, seen = flow(f, &quotients{}, after, (*quotients).merge)
	}
	for i := range f.Code {
		c := &f.Code[i]
		if !c.is("FFMA") && !c.is("FFMA2") || c.Part != "" {
			continue
		}
		q := states[i]
		if !divides || !seen[i] {
			q = &quotients{}
		}
		if _, step := f.afterFloat(i, q); !step {
			single = append(single, c.String())
		}
	}
	return single, double
}

// value is one operand of an instruction: a register, or a number.
type value struct {
	register int // -1 for others
	number   float64
	isNumber bool
	name     string // without its sign
}

func valueOf(arg string) value {
	v := value{register: -1, name: strings.Trim(arg, "-|~")}
	switch m := plain.FindStringSubmatch(arg); {
	case v.name == "RZ":
		v.isNumber = true
	case m != nil && m[1] == "R":
		v.register, _ = strconv.Atoi(m[2])
	default:
		n, err := strconv.ParseFloat(v.name, 64)
		v.number, v.isNumber = n, err == nil
	}
	return v
}

// approaches returns the number of the MUFU that v is an approximation of, or 0.
func (q *quotients) approaches(v value) uint16 {
	if v.register < 0 {
		return 0
	}
	return q.approach[v.register]
}

// operandOf reports whether v is what MUFU number id was given.
func (q *quotients) operandOf(f *Function, v value, id uint16) bool {
	if v.register < 0 {
		return !v.isNumber && valueOf(f.Code[id-1].Args[1]).name == v.name
	}
	if at := q.copied[v.register]; at != 0 {
		args := f.Code[at-1].Args
		return q.operandOf(f, valueOf(args[len(args)-1]), id)
	}
	return slices.Contains(q.operand[v.register][:], id)
}

// afterFloat follows approximations over instruction i. step reports whether it is an FFMA of those
// that Fused leaves out.
func (f *Function) afterFloat(i int, before *quotients) (after *quotients, step bool) {
	c := &f.Code[i]
	first, n := c.writes()
	if n == 0 {
		return before, false
	}
	var id, copied uint16
	var given value
	switch {
	case c.is("MUFU") && (c.has("RCP") || c.has("RSQ")):
		id, given = uint16(i+1), valueOf(c.Args[1])
	case c.is("FFMA"):
		id, step = f.newton(before, c)
	case c.is("FMUL"), c.is("FADD"):
		a, b := valueOf(c.Args[1]), valueOf(c.Args[2])
		for _, pair := range [][2]value{{a, b}, {b, a}} {
			if x := before.approaches(pair[0]); x != 0 && (pair[1].isNumber || before.approaches(pair[1]) == x || before.operandOf(f, pair[1], x)) {
				id = x
			}
		}
	case c.is("MOV"), c.is("IMAD") && c.has("MOV"):
		if v := valueOf(c.Args[len(c.Args)-1]); v.register >= 0 && n == 1 {
			next := *before
			next.operand[first], next.approach[first] = before.operand[v.register], before.approach[v.register]
			next.copied[first] = before.copied[v.register]
			return &next, false
		} else if strings.HasPrefix(v.name, "c[") {
			copied = uint16(i + 1)
		}
	}
	if id == 0 && copied == 0 && before.knowsNothing(first, n) {
		return before, step
	}
	next := *before
	for r := first; r < first+n && r < 256; r++ {
		next.operand[r], next.approach[r], next.copied[r] = [2]uint16{}, 0, 0
	}
	next.approach[first], next.copied[first] = id, copied
	if given.name != "" && given.register >= 0 && given.register != first {
		o := &next.operand[given.register]
		o[0], o[1] = id, o[0]
	}
	return &next, step
}

func (q *quotients) knowsNothing(first, n int) bool {
	for r := first; r < first+n && r < 256; r++ {
		if q.operand[r] != [2]uint16{} || q.approach[r] != 0 || q.copied[r] != 0 {
			return false
		}
	}
	return true
}

// newton reports whether an FFMA is a step of a division or exact in one of its operations, and which
// MUFU its result approaches.
func (f *Function) newton(q *quotients, c *Instruction) (id uint16, step bool) {
	if len(c.Args) < 4 {
		return 0, false
	}
	a, b, plus := valueOf(c.Args[1]), valueOf(c.Args[2]), valueOf(c.Args[3])
	x, y := q.approaches(a), q.approaches(b)
	if plus.isNumber && plus.number == 0 {
		return max(x, y), true
	}
	if a.isNumber && a.number == 1 || b.isNumber && b.number == 1 {
		return 0, true
	}
	switch {
	case x != 0 && q.operandOf(f, b, x): // what is left of the dividend, or of 1
		return x, true
	case y != 0 && q.operandOf(f, a, y):
		return y, true
	case x != 0 && x == y && (q.approaches(plus) == x || q.operandOf(f, plus, x) || plus.isNumber && (plus.number == 1 || plus.number == -1)):
		return x, true
	}
	return 0, false
}

// repeated are kernels with more FFMA than their portable text has, because the assembler repeats the
// bodies of their loops.
var repeated = regexp.MustCompile(`^(attention_delta_(f32|f16|bf16)|attention_merge_backward|fused_rmsnorm_f16|fused_layernorm_bf16|fused_image_params|fused_image_slopes_(f32|f16|bf16))$`)

// quotients64 are kernels with divisions and square roots of doubles, which consist of DFMA, and of FFMA that look at
// exponents.
var quotients64 = regexp.MustCompile(`^quant8_roots$`)

// CheckFused returns the kernel's fused instructions that its source does not explain: more than its
// portable text has, which is compiled with --fmad=false and so has those of the source alone.
func (f *Function) CheckFused(t Text) []string {
	var wrong []string
	single, double := f.Fused()
	for _, kind := range []struct {
		name  string
		found []string
		text  int
	}{{"FFMA", single, t.Fused}, {"DFMA", double, t.Double}} {
		if quotients64.MatchString(f.Name) {
			continue
		}
		if n := len(kind.found); n > kind.text && !(kind.text > 0 && repeated.MatchString(f.Name)) {
			wrong = append(wrong, fmt.Sprintf("%d %s, the source has %d: such as %s", n, kind.name, kind.text, kind.found[0]))
		}
	}
	return wrong
}
