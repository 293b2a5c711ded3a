package limits

import (
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug/internal/cpu"
)

// Mix is what a kernel does with memory: how many bytes it reads for each that it writes, as numbers of
// vectors of one size that it goes through at the same time.
type Mix struct {
	In, Out int
	InPlace bool // the vectors that are written are the first of those that are read
}

// Mixes are those that Bandwidth measures, and the nearest of them stands for a kernel.
var Mixes = []Mix{
	{1, 0, false},
	{1, 1, false}, {2, 1, false}, {4, 1, false}, {1, 2, false}, {1, 4, false}, {3, 2, false},
	{1, 1, true}, {2, 1, true}, {3, 1, true}, {4, 3, true},
}

// The two mixes that stand for memory as such.
var (
	Read = Mixes[0]
	Copy = Mixes[1]
)

// vectors returns the number of vectors.
func (m Mix) vectors() int {
	if m.InPlace {
		return m.In
	}
	return m.In + m.Out
}

// streaming is a loop over the vectors of a worker, which begin at p and then vector bytes after one
// another. Vector In+i of those beside gets what vector i holds, again from the first on if these
// are fewer; those in place keep what they hold. Each has parts that begin apart bytes after one another and have n
// bytes.
type streaming struct {
	parts int
	loop  func(p *byte, n, apart, vector int)
}

// What the loops rely on.
const (
	align  = 64
	grain  = 1024       // of which the bytes of a vector are a multiple
	margin = 17 * align // between vectors, so that they lie in other sets of the caches
)

// Bandwidth returns the bytes a second, read plus written, at which workers goroutines go through memory
// of the given bytes, a share each: the fastest of several loops, with stores around the
// caches among them. Mixes has m. It allocates as many bytes.
func Bandwidth(m Mix, bytes, workers int) (bytesPerSecond float64) {
	n := max(cpu.Chunks(bytes, workers*m.vectors()*grain), 1) * grain
	memory := make([][]byte, workers)
	for w := range memory {
		memory[w] = aligned(m.vectors() * (n + margin))
		for i := range memory[w] {
			memory[w][i] = byte(i) // so that it is backed
		}
	}
	var do []func(w int)
	for _, s := range last(func(l *loops) []streaming { return l.streams[m] }) {
		part := n / s.parts
		do = append(do, func(w int) { s.loop(&memory[w][0], part, part, n+margin) })
	}
	return rate(workers, do...) * float64(workers) * float64(n*(m.In+m.Out))
}

// last returns the loops of the highest tier that has any.
func last[F any](of func(*loops) []F) (loops []F) {
	for _, l := range registry.All() {
		if f := of(l); f != nil {
			loops = f
		}
	}
	return loops
}

// streamGo returns the loops of the Go tier.
func streamGo() map[Mix][]streaming {
	all := map[Mix][]streaming{}
	for _, m := range Mixes {
		all[m] = []streaming{{1, m.stream}}
	}
	return all
}

// piece is how far the Go tier goes through one vector before it goes on with the next.
const piece = 1 << 10

// stream is a loop of the Go tier.
func (m Mix) stream(p *byte, n, _, vector int) {
	memory := unsafe.Slice(p, (m.vectors()-1)*vector+n)
	for lo := 0; lo < n; lo += piece {
		at := func(v int) []byte { return memory[v*vector+lo:][:min(piece, n-lo)] }
		for v := range m.In {
			switch {
			case v >= m.Out:
				read(at(v))
			case m.InPlace:
				rewrite(at(v))
			}
		}
		for v := range m.vectors() - m.In {
			copy(at(m.In+v), at(v%m.In))
		}
	}
}

// sink keeps the compiler from dropping the loops whose result nobody reads.
var sink atomic.Uint64

// words returns b in words of 8 bytes.
func words(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// read reads b.
func read(b []byte) {
	var sums [4]uint64
	for x := words(b); len(x) >= 4; x = x[4:] {
		sums[0] += x[0]
		sums[1] += x[1]
		sums[2] += x[2]
		sums[3] += x[3]
	}
	sink.Store(sums[0] + sums[1] + sums[2] + sums[3])
}

// zero is not known to the compiler.
var zero atomic.Uint64

// rewrite writes what b holds.
func rewrite(b []byte) {
	z := zero.Load()
	x := words(b)
	for i := range x {
		x[i] ^= z
	}
}

// aligned allocates n bytes from an address that is a multiple of align.
func aligned(n int) []byte {
	b := make([]byte, n+align)
	skip := -uintptr(unsafe.Pointer(&b[0])) % align
	return b[skip:][:n:n]
}
