package ucd

import (
	"slices"
	"unicode"
	"unsafe"
)

// Set is a set of code points. Questions take constant time. The nil Set is empty.
type Set struct {
	edges []rune   // where members begin and end, in turn
	index []uint16 // by page; nil for a set of few edges
	pages [][pageSize / 64]uint64
}

const (
	pageSize = 256
	fewEdges = 8
)

// Size returns the bytes of memory that the set takes.
func (s *Set) Size() int {
	if s == nil {
		return 0
	}
	return int(unsafe.Sizeof(*s)) + 4*cap(s.edges) + 2*len(s.index) + pageSize/8*cap(s.pages)
}

// Contains reports whether r is in the set.
func (s *Set) Contains(r rune) bool {
	if s == nil || uint32(r) > unicode.MaxRune {
		return false
	}
	if s.index == nil {
		for i := 0; i < len(s.edges) && s.edges[i] <= r; i += 2 {
			if r < s.edges[i+1] {
				return true
			}
		}
		return false
	}
	return s.pages[s.index[r/pageSize]][r%pageSize/64]>>(r%64)&1 != 0
}

// Range returns the set of the code points from lo to hi, both included.
func Range(lo, hi rune) *Set { return build([]rune{lo, hi + 1}) }

// of returns the set of some code points.
func of(members []rune) *Set {
	members = slices.Clone(members)
	slices.Sort(members)
	var edges []rune
	for _, r := range members {
		if n := len(edges); n > 0 && r <= edges[n-1] {
			edges[n-1] = r + 1
		} else {
			edges = append(edges, r, r+1)
		}
	}
	return build(edges)
}

// Union returns the set of the members of all sets.
func Union(sets ...*Set) *Set {
	type edge struct {
		at   rune
		step int
	}
	var all []edge
	for _, s := range sets {
		if s == nil {
			continue
		}
		for i, at := range s.edges {
			all = append(all, edge{at, 1 - i%2*2})
		}
	}
	slices.SortFunc(all, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return b.step - a.step // a begin before an end, so that neighbours join
	})
	var edges []rune
	depth := 0
	for _, e := range all {
		if depth += e.step; depth == 1 && e.step == 1 || depth == 0 {
			edges = append(edges, e.at)
		}
	}
	return build(edges)
}

// Complement returns the set of the code points that s lacks.
func (s *Set) Complement() *Set {
	var old []rune
	if s != nil {
		old = s.edges
	}
	edges := append([]rune{0}, old...)
	if len(old) > 0 && old[0] == 0 {
		edges = edges[2:]
	}
	if n := len(edges); n > 0 && edges[n-1] == unicode.MaxRune+1 {
		edges = edges[:n-1]
	} else {
		edges = append(edges, unicode.MaxRune+1)
	}
	return build(edges)
}

// Has reports whether the set has a member of lo to hi, both included.
func (s *Set) Has(lo, hi rune) bool {
	if s == nil {
		return false
	}
	for i := 0; i < len(s.edges); i += 2 {
		if s.edges[i] <= hi && lo < s.edges[i+1] {
			return true
		}
	}
	return false
}

// build makes a set of edges, which are in order, an even number of them.
func build(edges []rune) *Set {
	s := &Set{edges: edges}
	if len(edges) <= fewEdges {
		return s
	}
	s.index, s.pages = make([]uint16, (unicode.MaxRune+1)/pageSize), make([][pageSize / 64]uint64, 2)
	for i := range s.pages[1] {
		s.pages[1][i] = ^uint64(0)
	}
	for i := 0; i < len(edges); i += 2 {
		for lo := edges[i]; lo < edges[i+1]; {
			page := lo / pageSize
			hi := min(edges[i+1], (page+1)*pageSize)
			if hi-lo == pageSize {
				s.index[page] = 1
			} else {
				if s.index[page] == 0 {
					s.index[page] = uint16(len(s.pages))
					s.pages = append(s.pages, [pageSize / 64]uint64{})
				}
				for p := &s.pages[s.index[page]]; lo < hi; lo++ {
					p[lo%pageSize/64] |= 1 << (lo % 64)
				}
			}
			lo = hi
		}
	}
	return s
}
