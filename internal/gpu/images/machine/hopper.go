package machine

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Split is how a kernel of sm_90a shares registers out among its threads, as the source says:
// of a thread that copies and of one that multiplies, and the groups of 128 threads that do.
type Split struct{ Less, More, Groups int }

var splitEntry = regexp.MustCompile(`(?m)^\s*HOPPER_(FORWARD|BACKWARD_QUERY|BACKWARD_KEY)\(T, (\d+), (\d+), \d+, (\d+), (\d+)\)`)

// Splits reads the entries of attention_sm90a.cu.
func Splits(source string) (map[string]Split, error) {
	all := map[string]Split{}
	for _, m := range splitEntry.FindAllStringSubmatch(source, -1) {
		var n [3]int
		for i, s := range m[3:] {
			n[i], _ = strconv.Atoi(s)
		}
		for _, t := range []string{"f16", "bf16"} {
			all["attention_"+strings.ToLower(m[1])+"_hopper"+m[2]+"_"+t] = Split{Less: n[1], More: n[2], Groups: n[0]}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no entry of a kernel with groups of threads")
	}
	return all, nil
}

// blockRegisters are the registers that a block may have.
const blockRegisters = 1 << 16

// CheckSplit returns how a kernel differs from its split: it gives registers back once and takes
// some once, neither after the other, and no instruction names a register that its thread does not have then.
func (f *Function) CheckSplit(k Kernel, s Split) []string {
	var wrong []string
	say := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }
	if n := 128 * (s.Less + s.Groups*s.More); n > blockRegisters {
		say("its groups take %d registers, a block has %d", n, blockRegisters)
	}
	if k.Threads != 128*(s.Groups+1) || k.Threads*k.Registers > blockRegisters {
		say("%d threads of %d registers at launch for %d groups", k.Threads, k.Registers, s.Groups+1)
	}
	owns := make([]int, len(f.Code)) // the registers that a thread has there
	for i := range owns {
		owns[i] = k.Registers
	}
	found := map[string]int{}
	for i := range f.Code {
		c := &f.Code[i]
		if !c.is("USETMAXREG") {
			continue
		}
		kind, want := "increase", s.More
		if c.has("DEALLOC") {
			kind, want = "decrease", s.Less
		}
		found[kind]++
		n, err := strconv.ParseInt(c.Args[len(c.Args)-1], 0, 32)
		if err != nil || int(n) != want {
			say("%v: want %d registers", c, want)
			continue
		}
		again := false
		for _, r := range f.reached(i) {
			if f.Code[r].is("USETMAXREG") && r != i { // itself: it tries until there are some
				again = true
			}
			owns[r] = int(n)
		}
		if again {
			say("%v: another one comes after it", c)
		}
	}
	for _, kind := range []string{"decrease", "increase"} {
		if found[kind] != 1 {
			say("%d instructions that %s the registers, want 1", found[kind], kind)
		}
	}
	for i := range f.Code {
		if c := &f.Code[i]; c.highest() >= owns[i] {
			say("%v: a thread has %d registers here", c, owns[i])
		}
	}
	return wrong
}

// products is what CheckProducts knows before an instruction: registers that were written since
// the last arrival, which products do not see; those that products under way read and write, in groups
// with the youngest first; and whether some product has no end of its group yet.
type products struct {
	fresh         set
	reads, writes [groupsKept]set
}

const groupsKept = 6 // the first is the group that has no end yet; the last has all older ones

func (p products) merge(o products) (products, bool) {
	m := products{fresh: p.fresh.union(o.fresh)}
	for i := range p.reads {
		m.reads[i], m.writes[i] = p.reads[i].union(o.reads[i]), p.writes[i].union(o.writes[i])
	}
	return m, m != p
}

// CheckProducts returns the products of warpgroups that are not ordered with the registers that
// they read and write: an operand or a sum that was written after the last WARPGROUP.ARRIVE, and
// registers of products under way that are read or written before a wait for them. Products may add to
// the same sums without one.
func (f *Function) CheckProducts() []string {
	var wrong []string
	after := func(i int, p products) products { return f.afterProduct(i, p, nil) }
	states, seen := flow(f, products{}, after, products.merge)
	for i := range f.Code {
		if seen[i] {
			f.afterProduct(i, states[i], func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) })
		}
	}
	return wrong
}

func (f *Function) afterProduct(i int, p products, say func(string, ...any)) products {
	c := &f.Code[i]
	complain := func(r int, what string) {
		if r >= 0 && say != nil {
			say("%v: R%d %s", c, r, what)
		}
	}
	switch {
	case c.is("WARPGROUP") && c.has("ARRIVE"):
		p.fresh = set{}
	case c.is("WARPGROUP") && c.has("DEPBAR"): // until at most the youngest n groups are under way
		n, err := strconv.ParseInt(c.Args[len(c.Args)-1], 0, 32)
		for g := int(n) + 1; err == nil && g < groupsKept; g++ {
			p.reads[g], p.writes[g] = set{}, set{}
		}
	case c.is("HGMMA"):
		sums, fragment := c.operands()
		complain(sums.union(fragment).first(p.fresh), "was written after the last arrival")
		for g := range p.writes {
			complain(fragment.first(p.writes[g]), "is a result that was not waited for")
		}
		p.reads[0], p.writes[0] = p.reads[0].union(fragment), p.writes[0].union(sums)
		if strings.Contains(c.Args[len(c.Args)-1], "gsb") {
			commit(&p.reads)
			commit(&p.writes)
		}
	case c.is("CALL"):
		p.fresh.add(0, 256)
	default:
		written := registers(c.writes())
		for g := range p.writes {
			complain(c.uses().first(p.writes[g]), "belongs to a product that was not waited for")
			complain(written.first(p.reads[g]), "is read by a product that was not waited for")
		}
		p.fresh = p.fresh.union(written)
	}
	return p
}

// commit ends the youngest group.
func commit(groups *[groupsKept]set) {
	const last = groupsKept - 1
	groups[last] = groups[last].union(groups[last-1])
	copy(groups[1:last], groups[:last-1])
	groups[0] = set{}
}

// operands returns the registers of a product's sums, and of its left operand if that is in registers.
func (i *Instruction) operands() (sums, fragment set) {
	first, n := i.writes()
	sums.add(first, n)
	if len(i.Args) > 1 {
		if m := plain.FindStringSubmatch(i.Args[1]); m != nil && m[1] == "R" {
			if at, err := strconv.Atoi(m[2]); err == nil {
				fragment.add(at, 4)
			}
		}
	}
	return sums, fragment
}

var constantOffset = regexp.MustCompile(`^\[U?R\d+\+(0x[0-9a-f]+)\]$`)

// BarrierEnd returns where in the memory of its block the last barrier ends that an instruction finds at a
// constant offset, in bytes: kernels of sm_90a keep barriers behind everything else. It is 0 where there is none.
func (f *Function) BarrierEnd() int {
	end := 0
	for i := range f.Code {
		c := &f.Code[i]
		if !c.is("SYNCS") {
			continue
		}
		for _, a := range c.Args {
			m := constantOffset.FindStringSubmatch(a)
			if m == nil {
				continue
			}
			n, err := strconv.ParseInt(m[1], 0, 32)
			if err == nil {
				end = max(end, int(n)+8)
			}
		}
	}
	return end
}
