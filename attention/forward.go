package attention

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
)

// forwardJob is the kernel of Forward.
type forwardJob struct {
	out, lse, q, k, v snug.View
	c                 Config // resolved
}

func forward(j forwardJob) error {
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
func (j *forwardJob) check() (*snug.Device, error) {
	var err error
	if j.c, err = j.c.resolve(); err != nil {
		return nil, err
	}
	like := j.c.operands()
	tensors := [...]tensor{{"q", j.q, like[0]}, {"k", j.k, like[1]}, {"v", j.v, like[2]}, {"out", j.out, like[3]}}
	vectors := [...]rowVector{{name: "lse", view: j.lse}}
	if err := checkDTypes(tensors[:], vectors[:]); err != nil {
		return nil, err
	}
	given := vectors[:]
	if j.lse.Len() == 0 {
		given = nil
	}
	if err := checkLengths(tensors[:], given, j.c.queries()); err != nil {
		return nil, err
	}
	return commonDevice(j.out, j.lse, j.q, j.k, j.v)
}

// Kernel implements [driver.Job].
func (j *forwardJob) Kernel() string { return "attention.forward" }

// Operands implements [driver.Job].
func (j *forwardJob) Operands(yield func(*driver.Mem)) {
	for _, v := range [...]*snug.View{&j.out, &j.lse, &j.q, &j.k, &j.v} {
		yield(v.Mem())
	}
}

// Run implements [driver.Job].
func (j *forwardJob) Run() {
	forwardTask.Run(j.c.Batch*j.c.Heads*cpu.Chunks(j.c.SeqQ, tileQ), *j)
}

// forwardTask computes out and lse for one tile of queries an item.
var forwardTask = cpu.NewTask(func(j *forwardJob, item int) {
	c := &j.c
	b, h, q0, q1 := c.queryTile(item)
	buf := scratch.Get(c.forwardScratch())
	defer scratch.Put(buf)
	room := arena(*buf)
	kRoom, vRoom := room.tile(tileK, c.Dim), room.tile(tileK, c.DimV)
	q := headOf(j.q, c.Q, b, h, c.Dim).factor(room.tile(tileQ, c.Dim), q0, q1)
	scores := room.tile(tileQ, tileK)
	s := newSoftmax(&room, q1-q0, c.DimV)
	sums := newProducts(&room, c.DimV)

	k := headOf(j.k, c.K, b, c.kvHead(h), c.Dim)
	v := headOf(j.v, c.V, b, c.kvHead(h), c.DimV)
	for k0, end := 0, c.visible(q1-1); k0 < end; k0 += tileK {
		k1 := min(k0+tileK, end)
		keys, values := k.factor(kRoom, k0, k1), v.factor(vRoom, k0, k1)
		w := window{hi: q0}
		for w.next(c, q1, k0, k1) {
			p := scores.top(w.hi - w.lo).left(w.cols)
			productT(p, w.factor(q, q0), keys.top(w.cols))
			s.step(&w, q0, p, c.scale2())
			sums.add(&w, w.of(s.acc, q0), p, values.top(w.cols))
		}
	}
	var lse []float32
	if j.lse.Len() > 0 {
		lse = j.lse.Float32s()[(b*c.Heads+h)*c.SeqQ:][q0:q1]
	}
	o := headOf(j.out, c.Out, b, h, c.DimV)
	out := o.target(s.acc, q0, q1)
	s.finish(out, lse)
	o.store(out, q0)
})

// forwardScratch returns the float32 elements that a worker of forwardTask
// carves up.
func (c *Config) forwardScratch() int {
	return (tileQ+tileK)*(c.Dim+c.DimV) + tileQ*(tileK+4) + productsScratch(c.DimV)
}
