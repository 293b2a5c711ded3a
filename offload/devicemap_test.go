package offload

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// layersOf returns layers of one weight each.
func layersOf(bytes ...int64) []Layer {
	layers := make([]Layer, len(bytes))
	for i, b := range bytes {
		name := fmt.Sprint("layer", i)
		layers[i] = Layer{Name: name, Weights: []Weight{{name, b}}}
	}
	return layers
}

func TestGreedy(t *testing.T) {
	tiers := []Tier{{"cuda:0", 100, 0}, {"cpu", 60, 10}, {"disk", 0, 1}}
	for name, test := range map[string]struct {
		layers []Layer
		place  []int
		window int64
	}{
		"none":            {nil, nil, 0},
		"all fit":         {layersOf(40, 40, 20), []int{0, 0, 0}, 0},
		"in order":        {layersOf(20, 20, 20, 20, 30, 20), []int{0, 0, 1, 1, 2, 2}, 60},
		"never back":      {layersOf(40, 30, 40, 5), []int{1, 2, 2, 2}, 80},
		"empty":           {layersOf(0, 100, 0), []int{0, 0, 0}, 0},
		"window of paged": {layersOf(30, 20, 10, 10, 10, 10, 10, 10), []int{0, 1, 1, 1, 1, 1, 2, 2}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Greedy(test.layers, tiers)
			require.NoError(t, err, name)
			require.Equal(t, test.place, m.TierOf, name)
			require.Equal(t, test.window, m.FrameBytes, name)
		})
	}
	m, err := Greedy(layersOf(20, 20, 20, 20, 30, 20), tiers)
	require.NoError(t, err)
	require.Equal(t, []int64{40, 40, 50}, m.Bytes)
	require.InEpsilon(t, 2*40/10.0+2*50, m.Seconds, 1e-12)
	require.Equal(t, "disk", m.Tier(5))
}

// TestTied checks that layers with a common weight stay together, which counts once.
func TestTied(t *testing.T) {
	layers := []Layer{
		{Name: "embedding", Weights: []Weight{{"table", 50}}},
		{Name: "block", Weights: []Weight{{"w", 30}}, Uses: 3},
		{Name: "head", Weights: []Weight{{"table", 50}, {"bias", 1}}},
	}
	tiers := []Tier{{"cuda:0", 81, 0}, {"cpu", 0, 1}}
	for name, plan := range map[string]func([]Layer, []Tier) (DeviceMap, error){"greedy": Greedy, "optimal": Optimal} {
		m, err := plan(layers, tiers)
		require.NoError(t, err, name)
		require.Equal(t, []int{0, 0, 0}, m.TierOf, name)
		require.Equal(t, []int64{81, 0}, m.Bytes, name)
		tiers := []Tier{{"cuda:0", 110, 0}, {"cpu", 0, 1}}
		more := append(layers[:3:3], Layer{Name: "more", Weights: []Weight{{"more", 40}}})
		m, err = plan(more, tiers)
		require.NoError(t, err, name)
		require.Equal(t, m.TierOf[0], m.TierOf[2], name)
	}
}

func TestOptimalIsBetter(t *testing.T) {
	// Greedy keeps the first layers; the last one is used ten times a step.
	layers := layersOf(20, 20, 20)
	layers[2].Uses = 10
	tiers := []Tier{{"cuda:0", 60 + 19, 0}, {"cpu", 0, 1}}
	layers = append(layers, Layer{Name: "x", Weights: []Weight{{"x", 20}}, Uses: 20})
	g, err := Greedy(layers, tiers)
	require.NoError(t, err)
	m, err := Optimal(layers, tiers)
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 1, 1}, g.TierOf)
	require.Equal(t, []int{1, 1, 1, 0}, m.TierOf)
	require.Less(t, m.Seconds, g.Seconds)
	require.Equal(t, m.Seconds, m.Bound)
	require.LessOrEqual(t, g.Bound, m.Seconds)
}

// TestOptimalIsOptimal compares with all maps there are.
func TestOptimalIsOptimal(t *testing.T) { rapid.Check(t, optimalIsOptimal) }

func FuzzDeviceMap(f *testing.F) { f.Fuzz(rapid.MakeFuzz(optimalIsOptimal)) }

func optimalIsOptimal(t *rapid.T) {
	n := rapid.IntRange(0, 7).Draw(t, "layers")
	layers := make([]Layer, n)
	for i := range layers {
		layers[i] = Layer{Name: fmt.Sprint(i), Uses: rapid.IntRange(0, 3).Draw(t, "uses")}
		layers[i].Weights = []Weight{{fmt.Sprint(i), int64(rapid.IntRange(0, 9).Draw(t, "bytes"))}}
		if shared := rapid.IntRange(0, 9).Draw(t, "shared"); shared < 2 {
			layers[i].Weights = append(layers[i].Weights, Weight{fmt.Sprint("shared", shared), int64(3 + shared)})
		}
	}
	tiers := []Tier{{"gpu", int64(rapid.IntRange(1, 40).Draw(t, "gpu")), 0}}
	if rapid.Bool().Draw(t, "two") {
		tiers = append(tiers, Tier{"gpu2", int64(rapid.IntRange(1, 20).Draw(t, "gpu2")), 0})
	}
	tiers = append(tiers, Tier{"cpu", int64(rapid.IntRange(1, 20).Draw(t, "cpu")), 4})
	if rapid.Bool().Draw(t, "disk") {
		tiers = append(tiers, Tier{"disk", int64(rapid.IntRange(0, 20).Draw(t, "disk limit")), 1})
	}
	want := best(layers, tiers)
	m, err := Optimal(layers, tiers)
	if math.IsInf(want, 1) {
		require.ErrorIs(t, err, snug.ErrNoMemory)
		_, err = Greedy(layers, tiers)
		require.ErrorIs(t, err, snug.ErrNoMemory)
		return
	}
	require.NoError(t, err)
	require.InDelta(t, want, m.Seconds, 1e-9)
	require.InDelta(t, want, m.Bound, 1e-9)
	requireFits(t, layers, m)
	if g, err := Greedy(layers, tiers); err == nil {
		requireFits(t, layers, g)
		require.GreaterOrEqual(t, g.Seconds, want-1e-9)
		require.LessOrEqual(t, g.Bound, want+1e-9)
	}
}

// best returns the minimum seconds of all maps, infinity if none fits.
func best(layers []Layer, tiers []Tier) float64 {
	lowest := math.Inf(1)
	place := make([]int, len(layers))
	for {
		if s, ok := try(layers, tiers, place); ok {
			lowest = min(lowest, s)
		}
		i := 0
		for i < len(place) {
			if place[i]++; place[i] < len(tiers) {
				break
			}
			place[i] = 0
			i++
		}
		if i == len(place) {
			return lowest
		}
	}
}

// try returns the seconds of a map and whether it fits.
func try(layers []Layer, tiers []Tier, place []int) (float64, bool) {
	used, at := make([]int64, len(tiers)), map[string]int{}
	seconds, window := 0.0, int64(0)
	for i, l := range layers {
		tier := place[i]
		for _, w := range l.Weights {
			if other, ok := at[w.Name]; ok && other != tier {
				return 0, false // tied layers are apart
			} else if !ok {
				used[tier] += w.Bytes
			}
			at[w.Name] = tier
		}
		if rate := tiers[tier].Rate; rate > 0 {
			uses := l.Uses
			if uses == 0 {
				uses = 2
			}
			seconds += float64(uses) * float64(l.Bytes()) / rate
			window = max(window, 2*l.Bytes())
		}
	}
	used[0] += window
	for t, tier := range tiers {
		if tier.Limit > 0 && used[t] > tier.Limit {
			return 0, false
		}
	}
	return seconds, true
}

func requireFits(t require.TestingT, layers []Layer, m DeviceMap) {
	seconds, ok := try(layers, m.Tiers, m.TierOf)
	require.True(t, ok, "%+v", m)
	require.InDelta(t, seconds, m.Seconds, 1e-9)
}

// TestOptimalOfManyLayers plans models of 96 blocks: of equal ones, where the best map
// is found, and of unequal ones, where the search ends early.
func TestOptimalOfManyLayers(t *testing.T) {
	for name, test := range map[string]struct{ unequal, gap float64 }{"equal": {0, 1e-9}, "unequal": {1 << 20, 0.05}} {
		bytes := []int64{1 << 30}
		for i := range 96 {
			bytes = append(bytes, 400<<20+int64(test.unequal)*int64(i%3))
		}
		layers := layersOf(append(bytes, 1<<30)...)
		layers[len(layers)-1].Weights[0].Name = layers[0].Weights[0].Name
		m, err := Optimal(layers, []Tier{{"cuda:0", 12 << 30, 0}, {"cpu", 16 << 30, 20e9}, {"disk", 0, 2e9}})
		require.NoError(t, err)
		requireFits(t, layers, m)
		require.LessOrEqual(t, m.Bound, m.Seconds, name)
		require.InEpsilon(t, m.Bound, m.Seconds, test.gap, name)
	}
}

// TestOptimalEnds plans layers of 400 sizes, each of which is a size of the window: the
// search ends in seconds, with a bound.
func TestOptimalEnds(t *testing.T) {
	bytes, sum := make([]int64, 400), int64(0)
	for i := range bytes {
		bytes[i] = 1<<29 + int64(i*7919%len(bytes))
		sum += bytes[i]
	}
	tiers := []Tier{{"gpu", sum/3 + 2<<30, 0}, {"cpu", sum / 3, 20}, {"disk", sum / 3, 2}, {"net", 0, 1}}
	start := time.Now()
	m, err := Optimal(layersOf(bytes...), tiers)
	require.NoError(t, err)
	require.Less(t, time.Since(start), 30*time.Second)
	require.LessOrEqual(t, m.Bound, m.Seconds)
	requireFits(t, layersOf(bytes...), m)
	_, err = Optimal(make([]Layer, maxLayers+1), tiers)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestHugeWeights: weights that cannot be added up are refused, in one layer or in many.
func TestHugeWeights(t *testing.T) {
	tiers := []Tier{{"gpu", math.MaxInt64, 0}, {"disk", 0, minRate}}
	for _, n := range []int{1, 2, 3, 9, 100} {
		one, each := Layer{}, []Layer(nil)
		for i := range n {
			w := Weight{fmt.Sprint(i), maxWeights / 2}
			one.Weights = append(one.Weights, w)
			each = append(each, Layer{Name: w.Name, Weights: []Weight{w}})
		}
		require.Positive(t, one.Bytes())
		for _, layers := range [][]Layer{{one}, each} {
			for _, plan := range []func([]Layer, []Tier) (DeviceMap, error){Greedy, Optimal} {
				m, err := plan(layers, tiers)
				if n > 2 {
					require.ErrorIs(t, err, snug.ErrConfig)
					continue
				}
				require.NoError(t, err)
				require.False(t, math.IsInf(m.Seconds, 0) || math.IsNaN(m.Seconds))
				requireFits(t, layers, m)
			}
		}
	}
	require.Equal(t, int64(math.MaxInt64), Layer{Weights: []Weight{{"a", math.MaxInt64}, {"b", 1}}}.Bytes())
	for _, rate := range []float64{5e-324, minRate / 2, math.NaN(), -1} {
		_, err := Greedy(nil, []Tier{{}, {Rate: rate}})
		require.ErrorIs(t, err, snug.ErrConfig, rate)
	}
}

func TestDeviceMapErrors(t *testing.T) {
	gpu, disk := Tier{"gpu", 10, 0}, Tier{"disk", 0, 1}
	for name, test := range map[string]struct {
		layers []Layer
		tiers  []Tier
		want   error
	}{
		"no tiers":        {nil, nil, snug.ErrConfig},
		"first with rate": {nil, []Tier{disk}, snug.ErrConfig},
		"rates grow":      {nil, []Tier{gpu, disk, {"cpu", 0, 2}}, snug.ErrConfig},
		"rate NaN":        {nil, []Tier{gpu, {"x", 0, math.NaN()}}, snug.ErrConfig},
		"limit":           {nil, []Tier{{"gpu", -1, 0}}, snug.ErrConfig},
		"bytes":           {layersOf(-1), []Tier{gpu}, snug.ErrConfig},
		"too many bytes":  {layersOf(math.MaxInt64), []Tier{gpu}, snug.ErrConfig},
		"uses":            {[]Layer{{Uses: -1}}, []Tier{gpu}, snug.ErrConfig},
		"tied, unequal":   {[]Layer{{Weights: []Weight{{"w", 1}}}, {Weights: []Weight{{"w", 2}}}}, []Tier{gpu}, snug.ErrConfig},
		"weight twice":    {[]Layer{{Weights: []Weight{{"w", 1}, {"w", 1}}}}, []Tier{gpu}, snug.ErrConfig},
		"too large":       {layersOf(6, 6), []Tier{gpu}, snug.ErrNoMemory},
		"no window":       {layersOf(6, 6), []Tier{gpu, disk}, snug.ErrNoMemory},
	} {
		for _, plan := range []func([]Layer, []Tier) (DeviceMap, error){Greedy, Optimal} {
			_, err := plan(test.layers, test.tiers)
			require.ErrorIs(t, err, test.want, name)
		}
	}
}
