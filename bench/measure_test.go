package main

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/stretchr/testify/require"
)

func TestMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		samples        []float64
		median, spread float64
	}{
		{nil, 0, 0},
		{[]float64{3}, 3, 0},
		{[]float64{1, 3}, 2, 0.5},
		{[]float64{9, 1, 2}, 2, 2},
		{[]float64{5, 1, 4, 2, 3}, 3, 2. / 3},
		{[]float64{0, 0}, 0, 0},
	} {
		require.InDelta(t, c.median, median(c.samples), 1e-12, c.samples)
		require.InDelta(t, c.spread, spread(c.samples), 1e-12, c.samples)
	}
	s := []float64{2, 1}
	median(s)
	require.Equal(t, []float64{2, 1}, s, "left as it was")
}

func TestLimitsAreNotZero(t *testing.T) {
	limit, err := cpu.Limit()
	require.NoError(t, err)
	m := newMachine(limit, 2, 1<<25)
	require.Equal(t, "FMA go", m.peaks[0].name)
	require.NotEmpty(t, m.tier)
	require.Positive(t, m.peak(false))
	require.Positive(t, m.peak(true))
	for _, bytes := range []float64{0, 1 << 20} {
		require.Positive(t, m.bandwidth(bytes, true))
		require.Positive(t, m.bandwidth(bytes, false))
	}
	require.Len(t, m.copies, 2)
	m.bandwidth(1<<20+1, true)
	require.Len(t, m.copies, 2, "measured once")

	set := m.class(1 << 20)
	m.copies[set] = bandwidth{1e18, time.Time{}}
	require.InDelta(t, 1e18, m.bandwidth(1<<20, true), 0, "measured again, the best counts")
	require.WithinDuration(t, time.Now(), m.copies[set].at, time.Minute)
}

func TestClass(t *testing.T) {
	for _, c := range []struct {
		bytes float64
		want  int
	}{{0, smallest}, {1 << 16, 1 << 16}, {1.4 * (1 << 16), 1 << 16}, {1.5 * (1 << 16), 1 << 17}, {1 << 25, 1 << 25}, {math.MaxFloat64, largest}} {
		require.Equal(t, c.want, known().class(c.bytes), c.bytes)
	}
}

// known is a machine without measurements: 1 GFLOP/s, 2 with the BF16 dot
// product, 1 GB/s.
func known() *machine {
	m := &machine{dev: snug.CPU(), tier: "go", threads: 2, largest: largest, f32: 1e9, bf16: 2e9, copies: map[int]bandwidth{}, reads: map[int]bandwidth{}}
	for set := smallest; set <= largest; set *= 2 {
		m.copies[set], m.reads[set] = bandwidth{rate: 1e9}, bandwidth{rate: 2e9}
	}
	return m
}

func TestLowerBoundIsTheLargerOfBytesAndOperations(t *testing.T) {
	for _, c := range []struct {
		w       work
		seconds float64
		memory  bool
	}{
		{work{reads: 1e9, writes: 1e9}, 2, true},
		{work{reads: 1e9}, 0.5, true},
		{work{reads: 1e9, writes: 1e9, products: 3e9}, 3, false},
		{work{reads: 1e9, writes: 1e9, products: 3e9, bf16: true}, 2, true},
		{work{products: 5e9}, 5, false},
		{work{ops: 1}, 0, true},
	} {
		seconds, memory := known().lowerBound(&c.w)
		require.InDelta(t, c.seconds, seconds, 1e-9)
		require.Equal(t, c.memory, memory)
	}
}

// log returns a side that notes its runs.
func log(name string, notes *[]string, seconds float64, failAt int) *side {
	n := 0
	return &side{name: name, run: func(int) (float64, error) {
		*notes = append(*notes, name)
		if n++; n == failAt {
			return 0, errors.New(name + " fails")
		}
		return seconds, nil
	}}
}

var fast = pace{sample: time.Millisecond, total: time.Second, fewest: 2, most: 3}

func TestAlternate(t *testing.T) {
	for _, c := range []struct {
		name           string
		seconds        float64
		pace           pace
		failA, failB   int
		want           string
		samplesOfSnug  int
		samplesOfPeers [2]int
	}{
		{"in turn", 1e-3, fast, 0, 0, "ss aa bb sasb sasb sasb", 6, [2]int{3, 3}},
		{"slow ones run less", 1, fast, 0, 0, "ss aa bb sasb sasb", 4, [2]int{2, 2}},
		{"cold", 1, pace{cold: true, fewest: 2, most: 2}, 0, 0, "sasb sasb", 4, [2]int{2, 2}},
		{"one fails at once", 1e-3, fast, 1, 0, "ss a bb sb sb sb", 3, [2]int{0, 3}},
		{"one fails later", 1e-3, fast, 0, 3, "ss aa bb sasb sa sa", 4, [2]int{3, 0}},
		{"all fail", 1e-3, fast, 1, 1, "ss a b s s s", 3, [2]int{0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var notes []string
			sides := []*side{log("s", &notes, c.seconds, 0), log("a", &notes, c.seconds, c.failA), log("b", &notes, c.seconds, c.failB)}
			require.NoError(t, alternate(t.Context(), c.pace, sides))
			require.Equal(t, strings.ReplaceAll(c.want, " ", ""), strings.Join(notes, ""))
			require.Len(t, sides[0].samples, c.samplesOfSnug)
			for i, s := range sides[1:] {
				if c.samplesOfPeers[i] == 0 {
					require.ErrorContains(t, s.missing, "fails")
				} else {
					require.Len(t, s.samples, c.samplesOfPeers[i])
				}
			}
		})
	}
}

func TestAlternateAlone(t *testing.T) {
	var notes []string
	s := log("s", &notes, 1e-4, 0)
	require.NoError(t, alternate(t.Context(), fast, []*side{s}))
	require.Len(t, s.samples, 3)
	require.Equal(t, 10, s.repeat, "fills a sample")
	for failAt := range 4 {
		err := alternate(t.Context(), fast, []*side{log("s", &notes, 1e-4, failAt+1), log("a", &notes, 1e-4, 0)})
		require.ErrorContains(t, err, "s fails")
	}
}

func TestAllocationsAreCounted(t *testing.T) {
	var keep []byte
	l := &local{f: func() error { keep = make([]byte, 1<<12); return nil }}
	_, err := l.run(100)
	require.NoError(t, err)
	require.Len(t, keep, 1<<12)
	require.EqualValues(t, 1, l.perRun())
	l = &local{f: func() error { return nil }}
	_, err = l.run(100)
	require.NoError(t, err)
	require.Zero(t, l.perRun())
	l.f = func() error { return errors.New("no") }
	_, err = l.run(1)
	require.Error(t, err)
}

func TestEveryWorkIsWhole(t *testing.T) {
	text, err := scripts.ReadFile("peers/worker.py")
	require.NoError(t, err)
	for _, args := range [][]string{nil, {"-short"}, {"-long"}, {"-device", "cuda:0"}, {"-device", "cuda:0", "-short"}, {"-device", "emu:0"}, {"-only", "tune"}, {"-only", "tune", "-long"}, {"-only", "tune", "-short"}} {
		o, err := parse(args)
		require.NoError(t, err)
		seen := map[string]bool{}
		for _, w := range allWork(o) {
			require.False(t, seen[w.name()], "twice: %s", w.name())
			seen[w.name()] = true
			require.True(t, w.reads+w.writes+w.products > 0 || w.kernel == "launch", w.name())
			whole := w.step != nil || w.chain != nil || w.tune != nil
			require.NotEqual(t, w.prepare != nil, whole, w.name())
			if !whole {
				require.Positive(t, w.ops, w.name())
				if len(w.peers) > 0 {
					require.Contains(t, string(text), `"`+w.kernel+`": `, "the peers' worker knows it")
				}
			}
		}
	}
}

func TestEveryKernelRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("the command bench -short runs them")
	}
	for _, w := range allWork(options{device: "cpu", short: true}) {
		if w.prepare == nil {
			continue
		}
		require.NoError(t, w.on(snug.CPU(), func(own *local) error { return own.f() }), w.name())
	}
}

func TestStepFlops(t *testing.T) {
	w := steps(options{device: "cpu"}.sizes())
	p := w[len(w)-1].step
	require.Equal(t, "34m", p.name)
	require.EqualValues(t, 4096, p.tokens())
	// 33.5 million weights in matrices, 8 layers of causal attention.
	require.InEpsilon(t, 4096*(6*33.55e6+8*2*6*512*513/2), p.flops(), 0.01)
}
