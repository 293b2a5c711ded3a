package meter

import (
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestZeroValues: no method of a zero value of an exported type, nor a function, panics
// whatever its arguments are, and what cannot be done is an error.
func TestZeroValues(t *testing.T) {
	var none *Monitor
	var noHolder *Holder
	var noPages *Pages
	kerneltest.NoPanics(t,
		Usage{}, Bytes{}, Warning{}, Sample{}, Options{}, Component(0), Component(-1), Tier(0), Tier(-1), Measured{},
		new(Monitor), none, &Holder{}, noHolder, &Pages{}, noPages, Moment{}, Holding{}, Phase(0), Phase(-1), Phases,
	)
	for name, call := range map[string]func() error{
		"ParseBytes":             func() error { return second(ParseBytes("")) },
		"Monitor.Close":          new(Monitor).Close,
		"nil.Close":              none.Close,
		"Monitor.Check":          new(Monitor).Check,
		"nil.Check":              none.Check,
		"Monitor.Sample":         new(Monitor).Sample,
		"nil.Sample":             none.Sample,
		"Monitor.WriteCSV":       func() error { return new(Monitor).WriteCSV(io.Discard) },
		"nil.WritePrometheus":    func() error { return none.WritePrometheus(io.Discard) },
		"Monitor.WriteSVG":       func() error { return new(Monitor).WriteSVG(io.Discard, OnDevice, "") },
		"Monitor.PeakHolders":    func() error { return second(new(Monitor).PeakHolders(OnDevice)) },
		"nil.WriteTrace":         func() error { return none.WriteTrace(io.Discard) },
		"nil.WritePeak":          func() error { return none.WritePeak(io.Discard, OnDevice, 0) },
		"Monitor.WritePeakSVG":   func() error { return new(Monitor).WritePeakSVG(io.Discard, OnDevice, "") },
		"Pages.Acquire":          func() error { return second(noPages.Acquire("k", 1)) },
		"Pages.Release":          func() error { return new(Pages).Release("k", true) },
		"Pages.Delete":           func() error { return new(Pages).Delete("k") },
		"WriteCSV to nil":        func() error { return monitorOf(t, Options{}).WriteCSV(nil) },
		"WriteSVG to nil":        func() error { return monitorOf(t, Options{}).WriteSVG(nil, OnDevice, "") },
		"WritePrometheus to nil": func() error { return monitorOf(t, Options{}).WritePrometheus(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NotPanics(t, func() {
				err := call()
				require.ErrorIs(t, err, snug.ErrConfig, name)
				kerneltest.Error(t, "meter."+name, err)
			}, name)
		})
	}
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// TestWarningThatPanics: the panic is the caller's, what was counted is counted, and the
// monitor goes on.
func TestWarningThatPanics(t *testing.T) {
	calls := 0
	m := monitorOf(t, Options{Limits: [Tiers]int64{100}, Warning: func(Warning) {
		if calls++; calls == 1 {
			panic("of the caller")
		}
	}})
	require.PanicsWithValue(t, "of the caller", func() { m.Add(OnDevice, Weights, 95) })
	require.EqualValues(t, 95, m.Peak(OnDevice))
	require.NoError(t, m.Check())
	require.NoError(t, m.Sample())
	m.Set(OnDevice, Weights, 0, 0)
	m.Add(OnDevice, State, 99)
	require.Equal(t, 2, calls, "it warns again")
	now, _ := m.Held()
	require.Equal(t, Usage{{State: 99}}, now)
}

// TestCountsBeyondInt64: sums stay at the largest number, which is over every limit.
func TestCountsBeyondInt64(t *testing.T) {
	m := monitorOf(t, Options{Limits: [Tiers]int64{1 << 60}})
	for c := range Components {
		m.Add(OnDevice, c, math.MaxInt64)
		m.Add(OnDevice, c, math.MaxInt64)
	}
	require.Equal(t, int64(math.MaxInt64), m.Peak(OnDevice))
	require.ErrorIs(t, m.Check(), snug.ErrNoMemory)
	now, peak := m.Held()
	for c := range Components {
		require.Equal(t, int64(math.MaxInt64), now[OnDevice][c])
		require.Equal(t, int64(math.MaxInt64), peak[OnDevice][c])
		m.Set(OnDevice, c, 0, 0)
	}
	m.Add(OnDevice, State, 7)
	now, _ = m.Held()
	require.Equal(t, Usage{{State: 7}}, now)
}
