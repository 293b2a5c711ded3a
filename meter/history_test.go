package meter

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/svgtest"
)

// naive is a history that forgets nothing: the bytes of each holder after every change.
type naive struct {
	held map[holderName]int64
	most [Tiers]int64
	part [Tiers]map[holderName]int64 // at the latest time of the maximum
}

func (n *naive) total(t Tier) (sum int64) {
	for key, bytes := range n.held {
		if key.tier == t {
			sum += bytes
		}
	}
	return sum
}

func (n *naive) change(key holderName, bytes int64) {
	if bytes == 0 {
		return
	}
	n.held[key] += bytes
	if total := n.total(key.tier); total >= n.most[key.tier] && total > 0 {
		n.most[key.tier] = total
		n.part[key.tier] = map[holderName]int64{}
		for k, b := range n.held {
			if k.tier == key.tier && b != 0 {
				n.part[key.tier][k] = b
			}
		}
	}
}

// historyIsExact: however long a run is, the holders at the peak are those of a history that forgets nothing, and so are
// the bytes that the kept events lead to.
func historyIsExact(t *rapid.T) {
	m, err := New(Options{History: rapid.IntRange(minHistory, 200).Draw(t, "history")})
	require.NoError(t, err)
	defer m.Close()
	n := &naive{held: map[holderName]int64{}}
	var holders []*Holder
	var names []holderName
	for i := range 12 {
		key := holderName{Tier(i % 2), Component(i % 5), fmt.Sprintf("layer %d", i/3)}
		holders, names = append(holders, m.Holder(key.tier, key.component, key.name)), append(names, key)
	}
	grow := rapid.Int64Range(0, 400).Draw(t, "grow")
	for range rapid.IntRange(0, 1500).Draw(t, "events") {
		i := rapid.IntRange(0, len(holders)+3).Draw(t, "holder")
		bytes := rapid.Int64Range(-1000, 1000).Draw(t, "bytes")
		switch {
		case i < len(holders):
			bytes = max(bytes+grow, -n.held[names[i]])
			holders[i].Add(bytes)
			n.change(names[i], bytes)
		case i == len(holders):
			m.Enter(Phase(bytes&3), "stage")
		case i == len(holders)+1:
			m.Step(int(max(0, bytes)))
		default:
			key := holderName{OnDevice, Activations, ""}
			m.Set(key.tier, key.component, max(0, bytes), 0)
			n.change(key, max(0, bytes)-n.held[key])
		}
	}
	for tier := range Tiers {
		p, err := m.PeakHolders(tier)
		require.NoError(t, err)
		got, sum := map[holderName]int64{}, int64(0)
		for i, h := range p.Holders {
			got[holderName{tier, h.Component, h.Name}] = h.Bytes
			sum += h.Bytes
			require.True(t, i == 0 || p.Holders[i-1].Bytes >= h.Bytes)
		}
		require.Equal(t, m.Peak(tier), p.Bytes)
		require.Equal(t, p.Bytes, sum)
		require.Equal(t, n.most[tier], p.Bytes)
		if p.Bytes > 0 {
			require.Equal(t, n.part[tier], got)
		}
	}
	r, err := m.recorded(OnDevice)
	require.NoError(t, err)
	last := r.parts[len(r.parts)-1]
	held, seen := last.held(r.names), false
	for _, e := range last.events {
		if !e.isSpan {
			held[r.names[e.id].tier][r.names[e.id].component] += e.bytes
		}
	}
	now, _ := m.Held()
	require.Equal(t, now, held, "the kept events lead to what is held now")
	kept := uint64(0)
	for _, p := range r.parts {
		kept += uint64(len(p.events))
		held := p.held(r.names)
		for i, e := range p.events {
			if e.isSpan {
				continue
			}
			held[r.names[e.id].tier][r.names[e.id].component] += e.bytes
			if p.seq+uint64(i) == r.peakSeq[OnDevice] {
				seen = true
				require.Equal(t, m.Peak(OnDevice), held[OnDevice].Total(), "the kept events have the peak")
			}
		}
	}
	require.True(t, seen || m.Peak(OnDevice) == 0, "the event of the device's peak is kept")
	require.Equal(t, m.history.next, kept+r.left)
	most := int64(0)
	for _, b := range r.bins {
		most = max(most, b.most[OnDevice])
		require.Equal(t, b.most[OnDevice], b.held[OnDevice].Total())
	}
	require.Equal(t, m.Peak(OnDevice), most, "the bins have the peak")
	validTrace(t, m)
}

func TestHistoryIsExact(t *testing.T) { rapid.Check(t, historyIsExact) }

func FuzzHistoryIsExact(f *testing.F) { f.Fuzz(rapid.MakeFuzz(historyIsExact)) }

// validTrace checks a trace against the Trace Event Format: the keys that each kind of event must have, times, that
// slices of a thread lie within each other, and that the counters of the device have its peak. It returns the number of
// slices of each category.
func validTrace(t require.TestingT, m *Monitor) (sliced map[string]int) {
	sliced = map[string]int{}
	var b bytes.Buffer
	require.NoError(t, m.WriteTrace(&b))
	var trace struct {
		Unit   string           `json:"displayTimeUnit"`
		Other  map[string]any   `json:"otherData"`
		Events []map[string]any `json:"traceEvents"`
	}
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&trace))
	require.Equal(t, "ms", trace.Unit)
	type open struct{ from, to float64 }
	var slices []open
	most := 0.0
	for _, e := range trace.Events {
		for _, key := range []string{"name", "ph", "pid", "tid", "ts"} {
			require.Contains(t, e, key)
		}
		at := e["ts"].(float64)
		require.GreaterOrEqual(t, at, 0.0)
		args, _ := e["args"].(map[string]any)
		switch e["ph"] {
		case "M":
			require.Contains(t, []string{"process_name", "thread_name"}, e["name"])
			require.NotEmpty(t, args["name"])
		case "C":
			sum := 0.0
			for _, v := range args {
				sum += v.(float64)
			}
			if e["name"] == "device bytes" {
				most = max(most, sum)
			}
		case "X":
			slices = append(slices, open{at, at + e["dur"].(float64)})
			require.NotEmpty(t, e["name"])
			sliced[e["cat"].(string)]++
		case "i":
			require.Contains(t, []string{"g", "p", "t"}, e["s"])
			if holders, has := args["holders"].([]any); has {
				sum := 0.0
				for _, h := range holders {
					sum += h.(map[string]any)["bytes"].(float64)
				}
				require.Equal(t, args["bytes"], sum)
			}
		default:
			require.Fail(t, "an event of an unknown phase", e)
		}
	}
	require.EqualValues(t, m.Peak(OnDevice), most, "the counters reach the peak")
	const rounding = 1e-6 // of sums of microseconds
	for i, a := range slices {
		for _, b := range slices[:i] {
			apart := a.to <= b.from+rounding || b.to <= a.from+rounding
			inside := a.from >= b.from-rounding && a.to <= b.to+rounding || b.from >= a.from-rounding && b.to <= a.to+rounding
			require.True(t, apart || inside, "slices %v and %v cross", a, b)
		}
	}
	return sliced
}

// someHistory is a run of three steps over four layers.
func someHistory(t testing.TB, events int, wait time.Duration) *Monitor {
	m, err := New(Options{History: events})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	const layers = 4
	name := func(i int) string { return fmt.Sprintf("layers.%d", i) }
	var weights, outputs, scratch [layers]*Holder
	for i := range layers {
		weights[i], outputs[i] = m.Holder(OnDevice, Weights, name(i)), m.Holder(OnDevice, Activations, name(i))
		scratch[i] = m.Holder(OnDevice, Activations, name(i)+", backward")
		weights[i].Set(3 << 20)
	}
	m.Set(OnDevice, State, 5<<20, 0)
	m.Set(OnDisk, State, 50<<20, 0)
	for step := range 3 {
		m.Step(step + 1)
		for i := range layers {
			m.Enter(Forward, name(i))
			outputs[i].Add(2<<20 + 1)
			time.Sleep(wait)
		}
		for i := layers - 1; i >= 0; i-- {
			m.Enter(Backward, name(i))
			scratch[i].Add(5 << 20)
			time.Sleep(wait)
			scratch[i].Add(-5 << 20)
			outputs[i].Set(0)
		}
		m.Enter(Update, "layers.0")
		time.Sleep(wait)
		m.Enter(Idle, "")
	}
	return m
}

func TestPeakHolders(t *testing.T) {
	m := someHistory(t, 1024, 0)
	p, err := m.PeakHolders(OnDevice)
	require.NoError(t, err)
	require.EqualValues(t, 4*(3<<20)+5<<20+4*(2<<20+1)+5<<20, p.Bytes)
	require.Equal(t, []any{3, Backward, "layers.3"}, []any{p.Step, p.Phase, p.Stage}, "the latest time")
	require.Equal(t, []Holding{{State, "", 5 << 20}, {Activations, "layers.3, backward", 5 << 20}}, p.Holders[:2])
	require.Len(t, p.Holders, 10)

	var text bytes.Buffer
	require.NoError(t, m.WritePeak(&text, OnDevice, 3))
	require.Contains(t, text.String(), "in step 3, backward of layers.3, after ")
	require.Regexp(t, `weights +layers.0–3 \(4 × 3145728\) +12582912 +40.0 %`, text.String())
	require.Regexp(t, `others +1 holders +5242880 +`, text.String())
	require.Regexp(t, `sum +31457284 +100.0 %`, text.String())
	require.NoError(t, m.WritePeak(&text, OnHost, 3), "which has held nothing")
	disk, err := m.PeakHolders(OnDisk)
	require.NoError(t, err)
	require.Equal(t, []Holding{{State, "", 50 << 20}}, disk.Holders)
	require.Equal(t, map[string]int{"step": 3, "phase": 9, "stage": 27}, validTrace(t, m))

	one := m.Holder(OnHost, Masters, "twice")
	two := m.Holder(OnHost, Masters, "twice")
	one.Set(5)
	two.Set(7)
	one.Set(6)
	host, err := m.PeakHolders(OnHost)
	require.NoError(t, err)
	require.Equal(t, []Holding{{Masters, "twice", 13}}, host.Holders)
}

// TestPeakLines: rows that share a name but for its first number are one, and the sum stays.
func TestPeakLines(t *testing.T) {
	p := Moment{Bytes: 100, Holders: []Holding{
		{State, "layers.10", 20}, {State, "layers.2", 20}, {State, "layers.3", 20}, {Masters, "layers.2", 20}, {State, "layers.02", 5}, {State, "layers.5", 4},
		{State, "layers.6.mlp", 4}, {State, "", 4}, {State, "99999999999999999999", 3},
	}}
	list, others, sum := p.lines(0)
	require.Zero(t, others)
	require.Zero(t, sum)
	require.Equal(t, peakLine{State, "layers.2–3,10 (3 × 20)", 60, 3}, list[0])
	require.Len(t, list, 7)
	all := int64(0)
	for _, line := range list {
		all += line.bytes
	}
	require.EqualValues(t, 100, all)
	_, others, sum = p.lines(1)
	require.Equal(t, []int64{6, 40}, []int64{int64(others), sum})
}

// TestHistoryPicture: labels have room, also those of long names and of many holders.
func TestHistoryPicture(t *testing.T) {
	m := someHistory(t, 1024, 0)
	draw := func(m *Monitor, tier Tier, title string) string {
		var b bytes.Buffer
		require.NoError(t, m.WritePeakSVG(&b, tier, title))
		svgtest.TextsFit(t, b.Bytes())
		require.NotContains(t, b.String(), "NaN")
		require.NotContains(t, b.String(), "Inf")
		return b.String()
	}
	picture := draw(m, OnDevice, "a run")
	require.Contains(t, picture, ">31457284<")
	require.Contains(t, picture, ">layers.3, backward<")
	draw(m, OnDisk, "")
	draw(m, OnHost, "which has held nothing")
	draw(monitorOf(t, Options{History: minHistory, Limits: [Tiers]int64{100}}), OnDevice, "nothing at all")
	many := monitorOf(t, Options{History: minHistory, Limits: [Tiers]int64{math.MaxInt64}})
	for i := range 100 {
		many.Step(math.MaxInt)
		many.Enter(Recompute, fmt.Sprintf("model.<%d>.%s", i, string(bytes.Repeat([]byte("W&"), 90))))
		many.Holder(OnDevice, Component(i%7), fmt.Sprintf("%d<%s", i, string(bytes.Repeat([]byte("W&"), 90)))).Set(math.MaxInt64 / 128)
	}
	draw(many, OnDevice, string(bytes.Repeat([]byte("M"), 200)))
}

// TestHistoryAllocatesNothing: on and off.
func TestHistoryAllocatesNothing(t *testing.T) {
	for _, events := range []int{0, minHistory} {
		m := monitorOf(t, Options{History: events})
		h, other := m.Holder(OnDevice, Activations, "a"), m.Holder(OnDevice, Weights, "b")
		step := 0
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			step++
			m.Step(step)
			m.Enter(Forward, "layers.1.mlp")
			h.Add(100)
			other.Set(int64(step))
			m.Set(OnHost, State, int64(step), 0)
			m.Enter(Backward, "layers.1.mlp")
			h.Add(-100)
		}))
	}
}

// TestHistoryConcurrent: from several goroutines the holders add up, while others write.
func TestHistoryConcurrent(t *testing.T) {
	m := monitorOf(t, Options{History: minHistory})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			h := m.Holder(OnDevice, Activations, fmt.Sprint(i%2))
			for n := range 300 {
				m.Enter(Forward, fmt.Sprint(n%7))
				h.Add(int64(3 + n))
				h.Add(-int64(3 + n))
				if n%60 == 0 && (m.WriteTrace(io.Discard) != nil || m.WritePeakSVG(io.Discard, OnDevice, "") != nil || m.WritePeak(io.Discard, OnDevice, 0) != nil) {
					t.Error("a writer")
				}
			}
		})
	}
	wg.Wait()
	p, err := m.PeakHolders(OnDevice)
	require.NoError(t, err)
	sum := int64(0)
	for _, h := range p.Holders {
		sum += h.Bytes
	}
	require.Equal(t, m.Peak(OnDevice), sum)
}

func TestHistoryErrors(t *testing.T) {
	for _, n := range []int{-1, 1, minHistory - 1, maxHistory + 1, math.MinInt} {
		_, err := New(Options{History: n})
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	off := monitorOf(t, Options{})
	off.Holder(OnDevice, Weights, "w").Set(7)
	require.EqualValues(t, 7, off.Peak(OnDevice), "it counts without a history")
	on := monitorOf(t, Options{History: minHistory})
	for _, err := range []error{
		second(off.PeakHolders(OnDevice)), off.WriteTrace(io.Discard), off.WritePeakSVG(io.Discard, OnDevice, ""), off.WritePeak(io.Discard, OnDevice, 1),
		second(on.PeakHolders(Tiers)), on.WriteTrace(nil), on.WritePeakSVG(nil, OnDevice, ""), on.WritePeak(nil, OnDevice, 1), on.WritePeak(io.Discard, -1, 1),
	} {
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	broken := failing{}
	require.ErrorIs(t, on.WriteTrace(broken), io.ErrClosedPipe)
	require.ErrorIs(t, on.WritePeakSVG(broken, OnDevice, ""), io.ErrClosedPipe)
	require.ErrorIs(t, on.WritePeak(broken, OnDevice, 0), io.ErrClosedPipe)
	require.Nil(t, on.Holder(Tiers, Weights, ""))
	require.Nil(t, on.Holder(OnDevice, Components, ""))
	for i := range maxHolders + 5 { // those beyond the limit count without a name
		on.Holder(OnDevice, Weights, fmt.Sprint(i)).Add(1)
	}
	p, err := on.PeakHolders(OnDevice)
	require.NoError(t, err)
	require.EqualValues(t, maxHolders+5, p.Bytes)
	require.Empty(t, p.Holders[0].Name)
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestLayerOf(t *testing.T) {
	for name, want := range map[string]string{
		"model.layers.3.mlp.up_proj.weight": "layers.3", "transformer.h.11.attn.c_attn.bias": "h.11", "lm_head.weight": "lm_head",
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": "layers.0", "model.embed_tokens.weight": "embed_tokens",
		"wte": "wte", "": "", ".": "", "..": "", "7": "7", "7.weight": "7", "a.7": "a.7", "a..7": ".7", "model.norm.weight": "norm",
	} {
		require.Equal(t, want, LayerOf(name), name)
	}
}

// BenchmarkHolder is the cost of an allocation and its end.
func BenchmarkHolder(b *testing.B) {
	for _, events := range []int{0, 1 << 16} {
		b.Run(fmt.Sprintf("history=%d", events), func(b *testing.B) {
			m, err := New(Options{History: events})
			require.NoError(b, err)
			defer m.Close()
			for i := range 1000 {
				m.Holder(OnDevice, Weights, fmt.Sprint(i)).Set(1)
			}
			h := m.Holder(OnDevice, Activations, "a")
			for b.Loop() {
				h.Add(100)
				h.Add(-100)
			}
		})
	}
}

// TestPeakSVGOfAnyName: characters that XML forbids, in a title and in a name, leave the picture readable.
func TestPeakSVGOfAnyName(t *testing.T) {
	m, err := New(Options{History: minHistory})
	require.NoError(t, err)
	m.Holder(OnDevice, Weights, "\x00\x1f\ufffe\uffff\xff<&\t").Add(1 << 20)
	var b bytes.Buffer
	require.NoError(t, m.WritePeakSVG(&b, OnDevice, "title\x01"))
	require.NoError(t, xml.Unmarshal(b.Bytes(), new(struct{})))
	require.Contains(t, b.String(), "title\ufffd<")
}
