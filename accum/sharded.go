package accum

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// Sharded accumulates gradients for data-parallel training. Each rank keeps a part of them, as in ZeRO (Rajbhandari et al.
// 2020, arXiv:1910.02054), and updates the same part of the parameters. [Sharded.Gather] then sends the updated parts to
// all ranks:
//
//	err := window.Start(weights)                 // all ranks; the weights of this rank's micro-batches
//	for _, batch := range batches {
//		err = window.Begin()
//		...                                      // forward; backward with window.Into and window.Done
//		err = window.End()
//	}
//	err = window.Finish()                        // all ranks
//	for name, grad := range window.Gradients() { // this rank's parts of the mean over all ranks
//		lo, _ := window.Range(name, window.Rank()) // grad begins at element lo of the parameter
//		...                                      // step
//	}
//	err = window.Gather(parameter)               // all ranks
//
// The weights are those of [Window.Begin]. Start learns the weight of all ranks together, so that each gradient enters
// with its share of the weight, and the ranks add in their order: the result depends on nothing else.
//
// The parameters lie in buckets, from the last to the first. In a bucket each parameter begins at a multiple of Align,
// and each rank has an equal part of the bucket. Buckets are reduced in order, on a goroutine of their own, while the
// backward pass goes on. A Sharded is not safe for concurrent use.
type Sharded struct {
	o       ShardedOptions
	params  []shardedParam
	index   map[string]int
	buckets []shardedBucket
	longest int    // elements of the longest bucket
	layout  uint32 // checksum of the parameters and of the options that place them

	parts  snug.View                // without Whole: the sums of this rank's parts
	unused []snug.View              // without Whole: buffers that no bucket has
	made   []int                    // lengths of all buffers, used or not
	away   []int                    // lengths of the buffers that the reduction has
	narrow map[snug.DType]snug.View // for Gather of other types than float32
	apart  bool                     // some parameters are alone
	frees  []func() error

	state  shardedState
	closed bool
	shares []float32 // of this rank's micro-batches in the weight of all
	total  float64
	rounds int  // reductions of each bucket in this window
	joined int  // how many this rank has taken part in
	passes int  // micro-batches that were begun, empty ones too
	round  int  // micro-batches of Start that were begun
	empty  bool // the open micro-batch is thrown away
	done   int  // buckets of this micro-batch that have arrived
	queue  chan sharedBucket
	back   chan sharedBucket // that were reduced
	result chan outcome
}

// ShardedOptions configure a [Sharded]. All ranks have the same Whole, Bucket, Align and Chunk.
type ShardedOptions struct {
	Reducer Reducer // joins the ranks; not nil
	// Whole holds the gradients of all parameters, 4 bytes an element, and reduces them once, in the window's last
	// micro-batch. Without it a Sharded holds the rank's parts and two buckets, and reduces after every micro-batch: k
	// micro-batches send k times the bytes. A bucket more is held for a gradient that
	// begins early in the backward pass and ends late, such as that of a tied embedding.
	Whole  bool
	Bucket int // elements above which a bucket ends; 0 is 1048576. A bucket has at least one parameter
	// Align divides where the parts of a parameter begin and end, except its own end; 0 is 1. The shards of package
	// quant8 want its Options.Block, 256 by default.
	Align int
	// Chunk, unless nil, returns for a parameter that the ranks have divided already how many elements each has: rank r has
	// those from r·Chunk on, as in a page of a [Pages]. The parameter then has a bucket of its own, and is not for
	// Gather. Chunk is 0 for others.
	Chunk  func(name string) int
	Device *snug.Device // where the gradients lie; nil is the CPU
}

type shardedState int

const (
	idle     shardedState = iota
	started               // between Start and Finish
	open                  // between Begin and End
	finished              // there are gradients
	failed                // until Reset
)

// shardedParam is a parameter, which lies in one bucket.
type shardedParam struct {
	Param
	chunk      int // of Options.Chunk
	bucket, at int // bucket, and first element in it
	lo, hi     int // the part of this rank
	part       int // where that begins in parts
	acc        snug.View
	added      bool // has a gradient of the open micro-batch
	arrived    bool // and no kernel adds to it any more
	any        bool // with Whole: has a gradient of this window
}

type shardedBucket struct {
	params  []int // from the first to the last
	n       int   // elements, with those between parameters
	buffer  snug.View
	own     bool // without Whole: the buffer is for this bucket alone
	held    bool // buffer is set, and with own not away
	away    bool // with own: the reduction has the buffer
	waiting int  // parameters of this micro-batch that have not arrived
}

// sharedBucket is a bucket that is whole on this rank.
type sharedBucket struct {
	bucket int
	buffer snug.View
	first  bool // of the window
	call   orderedCall
}

// NewSharded returns a Sharded over params. Every window has gradients of all of them. Errors: the errors of [Len];
// [snug.ErrConfig] without a Reducer and for a negative Bucket or Align, [snug.ErrShape] for sums that overflow, and
// [snug.ErrNoMemory].
func NewSharded(params []Param, o ShardedOptions) (*Sharded, error) {
	total, err := Len(params)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Reducer == nil:
		return nil, fmt.Errorf("accum: NewSharded wants a Reducer: %w", snug.ErrConfig)
	case o.Bucket < 0 || o.Align < 0:
		return nil, fmt.Errorf("accum: NewSharded: Bucket is %d and Align %d elements, want 0 or more: %w", o.Bucket, o.Align, snug.ErrConfig)
	}
	if o.Bucket == 0 {
		o.Bucket = 1 << 20
	}
	o.Align = max(o.Align, 1)
	if o.Device == nil {
		o.Device = snug.CPU()
	}
	// A parameter takes at most Align elements more, and a bucket Align more for each rank.
	if size := o.Reducer.Size(); o.Align > (math.MaxInt/8-total)/(len(params)+1)/(size+1) {
		return nil, fmt.Errorf("accum: NewSharded: %d elements for %d ranks, aligned to %d: %w", total, size, o.Align, snug.ErrShape)
	}
	s := &Sharded{o: o, index: make(map[string]int, len(params)), narrow: map[snug.DType]snug.View{}}
	for i, p := range params {
		q := shardedParam{Param: p}
		if o.Chunk != nil {
			q.chunk = o.Chunk(p.Name)
		}
		if size := o.Reducer.Size(); q.chunk < 0 || q.chunk%o.Align > 0 || q.chunk > math.MaxInt/8/size || q.chunk > 0 && q.chunk*size < p.Len {
			return nil, fmt.Errorf("accum: NewSharded: parameter %q of %d elements has a Chunk of %d for %d ranks, aligned to %d: %w", p.Name, p.Len, q.chunk, size, o.Align, snug.ErrShape)
		}
		s.apart = s.apart || q.chunk > 0
		s.params, s.index[p.Name] = append(s.params, q), i
	}
	s.layOut()
	layout := fnv.New32a()
	fmt.Fprintf(layout, "%q %d %d %t", params, o.Bucket, o.Align, o.Whole) // never fails
	for _, p := range s.params {
		fmt.Fprintf(layout, " %d", p.chunk)
	}
	s.layout = layout.Sum32()
	if err := s.allocate(); err != nil {
		return nil, fmt.Errorf("accum: NewSharded: %w", errors.Join(err, s.Close()))
	}
	return s, nil
}

// allocate makes the memory of the parts or, with Whole, of all buckets.
func (s *Sharded) allocate() (err error) {
	n := 0
	if !s.o.Whole {
		for i := range s.params {
			p := &s.params[i]
			p.part = n
			n += p.hi - p.lo
		}
		if s.parts, err = s.make(snug.F32, n); err != nil {
			return err
		}
	}
	for i := range s.buckets {
		b := &s.buckets[i]
		if !s.o.Whole && !b.own {
			continue
		}
		if b.buffer, err = s.make(snug.F32, b.n); err == nil {
			err = s.place(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// layOut fills buckets from the last parameter to the first. Parameters with a chunk are alone, and do not end the bucket
// of others, which is complete when the first of its parameters is. A bucket of others that waits so long has a buffer of
// its own size, where some are alone.
func (s *Sharded) layOut() {
	shared, n := []int(nil), 0
	for i := len(s.params) - 1; i >= 0; i-- {
		if s.params[i].chunk > 0 {
			s.addBucket([]int{i})
			continue
		}
		shared = append(shared, i)
		if n += s.aligned(s.params[i].Len); n >= s.o.Bucket {
			s.addBucket(shared)
			shared, n = nil, 0
		}
	}
	if shared != nil {
		s.addBucket(shared)
	}
}

// addBucket adds a bucket of parameters, the last one first.
func (s *Sharded) addBucket(params []int) {
	slices.Reverse(params)
	rank, size, n := s.o.Reducer.Rank(), s.o.Reducer.Size(), 0
	b := shardedBucket{params: params, own: !s.o.Whole && s.apart && s.params[params[0]].chunk == 0}
	for _, i := range params {
		s.params[i].bucket, s.params[i].at = len(s.buckets), n
		n += s.aligned(s.params[i].Len)
	}
	part := s.params[params[0]].chunk
	if part == 0 {
		part = s.aligned((n + size - 1) / size)
	}
	b.n = part * size
	for _, i := range params {
		p := &s.params[i]
		p.lo, p.hi = p.within(b.n, rank, size)
	}
	if s.buckets = append(s.buckets, b); !b.own {
		s.longest = max(s.longest, b.n)
	}
}

// aligned rounds a number of elements up.
func (s *Sharded) aligned(n int) int { return (n + s.o.Align - 1) / s.o.Align * s.o.Align }

// within returns the part of the parameter that a rank has, in a bucket of n elements.
func (p *shardedParam) within(n, rank, size int) (lo, hi int) {
	lo, hi = Shard(n, rank, size)
	lo, hi = min(max(lo-p.at, 0), p.Len), min(max(hi-p.at, 0), p.Len)
	return lo, hi
}

// Range returns the elements lo to hi-1 of a parameter that a rank has; they may be none. For an unknown parameter, and
// a rank that there is not, lo and hi are 0.
func (s *Sharded) Range(name string, rank int) (lo, hi int) {
	i, known := s.index[name]
	if !known || s.closed || rank < 0 || rank >= s.o.Reducer.Size() {
		return 0, 0
	}
	p := &s.params[i]
	return p.within(s.buckets[p.bucket].n, rank, s.o.Reducer.Size())
}

// Rank returns the rank of the Reducer. With Size, Range and Send, a Sharded is the Ranks that WriteShards of packages
// quant8 and amp take.
func (s *Sharded) Rank() int { return s.o.Reducer.Rank() }

// Size returns the number of ranks.
func (s *Sharded) Size() int { return s.o.Reducer.Size() }

// Send brings b from a rank above 0 to rank 0, where it replaces a b of the same length. All ranks call Send for the same
// rank; on those that neither send nor receive, b is empty. The error wraps [snug.ErrConfig] if the Reducer is no
// [SendReceiver], or comes from it.
func (s *Sharded) Send(from int, b []byte) error {
	r, ok := s.o.Reducer.(SendReceiver)
	if !ok {
		return fmt.Errorf("accum: Send: the Reducer is no SendReceiver: %w", snug.ErrConfig)
	}
	v, none := snug.SliceView(b), snug.SliceView([]byte{})
	switch own := s.Rank(); own {
	case from:
		return r.SendReceive(none, 0, v, 0)
	case 0:
		return r.SendReceive(v, from, none, from)
	default:
		return r.SendReceive(none, own, none, own)
	}
}

// Bytes returns the bytes of the gradients and buffers that the Sharded holds now.
func (s *Sharded) Bytes() int64 {
	n := int64(s.parts.Bytes())
	for _, length := range s.made {
		n += 4 * int64(length)
	}
	for _, v := range s.narrow {
		n += int64(v.Bytes())
	}
	for i := range s.buckets {
		if s.o.Whole || s.buckets[i].own {
			n += int64(s.buckets[i].buffer.Bytes())
		}
	}
	return n
}

// Close frees memory of a device, after a reduction that is under way. Calls after it are errors.
func (s *Sharded) Close() error {
	s.Reset()
	var all []error
	for _, free := range s.frees {
		all = append(all, free())
	}
	s.frees, s.closed, s.state = nil, true, failed
	s.parts, s.narrow, s.unused, s.made, s.buckets = snug.View{}, nil, nil, nil, nil
	return errors.Join(all...)
}

func (s *Sharded) make(dt snug.DType, n int) (snug.View, error) {
	v, free, err := snug.MakeView(s.o.Device, dt, n)
	if err != nil {
		return v, fmt.Errorf("%d elements: %w", n, err)
	}
	s.frees = append(s.frees, free)
	return v, nil
}
