package attention

import (
	"runtime"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
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
	delta                          snug.View // workspace: dout_i · out_i
	c                              Config    // resolved
	onePass                        bool      // set by Run
}

func backward(j backwardJob) error {
	dev, err := j.check()
	if err != nil {
		return err
	}
	if dev.IsCPU() {
		j.Run()
		return nil
	}
	queued := j
	return dev.Launch(&queued)
}

// check resolves j's Config and returns the device, or what is wrong.
func (j *backwardJob) check() (*snug.Device, error) {
	var err error
	if j.c, err = j.c.resolve(); err != nil {
		return nil, err
	}
	like := j.c.operands()
	tensors := [...]tensor{
		{"q", j.q, like[0]}, {"k", j.k, like[1]}, {"v", j.v, like[2]}, {"out", j.out, like[3]},
		{"dq", j.dq, like[0]}, {"dk", j.dk, like[1]}, {"dv", j.dv, like[2]}, {"dout", j.dout, like[3]},
	}
	vectors := [...]rowVector{{name: "lse", view: j.lse}, {name: "ws", view: j.delta, more: true}}
	if err := checkDTypes(tensors[:], vectors[:]); err != nil {
		return nil, err
	}
	if err := checkLengths(tensors[:], vectors[:], j.c.queries()); err != nil {
		return nil, err
	}
	return commonDevice(j.dq, j.dk, j.dv, j.dout, j.q, j.k, j.v, j.out, j.lse, j.delta)
}

// Kernel implements [driver.Job].
func (j *backwardJob) Kernel() string { return "attention.backward" }

// Operands implements [driver.Job].
func (j *backwardJob) Operands(yield func(*driver.Mem)) {
	for _, v := range [...]*snug.View{&j.dq, &j.dk, &j.dv, &j.dout, &j.q, &j.k, &j.v, &j.out, &j.lse, &j.delta} {
		yield(v.Mem())
	}
}

// Run implements [driver.Job].
func (j *backwardJob) Run() {
	c := &j.c
	keyHeads := c.Batch * c.KVHeads
	j.onePass = keyHeads >= runtime.GOMAXPROCS(0) && (j.dq.DType() == snug.F32 || c.sumsLen() > 0)
	queryTask.Run(c.Batch*c.Heads*cpu.Chunks(c.SeqQ, tileQ), *j)
	if j.onePass {
		headTask.Run(keyHeads, *j)
	} else {
		keyTask.Run(keyHeads*cpu.Chunks(c.SeqK, tileK), *j)
	}
}

// queryTask computes delta and dq for one tile of queries an item, long items
// first. Before the one pass, dq becomes zero instead.
var queryTask = cpu.NewTask(func(j *backwardJob, item int) {
	c := &j.c
	b, h, q0, q1 := c.queryTile(item)
	buf := scratch.Get(c.backwardScratch())
	defer scratch.Put(buf)
	g := newGradients(arena(*buf), c)
	g.loadQueries(j, b, h, q0, q1)
	out := headOf(j.out, c.Out, b, h, c.DimV).load(g.vRoom, q0, q1)
	dout := headOf(j.dout, c.Out, b, h, c.DimV).load(g.doutRoom, q0, q1)
	rowDots(g.delta, dout, out)

	to := headOf(j.dq, c.Q, b, h, c.Dim)
	dq := to.target(g.dqk, q0, q1)
	dq.clear()
	if !j.onePass {
		for k0 := 0; k0 < c.visible(q1-1); k0 += tileK {
			g.loadKeys(j, b, c.kvHead(h), k0, min(k0+tileK, c.SeqK))
			g.seen.hi = q0
			for g.next(c, q0, q1, k0) {
				g.addQuery(dq, q0)
			}
		}
	}
	to.store(dq, q0)
})

// keyTask computes dk and dv for one tile of keys an item, the ones that most
// queries see first.
var keyTask = cpu.NewTask(func(j *backwardJob, item int) {
	heads := j.c.Batch * j.c.KVHeads
	j.keys(item%heads, item/heads, tile{})
})

// maxSums is the most float32 sums of dq that a worker holds: 4 MiB.
const maxSums = 1 << 20

// sumsLen returns the elements of dq that one key head gives, or 0 if they are
// more than maxSums.
func (c *Config) sumsLen() int {
	if c.KVHeads == 0 {
		return 0
	}
	n := c.Heads / c.KVHeads * c.SeqQ * c.Dim
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
	var sums tile
	if j.dq.DType() != snug.F32 {
		buf := sumsScratch.Get(c.sumsLen())
		defer sumsScratch.Put(buf)
		clear(*buf)
		sums = tile{*buf, len(*buf) / c.Dim, c.Dim, c.Dim}
	}
	for chunk := range cpu.Chunks(c.SeqK, tileK) {
		j.keys(item, chunk, sums)
	}
	for row := 0; row < sums.rows; row += c.SeqQ {
		b, h := item/c.KVHeads, item%c.KVHeads*c.Heads/c.KVHeads+row/c.SeqQ
		headOf(j.dq, c.Q, b, h, c.Dim).store(sums.from(row).top(c.SeqQ), 0)
	}
})

// keys computes dk and dv for chunk number chunk of a key head's keys, over all
// queries of all heads that read them. In one pass it also adds their part to dq,
// or to sums, which then holds the rows of these heads.
func (j *backwardJob) keys(head, chunk int, sums tile) {
	c := &j.c
	b, kv := head/c.KVHeads, head%c.KVHeads
	k0, k1 := cpu.Chunk(c.SeqK, tileK, chunk)
	buf := scratch.Get(c.backwardScratch())
	defer scratch.Put(buf)
	g := newGradients(arena(*buf), c)
	g.loadKeys(j, b, kv, k0, k1)

	toK, toV := headOf(j.dk, c.K, b, kv, c.Dim), headOf(j.dv, c.V, b, kv, c.DimV)
	dk, dv := toK.target(g.dqk, k0, k1), toV.target(g.dv, k0, k1)
	dk.clear()
	dv.clear()
	group := c.Heads / c.KVHeads
	first := c.firstQuery(k0) / tileQ * tileQ
	for h := range group {
		for q0 := first; q0 < c.SeqQ; q0 += tileQ {
			q1 := min(q0+tileQ, c.SeqQ)
			g.loadQueries(j, b, kv*group+h, q0, q1)
			var dq tile
			switch {
			case sums.rows > 0:
				dq = sums.from(h*c.SeqQ + q0)
			case j.onePass:
				dq = headOf(j.dq, c.Q, b, kv*group+h, c.Dim).load(tile{}, q0, q1)
			}
			g.seen.hi = q0
			for g.next(c, q0, q1, k0) {
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
