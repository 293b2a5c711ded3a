package main

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/limits"
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
	require.Positive(t, m.peakRate(false))
	require.GreaterOrEqual(t, m.peakRate(true), m.peakRate(false))
	for _, bytes := range []float64{0, 1 << 20} {
		require.Positive(t, m.bandwidth(limits.Copy, bytes))
		require.Positive(t, m.bandwidth(limits.Read, bytes))
	}
	require.Len(t, m.bandwidths, 4)
	m.bandwidth(limits.Copy, 1<<20)
	require.Len(t, m.bandwidths, 4, "measured once")

	k := m.traffic(limits.Copy, 1<<20)
	m.bandwidths[k] = measured{1e18, time.Time{}}
	require.InDelta(t, 1e18, m.bandwidth(limits.Copy, 1<<20), 0, "measured again, the best counts")
	require.WithinDuration(t, time.Now(), m.bandwidths[k].at, time.Minute)
	require.Equal(t, largest, newDeviceless().traffic(limits.Copy, math.MaxFloat64).set)

	var out strings.Builder
	m.printAgain(&out)
	require.Regexp(t, `(?m)^  FMA go  .* GFLOP/s\n(.*\n)*  1:0  +64 KiB .* GB/s\n(.*\n)*  1:1  +1 MiB +1000000000 GB/s$`, out.String())
}

// newDeviceless returns a machine without a device. It serves to test sizes.
func newDeviceless() *machine {
	return &machine{largest: largest, measure: func(traffic) float64 { return 1 }, bandwidths: map[traffic]measured{}}
}

// known is a machine without measurements, whose bandwidths are those of copies: 1 GFLOP/s, 2 with the BF16
// dot product, 1 GB/s.
func known() *machine {
	m := &machine{dev: snug.CPU(), tier: "go", threads: 2, largest: largest, bandwidths: map[traffic]measured{}}
	m.peaks = []peak{{name: "FMA", measured: measured{rate: 1e9}}, {name: "BF16 dot", bf16: true, measured: measured{rate: 2e9}}}
	for set := smallest; set <= largest; set *= 2 {
		m.bandwidths[traffic{limits.Copy, set}] = measured{rate: 1e9}
	}
	return m
}

// Bandwidths of a device are known for powers of 2.
func TestNearestBandwidth(t *testing.T) {
	for _, c := range []struct {
		bytes float64
		want  int
	}{{0, smallest}, {1 << 16, 1 << 16}, {1.4 * (1 << 16), 1 << 16}, {1.5 * (1 << 16), 1 << 17}, {1 << 25, 1 << 25}, {math.MaxFloat64, largest}} {
		require.Equal(t, traffic{limits.Copy, c.want}, known().traffic(limits.Mix{In: 4, Out: 3, InPlace: true}, c.bytes), c.bytes)
	}
}

func TestNearestMix(t *testing.T) {
	for _, c := range []struct {
		w    work
		want limits.Mix
		set  float64
	}{
		{work{reads: 5}, limits.Read, 5},
		{work{reads: 4, writes: 4}, limits.Copy, 8},
		{work{reads: 4, writes: 2}, limits.Mix{In: 2, Out: 1}, 6},
		{work{reads: 1.1, writes: 4}, limits.Mix{In: 1, Out: 4}, 5.1},
		{work{reads: 9, writes: 1}, limits.Mix{In: 4, Out: 1}, 10},
		{work{reads: 16, writes: 12, inPlace: true}, limits.Mix{In: 4, Out: 3, InPlace: true}, 16},
		{work{reads: 2, writes: 2, inPlace: true}, limits.Mix{In: 1, Out: 1, InPlace: true}, 2},
	} {
		mix, set := c.w.traffic()
		require.Equal(t, c.want, mix)
		require.InDelta(t, c.set, set, 1e-9)
	}
}

// A kernel that is faster than the limit shows that the limit was measured wrong.
func TestLimitsLearn(t *testing.T) {
	for _, w := range []*work{{kernel: "cast", reads: 1e9, writes: 1e9}, {kernel: "matmul", products: 2e9}, {kernel: "matmul", products: 4e9, bf16: true}} {
		m := known()
		r := w.results(m, []*side{{samples: []float64{1}}}, nil)[0]
		require.InDelta(t, 1, r.Fraction, 0)
		require.InDelta(t, r.Rate, r.Limit, 0)
		require.InDelta(t, r.Rate/2, r.Measured, 1e-3)
		require.Regexp(t, "^above [12]$", r.ofLimit())
		r = w.results(m, []*side{{samples: []float64{2}}}, nil)[0]
		require.InDelta(t, 0.5, r.Fraction, 1e-9, "of the rate before")
		require.Zero(t, r.Measured)
	}
}

func TestLowerBoundIsTheLargerOfBytesAndOperations(t *testing.T) {
	for _, c := range []struct {
		w       work
		seconds float64
		memory  bool
	}{
		{work{reads: 1e9, writes: 1e9}, 2, true},
		{work{reads: 1e9}, 1, true},
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
	return &side{name: name, run: func(int, time.Duration) (float64, error) {
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

func TestWarm(t *testing.T) {
	runs := 0
	l := &local{f: func() error { runs++; time.Sleep(time.Millisecond); return nil }, wait: func() error { return nil }}
	s, err := l.run(2, 20*time.Millisecond)
	require.NoError(t, err)
	require.Less(t, s, 20e-3, "the runs before do not count")
	require.Greater(t, runs, 2)
	l.f = func() error { return errors.New("no") }
	_, err = l.run(1, time.Second)
	require.EqualError(t, err, "no")
}

func TestPairs(t *testing.T) {
	s := &side{samples: []float64{2, 9, 4}, before: []float64{1, 3, 4}}
	require.Equal(t, []float64{2, 3, 1}, s.ratios())
	require.Empty(t, new(side).ratios())
	for args, want := range map[string]pace{
		"":          {fewest: 3, most: 15},
		"-pairs=5":  {fewest: 5, most: 15},
		"-pairs=20": {fewest: 20, most: 20},
	} {
		o, err := parse(strings.Fields(args))
		require.NoError(t, err)
		p := o.pace()
		require.Equal(t, want, pace{fewest: p.fewest, most: p.most})
	}
	_, err := parse([]string{"-pairs=0"})
	require.EqualError(t, err, "-pairs 0: want 1 to 1000")
}

func TestAllocationsAreCounted(t *testing.T) {
	var keep []byte
	l := &local{f: func() error { keep = make([]byte, 1<<12); return nil }}
	_, err := l.run(100, 0)
	require.NoError(t, err)
	require.Len(t, keep, 1<<12)
	require.EqualValues(t, 1, l.perRun())
	l = &local{f: func() error { return nil }}
	_, err = l.run(100, 0)
	require.NoError(t, err)
	require.Zero(t, l.perRun())
	l.f = func() error { return errors.New("no") }
	_, err = l.run(1, 0)
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
	kerneltest.Slow(t) // the command bench -short runs them
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
