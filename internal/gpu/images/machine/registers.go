package machine

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	register = regexp.MustCompile(`(^|[^\w.])R(\d+)\b`)
	plain    = regexp.MustCompile(`^[-~|]*(U?R)(\d+)\|?$`)
	// Instructions whose first operand is no result, with those that write to memory, whose first one is in brackets.
	noResult = []string{
		"BAR", "BMOV", "BRX", "CALL", "DEPBAR", "FCHK", "JMX", "NANOSLEEP", "R2P", "RET", "WARPSYNC",
		"ISETP", "FSETP", "DSETP", "HSETP2", "PLOP3",
	}
	memory  = []string{"LDG", "LDS", "LDL", "LD", "LDC", "LDCU", "ULDC", "LDSM"}
	doubles = []string{"DADD", "DMUL", "DFMA", "CS2R", "DMNMX"}
)

func among(c *Instruction, ops []string) bool { return slices.ContainsFunc(ops, c.is) }

// writes returns the general registers that the instruction's result takes, the first one and their number.
func (i *Instruction) writes() (first, n int) {
	kind, first, ok := i.result()
	if !ok || kind != "R" {
		return 0, 0
	}
	return first, i.width()
}

// writesUniform is writes for the registers that a warp shares.
func (i *Instruction) writesUniform() (first, n int) {
	kind, first, ok := i.result()
	if !ok || kind != "UR" {
		return 0, 0
	}
	return first, i.width()
}

func (i *Instruction) result() (kind string, number int, ok bool) {
	if among(i, noResult) {
		return "", 0, false
	}
	for _, a := range i.Args {
		if m := plain.FindStringSubmatch(a); m != nil {
			n, err := strconv.Atoi(m[2])
			return m[1], n, err == nil
		}
		if strings.HasPrefix(strings.TrimPrefix(a, "U"), "P") { // predicates stand before it
			continue
		}
		return "", 0, false
	}
	return "", 0, false
}

// width is the number of 32-bit registers of the result.
func (i *Instruction) width() int {
	switch {
	case i.is("HGMMA"):
		if _, n := i.product(); n > 0 {
			return n / 2
		}
	case i.is("LDSM"):
		switch {
		case strings.HasSuffix(i.Op, ".4"):
			return 4
		case strings.HasSuffix(i.Op, ".2"):
			return 2
		}
	case i.is("CS2R") && i.has("32"):
		return 1
	case among(i, doubles), (i.is("IMAD") || i.is("UIMAD")) && i.has("WIDE"):
		return 2
	case i.is("HMMA"):
		return 4
	case among(i, memory):
		switch {
		case i.has("128"):
			return 4
		case i.has("64"):
			return 2
		}
	case i.is("I2F") && i.has("F64"), i.is("F2F") && i.has("F64"), i.is("SHF") && i.has("64"):
		return 2
	}
	return 1
}

var shape = regexp.MustCompile(`\.(\d+)x(\d+)x\d+\b`)

// product returns the rows and columns of a product of matrices: HGMMA.64x128x16.F32.BF16.
func (i *Instruction) product() (rows, columns int) {
	m := shape.FindStringSubmatch(i.Op)
	if m == nil {
		return 0, 0
	}
	rows, _ = strconv.Atoi(m[1])
	columns, _ = strconv.Atoi(m[2])
	return rows, columns
}

// highest returns the highest general register that the instruction names or writes, -1 if none.
func (i *Instruction) highest() int {
	most := -1
	for _, a := range i.Args {
		for _, m := range register.FindAllStringSubmatch(a, -1) {
			if n, err := strconv.Atoi(m[2]); err == nil {
				most = max(most, n)
			}
		}
	}
	first, n := i.writes()
	return max(most, first+n-1)
}

// set is some of the 256 registers.
type set [4]uint64

func (s *set) add(first, n int) {
	for r := first; r < first+n && r < 256; r++ {
		s[r/64] |= 1 << (r % 64)
	}
}

func (s set) union(o set) set {
	for i := range s {
		s[i] |= o[i]
	}
	return s
}

// first returns the lowest register that both have, or -1.
func (s set) first(o set) int {
	for r := range 256 {
		if s[r/64]&o[r/64]>>(r%64)&1 == 1 {
			return r
		}
	}
	return -1
}

func registers(first, n int) set {
	var s set
	s.add(first, n)
	return s
}

// uses returns the registers that the instruction names, with all of those of a result or of an operand
// of a product.
func (i *Instruction) uses() set {
	var s set
	for _, a := range i.Args {
		for _, m := range register.FindAllStringSubmatch(a, -1) {
			if n, err := strconv.Atoi(m[2]); err == nil {
				s.add(n, 1)
			}
		}
	}
	s.add(i.writes())
	return s
}
