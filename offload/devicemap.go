package offload

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Weight is a tensor of a layer.
type Weight struct {
	Name  string // name of a tensor of the store; layers with a weight of the same name are tied
	Bytes int64  // size on the device where the layer runs
}

// Layer is a part of a model that needs its weights together.
type Layer struct {
	Name    string
	Weights []Weight
	// Uses is the number of times that a step needs the weights: 2 in training, for the
	// forward and the backward pass, 3 if the layer is recomputed. 0 means 2.
	Uses int
}

// Bytes returns the size of all weights, at most [math.MaxInt64].
func (l Layer) Bytes() (sum int64) {
	for _, w := range l.Weights {
		if w.Bytes > 0 && sum > math.MaxInt64-w.Bytes {
			return math.MaxInt64
		}
		sum += w.Bytes
	}
	return sum
}

// Limits of a device map: more would take minutes to plan, or could not be added up.
const (
	maxLayers  = 1 << 14
	maxWeights = math.MaxInt64 / 8 // bytes of the weights of all layers
)

// Tier is a memory that holds weights.
type Tier struct {
	Name  string // "cuda:0", "cpu", "disk"
	Limit int64  // bytes; 0 means no limit
	// Rate is the rate at which weights are copied from this tier to the first, in bytes
	// a second. 0 means that layers run on this tier, and their weights stay there.
	Rate float64
}

// DeviceMap says where the weights of layers are kept. Layers of tiers with a Rate are
// paged into the first tier when they run.
type DeviceMap struct {
	Tiers  []Tier
	TierOf []int   // the tier of each layer, an index of Tiers
	Bytes  []int64 // bytes in each tier; weights that layers share count once
	// FrameBytes is the size that the first tier keeps free for two frames: two times the
	// largest paged layer. Layers are paged through these frames.
	FrameBytes int64
	// Seconds is the time of all transfers of a step. Bound is a lower bound of this time
	// for every map. It equals Seconds if [Optimal] has proved that the map is the best.
	Seconds, Bound float64
}

// Tier returns the name of the tier of a layer. It is empty for a layer or a tier that
// does not exist.
func (m DeviceMap) Tier(layer int) string {
	if layer < 0 || layer >= len(m.TierOf) {
		return ""
	}
	if t := m.TierOf[layer]; t >= 0 && t < len(m.Tiers) {
		return m.Tiers[t].Name
	}
	return ""
}

// Greedy fills the tiers with layers in their order, as Accelerate's
// infer_auto_device_map does: a layer that does not fit goes to the next tier, and so do
// all layers after it. Tied layers go to the tier of the first of them. If layers are
// paged, the first tier keeps two frames of the largest of all layers free.
//
// Errors: [snug.ErrConfig] for layers or tiers that are not valid: more than 16,384,
// the first tier has a Rate, or rates grow; [snug.ErrNoMemory] when the weights do not fit.
func Greedy(layers []Layer, tiers []Tier) (DeviceMap, error) {
	pr, err := newPlacement(layers, tiers)
	if err != nil {
		return DeviceMap{}, in(err, "device map")
	}
	for _, frames := range [...]int64{0, 2 * pr.largest} {
		if at := pr.greedy(frames); at != nil {
			m := pr.deviceMap(at)
			m.Bound = pr.bound()
			return m, nil
		}
	}
	return DeviceMap{}, pr.doesNotFit()
}

// placement is the problem for which a map is searched.
type placement struct {
	tiers   []Tier
	layers  []Layer
	group   []int // group of each layer
	groups  []group
	largest int64 // layer
}

// group is a set of layers that are tied, directly or through others.
type group struct {
	bytes  int64   // bytes of all weights, each counted once
	moved  float64 // bytes that a step pages in if the group does not stay where it runs
	layer  int64   // bytes of the largest layer
	number int     // index in placement.groups
}

func newPlacement(layers []Layer, tiers []Tier) (*placement, error) {
	if err := checkTiers(tiers); err != nil {
		return nil, err
	}
	pr := &placement{tiers: tiers, layers: layers}
	if len(layers) > maxLayers {
		return nil, fmt.Errorf("%d layers, want %d at most: %w", len(layers), maxLayers, snug.ErrConfig)
	}
	seen, total := map[string]int64{}, int64(0)
	tied := newTies(len(layers))
	owner := map[string]int{}
	for i, l := range layers {
		if l.Uses < 0 {
			return nil, fmt.Errorf("layer %q is used %d times: %w", l.Name, l.Uses, snug.ErrConfig)
		}
		own := map[string]bool{}
		for _, w := range l.Weights {
			bytes, known := seen[w.Name]
			switch {
			case w.Bytes < 0 || w.Bytes > maxWeights-total:
				return nil, fmt.Errorf("weight %q of layer %q has %d bytes, and those before %d, want %d at most together: %w",
					w.Name, l.Name, w.Bytes, total, int64(maxWeights), snug.ErrConfig)
			case own[w.Name]:
				return nil, fmt.Errorf("layer %q has weight %q twice: %w", l.Name, w.Name, snug.ErrConfig)
			case known && bytes != w.Bytes:
				return nil, fmt.Errorf("weight %q has %d bytes in layer %q, and %d before: %w", w.Name, w.Bytes, l.Name, bytes, snug.ErrConfig)
			case known:
				tied.join(owner[w.Name], i)
			}
			total += w.Bytes
			seen[w.Name], owner[w.Name], own[w.Name] = w.Bytes, i, true
		}
		pr.largest = max(pr.largest, l.Bytes())
	}
	pr.makeGroups(tied)
	return pr, nil
}

// minRate is the minimum rate of a tier, in bytes a second: with a lower rate the time of
// all transfers might not be finite.
const minRate = 1e-100

func checkTiers(tiers []Tier) error {
	if len(tiers) == 0 || tiers[0].Rate != 0 {
		return fmt.Errorf("%d tiers, want a first one with rate 0, where layers run: %w", len(tiers), snug.ErrConfig)
	}
	rate := math.Inf(1)
	for _, t := range tiers {
		r := t.Rate
		if r == 0 {
			r = math.Inf(1)
		}
		if t.Limit < 0 || !(r >= minRate && r <= rate) {
			return fmt.Errorf("tier %q with limit %d and rate %g, want 0 or more, and rates of %g or more that do not grow: %w", t.Name, t.Limit, t.Rate, minRate, snug.ErrConfig)
		}
		rate = r
	}
	return nil
}

// makeGroups gathers the layers that are tied, in the order of their first ones.
func (pr *placement) makeGroups(tied ties) {
	number := map[int]int{}
	counted := map[string]bool{}
	for i, l := range pr.layers {
		root := tied.root(i)
		k, ok := number[root]
		if !ok {
			k = len(pr.groups)
			number[root] = k
			pr.groups = append(pr.groups, group{number: k})
		}
		pr.group = append(pr.group, k)
		g := &pr.groups[k]
		for _, w := range l.Weights {
			if !counted[w.Name] {
				g.bytes += w.Bytes
			}
			counted[w.Name] = true
		}
		uses := l.Uses
		if uses == 0 {
			uses = 2
		}
		g.moved += float64(uses) * float64(l.Bytes())
		g.layer = max(g.layer, l.Bytes())
	}
}

// ties are sets of layers: the entry of a layer is another layer of its set, or itself.
type ties []int

func newTies(n int) ties {
	t := make(ties, n)
	for i := range t {
		t[i] = i
	}
	return t
}

func (t ties) root(i int) int {
	for t[i] != i {
		i = t[i]
	}
	return i
}

func (t ties) join(i, j int) { t[t.root(j)] = t.root(i) }

// space returns the bytes that each tier has left when the first tier holds the frames.
func (pr *placement) space(frames int64) []int64 {
	free := make([]int64, len(pr.tiers))
	for t, tier := range pr.tiers {
		free[t] = tier.Limit
		if tier.Limit == 0 {
			free[t] = math.MaxInt64 / 2
		}
	}
	free[0] -= frames
	return free
}

// cost returns the seconds of a byte from tier t.
func (pr *placement) cost(t int) float64 {
	if pr.tiers[t].Rate == 0 {
		return 0
	}
	return 1 / pr.tiers[t].Rate
}

// greedy returns the tier of each group when the first tier holds the frames, or nil if
// the groups do not fit. Without frames no layer may be paged.
func (pr *placement) greedy(frames int64) []int {
	free, at := pr.space(frames), make([]int, len(pr.groups))
	if free[0] < 0 {
		return nil
	}
	t := 0
	for k, g := range pr.groups {
		for t < len(free) && free[t] < g.bytes {
			t++
		}
		if t == len(free) || frames == 0 && g.layer > 0 && pr.tiers[t].Rate > 0 {
			return nil
		}
		free[t] -= g.bytes
		at[k] = t
	}
	return at
}

// deviceMap returns the map of groups in tiers.
func (pr *placement) deviceMap(at []int) DeviceMap {
	m := DeviceMap{Tiers: pr.tiers, Bytes: make([]int64, len(pr.tiers)), Seconds: pr.seconds(at)}
	for k, g := range pr.groups {
		m.Bytes[at[k]] += g.bytes
		if pr.tiers[at[k]].Rate > 0 {
			m.FrameBytes = max(m.FrameBytes, 2*g.layer)
		}
	}
	for _, k := range pr.group {
		m.TierOf = append(m.TierOf, at[k])
	}
	return m
}

// seconds returns the time of the transfers of a step.
func (pr *placement) seconds(at []int) (sum float64) {
	for k, g := range pr.groups {
		sum += g.moved * pr.cost(at[k])
	}
	return sum
}

func (pr *placement) doesNotFit() error {
	var need int64
	for _, g := range pr.groups {
		need += g.bytes
	}
	return fmt.Errorf("offload: device map: %d bytes of weights do not fit in %d tiers, with %d bytes free in %s for two frames if any layer is paged: %w",
		need, len(pr.tiers), 2*pr.largest, pr.tiers[0].Name, snug.ErrNoMemory)
}
