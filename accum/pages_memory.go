package accum

import (
	"slices"
	"unsafe"
)

// This file is the memory of whole pages in a Pages. What is kept depends on the order of calls alone.

// Bytes returns the bytes that the Pages holds now: this rank's parts, whole pages, and free memory of whole pages. These
// are together at most the parts, the most bytes that were in use at one time, and PagesOptions.Held. It does not count
// the up to 45 bytes for each rank beside a whole page.
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
	return p.bytes.parts + p.bytes.inUse + p.bytes.kept + p.bytes.spare
}

func (p *Pages) measure() { p.peak = max(p.peak, p.total()) }

// held returns how many bytes of pages that nobody uses are kept.
func (p *Pages) held() int64 {
	if p.o.Held == 0 {
		return 2 * p.largest
	}
	return p.o.Held
}

// use counts a user of a whole page.
func (p *Pages) use(g *page) {
	if g.users++; g.users > 1 {
		return
	}
	if i := slices.Index(p.kept, g); i >= 0 {
		p.kept = slices.Delete(p.kept, i, i+1)
		p.bytes.kept -= int64(g.size)
	}
	p.bytes.inUse += int64(g.size)
	p.most = max(p.most, p.bytes.inUse)
}

// keep keeps a whole page that nobody uses.
func (p *Pages) keep(g *page) {
	p.kept = append(p.kept, g)
	p.bytes.kept += int64(g.size)
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
		p.bytes.kept -= int64(g.size)
		p.free(g)
	}
}

// free lets go of a whole page, when it is gathered. Its memory is used again.
func (p *Pages) free(g *page) {
	if g.job != nil {
		<-g.job.done
	}
	p.spare = append(p.spare, g.whole)
	p.bytes.spare += int64(g.size)
	g.whole, g.job = nil, nil
}

// trim drops free memory until n bytes more can be made.
func (p *Pages) trim(n int64) {
	for len(p.spare) > 0 && p.bytes.inUse+p.bytes.kept+p.bytes.spare+n > p.most+p.held() {
		p.bytes.spare -= int64(len(p.spare[0]))
		p.spare = slices.Delete(p.spare, 0, 1)
	}
}

// take returns memory for a page: what another page of the same size has left, or new memory.
func (p *Pages) take(size int) []byte {
	for i, b := range p.spare {
		if len(b) == size {
			p.spare = slices.Delete(p.spare, i, i+1)
			p.bytes.spare -= int64(size)
			return b
		}
	}
	p.trim(int64(size))
	n := p.room(size)
	words := make([]uint64, (n+7)/8) // for the alignment
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)[:size]
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
	p.bytes = struct{ parts, inUse, kept, spare int64 }{}
	return failed
}
