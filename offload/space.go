package offload

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// slotAlign is the alignment of slots. It is the sector size of current disks and the
// page size of file systems, so that a write that power loss cuts off cannot damage a
// neighbouring slot.
const slotAlign = 4096

// extent is a range of bytes of the page file.
type extent struct{ off, n int64 }

// space knows which parts of the page file are free.
type space struct {
	free []extent // by offset; no two touch, and none reaches end
	end  int64    // bytes beyond are free
}

// newSpace returns the free space between the used extents, or an error if two extents
// overlap.
func newSpace(used []extent) (space, error) {
	slices.SortFunc(used, func(a, b extent) int { return cmp.Compare(a.off, b.off) })
	var s space
	for _, e := range used {
		if e.off < s.end {
			return space{}, fmt.Errorf("two pages share offset %d: %w", e.off, snug.ErrCorrupt)
		}
		if e.off > s.end {
			s.free = append(s.free, extent{s.end, e.off - s.end})
		}
		s.end = e.off + e.n
	}
	return s, nil
}

// alloc returns n bytes from the first gap that is large enough, or from the end.
func (s *space) alloc(n int64) extent {
	for i := range s.free {
		e := &s.free[i]
		if e.n < n {
			continue
		}
		got := extent{e.off, n}
		e.off, e.n = e.off+n, e.n-n
		if e.n == 0 {
			s.free = slices.Delete(s.free, i, i+1)
		}
		return got
	}
	s.end += n
	return extent{s.end - n, n}
}

// release makes e free.
func (s *space) release(e extent) {
	i, _ := slices.BinarySearchFunc(s.free, e, func(a, b extent) int { return cmp.Compare(a.off, b.off) })
	s.free = slices.Insert(s.free, i, e)
	if i+1 < len(s.free) && e.off+e.n == s.free[i+1].off {
		s.free[i].n += s.free[i+1].n
		s.free = slices.Delete(s.free, i+1, i+2)
	}
	if i > 0 && s.free[i-1].off+s.free[i-1].n == e.off {
		s.free[i-1].n += s.free[i].n
		s.free = slices.Delete(s.free, i, i+1)
	}
	if last := len(s.free) - 1; s.free[last].off+s.free[last].n == s.end {
		s.end = s.free[last].off
		s.free = s.free[:last]
	}
}
