package machine

import (
	"fmt"
	"strconv"
	"strings"
)

// tensorMap are the bytes of a tensor map.
const tensorMap = 128

// addresses says which pairs of the registers that a warp shares hold the address of a parameter: the
// distance from the first one plus 1, or 0 for another value.
type addresses [64]int

func (a addresses) merge(b addresses) (addresses, bool) {
	m := a
	for i := range m {
		if m[i] != b[i] {
			m[i] = 0
		}
	}
	return m, m != a
}

// CheckMaps returns the copies by a tensor map whose map is no parameter of the kernel, where it must
// be for the driver: their address comes from the constant bank, where parameters are, and is that of
// one of 128 bytes. Every such parameter is used.
func (f *Function) CheckMaps(k Kernel) []string {
	maps, used := map[int]bool{}, map[int]bool{}
	for _, p := range k.Params {
		if p.Size == tensorMap {
			maps[p.Offset] = true
		}
	}
	var wrong []string
	states, seen := flow(f, addresses{}, f.afterAddress, addresses.merge)
	for i := range f.Code {
		c := &f.Code[i]
		if !seen[i] || !c.is("UTMALDG") {
			continue
		}
		r, ok := uniform(strings.Trim(c.Args[len(c.Args)-1], "[]"))
		switch {
		case !ok || states[i][r] == 0:
			wrong = append(wrong, fmt.Sprintf("%v: its map is not addressed as a parameter", c))
		case !maps[states[i][r]-1]:
			wrong = append(wrong, fmt.Sprintf("%v: its map is at byte %d of the parameters, where none is", c, states[i][r]-1))
		default:
			used[states[i][r]-1] = true
		}
	}
	if len(used) < len(maps) {
		wrong = append(wrong, fmt.Sprintf("it uses %d of its %d tensor maps", len(used), len(maps)))
	}
	return wrong
}

// afterAddress follows the address of the parameters, which is in the constant bank before them.
func (f *Function) afterAddress(i int, a addresses) addresses {
	c := &f.Code[i]
	first, n := c.writesUniform()
	if n == 0 {
		return a
	}
	value := 0
	switch {
	case (c.is("ULDC") || c.is("LDCU")) && c.has("64") && strings.HasPrefix(c.Args[1], "c[0x0][0x1"):
		value = 1
	case c.Op == "UMOV":
		if r, ok := uniform(c.Args[1]); ok {
			value = a[r]
		}
	case c.Op == "UIADD3": // the lower half, with predicates for the carry
		from, plus, known := 0, 0, true
		for _, arg := range c.Args[1:] {
			if r, ok := uniform(arg); ok {
				if from != 0 || a[r] == 0 {
					known = false
				}
				from = a[r]
			} else if k, err := strconv.ParseInt(arg, 0, 32); err == nil {
				plus += int(k)
			} else if arg != "URZ" && !strings.HasPrefix(strings.TrimPrefix(arg, "!"), "UP") {
				known = false
			}
		}
		if known && from != 0 {
			value = from + plus
		}
	}
	for r := first; r < first+n && r < len(a); r++ {
		a[r] = 0
	}
	if first < len(a) {
		a[first] = value
	}
	return a
}

// uniform reads the number of a register that a warp shares.
func uniform(arg string) (int, bool) {
	m := plain.FindStringSubmatch(arg)
	if m == nil || m[1] != "UR" {
		return 0, false
	}
	n, err := strconv.Atoi(m[2])
	return n, err == nil && n < len(addresses{})
}
