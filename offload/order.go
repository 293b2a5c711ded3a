package offload

import "math"

// order records the accesses and predicts the coming ones. An access has a time, counted
// from 0; an access that repeats the last one is not counted. As in LZ77 the recent
// accesses are searched in the recorded accesses, and the accesses that followed there
// are expected to follow again: if the longest match lies period accesses back, the
// access at time t is predicted to be the one at t-period, until a prediction fails.
//
// A page's key decides when it is evicted: pages with larger keys go first. It is the
// time of the next use while a period is known (Belady's rule), and minus the time of the
// last use otherwise (least recently used).
type order struct {
	on     bool
	ring   []access // the access at time t is ring[t%len]; a power of two
	oldest int64    // time of the first access still in ring
	now    int64    // time of the next access
	period int64    // 0 when none is known
}

// access is one entry. prev and next are times of the same page's neighbouring
// accesses, -1 when there is none.
type access struct {
	page       *page
	prev, next int64
}

const (
	perPage  = 8  // accesses of each page that are kept; a longer cycle is not recognized
	minMatch = 2  // accesses that must agree with the past before it is trusted
	maxMatch = 16 // more are not compared
	maxTries = 16 // earlier accesses of a page that are looked at
)

func newOrder(on bool) order { return order{on: on} }

// grow makes the record large enough for the accesses of the given number of pages.
func (o *order) grow(pages int) {
	if !o.on || perPage*pages <= len(o.ring) {
		return
	}
	old, size := *o, 64
	for size < perPage*pages {
		size *= 2
	}
	o.ring = make([]access, size)
	for t := o.oldest; t < o.now; t++ {
		*o.at(t) = *old.at(t)
	}
}

func (o *order) at(t int64) *access { return &o.ring[t&int64(len(o.ring)-1)] }

// record counts an access of p. resident is the number of pages in memory. It
// reports whether the keys of all pages must be assigned anew.
func (o *order) record(p *page, resident int) bool {
	if !o.on || o.now > 0 && o.at(o.now-1).page == p {
		return false
	}
	t := o.now
	o.now++
	o.oldest = max(o.oldest, o.now-int64(len(o.ring)))
	prev := p.last
	if prev < o.oldest {
		prev = -1
	} else {
		o.at(prev).next = t
	}
	*o.at(t) = access{p, prev, -1}
	p.last = t
	if o.period > 0 && t-o.period >= o.oldest && o.at(t-o.period).page == p {
		// The use after the one that this repeats, one period later.
		p.key = o.at(t-o.period).next + o.period
		return false
	}
	was := o.period
	o.period = o.match(t, resident)
	if o.period == 0 {
		p.key = -t
	}
	return was > 0 || o.period > 0
}

// match returns how far before t the longest match of the accesses up to t ends. Of
// equally long matches it takes the nearest. It returns 0 if there is no match, or if its
// cycle is so short that all its pages stay in memory when the least recently used pages
// are evicted.
func (o *order) match(t int64, resident int) (period int64) {
	longest := int64(minMatch - 1)
	cand := o.at(t).prev
	for try := 0; try < maxTries && cand >= o.oldest && longest < maxMatch; try++ {
		n := int64(0)
		for n < maxMatch && cand-n >= o.oldest && o.at(cand-n).page == o.at(t-n).page {
			n++
		}
		if n > longest {
			longest, period = n, t-cand
		}
		cand = o.at(cand).prev
	}
	if period <= int64(resident) {
		return 0
	}
	return period
}

// defaultKey returns the key of a page that no prediction names.
func (o *order) defaultKey(p *page) int64 {
	if o.period > 0 {
		return math.MaxInt64
	}
	return -p.last
}

// assignKeys sets the keys of the pages that the prediction names.
func (o *order) assignKeys() {
	for t := o.now - 1; t >= o.now-o.period; t-- {
		o.at(t).page.key = t + o.period
	}
}

// ahead returns the page that is predicted to be used after i other pages, or nil.
func (o *order) ahead(i int) *page {
	if int64(i) >= o.period || o.now-o.period < o.oldest {
		return nil
	}
	return o.at(o.now - o.period + int64(i)).page
}
