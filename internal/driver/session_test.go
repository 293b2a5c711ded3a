package driver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// device is a Driver whose work runs when it is queued. One of its calls may fail.
type device struct {
	arena        []byte
	live         map[uintptr]int
	next         uintptr
	made, failAt int
}

var errCall = errors.New("the call fails")

func (d *device) call() error {
	if d.made++; d.made == d.failAt {
		return errCall
	}
	return nil
}

func (d *device) bytes(m Mem) []byte { return d.arena[m.Addr:][:m.Size] }

func (d *device) Alloc(size int) (Mem, error) {
	if err := d.call(); err != nil {
		return Mem{}, err
	}
	if int(d.next)+size > len(d.arena) {
		return Mem{}, fmt.Errorf("%d bytes wanted: %w", size, ErrNoMemory)
	}
	m := Mem{Addr: d.next, Size: size}
	clear(d.bytes(m))
	d.next += uintptr(size)
	d.live[m.Addr] = size
	return m, nil
}

func (d *device) Free(m Mem) error {
	if err := d.call(); err != nil {
		return err
	}
	if _, ok := d.live[m.Addr]; !ok {
		return ErrDevice
	}
	delete(d.live, m.Addr)
	return nil
}

func (d *device) do(work func()) error {
	err := d.call()
	if err == nil {
		work()
	}
	return err
}

func (d *device) CopyIn(dst Mem, src []byte) error  { return d.do(func() { copy(d.bytes(dst), src) }) }
func (d *device) CopyOut(dst []byte, src Mem) error { return d.do(func() { copy(dst, d.bytes(src)) }) }
func (d *device) Copy(dst, src Mem) error           { return d.do(func() { copy(d.bytes(dst), d.bytes(src)) }) }
func (d *device) Launch(j Job) error                { return d.do(j.Run) }
func (d *device) Sync() error                       { return d.call() }
func (d *device) Memory() (int64, int64, error)     { return 0, 0, d.call() }
func (d *device) Close() error                      { clear(d.live); return nil }
func (d *device) TakesAddresses() bool              { return true }

// mix is a job whose result depends on what ran before it. Those of a kind join.
type mix struct {
	d        *device
	kind     int
	dst, src Mem
	joined   *Joined[mix]
}

func (*mix) Kernel() string { return "mix" }
func (j *mix) Operands(yield func(*Mem)) {
	yield(&j.dst)
	yield(&j.src)
	for _, o := range j.joined.Rest() {
		o.Operands(yield)
	}
}

func (j *mix) Run() {
	dst, src := j.d.bytes(j.dst), j.d.bytes(j.src)
	for i := range dst {
		dst[i] = dst[i]*3 + src[i%len(src)] + byte(j.kind)
	}
	for _, o := range j.joined.Rest() {
		o.Run()
	}
}

func (j *mix) Join(next Job) bool {
	n, ok := next.(*mix)
	return ok && n.kind == j.kind && Join(&j.joined, j, n, 5, func(j *mix) [3]Mem { return [3]Mem{j.dst, j.src} })
}

// play does random operations on a queue, which holds jobs back where it may, and returns what they read and their errors.
func play(d *device, seed uint64, holds bool) (read []byte, errs []error) {
	q := &Queue{Name: "device:0", Driver: d}
	rng := rand.New(rand.NewPCG(seed, 2))
	var mem, lent []Mem
	note := func(err error) bool {
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	pick := func() Mem { return mem[rng.IntN(len(mem))] }
	held := 0
	for range 300 {
		op, value, size := rng.IntN(14), byte(rng.IntN(256)), 1+rng.IntN(16)
		switch {
		case len(mem) < 12 || op == 0:
			if m, err := q.Alloc(size); note(err) {
				mem = append(mem, m)
			}
		case op == 1:
			note(q.CopyIn(pick(), []byte{value}))
		case op == 2:
			got := make([]byte, size)
			m := pick()
			note(q.CopyOut(got[:min(size, m.Size)], m))
			read = append(read, got...)
		case op == 3:
			if a, b := pick(), pick(); a.Size == b.Size {
				note(q.Copy(a, b))
			}
		case op == 4:
			i := rng.IntN(len(mem))
			note(q.Free(mem[i])) // Close frees what this does not
			mem = append(mem[:i], mem[i+1:]...)
		case op == 5:
			if m, err := q.Lend(8); note(err) {
				lent = append(lent, m)
				note(q.CopyIn(m, make([]byte, 8)))
			}
		case op == 6 && len(lent) > 0:
			note(q.Launch(&mix{d: d, kind: 9, dst: pick(), src: lent[0]}))
			note(q.Return(lent[0]))
			lent = lent[1:]
		case op == 7:
			if holds {
				q.Hold()
				held++
			}
		case op == 8:
			if held > 0 {
				note(q.Release())
				held--
			}
		case op == 9:
			note(q.Launch(final{&mix{d: d, kind: 7, dst: pick(), src: pick()}}))
		default:
			note(q.Launch(&mix{d: d, kind: rng.IntN(3), dst: pick(), src: pick()}))
		}
	}
	for ; held > 0; held-- {
		note(q.Release())
	}
	for _, m := range mem {
		got := make([]byte, m.Size)
		note(q.CopyOut(got, m))
		read = append(read, got...)
	}
	note(q.Close())
	return read, errs
}

// Jobs that are held back, and join, leave the bytes of jobs that do not. A call of the driver that fails is the error of
// one call of the queue, which goes on.
func TestSessions(t *testing.T) {
	open := func(failAt int) *device {
		return &device{arena: make([]byte, 1<<12), live: map[uintptr]int{}, failAt: failAt}
	}
	fewer := 0
	for seed := range uint64(30) {
		alone, joined := open(0), open(0)
		want, errs := play(alone, seed, false)
		require.Empty(t, errs)
		got, errs := play(joined, seed, true)
		require.Empty(t, errs)
		require.Equal(t, want, got, "seed %d", seed)
		require.LessOrEqual(t, joined.made, alone.made)
		fewer += alone.made - joined.made
		for n := 1; n <= joined.made; n++ {
			_, errs := play(open(n), seed, true)
			require.Len(t, errs, 1, "seed %d, call %d", seed, n)
			require.ErrorIs(t, errs[0], errCall)
		}
	}
	require.Greater(t, fewer, 150, "calls that joined jobs saved")
}
