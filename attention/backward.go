package attention

import (
	"runtime"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// backwardJob is the kernel of Backward. Every sum has one owner and one order,
// without atomics, in one of two ways that give the same bits:
//
//   - In two passes, over tiles of queries for dq and over tiles of keys for dk
//     and dv, which recompute the weights twice.
//   - In one pass for each key head, which adds to dq once for every tile of keys:
//     in place if dq holds float32, else to float32 sums, of maxSums at most. It
//     takes as many key heads as workers.
type backwardJob struct {
	dq, dk, dv, dout, q, k, v, out snug.View
	lse                            snug.View
	delta                          snug.View // workspace: dout_i · out_i - GradLSE_i, see exactDelta
	c                              Options   // resolved
	onePass                        bool      // set by Run
}

func backward(j backwardJob) error {
	dev, err := j.check()
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

// check resolves j's Options and returns the device, or an error.
func (j *backwardJob) check() (*snug.Device, error) {
	var err error
	if j.c, err = j.c.resolve(); err != nil {
		return nil, err
	}
	like := j.c.operands()
	return checkOperands(&j.c, []tensor{
		{name: "q", view: j.q, like: like[0]}, {name: "k", view: j.k, like: like[1]}, {name: "v", view: j.v, like: like[2]}, {name: "out", view: j.out, like: like[3]},
		{name: "dq", view: j.dq, like: like[0]}, {name: "dk", view: j.dk, like: like[1]}, {name: "dv", view: j.dv, like: like[2]}, {name: "dout", view: j.dout, like: like[3]},
	}, []rowVector{{name: "lse", view: j.lse}, {name: "ws", view: j.delta, more: true}})
}

// Kernel implements [driver.Job].
func (j *backwardJob) Kernel() string { return "attention.backward" }

// Operands implements [driver.Job].
func (j *backwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dq, &j.dk, &j.dv, &j.dout, &j.q, &j.k, &j.v, &j.out, &j.lse, &j.delta)
	extras := j.c.extras()
	device.Each(yield, extras[:]...)
}

// Run implements [driver.Job].
func (j backwardJob) Run() {
	c := &j.c
	keyHeads := c.Batch * c.KVHeads
	_, longest := c.longest()
	j.onePass = longest > 0 && keyHeads >= runtime.GOMAXPROCS(0) && (j.dq.DType() == snug.F32 || c.sumsLen() > 0)
	queryTask.Run(c.queryItems(), j)
	if j.onePass {
		headTask.Run(keyHeads, j)
	} else {
		keyTask.Run(keyHeads*cpu.Chunks(longest, tileK), j)
	}
	if c.Sinks.Grad.Len() > 0 {
		sinkTask.Run(c.Heads, j)
	}
	if c.Bias.Grad.Len() > 0 {
		biasTask.Run(c.biasTiles(), j)
	}
}

// exactDelta reports whether delta sums p_ij·keep_ij dout_i · v_j over the keys, which
// recomputes the weights, instead of taking dout_i · out_i. Rounding of out and lse gives
// dout_i · out_i an error that grows with the length of rows and shifts all ds of a query
// the same way. Products with k and q average this shift out; sums of ds, the gradients in
// a bias and in sinks, do not.
func (c *Options) exactDelta() bool { return c.Bias.Grad.Len() > 0 || c.Sinks.Grad.Len() > 0 }

// queryTask computes delta and dq for one tile of queries per item, long items
// first. Before the single pass, it sets dq to zero instead.
var queryTask = cpu.NewTask(func(j *backwardJob, item int) {
	c := &j.c
	s, h, q0, q1, ok := c.queryTile(item)
	if !ok {
		return
	}
	buf := scratch.Get(c.backwardScratch())
	defer scratch.Put(buf)
	g := newGradients(arena(*buf), c, j.q.DType())
	g.loadQueries(j, &s, h, q0, q1)
	if c.exactDelta() {
		g.sumDelta(j, &s, h, q0, q1)
	} else {
		out := s.queryHead(j.out, c.Out, h, c.DimV).load(g.vTile, q0, q1)
		dout := s.queryHead(j.dout, c.Out, h, c.DimV).load(g.doutTile, q0, q1)
		rowDots(g.delta, dout, out)
	}
	if c.GradLSE.Len() > 0 {
		rowwise.Registry.Best().Axpby(g.delta, c.GradLSE.Float32s()[c.row(&s, h):][q0:q1], -1, 1)
	}

	to := s.queryHead(j.dq, c.Q, h, c.Dim)
	dq := to.target(g.dqk, q0, q1)
	dq.clear()
	if !j.onePass {
		lo, _ := s.keys(q0)
		_, end := s.keys(q1 - 1)
		for k0 := lo / tileK * tileK; k0 < end; k0 += tileK {
			g.loadKeys(j, &s, c.kvHead(h), k0, min(k0+tileK, s.nk))
			g.seen.begin(q0)
			for g.next(&s, q0, q1) {
				g.addQuery(dq, q0)
			}
		}
	}
	to.store(dq, q0)
})

// keyTask computes dk and dv for one tile of keys per item, beginning with the tiles that
// most queries see.
var keyTask = cpu.NewTask(func(j *backwardJob, item int) {
	heads := j.c.Batch * j.c.KVHeads
	s := j.c.sequence(item % heads / j.c.KVHeads)
	if item/heads < cpu.Chunks(s.rows, tileK) {
		j.keys(&s, item%j.c.KVHeads, item/heads, tile{})
	}
})

// maxSums is the most float32 sums of dq that a worker holds: 4 MiB.
const maxSums = 1 << 20

// sumsLen returns the elements of dq that one key head contributes to, or 0 if they are
// more than maxSums.
func (c *Options) sumsLen() int {
	if c.KVHeads == 0 {
		return 0
	}
	longest, _ := c.longest()
	n := c.Heads / c.KVHeads * longest * c.Dim
	if n > maxSums {
		return 0
	}
	return n
}

// sumsScratch holds the sums of dq.
var sumsScratch cpu.Scratch

// headTask computes dk and dv, and dq, for one key head an item.
var headTask = cpu.NewTask(func(j *backwardJob, item int) {
	c := &j.c
	s, kv := c.sequence(item/c.KVHeads), item%c.KVHeads
	var sums tile
	if j.dq.DType() != snug.F32 {
		buf := sumsScratch.Get(c.sumsLen())
		defer sumsScratch.Put(buf)
		clear(*buf)
		sums = tile{*buf, c.Heads / c.KVHeads * s.nq, c.Dim, c.Dim}
	}
	for chunk := range cpu.Chunks(s.rows, tileK) {
		j.keys(&s, kv, chunk, sums)
	}
	for row := 0; row < sums.rows; row += s.nq {
		h := kv*(c.Heads/c.KVHeads) + row/s.nq
		s.queryHead(j.dq, c.Q, h, c.Dim).store(sums.from(row).top(s.nq), 0)
	}
})

// keys computes dk and dv for chunk number chunk of a key head's keys, over all
// queries of all heads that read them. In one pass it also adds their part to dq,
// or to sums, which then holds the rows of these heads.
func (j *backwardJob) keys(s *sequence, kv, chunk int, sums tile) {
	c := &j.c
	k0, k1 := cpu.Chunk(s.rows, tileK, chunk)
	buf := scratch.Get(c.backwardScratch())
	defer scratch.Put(buf)
	g := newGradients(arena(*buf), c, j.q.DType())
	g.loadKeys(j, s, kv, k0, k1)

	toK, toV := s.keyHead(j.dk, c.K, kv, c.Dim), s.keyHead(j.dv, c.V, kv, c.DimV)
	dk, dv := toK.target(g.dqk, k0, k1), toV.target(g.dv, k0, k1)
	dk.clear()
	dv.clear()
	group := c.Heads / c.KVHeads
	first, last := s.queries(k0, k1)
	for h := range group {
		for q0 := first / tileQ * tileQ; q0 < last; q0 += tileQ {
			q1 := min(q0+tileQ, s.nq)
			g.loadQueries(j, s, kv*group+h, q0, q1)
			var dq tile
			switch {
			case sums.rows > 0:
				dq = sums.from(h*s.nq + q0)
			case j.onePass:
				dq = s.queryHead(j.dq, c.Q, kv*group+h, c.Dim).load(tile{}, q0, q1)
			}
			g.seen.begin(q0)
			for g.next(s, q0, q1) {
				g.addKeys(dk, dv, q0)
				if j.onePass {
					g.addQuery(dq, q0)
				}
			}
		}
	}
	toK.store(dk, k0)
	toV.store(dv, k0)
}
