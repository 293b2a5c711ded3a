package remat

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/saturate"
)

// Tiers are the memory that a [Planner] may use in addition to device memory. The [Rates] of
// the costs give the time of transfers.
type Tiers struct {
	Host int64 // bytes of host memory for copies
	Disk int64 // bytes on disk
	// Lossy allows packing of saved sets for which the costs have a packed size. The
	// gradient is then not exact. Its error follows from the error of the packed
	// form; for [github.com/snug-ml/snug/remat/pack.Int8] it is 1/128 of the largest of 32
	// elements.
	Lossy bool
}

func (t Tiers) validate(c Costs) error {
	for _, p := range t.limits() {
		if p.bytes < 0 {
			return fmt.Errorf("remat: planner with %d bytes of %v: want 0 or more: %w", p.bytes, p.tier, snug.ErrConfig)
		}
		if p.bytes > 0 && c.rates(p.tier) == (Rates{}) {
			return fmt.Errorf("remat: planner with %d bytes of %v, for which the costs have no rates: %w", p.bytes, p.tier, snug.ErrConfig)
		}
	}
	return nil
}

// tierLimit is the bytes that a Planner may use in a tier.
type tierLimit struct {
	tier  Tier
	bytes int64
}

func (t Tiers) limits() [2]tierLimit { return [...]tierLimit{{Host, t.Host}, {Disk, t.Disk}} }

// mix is a way to make the decisions for all stages.
type mix struct {
	removed int  // stages whose saved sets are not kept, of the number of stages
	host    int  // quarters of their bytes that go to host memory
	disk    int  // quarters of the rest that go to disk
	pack    int  // 1: what is left of them is packed, 2: the kept ones are packed too
	every   int  // of the others, all outputs but every so many are dropped
	page    Tier // where the outputs go: Packed stands for device memory
	lag     int
}

// mixes returns the ways that a Planner tries, whatever the budgets are.
func mixes(c Costs, t Tiers) []mix {
	n := len(c.Stages)
	const steps = 32
	hosts, disks, packs, pages := []int{0}, []int{0}, []int{0}, []Tier{Packed}
	if t.Host > 0 {
		hosts, pages = []int{0, 1, 2, 3, 4}, append(pages, Host)
	}
	if t.Disk > 0 {
		disks, pages = []int{0, 2, 4}, append(pages, Disk)
	}
	if t.Lossy {
		packs = []int{0, 1, 2}
	}
	var all []mix
	for k := 0; k <= min(n, steps); k++ {
		for _, host := range hosts {
			for _, disk := range disks {
				for _, pack := range packs {
					m := mix{removed: k * n / min(n, steps), host: host, disk: disk, pack: pack, every: 1}
					switch {
					case k == 0 && (host > 0 || disk > 0 || pack == 1): // the same as another
					case k > 0 && host < whole && disk < whole && pack != 1:
						all = m.appendOutputs(all, n, pages)
					default:
						all = m.appendLags(all)
					}
				}
			}
		}
	}
	return all
}

const whole = 4 // the quarters of a whole

// appendLags appends m with the lags that can make a difference.
func (m mix) appendLags(all []mix) []mix {
	for _, m.lag = range [...]int{0, 1, 2, 4, 8} {
		all = append(all, m)
		if m.host == 0 && m.disk == 0 && m.page == Packed {
			break // there are no transfers
		}
	}
	return all
}

// appendOutputs appends m with decisions about outputs.
func (m mix) appendOutputs(all []mix, n int, pages []Tier) []mix {
	for m.every = 1; m.every < 2*n; m.every *= 2 {
		for _, m.page = range pages {
			all = m.appendLags(all)
		}
	}
	return all
}

// decider makes decisions for a chain.
type decider struct {
	c         Costs
	order     []int // stages, those with the least forward time for a saved byte first
	decisions []decision
}

func newDecider(c Costs) *decider {
	n := len(c.Stages)
	d := &decider{c: c, order: make([]int, n), decisions: make([]decision, n)}
	for i := range d.order {
		d.order[i] = i
	}
	// Equal ones are spread over the chain, so that transfers and recomputation
	// alternate.
	slices.SortStableFunc(d.order, func(i, j int) int {
		a, b := &c.Stages[i], &c.Stages[j]
		return cmp.Or(
			cmp.Compare(a.ForwardTime*float64(b.Saved), b.ForwardTime*float64(a.Saved)),
			cmp.Compare(bits.Reverse32(uint32(i)), bits.Reverse32(uint32(j))),
		)
	})
	return d
}

// append appends the plan of a mix.
func (d *decider) append(ops []Op, m mix) []Op {
	kept := keepSaved
	if m.pack == 2 {
		kept = packSaved
	}
	for i := range d.decisions {
		d.decisions[i] = d.packed(i, kept, keepSaved)
	}
	removed := d.order[:m.removed]
	var bytes int64
	for _, i := range removed {
		bytes += d.c.Stages[i].Saved
	}
	host := bytes / 4 * int64(m.host)
	disk := (bytes - host) / 4 * int64(m.disk)
	outputs := 0
	for _, i := range slices.Backward(removed) { // those that take longest to compute first
		size := d.c.Stages[i].Saved
		switch {
		case host >= size:
			host -= size
			d.decisions[i] = hostSaved
		case disk >= size:
			disk -= size
			d.decisions[i] = diskSaved
		default:
			d.decisions[i] = keepOutput
			if m.pack > 0 {
				d.decisions[i] = d.packed(i, packSaved, keepOutput)
			}
		}
	}
	for i, v := range d.decisions {
		if v != keepOutput {
			outputs = 0
			continue
		}
		if outputs++; outputs%m.every != 0 {
			d.decisions[i] = dropOutput
			continue
		}
		d.decisions[i] = [...]decision{Packed: keepOutput, Host: hostOutput, Disk: diskOutput}[m.page]
	}
	return appendDecided(ops, d.decisions, m.lag)
}

// packed returns d, or otherwise for a stage that cannot be packed.
func (d *decider) packed(stage int, v, otherwise decision) decision {
	if v == packSaved && d.c.Stages[stage].Packed == 0 {
		return otherwise
	}
	return v
}

// tiersOps limits the operations of the plans that are tried, eight a stage: all mixes
// have a plan for up to 512 stages, and longer chains take some ten seconds.
const tiersOps = 1<<28 + 1<<26

// tierFamily returns the plans that use tiers.
func tierFamily(c Costs, t Tiers) family {
	all := mixes(c, t)
	if most := tiersOps / (8 * len(c.Stages)); len(all) > most {
		for i := range most { // evenly
			all[i] = all[int(int64(i)*int64(len(all))/int64(most))]
		}
		all = all[:most]
	}
	d := newDecider(c)
	return family{0, len(all) - 1, func(ops []Op, param int) []Op {
		return d.append(ops, all[param])
	}, func(int) string { return "tiers" }}
}

// fitTiers returns the fastest of the plans that use tiers and the plans of Fit.
func fitTiers(c Costs, budget int64, t Tiers) (Plan, error) {
	n := len(c.Stages)
	families := []family{tierFamily(c, t)}
	families = append(families, everyFamily(n)...)
	if n <= rotorStages {
		r, err := newRotor(c)
		if err != nil {
			return Plan{}, err
		}
		families = append(families, r.family())
	}
	p, err := quickestIn(c, budget, t, families)
	if n > fitStages {
		return p, err
	}
	exact, errExact := fitExact(c, budget)
	if errExact != nil || err == nil && !better(c, exact, p) {
		return p, err
	}
	return exact, nil
}

// better reports whether Fit prefers plan p to q.
func better(c Costs, p, q Plan) bool {
	a, err := p.simulate(c, nil)
	if err != nil {
		return false
	}
	b, err := q.simulate(c, nil)
	return err != nil || a.better(b)
}

// tiersBound returns a lower bound of the time of all plans under a budget with tiers. It is
// the smallest time T such that T covers the recomputation of all values that fit neither in
// device memory nor, by transfers within T, in a tier.
func tiersBound(c Costs, budget int64, t Tiers, f *forwards) float64 {
	var sacks []knapsack
	for p := range boundStages(len(c.Stages)) {
		k := newKnapsack(c, budget, f.work, p)
		if t.Lossy {
			k.pack(c)
		}
		sacks = append(sacks, k)
	}
	elsewhere := func(time float64) (bytes float64) {
		for _, p := range t.limits() {
			r := c.rates(p.tier)
			bytes += min(float64(p.bytes), time*min(r.Read, r.Write))
		}
		return bytes
	}
	need := func(time float64) float64 {
		var most int64
		more := int64(min(elsewhere(time), 1<<60)) + 1
		for _, k := range sacks {
			k.free = saturate.Add(k.free, more)
			most = max(most, k.again())
		}
		return f.bound(c, f.ceil(f.total+most))
	}
	low := f.bound(c, f.total)
	if need(low) <= low {
		return low
	}
	high := need(low)
	for range 40 {
		if middle := low + (high-low)/2; need(middle) > middle {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// pack makes the saved sets as small as they can be between two steps.
func (k *knapsack) pack(c Costs) {
	for i := range k.items {
		if packed := c.Stages[k.items[i].stage].Packed; packed > 0 {
			k.items[i].size = min(k.items[i].size, packed)
		}
	}
	k.sort()
}
