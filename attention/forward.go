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
	q := headOf(j.q, c.Q, b, h, c.Dim).load(room.tile(tileQ, c.Dim), q0, q1)
	scores := room.tile(tileQ, tileK).top(q1 - q0)
	s := newSoftmax(&room, q1-q0, c.DimV)

	k := headOf(j.k, c.K, b, c.kvHead(h), c.Dim)
	v := headOf(j.v, c.V, b, c.kvHead(h), c.DimV)
	var w window
	for k0, end := 0, c.visible(q1-1); k0 < end; k0 += tileK {
		k1 := min(k0+tileK, end)
		w.look(c, q0, q1, k0, k1)
		p := scores.left(k1 - k0)
		productT(p, q, k.load(kRoom, k0, k1), c.scale2())
		s.step(&w, p)
		w.add(s.acc, p, v.load(vRoom, k0, k1), 1)
	}
	var lse []float32
	if j.lse.Len() > 0 {
		lse = j.lse.Float32s()[(b*c.Heads+h)*c.SeqQ:][q0:q1]
	}
	s.finish(lse)
	headOf(j.out, c.Out, b, h, c.DimV).store(s.acc, q0)
})

// forwardScratch returns the float32 elements that a worker of forwardTask
// carves up.
func (c *Config) forwardScratch() int {
	return (tileQ+tileK)*(c.Dim+c.DimV) + tileQ*(tileK+2)
}
