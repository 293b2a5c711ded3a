package accum

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
)

// This file is how the ranks gather a page, by three calls of AllGather:
//
//	headers   what each rank asks for, and has written; all ranks compare them
//	page      the parts
//	verdicts  whose part a rank has received with other bytes than were written

// job gathers a page.
type job struct {
	*Pages
	turn    turn
	key     string
	have    int    // bytes of the page
	own     header // what this rank says
	part    []byte
	whole   []byte // the page that comes
	headers []byte // of all ranks
	done    chan struct{}
	ok      bool // when done
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
	if err := j.compare(); err != nil {
		return fmt.Errorf("accum: page %q: %w", j.key, err)
	}
	if err := j.collect(); err != nil {
		return fmt.Errorf("accum: page %q: %w", j.key, err)
	}
	return nil
}

// header is what a rank says before it sends its part.
type header struct {
	magic        uint32
	key, history uint64 // hashes
	size         int64
	keyLen       uint32
	whole, part  uint32 // checksums of what the rank has written
}

const (
	pagesMagic  = 0x67_50_6e_73
	headerBytes = 41 // odd, unlike vectors that a program gathers
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
}

// header returns the header of a rank.
func (j *job) header(rank int) header {
	b, le := j.headers[rank*headerBytes:], binary.LittleEndian
	return header{le.Uint32(b), le.Uint64(b[4:]), le.Uint64(b[12:]), int64(le.Uint64(b[20:])), le.Uint32(b[28:]), le.Uint32(b[32:]), le.Uint32(b[36:])}
}

// share gathers n bytes of each rank, of which put writes this rank's.
func (j *job) share(n int, put func(own []byte)) ([]byte, error) {
	all := make([]byte, n*j.size)
	put(all[j.rank*n:][:n])
	return all, j.reducer.AllGather(snug.SliceView(all))
}

// compare returns an error, the same on all ranks, unless all ranks gather the same page.
func (j *job) compare() (err error) {
	if j.headers, err = j.share(headerBytes, j.own.put); err != nil {
		return err
	}
	first := j.header(0)
	for rank := range j.size {
		if j.header(rank).magic != pagesMagic {
			return fmt.Errorf("rank %d makes another call: %w", rank, snug.ErrConfig)
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
			return fmt.Errorf("rank 0 wants %d bytes, rank %d wants %d: %w", first.size, rank, h.size, snug.ErrConfig)
		case h.history != first.history:
			return fmt.Errorf("rank %d has acquired other pages before than rank 0: %w", rank, snug.ErrConfig)
		case h.whole != first.whole:
			return fmt.Errorf("rank %d has written other bytes than rank 0: %w", rank, snug.ErrConfig)
		}
	}
	if j.own.size != int64(j.have) {
		return fmt.Errorf("the page has %d bytes, not %d: %w", j.have, j.own.size, snug.ErrConfig)
	}
	return nil
}

// otherKey returns the error of a rank that acquires another page than rank 0.
func (j *job) otherKey(rank int) error {
	longest := 0
	for r := range j.size {
		longest = max(longest, int(min(j.header(r).keyLen, longestKey)))
	}
	names, err := j.share(longest, func(own []byte) { copy(own, j.key) })
	if err != nil {
		return err
	}
	name := func(r int) string { return string(names[r*longest:][:min(j.header(r).keyLen, longestKey)]) }
	return fmt.Errorf("rank 0 acquires %q, rank %d acquires %q: %w", name(0), rank, name(rank), snug.ErrConfig)
}

// collect brings the parts together, and returns the same error on all ranks unless they are what was written.
func (j *job) collect() error {
	lo, hi := Shard(j.have, j.rank, j.size)
	copy(j.whole[lo:hi], j.part)
	if j.have > 0 {
		if err := j.reducer.AllGather(snug.SliceView(j.whole)); err != nil {
			return err
		}
	}
	damaged := uint32(0)
	for rank := range j.size {
		lo, hi := Shard(j.have, rank, j.size)
		if crc32c.Checksum(j.whole[lo:hi]) != j.header(rank).part {
			damaged = uint32(rank) + 1
			break
		}
	}
	verdicts, err := j.share(4, func(own []byte) { binary.LittleEndian.PutUint32(own, damaged) })
	if err != nil {
		return err
	}
	for rank := range j.size {
		if part := binary.LittleEndian.Uint32(verdicts[4*rank:]); part > 0 {
			return fmt.Errorf("the part of rank %d does not have its checksum on rank %d: %w", part-1, rank, snug.ErrCorrupt)
		}
	}
	return nil
}

// hash continues a hash with a key.
func hash(before uint64, key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, before))
	_, _ = h.Write([]byte(key))
	return h.Sum64()
}
