package accum

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
)

// This file is the parts of pages that change: of parameters that train.

// Chunk returns the bytes in which the ranks divide a page of size bytes: rank r has those from r·Chunk on. It is a
// multiple of 1024, so that the last ranks may have fewer or none. It is 0 for a size that no page can have.
func (p *Pages) Chunk(size int) int {
	if p == nil || p.size == 0 {
		return max(size, 0)
	}
	if size < 0 || size > math.MaxInt/2 || int64(size) > longestPage {
		return 0
	}
	return p.chunk(size)
}

// Part returns the part of a page that this rank has, which begins at byte lo of the page. The program does not change it,
// and it is valid until the page is written. The error wraps [snug.ErrConfig] for a page that is in use or was never
// written; or it is the error of an earlier call.
func (p *Pages) Part(key string) (lo int, part []byte, err error) {
	g, err := p.written("Part", key)
	if err != nil {
		return 0, nil, err
	}
	lo, _ = p.partOf(g.size, p.rank)
	return lo, g.part, nil
}

// Update calls change with the part of a page that this rank has, such as for the step of an optimizer, and with the
// number of the byte where it begins. All ranks call Update for the same page between the same calls of Acquire, also those
// whose part is empty; it sends nothing. The next Acquire gathers the new parts.
//
// The function may acquire other pages, but not this one. After an error or a panic of it, the page has what it has
// written.
//
// The error wraps [snug.ErrConfig] for a page that is in use, is being updated or was never written, and for a nil function,
// or comes from change; or it is the error of an earlier call.
func (p *Pages) Update(key string, change func(lo int, part []byte) error) error {
	g, err := p.written("Update", key)
	if err != nil {
		return err
	}
	if change == nil {
		return fmt.Errorf("accum: Update: page %q: the function is nil: %w", key, snug.ErrConfig)
	}
	if err := p.forget(g); err != nil {
		return err
	}
	defer func() {
		p.mu.Lock()
		g.changes, g.sums = false, sums{0, crc32c.Checksum(g.part)}
		p.mu.Unlock()
	}()
	lo, _ := p.partOf(g.size, p.rank)
	return change(lo, g.part)
}

// written returns a page that was written and has no user.
func (p *Pages) written(op, key string) (*page, error) {
	if err := p.usable(op); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.order.failed(); err != nil {
		return nil, err
	}
	g := p.index[key]
	switch {
	case g == nil || g.fresh:
		return nil, fmt.Errorf("accum: %s: page %q was never written: %w", op, key, snug.ErrConfig)
	case g.users > 0:
		return nil, fmt.Errorf("accum: %s: page %q is in use: %w", op, key, snug.ErrConfig)
	case g.changes:
		return nil, fmt.Errorf("accum: %s: page %q is being updated: %w", op, key, snug.ErrConfig)
	}
	return g, nil
}

// forget lets go of the whole page, whose parts change from now on. A page that is being gathered is gathered to its end,
// with the parts that all ranks had when they began.
func (p *Pages) forget(g *page) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.history = hash(p.history, "update of "+g.key)
	if p.guess == g {
		p.guess = nil
	}
	if g.whole != nil {
		p.unkeep(g)
		p.free(g)
		p.trim(0)
	}
	if err := p.order.failed(); err != nil {
		return err
	}
	g.changes = true
	return nil
}
