package meter

import (
	"bytes"
	"encoding/csv"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/svgtest"
)

func monitorOf(t *testing.T, o Options) *Monitor {
	t.Helper()
	m, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func TestMonitorCounts(t *testing.T) {
	m := monitorOf(t, Options{})
	m.Add(OnDevice, Weights, 100)
	m.Add(OnDevice, Activations, 50)
	m.Add(OnDevice, Activations, -20)
	m.Set(OnHost, State, 7, 9)
	m.Add(Tiers, Weights, 1000)
	m.Add(OnDevice, Components, 1000)
	m.Set(-1, -1, 1000, 1000)
	now, peak := m.Held()
	require.Equal(t, Usage{{Weights: 100, Activations: 30}, {State: 7}}, now)
	require.Equal(t, Usage{{Weights: 100, Activations: 50}, {State: 9}}, peak)
	require.EqualValues(t, 150, m.Peak(OnDevice))
	require.EqualValues(t, 7, m.Peak(OnHost), "what it held together at a time that is known")
	require.Zero(t, m.Peak(Tiers))
	require.NoError(t, m.Check())
}

func TestMonitorWarnsBeforeALimit(t *testing.T) {
	var warnings []Warning
	m := monitorOf(t, Options{
		Limits: [Tiers]int64{OnDevice: 100, OnHost: 10}, Warn: 0.8, Warning: func(w Warning) { warnings = append(warnings, w) },
	})
	m.Add(OnDevice, Weights, 79)
	require.Empty(t, warnings)
	m.Add(OnDevice, Weights, 1)
	m.Add(OnDevice, Weights, 10)
	require.Equal(t, []Warning{{OnDevice, 80, 100}}, warnings)
	require.Equal(t, "device memory: 80 B of 100 B, 80.0 %", warnings[0].String())
	m.Add(OnDevice, Weights, -50)
	m.Add(OnDevice, Weights, 50)
	require.Len(t, warnings, 2, "it was below in between")
	require.NoError(t, m.Check())
	m.Set(OnHost, State, 11, 0)
	require.Equal(t, Warning{OnHost, 11, 10}, warnings[2])
	m.Set(OnHost, State, 0, 0)
	require.ErrorIs(t, m.Check(), snug.ErrNoMemory, "it was above")
}

func TestMonitorOptions(t *testing.T) {
	for _, o := range []Options{
		{Warn: -1}, {Warn: 1.1}, {Warn: math.NaN()}, {Samples: 1}, {Samples: -1}, {Samples: 1 << 30}, {Limits: [Tiers]int64{OnDisk: -1}},
	} {
		_, err := New(o)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestMonitorAllocatesNothing: nor is there a lock that callbacks cannot take.
func TestMonitorAllocatesNothing(t *testing.T) {
	var m *Monitor
	m = monitorOf(t, Options{Samples: 8, Limits: [Tiers]int64{10}, Warning: func(Warning) { m.Held() }})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		m.Add(OnDevice, Weights, 10)
		m.Set(OnHost, State, 5, 6)
		m.Add(OnDevice, Weights, -10)
		if m.Check() != nil || m.Sample() != nil {
			t.Fail()
		}
	}))
}

// TestTimelineThins: a full timeline keeps the whole run, with its peaks, at half the rate.
func TestTimelineThins(t *testing.T) {
	m := monitorOf(t, Options{Samples: 8})
	for i := range 100 {
		n := int64(1)
		if i == 37 {
			n = 1000
		}
		m.Add(OnDevice, Workspace, n)
		m.Add(OnDevice, Workspace, -n)
		require.NoError(t, m.Sample())
		require.LessOrEqual(t, len(m.Timeline()), 8)
	}
	line := m.Timeline()
	require.GreaterOrEqual(t, len(line), 4)
	most := int64(0)
	for i, s := range line {
		most = max(most, s.Peak[OnDevice])
		if i > 0 {
			require.Greater(t, s.Seconds, line[i-1].Seconds)
		}
	}
	require.EqualValues(t, 1000, most, "a peak between samples is not lost")
}

func TestMonitorIsSafeForConcurrentUse(t *testing.T) {
	m := monitorOf(t, Options{Samples: 16, Limits: [Tiers]int64{1 << 40}})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 200 {
				m.Add(OnDevice, Activations, 3)
				m.Add(OnDevice, Activations, -3)
				if i%50 == 0 && (m.Sample() != nil || m.WriteCSV(io.Discard) != nil || m.WritePrometheus(io.Discard) != nil) {
					t.Error("a sample")
				}
			}
		})
	}
	wg.Wait()
	now, peak := m.Held()
	require.Zero(t, now[OnDevice].Total())
	require.LessOrEqual(t, peak[OnDevice][Activations], int64(12))
	require.GreaterOrEqual(t, peak[OnDevice][Activations], int64(3))
}

func TestMonitorWrites(t *testing.T) {
	m := monitorOf(t, Options{Limits: [Tiers]int64{OnDevice: 1 << 20}})
	require.ErrorIs(t, m.WriteSVG(io.Discard, OnDevice, ""), snug.ErrConfig, "without samples")
	for i := range 3 {
		m.Add(OnDevice, Weights, 1000)
		m.Set(OnDisk, State, int64(i), 0)
		require.NoError(t, m.Sample())
	}
	require.ErrorIs(t, m.WriteSVG(io.Discard, Tiers, ""), snug.ErrConfig)

	var text bytes.Buffer
	require.NoError(t, m.WriteCSV(&text))
	rows, err := csv.NewReader(&text).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 4)
	column := func(name string, row int) int64 {
		for i, head := range rows[0] {
			if head == name {
				n, err := strconv.ParseInt(rows[row][i], 10, 64)
				require.NoError(t, err)
				return n
			}
		}
		t.Fatalf("no column %s in %v", name, rows[0])
		return 0
	}
	require.EqualValues(t, 3000, column("device_weights_bytes", 3))
	require.EqualValues(t, 2000, column("device_peak_bytes", 2))
	require.EqualValues(t, 2, column("disk_optimizer_state_bytes", 3))
	if runtime.GOOS == "linux" {
		require.Greater(t, column("rss_bytes", 1), int64(1<<20))
	}

	text.Reset()
	require.NoError(t, m.WriteSVG(&text, OnDevice, `a <b> & "c"`+strings.Repeat("M", 200)))
	svgtest.TextsFit(t, text.Bytes())

	text.Reset()
	require.NoError(t, m.WritePrometheus(&text))
	for _, line := range []string{
		"# TYPE snug_memory_bytes gauge", `snug_memory_bytes{tier="device",component="weights"} 3000`,
		`snug_memory_component_peak_bytes{tier="disk",component="optimizer state"} 2`, `snug_memory_limit_bytes{tier="device"} 1048576`,
	} {
		require.Contains(t, text.String(), line+"\n")
	}
	for line := range strings.Lines(text.String()) {
		require.Regexp(t, `^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[a-z]+="[a-z ]+"(,[a-z]+="[a-z ]+")*\})? \d+)\n$`, line)
	}
}

func TestResident(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system does not tell both")
	}
	debug.FreeOSMemory() // so that b is no memory that the process has already
	before, _ := Resident()
	b := make([]byte, 64<<20)
	for i := range b {
		b[i] = 1
	}
	now, peak := Resident()
	runtime.KeepAlive(b)
	require.Greater(t, now-before, int64(32<<20))
	require.GreaterOrEqual(t, peak, now)
}

// TestMonitorAsksTheDevice on every device of this build.
func TestMonitorAsksTheDevice(t *testing.T) {
	for _, p := range kerneltest.Backends(t)[1:] {
		m := monitorOf(t, Options{Device: p.Dev})
		require.NoError(t, m.Sample())
		free, total, err := p.Dev.Memory()
		require.NoError(t, err)
		require.Equal(t, total-free, m.Timeline()[0].DeviceUsed)
		require.NoError(t, m.WritePrometheus(io.Discard))
	}
}
