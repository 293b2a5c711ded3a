package accum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
)

// This file is how the ranks gather a page: by one AllGather, in which each rank sends a chunk of its part and a header.
// All ranks compare the headers, and move the parts together.

// job gathers a page.
type job struct {
	*Pages
	turn  turn
	key   string
	have  int    // bytes of the page
	own   header // what this rank says
	part  []byte
	whole []byte // the page that comes; nil if only headers are compared
	all   []byte // the chunks
	done  chan struct{}
	ok    bool // when done
}

// job takes the turn for a gather of size bytes into whole.
func (p *Pages) job(g *page, size int, whole []byte) (*job, error) {
	t, err := p.order.next()
	if err != nil {
		return nil, err
	}
	return &job{
		Pages: p, turn: t, key: g.key, have: g.size, part: g.part, whole: whole, done: make(chan struct{}),
		own: header{pagesMagic, hash(0, g.key), p.history, int64(size), uint32(len(g.key)), g.sums.whole, g.sums.part},
	}, nil
}

// run gathers the page when it is the job's turn.
func (j *job) run() {
	defer close(j.done)
	j.ok = j.turn.run(j.gather) == nil
}

// runAhead is run on a goroutine of its own. A panic is an error of later calls.
func (j *job) runAhead() {
	defer func() { _ = recover() }() // the order has noted it
	j.run()
}

func (j *job) gather() error {
	err := j.exchange()
	if err == nil {
		err = j.compare()
	}
	if err == nil {
		err = j.collect()
	}
	if err != nil {
		err = fmt.Errorf("accum: Pages: %w", err)
	}
	return err
}

// header is what a rank says about its part.
type header struct {
	magic        uint32
	key, history uint64 // hashes
	size         int64
	keyLen       uint32
	whole, part  uint32 // checksums of what the rank has written
}

const (
	pagesMagic  = 0x67_50_6e_73
	headerBytes = 44
	longestKey  = 200
)

func (h header) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, h.magic)
	le.PutUint64(b[4:], h.key)
	le.PutUint64(b[12:], h.history)
	le.PutUint64(b[20:], uint64(h.size))
	le.PutUint32(b[28:], h.keyLen)
	le.PutUint32(b[32:], h.whole)
	le.PutUint32(b[36:], h.part)
	le.PutUint32(b[40:], crc32c.Checksum(b[:40]))
}

// partAlign divides where the parts of a page begin.
const partAlign = 1024

// chunk returns how many bytes of a page of n bytes a chunk has, without the header.
func (p *Pages) chunk(n int) int {
	return (n + p.size*partAlign - 1) / (p.size * partAlign) * partAlign
}

// room returns the bytes in which a page of n bytes is gathered.
func (p *Pages) room(n int) int { return p.size * (p.chunk(n) + headerBytes) }

// partOf returns the bytes of a page of n bytes that a rank has.
func (p *Pages) partOf(n, rank int) (lo, hi int) {
	chunk := p.chunk(n)
	lo = min(rank*chunk, n)
	return lo, min(lo+chunk, n)
}

// chunkOf returns the chunk of a rank and its header.
func (j *job) chunkOf(rank int) (chunk, header []byte) {
	n := len(j.all) / j.Pages.size
	chunk = j.all[rank*n:][:n]
	return chunk[:n-headerBytes], chunk[n-headerBytes:]
}

// header returns the header of a rank.
func (j *job) header(rank int) header {
	_, b := j.chunkOf(rank)
	le := binary.LittleEndian
	return header{le.Uint32(b), le.Uint64(b[4:]), le.Uint64(b[12:]), int64(le.Uint64(b[20:])), le.Uint32(b[28:]), le.Uint32(b[32:]), le.Uint32(b[36:])}
}

// exchange gathers the chunks.
func (j *job) exchange() error {
	size := int(j.own.size)
	if j.all = j.whole[:cap(j.whole)]; j.all == nil {
		j.all = make([]byte, j.room(size))
	}
	chunk, header := j.chunkOf(j.rank)
	j.own.put(header)
	if j.whole != nil {
		copy(chunk, j.part)
	}
	err := j.reducer.AllGather(snug.SliceView(j.all))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, snug.ErrShape):
		return fmt.Errorf("page %q of %d bytes: a rank acquires a page of another size, or has failed: %w: %w", j.key, size, snug.ErrConfig, err)
	}
	return fmt.Errorf("page %q: %w", j.key, err)
}

// compare returns an error unless all ranks gather the same page. If the headers have arrived, the error is the same on
// all ranks.
func (j *job) compare() error {
	first := j.header(0)
	for rank := range j.size {
		_, b := j.chunkOf(rank)
		switch {
		case j.header(rank).magic != pagesMagic:
			j.warn()
			return fmt.Errorf("rank %d makes another call than to gather page %q: %w", rank, j.key, snug.ErrConfig)
		case crc32c.Checksum(b[:40]) != binary.LittleEndian.Uint32(b[40:]):
			j.warn()
			return fmt.Errorf("page %q: the header of rank %d does not have its checksum: %w", j.key, rank, snug.ErrCorrupt)
		}
	}
	for rank := range j.size {
		if h := j.header(rank); h.key != first.key || h.keyLen != first.keyLen {
			return j.otherKey(rank)
		}
	}
	for rank := range j.size {
		switch h := j.header(rank); {
		case h.size != first.size:
			return fmt.Errorf("page %q: rank 0 wants %d bytes, rank %d wants %d: %w", j.key, first.size, rank, h.size, snug.ErrConfig)
		case h.history != first.history:
			return fmt.Errorf("page %q: rank %d has acquired or updated other pages before than rank 0: %w", j.key, rank, snug.ErrConfig)
		case h.whole != first.whole:
			return fmt.Errorf("page %q: rank %d has written other bytes than rank 0: %w", j.key, rank, snug.ErrConfig)
		}
	}
	if j.own.size != int64(j.have) {
		return fmt.Errorf("page %q has %d bytes, not %d: %w", j.key, j.have, j.own.size, snug.ErrConfig)
	}
	return nil
}

// otherKey returns the error of a rank that acquires another page than rank 0.
func (j *job) otherKey(rank int) error {
	longest := 0
	for r := range j.size {
		longest = max(longest, int(min(j.header(r).keyLen, longestKey)))
	}
	names := make([]byte, longest*j.size)
	copy(names[j.rank*longest:][:longest], j.key)
	if err := j.reducer.AllGather(snug.SliceView(names)); err != nil {
		return err
	}
	name := func(r int) string { return string(names[r*longest:][:min(j.header(r).keyLen, longestKey)]) }
	return fmt.Errorf("rank 0 acquires page %q, rank %d acquires page %q: %w", name(0), rank, name(rank), snug.ErrConfig)
}

// collect moves the parts together, unless one is not what its rank has written.
func (j *job) collect() error {
	for rank := range j.size {
		lo, hi := j.partOf(j.have, rank)
		chunk, _ := j.chunkOf(rank)
		if crc32c.Checksum(chunk[:hi-lo]) != j.header(rank).part {
			j.warn()
			return fmt.Errorf("page %q: the part of rank %d does not have its checksum: %w", j.key, rank, snug.ErrCorrupt)
		}
	}
	for rank := range j.size { // forwards: no part moves over a later one
		lo, hi := j.partOf(j.have, rank)
		chunk, _ := j.chunkOf(rank)
		copy(j.all[lo:hi], chunk)
	}
	return nil
}

// warn makes a call that differs from all calls of ranks without an error, which then fail. Ranks that have the same error
// make it too. It may wait for them for ever, and so does not belong to what Close waits for.
func (j *job) warn() {
	r := j.reducer
	go func() {
		defer func() { _ = recover() }()
		_ = r.AllGather(snug.SliceView([]byte{0}))
	}()
}

// hash continues a hash with a key.
func hash(before uint64, key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, before))
	_, _ = h.Write([]byte(key))
	return h.Sum64()
}
