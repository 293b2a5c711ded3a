package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// example is a kernel of 2 GB, at least 2 s on a known machine, against two
// peers.
func example() []result {
	w := &work{kernel: "cast", dtype: "f32-bf16", shape: "n=1", reads: 1e9, writes: 1e9, ops: 1e9}
	allocs := int64(3)
	return w.results(known(), []*side{
		{name: "snug", samples: []float64{4, 4, 5}},
		{name: "torch", samples: []float64{8, 9, 8}, before: []float64{4, 5, 4}},
		{name: "numpy", missing: errors.New("not there")},
	}, &allocs)
}

func TestResults(t *testing.T) {
	rows := example()
	require.Len(t, rows, 2)
	torch, numpy := rows[0], rows[1]
	require.InDelta(t, 4, torch.Median, 0)
	require.InDelta(t, 0.5, torch.Fraction, 1e-12)
	require.InDelta(t, 0.5e9, torch.Rate, 1)
	require.InDelta(t, 1e9, torch.Limit, 1)
	require.Equal(t, "B/s", torch.Unit)
	require.InDelta(t, 2, *torch.Ratio, 1e-12)
	require.InDelta(t, 8, *torch.PeerMedian, 1e-12)
	require.Nil(t, numpy.Ratio)

	w := &work{products: 1e9, kernel: "step", step: new(preset)}
	alone := w.results(known(), []*side{{samples: []float64{2}}}, nil)
	require.Len(t, alone, 1)
	require.Equal(t, "FLOP/s", alone[0].Unit)
	require.InDelta(t, 0.5, alone[0].Fraction, 1e-12)
	require.Nil(t, alone[0].Peer)
}

func TestJSON(t *testing.T) {
	s := session{o: options{json: true}, all: example(), m: known()}
	var out bytes.Buffer
	require.NoError(t, s.report(nil, &out))
	require.Equal(t, 1, strings.Count(out.String(), "\n"), "one line")
	var rows []map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &rows))
	require.Equal(t, []string{
		"allocs", "device", "dtype", "fraction", "kernel", "limit", "median_s", "pairs", "peer", "peer_median_s", "rate", "ratio",
		"ratio_quartiles", "shape", "spread", "threads", "tier", "unit",
	}, sortedKeys(rows[0]))
	require.Equal(t, "torch", rows[0]["peer"])
	require.InDelta(t, 2, rows[0]["ratio"], 1e-12)
	require.Equal(t, "numpy", rows[1]["peer"])
	require.Nil(t, rows[1]["ratio"])
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out)
	table.add(example())
	w := &work{kernel: "step", products: 1e9}
	rows := w.results(known(), []*side{{samples: []float64{2}}, {name: "torch", samples: []float64{1}, before: []float64{2}}}, nil)
	rows[0].RSS, rows[0].PeerRSS = 300<<20, 1800<<20
	table.add(rows)
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 6)
	require.Regexp(t, `^kernel .* peer$`, lines[0])
	require.Regexp(t, `^cast +f32-bf16 +n=1 +4 s +12% +0.5 GB/s +50% of 1 +3  torch +8 s +2.00× \(1.90–2.00 of 3\)$`, lines[1])
	require.Regexp(t, `^ {100,}numpy missing: not there$`, lines[2])
	require.Empty(t, lines[3])
	require.Regexp(t, `–  torch +1 s +0.50× \(0.50–0.50 of 1\) +peak RSS 300 MiB against 1800 MiB$`, lines[4])
}

func TestSVG(t *testing.T) {
	for _, rows := range [][]result{nil, example()} {
		var out bytes.Buffer
		require.NoError(t, drawRoofline(&out, rows, known()))
		require.Contains(t, out.String(), "</svg>")
		require.Equal(t, strings.Count(out.String(), "font-family:"), strings.Count(out.String(), "font-family:"+fonts+";"))
		require.Contains(t, out.String(), fonts)
		require.Equal(t, len(rows) > 0, strings.Contains(out.String(), ">cast<"))
	}
}

func TestSeconds(t *testing.T) {
	for want, s := range map[string]float64{"1.23 µs": 1.234e-6, "12.3 ms": 12.34e-3, "1.5 s": 1.5} {
		require.Equal(t, want, seconds(s))
	}
	require.Equal(t, "12.3 GB/s", rate(12.34e9, "B/s"))
	require.Equal(t, "1234 GFLOP/s", rate(1234e9, "FLOP/s"))
	require.Equal(t, "64 KiB", bytesText(1<<16))
	require.Equal(t, "512 MiB", bytesText(512<<20))
}
