// Package report draws what a training run does, or what is predicted for it, as one HTML file: losses and speed over the
// steps, memory by component against its limit, the schedule of a step, what is computed again and what is paged. The
// pictures are inline SVG. The file loads nothing and has no program. It is readable at 400 pixels, in light and dark
// colours, and by keyboard and screen reader: each picture has a title and a table of its figures.
//
//	h := report.NewHistory("identity of the run")
//	h.Add(report.Step{Number: 1, Loss: 2.31, Tokens: 4096, Seconds: 0.8})
//	d := report.Document{Title: "Qwen3-0.6B", History: h, ...}
//	err := files.Replace("run.html", d.Write)
//
// The file also holds its [History] as JSON, from which a resumed run goes on: see [Read].
package report

import (
	"io"
	"time"

	"github.com/snug-ml/snug/meter"
)

// Document is a report.
type Document struct {
	Title    string // name of the model
	Status   Status
	State    string // a sentence about the status, such as "running, 120 of 400 steps"
	Facts    []Fact // model, technique, versions
	Settings []Fact
	Written  time.Time

	History *History // steps of a run, nil for a plan
	Steps   int      // steps of the whole run

	Bars     []Bar
	Memory   Table // of bytes by component
	Resident Resident
	Schedule Schedule
	Layers   Table // what is kept, computed again and paged
	Choices  Table

	Lines   []string // what is known of the data, such as how files were read
	Samples []Sample // the first samples, with what is learned of them
}

// Sample is a text of the data.
type Sample struct {
	Name   string
	Pieces []Piece
}

// Piece is a part of a text that is learned whole, or not at all.
type Piece struct {
	Text    string
	Learned bool
}

// Status says how far a run is.
type Status string

// The values of Status.
const (
	Planned Status = "plan"
	Running Status = "running"
	Done    Status = "done"
	Stopped Status = "stopped"
	Failed  Status = "failed"
)

// Fact is a name with its value.
type Fact struct{ Name, Value string }

// Table is a table of texts. The first column names the row.
type Table struct {
	Caption string
	Head    []string
	Rows    [][]string
	Text    bool // cells after the first are text, and not numbers
}

// Bar is memory at one time.
type Bar struct {
	Name  string
	Bytes meter.Bytes
	Whole int64 // bytes of what has no components, such as a process
	Limit int64 // 0: none
}

// Total returns the bytes of the bar.
func (b Bar) Total() int64 { return b.Bytes.Total() + b.Whole }

// Resident is what lies beside the resident bytes of the process in the picture of them; 0 where there is none.
type Resident struct{ Predicted, Limit int64 }

// Schedule is the memory of the device during a micro-batch.
type Schedule struct {
	Operations []Operation
	Peak       meter.Bytes // at the peak; all components but activations hold as much throughout
	Limit      int64       // 0: none
	Micros     int         // micro-batches of a step
}

// Operation is an operation of a schedule.
type Operation struct {
	Phase Phase
	Name  string // such as "backward of layer 3, mlp"
	Bytes int64  // of activations while it runs
}

// Phase is a kind of operation.
type Phase int

// The phases.
const (
	Forward Phase = iota
	Again         // a forward step that runs again
	Loss
	Backward
	Move // of values to and from the host or the disk, or their end
	Phases
)

// String returns the name, such as "forward again".
func (p Phase) String() string {
	if p < 0 || p >= Phases {
		return "?"
	}
	return [...]string{"forward", "forward again", "loss", "backward", "moved or dropped"}[p]
}

// Write writes the report as HTML.
func (d Document) Write(w io.Writer) error { return page().Execute(w, d.view()) }
