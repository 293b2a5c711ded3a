package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// MaxPoints is the largest number of points of a History.
const MaxPoints = 2000

// maxFile is the size in bytes above which a file is not read as a report.
const maxFile = 16 << 20

// Step is what a report shows of one step of a run.
type Step struct {
	Number   int     // counted from 1
	Loss     float64 // mean over the targets of the step; may be NaN or infinite
	Tokens   int
	Seconds  float64
	Resident int64 // resident bytes of the process after the step, 0 if unknown
	Skipped  bool  // the step updated nothing
}

// Point is a sequence of steps.
type Point struct {
	First, Last       int     // steps
	Mean, Least, Most float64 // of the losses that are finite, 0 if there are none
	Finite            int     // number of these losses
	Losses            int     // number of all losses
	Tokens            float64
	Seconds           float64
	Resident          int64 // the most
	Skipped           int   // number of steps that updated nothing
}

// pointNumbers is the number of numbers of a Point in JSON.
const pointNumbers = 11

// MarshalJSON writes the fields as an array, in their order.
func (p Point) MarshalJSON() ([]byte, error) {
	return json.Marshal([pointNumbers]float64{float64(p.First), float64(p.Last), p.Mean, p.Least, p.Most, float64(p.Finite), float64(p.Losses), p.Tokens, p.Seconds, float64(p.Resident), float64(p.Skipped)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Point) UnmarshalJSON(text []byte) error {
	var n []float64
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	if len(n) != pointNumbers {
		return fmt.Errorf("a point of %d numbers, want %d", len(n), pointNumbers)
	}
	for _, i := range []int{0, 1, 5, 6, 10} {
		if n[i] != math.Trunc(n[i]) || n[i] < 0 || n[i] > math.MaxInt32 {
			return fmt.Errorf("a point with the number %v, want a count", n[i])
		}
	}
	if !(n[9] >= 0 && n[9] < 1<<62) {
		return fmt.Errorf("a point with %v bytes", n[9])
	}
	for _, x := range n[7:9] {
		if !(x >= 0 && x <= maxSum) {
			return fmt.Errorf("a point with %v tokens in %v seconds", n[7], n[8])
		}
	}
	*p = Point{int(n[0]), int(n[1]), n[2], n[3], n[4], int(n[5]), int(n[6]), n[7], n[8], int64(n[9]), int(n[10])}
	if !(finite(p.Least) && p.Least <= p.Mean && p.Mean <= p.Most && finite(p.Most)) {
		return fmt.Errorf("a point with the losses %v, %v and %v", p.Least, p.Mean, p.Most)
	}
	return nil
}

// maxSum is the largest number of tokens or of seconds of a Point, for which sums over a History are exact enough.
const maxSum = 1 << 60

// join adds later steps to a point.
func (p *Point) join(q Point) {
	switch {
	case q.Finite == 0:
	case p.Finite == 0:
		p.Mean, p.Least, p.Most = q.Mean, q.Least, q.Most
	default:
		p.Mean += (q.Mean - p.Mean) * float64(q.Finite) / float64(p.Finite+q.Finite)
		p.Least, p.Most = min(p.Least, q.Least), max(p.Most, q.Most)
	}
	p.Last, p.Finite, p.Losses = q.Last, p.Finite+q.Finite, p.Losses+q.Losses
	p.Tokens, p.Seconds, p.Skipped = p.Tokens+q.Tokens, p.Seconds+q.Seconds, p.Skipped+q.Skipped
	p.Resident = max(p.Resident, q.Resident)
}

// Evaluation is a loss on held-out data.
type Evaluation struct {
	Step int     `json:"step"` // steps done before it
	Loss float64 `json:"loss"`
}

// History is what happened in the steps of a run. It has at most MaxPoints points, of about 90 bytes: where a run has
// more steps, a point stands for Every of them.
type History struct {
	Run     string       `json:"run"` // identity of the run
	Every   int          `json:"every"`
	Points  []Point      `json:"points"`
	HeldOut []Evaluation `json:"held_out"`
	Resumed []int        `json:"resumed"` // steps after which the run was resumed
}

// NewHistory returns the History of a run without steps.
func NewHistory(run string) *History {
	return &History{Run: run, Every: 1, Points: make([]Point, 0, MaxPoints)}
}

// Add adds a step, which comes after all others.
func (h *History) Add(s Step) {
	p := Point{First: s.Number, Last: s.Number, Losses: 1, Tokens: float64(s.Tokens), Seconds: s.Seconds, Resident: s.Resident}
	if finite(s.Loss) {
		p.Mean, p.Least, p.Most, p.Finite = s.Loss, s.Loss, s.Loss, 1
	}
	if s.Skipped {
		p.Skipped = 1
	}
	n := len(h.Points)
	if n > 0 && h.same(h.Points[n-1], p) {
		h.Points[n-1].join(p)
		return
	}
	for len(h.Points) >= MaxPoints {
		h.halve()
	}
	h.Points = append(h.Points, p)
}

// same reports whether two sequences of steps are a part of one point.
func (h *History) same(p, q Point) bool { return (p.First-1)/h.Every == (q.First-1)/h.Every }

// halve makes the points stand for twice as many steps.
func (h *History) halve() {
	h.Every *= 2
	half := h.Points[:0]
	for _, p := range h.Points {
		if n := len(half); n > 0 && h.same(half[n-1], p) {
			half[n-1].join(p)
		} else {
			half = append(half, p)
		}
	}
	h.Points = half
}

// Evaluate adds a loss on held-out data after a number of steps. A loss that is not finite is not added. Of more than
// MaxPoints losses every other one is forgotten.
func (h *History) Evaluate(step int, loss float64) {
	if !finite(loss) {
		return
	}
	if len(h.HeldOut) >= MaxPoints {
		for i := range MaxPoints / 2 {
			h.HeldOut[i] = h.HeldOut[2*i+1]
		}
		h.HeldOut = h.HeldOut[:MaxPoints/2]
	}
	h.HeldOut = append(h.HeldOut, Evaluation{step, loss})
}

// Resume makes h the history of a run that goes on after a step. What came later is forgotten; so is a point that has
// steps before and after it.
func (h *History) Resume(step int) {
	for n := len(h.Points); n > 0 && h.Points[n-1].Last > step; n-- {
		h.Points = h.Points[:n-1]
	}
	for n := len(h.HeldOut); n > 0 && h.HeldOut[n-1].Step > step; n-- {
		h.HeldOut = h.HeldOut[:n-1]
	}
	for n := len(h.Resumed); n > 0 && h.Resumed[n-1] >= step; n-- {
		h.Resumed = h.Resumed[:n-1]
	}
	h.Resumed = append(h.Resumed, step)
	if n := len(h.Resumed); n > maxResumed {
		h.Resumed = h.Resumed[n-maxResumed:]
	}
}

// maxResumed is how many of the last resumes are kept.
const maxResumed = 100

// check returns an error unless the history could be that of a run.
func (h *History) check() error {
	if h.Every < 1 || h.Every > 1<<30 || len(h.Points) > MaxPoints || len(h.Resumed) > maxResumed || len(h.HeldOut) > MaxPoints {
		return fmt.Errorf("%d points of %d steps", len(h.Points), h.Every)
	}
	last := 0
	for _, p := range h.Points {
		if p.First <= last || p.Last < p.First || p.Finite > p.Losses {
			return fmt.Errorf("steps %d to %d after step %d", p.First, p.Last, last)
		}
		last = p.Last
	}
	last = 0
	for _, e := range h.HeldOut {
		if e.Step < last || e.Step > math.MaxInt32 || !finite(e.Loss) {
			return fmt.Errorf("a held-out loss of %v after step %d", e.Loss, e.Step)
		}
		last = e.Step
	}
	for _, step := range h.Resumed {
		if step < 0 || step > math.MaxInt32 {
			return fmt.Errorf("resumed after step %d", step)
		}
	}
	return nil
}

// finite reports whether a loss can be drawn: differences and means of such numbers do not overflow.
func finite(x float64) bool { return math.Abs(x) <= math.MaxFloat32 }

// The data of a report is JSON between these two.
const (
	dataBegin = `<script type="application/json" id="snug-report">`
	dataEnd   = `</script>`
	mark      = `<meta name="generator" content="snug">`
)

// Read returns the history in the file of a report: nil if there is no file, an empty one in the report of a plan. The
// error for a file that is not a report wraps [snug.ErrConfig], and [snug.ErrCorrupt] for a damaged report.
func Read(path string) (*History, error) {
	f, size, err := files.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%s is a link to nothing: %w", path, snug.ErrConfig)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size == 0 { // made by mktemp, for example
		return nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile || !bytes.Contains(text[:min(len(text), 1024)], []byte(mark)) {
		return nil, fmt.Errorf("%s is not a report of snug, and is not overwritten: %w", path, snug.ErrConfig)
	}
	_, after, found := bytes.Cut(text, []byte(dataBegin))
	data, _, ended := bytes.Cut(after, []byte(dataEnd))
	if !found || !ended {
		return nil, fmt.Errorf("%s is a damaged report, without its data: %w", path, snug.ErrCorrupt)
	}
	var file struct {
		Version int `json:"version"`
		*History
	}
	file.History = NewHistory("")
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s is a damaged report: %w: %w", path, err, snug.ErrCorrupt)
	}
	if file.Version != 1 {
		return nil, fmt.Errorf("%s is a report of version %d, want 1: %w", path, file.Version, snug.ErrCorrupt)
	}
	if err := file.check(); err != nil {
		return nil, fmt.Errorf("%s is a damaged report: %w: %w", path, err, snug.ErrCorrupt)
	}
	return file.History, nil
}

// data is the JSON of a report, for a template.
func (h *History) data() any {
	if h == nil {
		h = &History{Every: 1}
	}
	return struct {
		Version int `json:"version"`
		*History
	}{1, h}
}
