package offload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// maxNodes is the nodes of a search for one window, some seconds at most.
const maxNodes = 1 << 20

// Optimal is the map of the least time of transfers. It searches with branch and bound,
// groups of tied layers by how much is paged for each of their bytes; the bound places
// the rest in parts. If it ends the search early, after a million nodes for each size of
// the window, Seconds of the result is above Bound. Layers that are alike
// are told apart by their order only, so that models of many equal layers are quick.
// Errors are those of [Greedy].
func Optimal(layers []Layer, tiers []Tier) (DeviceMap, error) {
	pr, err := newPlacement(layers, tiers)
	if err != nil {
		return DeviceMap{}, fmt.Errorf("offload: device map: %w", err)
	}
	best, bound := search{seconds: math.Inf(1)}, math.Inf(1)
	if at := pr.greedy(2 * pr.largest); at != nil {
		best.at, best.seconds = at, pr.seconds(at)
	}
	for _, layer := range pr.sizes() {
		s := newSearch(pr, layer, best)
		bound = min(bound, s.run())
		best.at, best.seconds = s.at, s.seconds
	}
	if best.at == nil {
		return DeviceMap{}, pr.noRoom()
	}
	m := pr.deviceMap(best.at)
	m.Bound = min(bound, m.Seconds)
	return m, nil
}

// sizes returns what the largest layer that is paged can have, from 0 for none.
func (pr *placement) sizes() []int64 {
	sizes := []int64{0}
	for _, g := range pr.groups {
		sizes = append(sizes, g.layer)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// bound returns a time that no map is below.
func (pr *placement) bound() float64 {
	bound := math.Inf(1)
	for _, layer := range pr.sizes() {
		s := newSearch(pr, layer, search{seconds: math.Inf(1)})
		bound = min(bound, s.relaxed(0, 0))
	}
	return bound
}

// search looks for the best map in which no paged layer is larger than layer.
type search struct {
	pr     *placement
	layer  int64
	groups []group // by bytes paged for each byte, falling
	room   []int64 // left
	now    []int   // the tier of each of groups so far
	nodes  int

	at      []int // the best so far, by placement.groups; nil for none
	seconds float64
}

func newSearch(pr *placement, layer int64, best search) *search {
	s := &search{pr: pr, layer: layer, room: pr.room(2 * layer), at: best.at, seconds: best.seconds}
	s.groups = slices.Clone(pr.groups)
	slices.SortStableFunc(s.groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.moved*float64(a.bytes), a.moved*float64(b.bytes)), cmp.Compare(b.bytes, a.bytes), cmp.Compare(b.layer, a.layer))
	})
	s.now = make([]int, len(s.groups))
	return s
}

// run searches and returns a time that no map of this window is below.
func (s *search) run() float64 {
	root := s.relaxed(0, 0)
	if s.room[0] < 0 {
		return math.Inf(1)
	}
	if s.visit(0, 0); s.nodes > maxNodes {
		return root
	}
	return s.seconds // this window's best, or what no map of it is below
}

// relaxed returns the least time if groups from k on could be cut into parts: those
// with the most traffic for a byte lie in the fastest room.
func (s *search) relaxed(k int, seconds float64) float64 {
	t, left := 0, float64(s.room[0])
	for _, g := range s.groups[k:] {
		for bytes := float64(g.bytes); bytes > 0; {
			for left <= 0 {
				if t++; t == len(s.room) {
					return math.Inf(1)
				}
				left = float64(s.room[t])
			}
			part := min(bytes, left)
			seconds += g.moved * (part / float64(g.bytes)) * s.pr.cost(t)
			bytes, left = bytes-part, left-part
		}
	}
	return seconds
}

// visit places group k, after those before it.
func (s *search) visit(k int, seconds float64) {
	s.nodes++
	if s.nodes > maxNodes || s.relaxed(k, seconds) >= s.seconds*(1-1e-12) && s.at != nil {
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
	for t := first; t < len(s.room); t++ {
		if s.room[t] < g.bytes || s.pr.tiers[t].Rate > 0 && g.layer > s.layer {
			continue
		}
		s.room[t] -= g.bytes
		s.now[k] = t
		s.visit(k+1, seconds+g.moved*s.pr.cost(t))
		s.room[t] += g.bytes
	}
}
