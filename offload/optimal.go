package offload

import (
	"cmp"
	"math"
	"slices"
)

// Limits of the search: nodes for one size of frames, and groups that the nodes of all
// searches look at. They keep a search to some seconds.
const (
	maxNodes  = 1 << 20
	maxLookAt = 1 << 29
)

// Optimal returns the map with the minimum time of transfers. It is a search with branch
// and bound over groups of tied layers, ordered by paged bytes per byte of weights. The
// bound allows the remaining groups to be split between tiers. The search ends early
// after a million nodes for each size of the frames, or after all nodes have looked at
// 2^29 groups, which takes some seconds; then Seconds of the result is above Bound. Equal
// layers are tried in one order only, so that models of many equal layers are quick.
// Errors are the same as for [Greedy].
func Optimal(layers []Layer, tiers []Tier) (DeviceMap, error) {
	pr, err := newPlacement(layers, tiers)
	if err != nil {
		return DeviceMap{}, in(err, "device map")
	}
	best, bound := search{seconds: math.Inf(1)}, math.Inf(1)
	if at := pr.greedy(2 * pr.largest); at != nil {
		best.at, best.seconds = at, pr.seconds(at)
	}
	sizes, groups := pr.sizes(), pr.byTraffic()
	nodes := min(maxNodes, maxLookAt/(len(sizes)*max(1, len(groups))))
	for _, layer := range sizes {
		s := newSearch(pr, groups, layer, best)
		bound = min(bound, s.run(nodes))
		best.at, best.seconds = s.at, s.seconds
	}
	if best.at == nil {
		return DeviceMap{}, pr.doesNotFit()
	}
	m := pr.deviceMap(best.at)
	m.Bound = min(bound, m.Seconds)
	return m, nil
}

// sizes returns the possible sizes of the largest paged layer, ascending from 0, which
// stands for no paged layer.
func (pr *placement) sizes() []int64 {
	sizes := []int64{0}
	for _, g := range pr.groups {
		sizes = append(sizes, g.layer)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// bound returns a lower bound of the time of every map.
func (pr *placement) bound() float64 {
	bound, groups := math.Inf(1), pr.byTraffic()
	for _, layer := range pr.sizes() {
		s := newSearch(pr, groups, layer, search{seconds: math.Inf(1)})
		bound = min(bound, s.relaxed(0, 0))
	}
	return bound
}

// search looks for the best map in which no paged layer is larger than layer.
type search struct {
	pr     *placement
	layer  int64
	groups []group // by bytes paged for each byte, falling
	free   []int64 // bytes left in each tier
	now    []int   // the tier of each group so far
	nodes  int     // number of nodes that may still be looked at
	early  bool    // the search ended before its last node

	at      []int // the best tiers so far, by placement.groups; nil for none
	seconds float64
}

// byTraffic returns the groups in the order of a search.
func (pr *placement) byTraffic() []group {
	groups := slices.Clone(pr.groups)
	slices.SortStableFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.moved*float64(a.bytes), a.moved*float64(b.bytes)), cmp.Compare(b.bytes, a.bytes), cmp.Compare(b.layer, a.layer))
	})
	return groups
}

func newSearch(pr *placement, groups []group, layer int64, best search) *search {
	return &search{
		pr: pr, layer: layer, groups: groups, free: pr.space(2 * layer), now: make([]int, len(groups)),
		at: best.at, seconds: best.seconds,
	}
}

// run searches with a maximum number of nodes. It returns a lower bound of the time of
// every map with these frames.
func (s *search) run(nodes int) float64 {
	s.nodes = nodes
	root := s.relaxed(0, 0)
	if s.free[0] < 0 {
		return math.Inf(1)
	}
	if s.visit(0, 0); s.early {
		return root
	}
	return s.seconds // the best time with these frames, or a lower bound
}

// relaxed returns the minimum time if the groups from k on could be cut into parts: the
// groups with the most traffic for each byte lie in the fastest tiers.
func (s *search) relaxed(k int, seconds float64) float64 {
	t, left := 0, float64(s.free[0])
	for _, g := range s.groups[k:] {
		for bytes := float64(g.bytes); bytes > 0; {
			for left <= 0 {
				if t++; t == len(s.free) {
					return math.Inf(1)
				}
				left = float64(s.free[t])
			}
			part := min(bytes, left)
			seconds += g.moved * (part / float64(g.bytes)) * s.pr.cost(t)
			bytes, left = bytes-part, left-part
		}
	}
	return seconds
}

// visit places group k, after the groups before it.
func (s *search) visit(k int, seconds float64) {
	if s.nodes == 0 {
		s.early = true
		return
	}
	s.nodes--
	if s.relaxed(k, seconds) >= s.seconds*(1-1e-12) && s.at != nil {
		return
	}
	if k == len(s.groups) {
		s.seconds, s.at = seconds, make([]int, len(s.groups))
		for i, g := range s.groups {
			s.at[g.number] = s.now[i]
		}
		return
	}
	g, first := s.groups[k], 0
	if k > 0 {
		if b := s.groups[k-1]; b.bytes == g.bytes && b.moved == g.moved && b.layer == g.layer {
			first = s.now[k-1] // equal groups lie in the order of their tiers
		}
	}
	for t := first; t < len(s.free); t++ {
		if s.free[t] < g.bytes || s.pr.tiers[t].Rate > 0 && g.layer > s.layer {
			continue
		}
		s.free[t] -= g.bytes
		s.now[k] = t
		s.visit(k+1, seconds+g.moved*s.pr.cost(t))
		s.free[t] += g.bytes
	}
}
