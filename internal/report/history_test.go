package report

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// run returns the history of some steps, with a loss that falls.
func run(steps int) *History {
	h := NewHistory("run")
	for n := 1; n <= steps; n++ {
		h.Add(Step{Number: n, Loss: 1 + 3/math.Sqrt(float64(n)), Tokens: 100, Seconds: 0.5, Resident: int64(n) << 10})
	}
	return h
}

// TestHistory: however many steps there are, the points are few, and their sums are those of all steps.
func TestHistory(t *testing.T) {
	for _, steps := range []int{0, 1, 2, MaxPoints, MaxPoints + 1, 3*MaxPoints + 7, 100_000} {
		h := run(steps)
		require.LessOrEqual(t, len(h.Points), MaxPoints)
		require.GreaterOrEqual(t, len(h.Points), min(steps, MaxPoints/2-1))
		tokens, seconds, sum, losses, last := 0.0, 0.0, 0.0, 0, 0
		for _, p := range h.Points {
			require.Equal(t, last+1, p.First)
			require.LessOrEqual(t, p.Least, p.Mean)
			require.GreaterOrEqual(t, p.Most, p.Mean)
			require.Equal(t, int64(p.Last)<<10, p.Resident, "the most")
			last, tokens, seconds, losses, sum = p.Last, tokens+p.Tokens, seconds+p.Seconds, losses+p.Losses, sum+p.Mean*float64(p.Finite)
		}
		require.Equal(t, steps, last)
		require.Equal(t, steps, losses)
		require.Equal(t, 100*float64(steps), tokens)
		require.Equal(t, float64(steps)/2, seconds)
		want := 0.0
		for n := 1; n <= steps; n++ {
			want += 1 + 3/math.Sqrt(float64(n))
		}
		require.InDelta(t, want, sum, 1e-9*want+1e-12)
		require.NoError(t, h.check())
	}
}

// TestHistoryNotFinite: losses that are not numbers are counted, and do not enter the mean.
func TestHistoryNotFinite(t *testing.T) {
	h := NewHistory("")
	h.Every = 4
	for n, loss := range []float64{math.NaN(), 2, math.Inf(1), 4, math.NaN(), math.NaN()} {
		h.Add(Step{Number: n + 1, Loss: loss, Skipped: n == 0})
	}
	require.Equal(t, []Point{{First: 1, Last: 4, Mean: 3, Least: 2, Most: 4, Finite: 2, Losses: 4, Skipped: 1}, {First: 5, Last: 6, Losses: 2}}, h.Points)
	h.Evaluate(6, math.NaN())
	require.Empty(t, h.HeldOut)
}

// TestResume: a run that goes on after a step has the history of one that was not interrupted.
func TestResume(t *testing.T) {
	h := run(120)
	h.Evaluate(0, 4)
	h.Evaluate(120, 2)
	h.Resume(100)
	require.Equal(t, []int{100}, h.Resumed)
	require.Equal(t, []Evaluation{{0, 4}}, h.HeldOut)
	for n := 101; n <= 120; n++ {
		h.Add(Step{Number: n, Loss: 1 + 3/math.Sqrt(float64(n)), Tokens: 100, Seconds: 0.5, Resident: int64(n) << 10})
	}
	require.Equal(t, run(120).Points, h.Points)
	h.Resume(120)
	h.Resume(110)
	require.Equal(t, []int{100, 110}, h.Resumed, "the later one is undone")

	long := run(5000) // points of 4 steps
	long.Resume(4002)
	last := long.Points[len(long.Points)-1]
	require.Equal(t, 4000, last.Last, "a point with steps on both sides is left out")
	for range 2 * maxResumed {
		long.Resume(4000)
	}
	require.Len(t, long.Resumed, 1)
	for n := range 2 * maxResumed {
		long.Resume(4001 + n)
	}
	require.NoError(t, long.check())
}

// TestRead: what Write writes is read, to the bit; what is no report, or a damaged one, is an error.
func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.html")
	h, err := Read(path)
	require.NoError(t, err)
	require.Nil(t, h)
	write := func(text []byte) { require.NoError(t, os.WriteFile(path, text, 0o600)) }
	h = run(5000)
	h.Run = `</script><!-- & "`
	h.Evaluate(0, 4.25)
	h.Resume(4999)
	var b bytes.Buffer
	require.NoError(t, Document{Title: "model", History: h}.Write(&b))
	write(b.Bytes())
	got, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, h, got)
	require.Less(t, b.Len(), 1<<20, "the size of the file is limited")

	var p bytes.Buffer
	require.NoError(t, Document{Title: "plan"}.Write(&p))
	write(p.Bytes())
	got, err = Read(path)
	require.NoError(t, err)
	require.Empty(t, got.Points)
	write(nil)
	got, err = Read(path)
	require.NoError(t, err)
	require.Nil(t, got)

	write([]byte("<!DOCTYPE html><p>thesis"))
	_, err = Read(path)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "is not a report of snug, and is not overwritten")
	whole := b.String()
	at := strings.Index(whole, dataBegin)
	for _, damaged := range []string{
		whole[:at], whole[:len(whole)-40], strings.Replace(whole, `"points":[[1,`, `"points":[[-1,`, 1), strings.Replace(whole, `"points":[[1,`, `"points":[[1,1,`, 1),
		strings.Replace(whole, `"points":[[1,`, `"points":[[9,`, 1), strings.Replace(whole, `"every":4`, `"every":0`, 1), strings.Replace(whole, `"points":[[1,`, `"points":[[1e300,`, 1),
		strings.Replace(whole, `"version":1`, `"version":2`, 1), strings.Replace(whole, `"points":[[`, `"points":[{`, 1),
		strings.Replace(whole, `"resumed":[`, `"resumed":[-1,`, 1), strings.Replace(whole, `"held_out":[{"step":`, `"held_out":[{"step":-1`, 1),
	} {
		require.True(t, damaged != whole) // without printing a page
		write([]byte(damaged))
		_, err = Read(path)
		require.ErrorIs(t, err, snug.ErrCorrupt)
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err = Read(path)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// FuzzPoint: no text is read as a point that the charts cannot draw.
func FuzzPoint(f *testing.F) {
	text, err := json.Marshal(run(3).Points[2])
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`[1,2,3]`))
	f.Add([]byte(`[1,1,-1e308,-1e308,1e308,1,1,1,1,1,0]`))
	f.Add([]byte(`[1,1,1,1,1,1,1,1e300,1e-300,1,0]`))
	f.Add([]byte(`[1,1,1,1,1,1,1,1e9,5e-324,1,0]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p Point
		if json.Unmarshal(text, &p) != nil {
			return
		}
		h := NewHistory("")
		if h.Points = append(h.Points, p); h.check() != nil {
			return
		}
		var b bytes.Buffer
		require.NoError(t, Document{Title: "x", History: h}.Write(&b))
		require.False(t, slices.ContainsFunc([]string{`"NaN`, `"M NaN`, "Inf%"}, func(s string) bool { return strings.Contains(b.String(), s) }))
	})
}

func TestHeldOutThinned(t *testing.T) {
	h := NewHistory("")
	for i := range MaxPoints + 1 {
		h.Evaluate(i, float64(i))
	}
	h.Evaluate(MaxPoints+1, math.Inf(1))
	require.NoError(t, h.check())
	require.Len(t, h.HeldOut, MaxPoints/2+1)
	require.Equal(t, Evaluation{1, 1}, h.HeldOut[0])
	require.Equal(t, Evaluation{MaxPoints, MaxPoints}, h.HeldOut[MaxPoints/2])
}
