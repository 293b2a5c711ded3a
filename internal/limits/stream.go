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

// A stream is a loop over memory. It goes through parts that begin apart bytes after one another, from p on, in steps up
// to n bytes, a positive multiple of grain over the most parts. A turn of a step is two numbers of the list turns: what it
// does, and how far from the part the memory for it is; a single turn reads at 0. The memory that is ahead bytes after what
// is read is fetched, unless ahead is 0: the processor fetches by itself within pages of 4 KiB only, so that a stream waits
// at the beginning of each.
type stream func(p *byte, n, apart, parts, ahead int, turns *int, count int)

// What a turn does.
const (
	readMemory  = iota
	writeMemory // what was read last
	writeAround // the same, around the caches
)

// way is how a mix is gone through. Several parts give the processor more to do while it waits for a page.
type way struct {
	parts, ahead int
	around       bool // stores go around the caches
}

// ways returns the ways to measure a mix.
func (m Mix) ways() []way {
	switch {
	case m.Out == 0:
		return []way{{1, 0, false}, {4, 4096, false}}
	case m.InPlace:
		return []way{{1, 0, false}, {4, 4096, false}, {1, 2048, false}}
	}
	return []way{{1, 0, false}, {4, 4096, false}, {1, 0, true}, {4, 4096, true}}
}

// turns returns what a step does with vectors that begin vector bytes after one another. Vector In+i of those beside gets
// what vector i holds, again from the first on if these are fewer; those in place keep what they hold.
func (m Mix) turns(vector int, around bool) (turns []int) {
	write := writeMemory
	if around {
		write = writeAround
	}
	for v := range m.In {
		turns = append(turns, readMemory, v*vector)
		if m.InPlace && v < m.Out {
			turns = append(turns, write, v*vector)
		}
		for to := v; to < m.vectors()-m.In; to += m.In {
			turns = append(turns, write, (m.In+to)*vector)
		}
	}
	return turns
}

// run goes through n bytes of each vector.
func (w way) run(loop stream, m Mix, p *byte, n, vector int) func() {
	turns, part := m.turns(vector, w.around), n/w.parts
	return func() { loop(p, part, part, w.parts, w.ahead, &turns[0], len(turns)/2) }
}

// What the loops rely on.
const (
	align  = 64
	grain  = 2048       // the bytes of a vector are a multiple of it
	margin = 17 * align // between vectors, so that they lie in other sets of the caches
)

// Bandwidth returns the bytes a second, read plus written, at which workers goroutines go through memory
// of the given bytes, a share each: the fastest of several ways, with stores around the
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
	var loop stream
	for _, l := range registry.All() { // the last is the fastest
		if l.stream != nil {
			loop = l.stream
		}
	}
	var do []func(worker int)
	for _, way := range m.ways() {
		runs := make([]func(), workers)
		for w := range runs {
			runs[w] = way.run(loop, m, &memory[w][0], n, n+margin)
		}
		do = append(do, func(worker int) { runs[worker]() })
	}
	return rate(workers, do...) * float64(workers) * float64(n*(m.In+m.Out))
}

// streamGo is the stream of the Go tier, whose steps are longer.
func streamGo(p *byte, n, apart, parts, _ int, turns *int, count int) {
	const most = 1 << 10
	list := unsafe.Slice(turns, 2*count)
	for lo := 0; lo < n; lo += most {
		for part := range parts {
			var last []byte
			for i := 0; i < len(list); i += 2 {
				at := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(p), part*apart+lo+list[i+1])), min(most, n-lo))
				switch {
				case list[i] == readMemory:
					last = at
					if i+2 == len(list) || list[i+2] == readMemory { // nothing writes it
						read(at)
					}
				case &at[0] == &last[0]:
					rewrite(at)
				default:
					copy(at, last)
				}
			}
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
