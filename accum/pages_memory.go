package accum

import (
	"slices"
	"unsafe"
)

// This file is the memory of whole pages in a Pages. What is kept depends on the order of calls alone.

// Bytes returns the bytes that the Pages holds now: this rank's parts, and the memory of whole pages that are in use, kept,
// or free. Memory of a whole page has the size of the largest page so far, so that any page uses it again. It is at most
// what was in use at one time, and PagesOptions.Held. Pages of more than Held bytes have memory of their own size, and the
// memory of the largest of them stays. Bytes does not count headers and padding: up to 1067 bytes a rank for each page in
// memory.
func (p *Pages) Bytes() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total()
}

// Peak returns the largest number of bytes that the Pages has held.
func (p *Pages) Peak() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peak
}

func (p *Pages) total() int64 {
	return p.bytes.parts + p.bytes.inUse + p.bytes.kept + p.bytes.spare + p.bytes.large
}

func (p *Pages) measure() { p.peak = max(p.peak, p.total()) }

// held returns how many bytes of pages that nobody uses are kept.
func (p *Pages) held() int64 {
	if p.o.Held == 0 {
		return 2 * p.slotBytes(0)
	}
	return p.o.Held
}

// use counts a user of a whole page.
func (p *Pages) use(g *page) {
	if g.users++; g.users > 1 {
		return
	}
	p.unkeep(g)
	if p.large(int64(g.size)) {
		return
	}
	p.bytes.inUse += g.slot.bytes
	p.most = max(p.most, p.bytes.inUse)
}

// keep keeps a whole page that nobody uses.
func (p *Pages) keep(g *page) {
	p.kept = append(p.kept, g)
	p.bytes.kept += g.slot.bytes
}

// unkeep takes a page out of the kept ones, if it is one.
func (p *Pages) unkeep(g *page) {
	if i := slices.Index(p.kept, g); i >= 0 {
		p.kept = slices.Delete(p.kept, i, i+1)
		p.bytes.kept -= g.slot.bytes
	}
}

// makeRoom lets go of kept pages, except the page that comes next, until there is room for n bytes more.
func (p *Pages) makeRoom(n int64) {
	for i := 0; i < len(p.kept) && p.bytes.kept+n > p.held(); {
		g := p.kept[i]
		if g == p.guess {
			i++
			continue
		}
		p.kept = slices.Delete(p.kept, i, i+1)
		p.bytes.kept -= g.slot.bytes
		p.free(g)
	}
}

// free lets go of a whole page, when it is gathered. Its memory is used again.
func (p *Pages) free(g *page) {
	if g.job != nil {
		<-g.job.done
	}
	p.spare = append(p.spare, g.slot)
	if !p.large(g.slot.bytes) {
		p.bytes.spare += g.slot.bytes
	}
	g.whole, g.slot, g.job = nil, slot{}, nil
}

// trim drops free memory until n bytes more can be made, except the memory of large pages.
func (p *Pages) trim(n int64) {
	for i := 0; i < len(p.spare) && p.bytes.inUse+p.bytes.kept+p.bytes.spare+n > p.most+p.held(); {
		if p.large(p.spare[i].bytes) {
			i++
			continue
		}
		p.takeSpare(i)
	}
}

// takeSpare takes free memory out of the list.
func (p *Pages) takeSpare(i int) slot {
	s := p.spare[i]
	if !p.large(s.bytes) {
		p.bytes.spare -= s.bytes
	}
	p.spare = slices.Delete(p.spare, i, i+1)
	return s
}

// large reports whether a page is never kept.
func (p *Pages) large(size int64) bool { return p.o.Held > 0 && size > p.o.Held }

// slot is memory for a page of up to bytes.
type slot struct {
	memory []byte
	bytes  int64
}

// slotBytes returns the bytes of memory for a page of a size: for any page that came before, or for large pages.
func (p *Pages) slotBytes(size int) int64 {
	switch {
	case p.size == 1: // the part is the page
		return int64(size)
	case p.large(int64(size)):
		return max(int64(size), p.largestOver)
	}
	return max(int64(size), p.largest)
}

// sees notes the size of a page.
func (p *Pages) sees(size int64) {
	if p.large(size) {
		p.largestOver = max(p.largestOver, size)
	} else {
		p.largest = max(p.largest, size)
	}
}

// take gives a page memory: what another page has left, or new memory.
func (p *Pages) take(g *page) {
	for i := len(p.spare) - 1; i >= 0 && g.slot.memory == nil; i-- {
		large := p.large(int64(g.size))
		if p.large(p.spare[i].bytes) != large {
			continue
		}
		switch left := p.takeSpare(i); {
		case left.bytes >= int64(g.size):
			g.slot = left
		case large: // of a time before larger pages
			p.bytes.large -= left.bytes
		}
	}
	if g.slot.memory == nil {
		n := p.slotBytes(g.size)
		if p.large(n) {
			p.bytes.large += n
		} else {
			p.trim(n)
		}
		room := p.room(int(n))
		words := make([]uint64, (room+7)/8) // for the alignment
		g.slot = slot{unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), room), n}
	}
	g.whole = g.slot.memory[:g.size:p.room(g.size)]
}

// Close waits for a page that is being gathered, and lets go of all memory. All ranks call Close. It returns the error of an
// earlier call; a second Close does nothing. Calls after it are errors.
func (p *Pages) Close() error {
	if p.usable("Close") != nil {
		return nil
	}
	failed, first := p.order.close()
	if !first {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index, p.kept, p.spare, p.guess, p.successors = nil, nil, nil, nil, map[pair]string{}
	p.bytes = struct{ parts, inUse, kept, spare, large int64 }{}
	return failed
}
